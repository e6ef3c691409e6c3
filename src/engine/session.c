/* SPDX-License-Identifier: Apache-2.0 */
/* session.c: prefill in chunks, then steps of drafting and verification. */
#include "engine/session.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <plait/spec.h>

#include "core/status.h"

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int32_t hidden_size(const plait_session *s)
{
    return s->pass->model->config->hidden_size;
}

plait_status plait_session_open(plait_session *s)
{
    const size_t rows = (size_t)s->pass->max_rows;
    s->ids = malloc(rows * sizeof *s->ids);
    s->chosen = malloc(rows * sizeof *s->chosen);
    s->tables = malloc(rows * sizeof *s->tables);
    s->counts = malloc(rows * sizeof *s->counts);
    s->starts = malloc(rows * sizeof *s->starts);
    s->states = malloc(rows * (size_t)hidden_size(s) * sizeof *s->states);
    if (s->ids && s->chosen && s->tables && s->counts && s->starts && s->states)
        return PLAIT_OK;
    plait_session_close(s);
    return plait_fail(PLAIT_E_NOMEM, "no memory for a session");
}

void plait_session_close(plait_session *s)
{
    free(s->ids);
    free(s->chosen);
    free(s->tables);
    free(s->counts);
    free(s->starts);
    free(s->states);
    s->ids = s->chosen = s->tables = s->counts = NULL;
    s->starts = NULL;
    s->states = NULL;
}

plait_status plait_session_begin(plait_session *s, plait_kv_group *group, int32_t num_seqs,
                                 int32_t is_prompt)
{
    for (int32_t i = 0; i < num_seqs; i++)
        PLAIT_TRY(plait_kv_resize(group, s->tables[i], s->starts[i] + s->counts[i]));
    return plait_attend_begin(s->pass->attend, group, num_seqs, s->tables, s->starts, s->counts,
                              is_prompt);
}

plait_status plait_session_choose(plait_session *s, const float *states, int32_t n, int32_t *chosen)
{
    const int32_t vocab = s->pass->model->config->vocab_size, step = s->pass->max_logit_rows;
    for (int32_t at = 0; at < n; at += step) {
        const int32_t count = n - at < step ? n - at : step;
        PLAIT_TRY(plait_pass_logits(s->pass, states + (int64_t)at * hidden_size(s), count));
        for (int32_t i = 0; i < count; i++) {
            chosen[at + i] = plait_spec_argmax(s->pass->logits + (int64_t)i * vocab, vocab);
            if (chosen[at + i] < 0)
                return plait_fail(PLAIT_E_FORMAT,
                                  "the logits of row %d are not finite: the model's weights or the "
                                  "compute dtype do not suit it",
                                  (int)(at + i));
        }
    }
    return PLAIT_OK;
}

int32_t plait_session_room(const plait_session *s, const plait_sequence *q)
{
    if (s->kind == PLAIT_DRAFT_NONE)
        return 0;
    const int64_t room = q->limit - q->num_known - 1;
    return room < s->spec_tokens ? (room > 0 ? (int32_t)room : 0) : s->spec_tokens;
}

/* Hands the tokens that became final to the caller, with the text that they complete. */
static plait_status stream(plait_session *s, int32_t index)
{
    plait_sequence *q = &s->sequences[index];
    plait_output *out = s->output;
    if (!out || !out->fn)
        return PLAIT_OK;
    const int64_t begin = q->num_prompt + q->num_streamed;
    size_t bytes = 0;
    for (int64_t i = begin; i < q->num_known; i++) {
        size_t more = 0;
        if (q->stopped && i == q->num_known - 1)
            break;
        PLAIT_TRY(plait_text_stream_push(&q->stream, out->tokenizer, q->ids[i], true,
                                         out->text + bytes, out->capacity - bytes, &more));
        bytes += more;
    }
    if (q->finished)
        bytes += plait_text_stream_finish(&q->stream, out->text + bytes);
    out->fn(out->user, index, q->ids + begin, (int32_t)(q->num_known - begin), out->text, bytes);
    q->num_streamed = q->num_known - q->num_prompt;
    return PLAIT_OK;
}

/* Keeps what may be kept of `num` tokens. Returns how many. */
static int32_t take_tokens(plait_session *s, plait_sequence *q, const int32_t *tokens, int32_t num)
{
    const plait_request *r = q->request;
    int32_t stopped, stopped_by_model = 0;
    int32_t kept = plait_spec_cut(tokens, num, q->limit - q->num_known, r->stop_ids,
                                  r->num_stop_ids, &stopped);
    if (!r->ignore_eos) {
        const int32_t at =
            plait_spec_cut(tokens, kept, kept, s->eos_ids, s->num_eos, &stopped_by_model);
        if (stopped_by_model)
            kept = at;
    }
    memcpy(q->ids + q->num_known, tokens, (size_t)kept * sizeof *tokens);
    q->num_known += kept;
    q->stopped = stopped || stopped_by_model;
    q->finished = q->stopped || q->num_known >= q->limit;
    q->last_s = now_s();
    return kept;
}

/* Rows [start, start + count) of one sequence's known tokens through the target. */
static plait_status prefill_chunk(plait_session *s, int32_t index, int64_t start, int32_t count)
{
    plait_sequence *q = &s->sequences[index];
    s->tables[0] = index;
    s->starts[0] = start;
    s->counts[0] = count;
    PLAIT_TRY(plait_session_begin(s, s->target, 1, 1));
    PLAIT_TRY(plait_pass_target(s->pass, s->target, q->ids + start));
    q->row = 0;
    if (start + count == q->num_prompt) {
        int32_t token;
        PLAIT_TRY(plait_session_choose(s, s->pass->hidden + (int64_t)(count - 1) * hidden_size(s),
                                       1, &token));
        take_tokens(s, q, &token, 1);
        q->first_s = q->last_s;
        PLAIT_TRY(stream(s, index));
    }
    if (q->finished || plait_session_room(s, q) == 0)
        return PLAIT_OK;
    return plait_draft_catch_up(s, 1, 1);
}

static plait_status prefill(plait_session *s, int32_t index)
{
    plait_sequence *q = &s->sequences[index];
    q->start_s = now_s();
    for (int64_t at = 0; at < q->num_prompt; at += s->pass->max_rows) {
        const int64_t rest = q->num_prompt - at;
        PLAIT_TRY(prefill_chunk(s, index, at,
                                (int32_t)(rest < s->pass->max_rows ? rest : s->pass->max_rows)));
    }
    return PLAIT_OK;
}

/* Judges the rows of one sequence by the choices after each, and keeps its tokens. */
static plait_status judge(plait_session *s, int32_t index, const int32_t *chosen, int32_t *kept)
{
    plait_sequence *q = &s->sequences[index];
    const int32_t gained = plait_spec_verify_greedy(q->drafts, q->num_drafts, chosen);
    *kept = take_tokens(s, q, chosen, gained);
    q->steps++;
    q->num_drafted += q->num_drafts;
    q->num_accepted += *kept < gained ? *kept : gained - 1;
    /* Pages of rejected rows go back; what they held is written anew. */
    PLAIT_TRY(plait_kv_resize(s->target, index, q->num_known - 1));
    return stream(s, index);
}

/* One step of the listed sequences: drafts, one target pass over 1 + K rows each, acceptance. */
static plait_status step(plait_session *s, int32_t num, const int32_t *list)
{
    int32_t rows = 0, live = 0;
    PLAIT_TRY(plait_draft_propose(s, num, list));
    for (int32_t i = 0; i < num; i++) {
        s->tables[i] = list[i];
        s->starts[i] = s->sequences[list[i]].num_known - 1;
        s->counts[i] = 1 + s->sequences[list[i]].num_drafts;
    }
    PLAIT_TRY(plait_session_begin(s, s->target, num, 0));
    for (int32_t i = 0; i < num; i++) {
        plait_sequence *q = &s->sequences[s->tables[i]];
        q->row = rows;
        s->ids[rows++] = q->ids[q->num_known - 1];
        memcpy(s->ids + rows, q->drafts, (size_t)q->num_drafts * sizeof *q->drafts);
        rows += q->num_drafts;
    }
    PLAIT_TRY(plait_pass_target(s->pass, s->target, s->ids));
    PLAIT_TRY(plait_session_choose(s, s->pass->hidden, rows, s->chosen));
    for (int32_t i = 0; i < num; i++) {
        const int32_t index = s->tables[i];
        const plait_sequence *q = &s->sequences[index];
        const int64_t start = s->starts[i];
        int32_t kept;
        PLAIT_TRY(judge(s, index, s->chosen + q->row, &kept));
        if (q->finished || plait_session_room(s, q) == 0)
            continue;
        s->tables[live] = index;
        s->starts[live] = start;
        s->counts[live++] = kept;
    }
    return live ? plait_draft_catch_up(s, live, 0) : PLAIT_OK;
}

plait_status plait_session_run(plait_session *s)
{
    const int32_t most = s->pass->max_rows / (1 + PLAIT_MAX_SPEC_TOKENS);
    int32_t list[PLAIT_SESSION_BATCH];
    for (int32_t i = 0; i < s->num_sequences; i++)
        PLAIT_TRY(prefill(s, i));
    for (int32_t ran = 1; ran;) {
        ran = 0;
        for (int32_t i = 0; i < s->num_sequences;) {
            int32_t num = 0;
            for (; i < s->num_sequences && num < most && num < PLAIT_SESSION_BATCH; i++) {
                if (!s->sequences[i].finished)
                    list[num++] = i;
            }
            if (num)
                PLAIT_TRY(step(s, num, list));
            ran |= num > 0;
        }
    }
    return PLAIT_OK;
}
