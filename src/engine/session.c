/* SPDX-License-Identifier: Apache-2.0 */
/* session.c: what a step of one rank needs: scratch memory, pages and plans, choices. */
#include "engine/session.h"

#include <string.h>

#include "core/status.h"

static int32_t hidden_size(const plait_session *s)
{
    return s->pass->model->config->hidden_size;
}

static void lay_out(plait_arena *arena, plait_session *s)
{
    const size_t rows = (size_t)s->pass->max_rows, hidden = (size_t)hidden_size(s);
    const size_t length = (size_t)s->pass->model->config->max_position;
    s->ids = plait_arena_take(arena, rows, sizeof *s->ids);
    s->chosen = plait_arena_take(arena, rows, sizeof *s->chosen);
    s->tables = plait_arena_take(arena, rows, sizeof *s->tables);
    s->counts = plait_arena_take(arena, rows, sizeof *s->counts);
    s->starts = plait_arena_take(arena, rows, sizeof *s->starts);
    s->is_prompt = plait_arena_take(arena, rows, sizeof *s->is_prompt);
    s->states = plait_arena_take(arena, rows * hidden, sizeof *s->states);
    s->text.text =
        plait_arena_take(arena, plait_reader_room(s->tokenizer, PLAIT_MAX_SPEC_TOKENS + 1), 1);
    s->text.scratch = plait_arena_take(arena, plait_tokenizer_max_push(s->tokenizer), 1);
    for (int32_t i = 0; i < PLAIT_SESSION_BATCH; i++) {
        plait_sequence *q = &s->sequences[i];
        q->ids = plait_arena_take(arena, length, sizeof *q->ids);
        q->state = plait_arena_take(arena, hidden, sizeof *q->state);
    }
    plait_sample_lay_out(arena, s);
}

plait_status plait_session_open(plait_session *s)
{
    s->max_rows = s->pass->max_rows;
    s->allocator = s->pass->attend->options.allocator;
    lay_out(&s->arena, s);
    PLAIT_TRY(plait_arena_reserve(&s->arena, s->allocator, "sequences and rows of a step"));
    lay_out(&s->arena, s);
    return s->drafter && s->drafter->open ? s->drafter->open(s) : PLAIT_OK;
}

void plait_session_close(plait_session *s)
{
    if (s->drafter && s->drafter->close)
        s->drafter->close(s);
    plait_arena_free(&s->arena, s->allocator);
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
