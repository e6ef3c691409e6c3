/* SPDX-License-Identifier: Apache-2.0 */
/* draft_mtp.c: proposals of the MTP layer, which takes the target's states after its last norm. */
#include "engine/session.h"

static plait_status run(plait_session *s, const int32_t *ids, const float *states)
{
    return plait_pass_mtp(s->pass, s->draft, ids, states);
}

static plait_status write(plait_session *s, const int32_t *ids, const float *states)
{
    return plait_pass_mtp_write(s->pass, s->draft, ids, states);
}

static plait_status catch_up(plait_session *s, int32_t num)
{
    return plait_draft_layer_catch_up(s, num, s->pass->hidden);
}

const plait_drafter plait_drafter_mtp = {
    .name = "mtp",
    .has_kv = 1,
    .catch_up = catch_up,
    .advance = plait_draft_layer_advance,
    .run = run,
    .write = write,
};
