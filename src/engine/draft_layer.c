/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft_layer.c: what drafters with a layer of their own share.
 *
 * Row i holds token i + 1 beside the state of token i; its KV has index i. Rows with known tokens
 * take the target's states, so that after acceptance nothing of the draft's own approximation
 * stays. Catching up writes their KV, for which one layer needs none of its attention, and keeps
 * the target's state of the last row: whether a draft is wanted is not known yet. The first round
 * runs the layer over that row; the state that it gives is fed back for the next.
 */
#include <string.h>

#include "core/status.h"
#include "engine/session.h"

plait_status plait_draft_layer_catch_up(plait_session *s, int32_t num, const float *states)
{
    const int64_t hidden = s->pass->model->config->hidden_size;
    PLAIT_TRY(plait_session_begin(s, s->draft, num));
    for (int32_t i = 0, row = 0; i < num; i++) {
        const plait_sequence *q = &s->sequences[s->tables[i]];
        const size_t count = (size_t)s->counts[i];
        memcpy(s->ids + row, q->ids + s->starts[i] + 1, count * sizeof *s->ids);
        memcpy(s->states + row * hidden, states + q->row * hidden,
               count * (size_t)hidden * sizeof(float));
        row += s->counts[i];
    }
    PLAIT_TRY(s->drafter->write(s, s->ids, s->states));
    for (int32_t i = 0, row = 0; i < num; i++) {
        row += s->counts[i];
        plait_draft_keep_state(s, s->tables[i], s->states + (row - 1) * hidden);
    }
    return PLAIT_OK;
}

/* One row each: the last token, known or drafted, beside the state before it. */
plait_status plait_draft_layer_advance(plait_session *s, int32_t num, const int32_t *list,
                                       int32_t round)
{
    const int64_t hidden = s->pass->model->config->hidden_size;
    const int32_t n = plait_draft_list_rows(s, num, list, round, 1);
    if (n == 0)
        return PLAIT_OK;
    PLAIT_TRY(plait_session_begin(s, s->draft, n));
    for (int32_t i = 0; i < n; i++) {
        const plait_sequence *q = &s->sequences[s->tables[i]];
        s->ids[i] = plait_draft_last_token(q);
        memcpy(s->states + i * hidden, q->state, (size_t)hidden * sizeof(float));
    }
    PLAIT_TRY(s->drafter->run(s, s->ids, s->states));
    for (int32_t i = 0; i < n; i++)
        plait_draft_keep_state(s, s->tables[i], s->pass->hidden + i * hidden);
    return PLAIT_OK;
}
