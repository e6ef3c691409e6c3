/* SPDX-License-Identifier: Apache-2.0 */
/* draft.c: the table of drafters, and the rounds in which states give tokens. */
#include "engine/draft.h"

#include <string.h>

#include "core/status.h"
#include "engine/session.h"

static const plait_drafter *const drafters[] = {
    [PLAIT_DRAFT_MTP] = &plait_drafter_mtp,
    [PLAIT_DRAFT_ORACLE] = &plait_drafter_oracle,
    [PLAIT_DRAFT_NGRAM] = &plait_drafter_ngram,
    [PLAIT_DRAFT_EAGLE3] = &plait_drafter_eagle3,
};

const plait_drafter *plait_drafter_of(plait_draft_kind kind)
{
    const size_t i = (size_t)kind;
    return i < sizeof drafters / sizeof *drafters ? drafters[i] : NULL;
}

static int32_t hidden_size(const plait_session *s)
{
    return s->pass->model->config->hidden_size;
}

/* ---- for drafters ---------------------------------------------------------------------------- */

void plait_draft_keep_state(plait_session *s, int32_t place, const float *state)
{
    memcpy(s->sequences[place].state, state, (size_t)hidden_size(s) * sizeof(float));
}

int32_t plait_draft_list_rows(plait_session *s, int32_t num, const int32_t *list, int32_t round,
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

int32_t plait_draft_last_token(const plait_sequence *q)
{
    return q->num_drafts ? q->drafts[q->num_drafts - 1] : q->ids[q->num_known - 1];
}

/* ---- rounds ---------------------------------------------------------------------------------- */

plait_status plait_draft_catch_up(plait_session *s, int32_t num)
{
    return s->drafter && s->drafter->catch_up ? s->drafter->catch_up(s, num) : PLAIT_OK;
}

/* Draft number `round` of the sequences that have room for it: chosen from their states. */
static plait_status choose_drafts(plait_session *s, int32_t num, const int32_t *list, int32_t round,
                                  int32_t *taken)
{
    const int64_t hidden = hidden_size(s);
    int32_t n = 0;
    for (int32_t i = 0; i < num; i++) {
        plait_sequence *q = &s->sequences[list[i]];
        if (plait_session_room(s, q) <= round)
            continue;
        memcpy(s->states + n * hidden, q->state, (size_t)hidden * sizeof(float));
        s->sampler.picks[n] = (plait_pick){q, q->num_drafts, -1};
        s->tables[n++] = list[i];
    }
    *taken = n;
    if (n == 0)
        return PLAIT_OK;
    PLAIT_TRY(
        plait_session_choose(s, s->drafter->logits, s->states, n, s->sampler.picks, s->chosen));
    for (int32_t i = 0; i < n; i++) {
        plait_sequence *q = &s->sequences[s->tables[i]];
        q->drafts[q->num_drafts++] = s->chosen[i];
    }
    return PLAIT_OK;
}

plait_status plait_draft_propose(plait_session *s, int32_t num, const int32_t *list)
{
    for (int32_t i = 0; i < num; i++)
        s->sequences[list[i]].num_drafts = 0;
    s->sampler.num_draft_rows = 0;
    if (!s->drafter)
        return PLAIT_OK;
    if (s->drafter->propose)
        return s->drafter->propose(s, num, list);
    for (int32_t round = 0; round < s->spec_tokens; round++) {
        int32_t taken;
        PLAIT_TRY(s->drafter->advance(s, num, list, round));
        PLAIT_TRY(choose_drafts(s, num, list, round, &taken));
        if (taken == 0)
            break;
    }
    return PLAIT_OK;
}
