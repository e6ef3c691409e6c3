/* SPDX-License-Identifier: Apache-2.0 */
/* session.c: what a step of one rank needs: scratch memory, pages and plans, choices. */
#include "engine/session.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"

static int32_t hidden_size(const plait_session *s)
{
    return s->pass->model->config->hidden_size;
}

plait_status plait_session_open(plait_session *s)
{
    const size_t rows = (size_t)s->pass->max_rows, hidden = (size_t)hidden_size(s);
    const size_t length = (size_t)s->pass->model->config->max_position;
    s->max_rows = s->pass->max_rows;
    s->ids = malloc(rows * sizeof *s->ids);
    s->chosen = malloc(rows * sizeof *s->chosen);
    s->tables = malloc(rows * sizeof *s->tables);
    s->counts = malloc(rows * sizeof *s->counts);
    s->starts = malloc(rows * sizeof *s->starts);
    s->is_prompt = malloc(rows * sizeof *s->is_prompt);
    s->states = malloc(rows * hidden * sizeof *s->states);
    s->text.text = malloc(plait_reader_room(s->tokenizer, PLAIT_MAX_SPEC_TOKENS + 1));
    s->text.scratch = malloc(plait_tokenizer_max_push(s->tokenizer));
    int ok = s->text.text && s->text.scratch && s->ids && s->chosen && s->tables && s->counts &&
             s->starts && s->is_prompt && s->states;
    for (int32_t i = 0; ok && i < PLAIT_SESSION_BATCH; i++) {
        plait_sequence *q = &s->sequences[i];
        q->ids = malloc(length * sizeof *q->ids);
        q->state = malloc(hidden * sizeof *q->state);
        ok = q->ids && q->state;
    }
    if (!ok) {
        plait_session_close(s);
        return plait_fail(PLAIT_E_NOMEM, "no memory for a session");
    }
    PLAIT_TRY(plait_sample_open(s));
    return s->drafter && s->drafter->open ? s->drafter->open(s) : PLAIT_OK;
}

void plait_session_close(plait_session *s)
{
    if (s->drafter && s->drafter->close)
        s->drafter->close(s);
    plait_sample_close(s);
    void *const all[] = {s->ids,       s->chosen, s->tables,    s->counts,      s->starts,
                         s->is_prompt, s->states, s->text.text, s->text.scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    for (int32_t i = 0; i < PLAIT_SESSION_BATCH; i++) {
        free(s->sequences[i].ids);
        free(s->sequences[i].state);
    }
    memset(s, 0, sizeof *s);
}

plait_status plait_session_begin(plait_session *s, plait_kv_group *group, int32_t num_seqs)
{
    for (int32_t i = 0; i < num_seqs; i++)
        PLAIT_TRY(plait_kv_resize(group, s->tables[i], s->starts[i] + s->counts[i]));
    return plait_attend_begin(group == s->draft ? s->draft_attend : s->pass->attend, group,
                              num_seqs, s->tables, s->starts, s->counts, s->is_prompt);
}

int32_t plait_session_most(const plait_session *s, const plait_sequence *q)
{
    if (!s->drafter)
        return 0;
    const int64_t room = q->limit - q->num_known - 1;
    return room < s->spec_tokens ? (room > 0 ? (int32_t)room : 0) : s->spec_tokens;
}

int32_t plait_session_room(const plait_session *s, const plait_sequence *q)
{
    const int32_t wanted = s->spec_auto ? q->counts.wanted : s->spec_tokens;
    const int32_t most = plait_session_most(s, q);
    return most < wanted ? most : wanted;
}
