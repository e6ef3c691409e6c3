/* SPDX-License-Identifier: Apache-2.0 */
/* draft_oracle.c: for tests, the target itself decodes ahead and is rolled back. */
#include "core/status.h"
#include "engine/session.h"

/* One row each of the target: the last known or drafted token. The rows' KV is written anew when
   they are verified. */
static plait_status advance(plait_session *s, int32_t num, const int32_t *list, int32_t round)
{
    const int32_t n = plait_draft_list_rows(s, num, list, round, 0);
    if (n == 0)
        return PLAIT_OK;
    PLAIT_TRY(plait_session_begin(s, s->target, n));
    for (int32_t i = 0; i < n; i++)
        s->ids[i] = plait_draft_last_token(&s->sequences[s->tables[i]]);
    PLAIT_TRY(plait_pass_target(s->pass, s->target, s->ids));
    for (int32_t i = 0; i < n; i++)
        plait_draft_keep_state(s, s->tables[i],
                               s->pass->hidden + (int64_t)i * s->pass->model->config->hidden_size);
    return PLAIT_OK;
}

const plait_drafter plait_drafter_oracle = {.name = "oracle", .advance = advance};
