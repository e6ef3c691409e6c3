/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft.c: proposals of the MTP layer and of the oracle.
 *
 * MTP row i holds token i + 1 beside the state of token i; its KV has index i. Rows with known
 * tokens take the target's states (catch up), so that after acceptance nothing of the draft's own
 * approximation stays. The state of the last such row gives the first draft and is fed back for
 * the next.
 */
#include <string.h>

#include "core/status.h"
#include "engine/session.h"

static int32_t hidden_size(const plait_session *s)
{
    return s->pass->model->config->hidden_size;
}

static void keep_state(plait_session *s, int32_t index, int32_t row)
{
    const int64_t hidden = hidden_size(s);
    memcpy(s->sequences[index].state, s->pass->hidden + row * hidden,
           (size_t)hidden * sizeof(float));
}

plait_status plait_draft_catch_up(plait_session *s, int32_t num)
{
    const int64_t hidden = hidden_size(s);
    if (s->kind != PLAIT_DRAFT_MTP)
        return PLAIT_OK;
    PLAIT_TRY(plait_session_begin(s, s->draft, num));
    for (int32_t i = 0, row = 0; i < num; i++) {
        const plait_sequence *q = &s->sequences[s->tables[i]];
        const size_t count = (size_t)s->counts[i];
        memcpy(s->ids + row, q->ids + s->starts[i] + 1, count * sizeof *s->ids);
        memcpy(s->states + row * hidden, s->pass->hidden + q->row * hidden,
               count * (size_t)hidden * sizeof(float));
        row += s->counts[i];
    }
    PLAIT_TRY(plait_pass_mtp(s->pass, s->draft, s->ids, s->states));
    for (int32_t i = 0, row = 0; i < num; i++) {
        row += s->counts[i];
        keep_state(s, s->tables[i], row - 1);
    }
    return PLAIT_OK;
}

/* Draft number `round` of the sequences that have room for it: chosen from their states. */
static plait_status choose_drafts(plait_session *s, int32_t num, const int32_t *list, int32_t round,
                                  int32_t *taken)
{
    const int64_t hidden = hidden_size(s);
    int32_t n = 0;
    for (int32_t i = 0; i < num; i++) {
        const plait_sequence *q = &s->sequences[list[i]];
        if (plait_session_room(s, q) <= round)
            continue;
        memcpy(s->states + n * hidden, q->state, (size_t)hidden * sizeof(float));
        s->tables[n++] = list[i];
    }
    *taken = n;
    if (n == 0)
        return PLAIT_OK;
    PLAIT_TRY(plait_session_choose(s, s->states, n, s->chosen));
    for (int32_t i = 0; i < n; i++) {
        plait_sequence *q = &s->sequences[s->tables[i]];
        q->drafts[q->num_drafts++] = s->chosen[i];
    }
    return PLAIT_OK;
}

/* The sequences with room for draft number `round`, one row each, at the index of the token that
   the row holds (target) or one before it (draft layer: `behind` 1). */
static int32_t list_rows(plait_session *s, int32_t num, const int32_t *list, int32_t round,
                         int32_t behind)
{
    int32_t n = 0;
    for (int32_t i = 0; i < num; i++) {
        const plait_sequence *q = &s->sequences[list[i]];
        if (plait_session_room(s, q) <= round)
            continue;
        s->tables[n] = list[i];
        s->starts[n] = q->num_known - 1 + q->num_drafts - behind;
        s->is_prompt[n] = 0;
        s->counts[n++] = 1;
    }
    return n;
}

static int32_t last_token(const plait_sequence *q)
{
    return q->num_drafts ? q->drafts[q->num_drafts - 1] : q->ids[q->num_known - 1];
}

/* One row each: the last draft beside the state that gave it. */
static plait_status advance_mtp(plait_session *s, int32_t num, const int32_t *list, int32_t round)
{
    const int64_t hidden = hidden_size(s);
    const int32_t n = list_rows(s, num, list, round, 1);
    if (n == 0)
        return PLAIT_OK;
    PLAIT_TRY(plait_session_begin(s, s->draft, n));
    for (int32_t i = 0; i < n; i++) {
        const plait_sequence *q = &s->sequences[s->tables[i]];
        s->ids[i] = last_token(q);
        memcpy(s->states + i * hidden, q->state, (size_t)hidden * sizeof(float));
    }
    PLAIT_TRY(plait_pass_mtp(s->pass, s->draft, s->ids, s->states));
    for (int32_t i = 0; i < n; i++)
        keep_state(s, s->tables[i], i);
    return PLAIT_OK;
}

/* One row each of the target itself: the last known or drafted token. The rows' KV is written anew
   when they are verified. */
static plait_status advance_oracle(plait_session *s, int32_t num, const int32_t *list,
                                   int32_t round)
{
    const int32_t n = list_rows(s, num, list, round, 0);
    if (n == 0)
        return PLAIT_OK;
    PLAIT_TRY(plait_session_begin(s, s->target, n));
    for (int32_t i = 0; i < n; i++)
        s->ids[i] = last_token(&s->sequences[s->tables[i]]);
    PLAIT_TRY(plait_pass_target(s->pass, s->target, s->ids));
    for (int32_t i = 0; i < n; i++)
        keep_state(s, s->tables[i], i);
    return PLAIT_OK;
}

plait_status plait_draft_propose(plait_session *s, int32_t num, const int32_t *list)
{
    for (int32_t i = 0; i < num; i++)
        s->sequences[list[i]].num_drafts = 0;
    for (int32_t round = 0; s->kind != PLAIT_DRAFT_NONE && round < s->spec_tokens; round++) {
        int32_t taken;
        if (s->kind == PLAIT_DRAFT_ORACLE)
            PLAIT_TRY(advance_oracle(s, num, list, round));
        else if (round > 0)
            PLAIT_TRY(advance_mtp(s, num, list, round));
        PLAIT_TRY(choose_drafts(s, num, list, round, &taken));
        if (taken == 0)
            break;
    }
    return PLAIT_OK;
}
