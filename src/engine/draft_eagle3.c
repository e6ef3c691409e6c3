/* SPDX-License-Identifier: Apache-2.0 */
/* draft_eagle3.c: proposals of an EAGLE-3 head, which takes states of three of the target's layers.
 */
#include "core/status.h"
#include "engine/pass_eagle3.h"
#include "engine/session.h"

static plait_status run(plait_session *s, const int32_t *ids, const float *states)
{
    return plait_pass_eagle3_run(s->pass, s->draft, ids, states);
}

static plait_status write(plait_session *s, const int32_t *ids, const float *states)
{
    return plait_pass_eagle3_write(s->pass, s->draft, ids, states);
}

static plait_status catch_up(plait_session *s, int32_t num)
{
    PLAIT_TRY(plait_pass_eagle3_fuse(s->pass));
    return plait_draft_layer_catch_up(s, num, s->pass->eagle3->fused);
}

static plait_status logits(plait_session *s, const float *states, int32_t n)
{
    return plait_pass_eagle3_logits(s->pass, states, n);
}

const plait_drafter plait_drafter_eagle3 = {
    .name = "eagle3",
    .has_kv = 1,
    .catch_up = catch_up,
    .advance = plait_draft_layer_advance,
    .run = run,
    .write = write,
    .logits = logits,
};
