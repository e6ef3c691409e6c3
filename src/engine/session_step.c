/* SPDX-License-Identifier: Apache-2.0 */
/* session_step.c: drafting, one target pass over decodes and prompts, acceptance. */
#include <string.h>
#include <time.h>

#include <plait/spec.h>

#include "core/status.h"
#include "engine/session.h"

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the rows -------------------------------------------------------------------------------- */

static void add_rows(plait_session *s, int32_t at, int32_t place, int32_t count, int is_prompt)
{
    s->tables[at] = place;
    s->starts[at] = s->sequences[place].num_cached;
    s->counts[at] = count;
    s->is_prompt[at] = is_prompt != 0;
}

/* Token ids of the batch's rows, in the plan's order. */
static void fill_ids(plait_session *s, int32_t num)
{
    for (int32_t i = 0, row = 0; i < num; row += s->counts[i++]) {
        plait_sequence *q = &s->sequences[s->tables[i]];
        const size_t count = (size_t)s->counts[i];
        q->row = row;
        if (s->is_prompt[i]) {
            memcpy(s->ids + row, q->ids + s->starts[i], count * sizeof *s->ids);
            continue;
        }
        s->ids[row] = q->ids[q->num_known - 1];
        memcpy(s->ids + row + 1, q->drafts, (count - 1) * sizeof *s->ids);
    }
}

/* Rows of sequence i of the batch whose logits choose tokens: all of a decode, the last of a
   prompt. */
static int32_t choosing_rows(const plait_session *s, int32_t i)
{
    const plait_sequence *q = &s->sequences[s->tables[i]];
    return s->is_prompt[i] ? s->starts[i] + s->counts[i] == q->num_prompt : s->counts[i];
}

/* The choices after those rows, one sequence after the other, into chosen. */
static plait_status choose(plait_session *s, int32_t num)
{
    const int64_t hidden = s->pass->model->config->hidden_size;
    int32_t n = 0, rows = 0;
    for (int32_t i = 0; i < num; i++) {
        plait_sequence *q = &s->sequences[s->tables[i]];
        const int32_t count = choosing_rows(s, i);
        const int64_t last = q->row + s->counts[i];
        for (int32_t j = 0; j < count; j++)
            s->sampler.picks[n + j] = (plait_pick){q, j, count - 1};
        memcpy(s->states + n * hidden, s->pass->hidden + (last - count) * hidden,
               (size_t)(count * hidden) * sizeof(float));
        n += count;
        rows += s->counts[i];
    }
    PLAIT_TRY(plait_session_choose(s, NULL, s->states, n, s->sampler.picks, s->chosen));
    return plait_sample_compare(s, rows, n);
}

/* ---- acceptance ------------------------------------------------------------------------------ */

static void drop_behind_cut(plait_sequence *q)
{
    q->finished = q->cut = 1;
    q->stopped = 0;
    q->num_known = q->num_prompt + q->reader.num_final;
}

plait_status plait_session_finish(plait_session *s, plait_sequence *q)
{
    int32_t cut;
    q->finished = 1;
    PLAIT_TRY(plait_reader_finish(&q->reader, q->stops, s->tokenizer, q->ids + q->num_prompt,
                                  &s->text, &cut));
    if (cut)
        drop_behind_cut(q);
    return PLAIT_OK;
}

/* How many of `num` tokens the limit and the stop tokens leave. */
static int32_t cut_tokens(const plait_session *s, plait_sequence *q, const int32_t *tokens,
                          int32_t num)
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
    q->stopped = stopped || stopped_by_model;
    return kept;
}

/* Keeps what may be kept of `num` tokens: stop tokens, limits and stop texts end it alike. *kept of
   them were read, the last one perhaps in part. */
static plait_status take_tokens(plait_session *s, plait_sequence *q, const int32_t *tokens,
                                int32_t num, int32_t *kept)
{
    const int32_t most = cut_tokens(s, q, tokens, num);
    int32_t cut = 0;
    q->last_s = now_s();
    for (*kept = 0; *kept < most && !cut; ++*kept) {
        q->ids[q->num_known++] = tokens[*kept];
        if (!q->stopped || *kept < most - 1)
            PLAIT_TRY(plait_reader_push(&q->reader, q->stops, s->tokenizer, q->ids + q->num_prompt,
                                        &s->text, &cut));
    }
    if (cut)
        drop_behind_cut(q);
    else if (q->stopped || q->num_known >= q->limit)
        PLAIT_TRY(plait_session_finish(s, q));
    return PLAIT_OK;
}

/* Judges the rows of a decode by the choices after each, and keeps its tokens. */
static plait_status judge(plait_session *s, plait_sequence *q, const int32_t *chosen, int32_t *kept)
{
    const int32_t gained = plait_spec_verify_greedy(q->drafts, q->num_drafts, chosen);
    PLAIT_TRY(take_tokens(s, q, chosen, gained, kept));
    q->steps++;
    q->num_drafted += q->num_drafts;
    q->last_accepted = *kept < gained ? *kept : gained - 1;
    q->num_accepted += q->last_accepted;
    q->num_cached = q->num_known - 1;
    return PLAIT_OK;
}

/* Counts what sequence i of the batch gained. Its count becomes that of the rows that stand. */
static plait_status accept(plait_session *s, int32_t i, const int32_t *chosen)
{
    const int32_t place = s->tables[i];
    plait_sequence *q = &s->sequences[place];
    int32_t kept;
    s->text.bytes = 0;
    if (!s->is_prompt[i])
        PLAIT_TRY(judge(s, q, chosen, &s->counts[i]));
    else
        q->num_cached += s->counts[i];
    if (s->is_prompt[i] && q->num_cached == q->num_prompt) {
        PLAIT_TRY(take_tokens(s, q, chosen, 1, &kept));
        q->first_s = q->last_s;
    }
    plait_kv_commit(s->target, place, q->ids, s->starts[i], q->num_cached);
    /* Pages of rejected rows go back; what they held is written anew. */
    return plait_kv_resize(s->target, place, q->num_cached);
}

static void count_pages(plait_session *s)
{
    const int64_t kv = plait_kv_used_bytes(s->target);
    const int64_t draft_kv = s->draft ? plait_kv_used_bytes(s->draft) : 0;
    s->most_kv = kv > s->most_kv ? kv : s->most_kv;
    s->most_draft_kv = draft_kv > s->most_draft_kv ? draft_kv : s->most_draft_kv;
}

plait_status plait_session_settle(plait_session *s, int32_t place)
{
    plait_sequence *q = &s->sequences[place];
    int32_t give_up = 0;
    if (s->output)
        PLAIT_TRY(plait_output_tell(s->output, q, &s->text, &give_up));
    if (!q->finished)
        s->cancelled |= (uint32_t)give_up << place;
    return PLAIT_OK;
}

void plait_session_leave(plait_session *s, int32_t place)
{
    s->sequences[place].request = NULL;
    plait_kv_leave(s->target, place);
    if (s->draft)
        plait_kv_leave(s->draft, place);
}

/* Whether the draft layer needs a sequence's rows: for drafts to come, or to complete a unit of the
   prefix cache. */
static int needs_rows(const plait_session *s, int32_t place)
{
    const plait_sequence *q = &s->sequences[place];
    return (!q->finished && plait_session_most(s, q) > 0) ||
           (s->draft &&
            plait_kv_reaches(s->draft, place, q->finished ? q->num_known - 1 : q->limit - 1));
}

/* Gives the draft layer the rows that stand and that it needs. */
static plait_status catch_up(plait_session *s, int32_t num)
{
    int32_t live = 0;
    for (int32_t i = 0; i < num; i++) {
        if (!needs_rows(s, s->tables[i]))
            continue;
        s->tables[live] = s->tables[i];
        s->starts[live] = s->starts[i];
        s->counts[live] = s->counts[i];
        s->is_prompt[live++] = s->is_prompt[i];
    }
    if (live == 0)
        return PLAIT_OK;
    PLAIT_TRY(plait_draft_catch_up(s, live));
    for (int32_t i = 0; s->draft && i < live; i++)
        plait_kv_commit(s->draft, s->tables[i], s->sequences[s->tables[i]].ids, s->starts[i],
                        s->starts[i] + s->counts[i]);
    return PLAIT_OK;
}

static void leave_finished(plait_session *s, int32_t place)
{
    if (s->sequences[place].finished)
        plait_session_leave(s, place);
}

/* ---- the step -------------------------------------------------------------------------------- */

static const char *pass_name(int32_t num_decode, int32_t num_prefill)
{
    return num_prefill == 0 ? "decode" : num_decode == 0 ? "prefill" : "prefill and decode";
}

plait_status plait_session_step(plait_session *s, int32_t num_decode, const int32_t *decode,
                                int32_t num_prefill, const int32_t *prefill, const int32_t *chunk)
{
    const int32_t num = num_decode + num_prefill;
    plait_trace *trace = s->pass->attend->options.trace;
    const double begin_s = now_s();
    int64_t begin = plait_trace_begin(trace);
    if (num_decode)
        PLAIT_TRY(plait_draft_propose(s, num_decode, decode));
    if (num_decode && s->drafter)
        plait_trace_end(trace, "draft", begin, num_decode);
    const double drafted_s = now_s();
    begin = plait_trace_begin(trace);
    for (int32_t i = 0; i < num_decode; i++)
        add_rows(s, i, decode[i], 1 + s->sequences[decode[i]].num_drafts, 0);
    for (int32_t i = 0; i < num_prefill; i++)
        add_rows(s, num_decode + i, prefill[i], chunk[i], 1);
    PLAIT_TRY(plait_session_begin(s, s->target, num));
    fill_ids(s, num);
    PLAIT_TRY(plait_pass_target(s->pass, s->target, s->ids));
    plait_trace_end(trace, pass_name(num_decode, num_prefill), begin, s->pass->num_rows);
    begin = plait_trace_begin(trace);
    PLAIT_TRY(choose(s, num));
    plait_trace_end(trace, "sampling", begin, num);
    for (int32_t i = 0, at = 0; i < num; i++) {
        const int32_t count = choosing_rows(s, i);
        PLAIT_TRY(accept(s, i, s->chosen + at));
        at += count;
        count_pages(s);
        if (count)
            PLAIT_TRY(plait_session_settle(s, s->tables[i]));
    }
    begin = plait_trace_begin(trace);
    PLAIT_TRY(catch_up(s, num));
    if (s->draft)
        plait_trace_end(trace, "draft catch-up", begin, num);
    if (s->spec_auto) {
        const plait_auto_times times = {(float)(drafted_s - begin_s), (float)(now_s() - drafted_s)};
        PLAIT_TRY(plait_auto_learn(s, &times, num_decode, decode, num_prefill > 0));
    }
    for (int32_t i = 0; i < num_decode; i++)
        leave_finished(s, decode[i]);
    for (int32_t i = 0; i < num_prefill; i++)
        leave_finished(s, prefill[i]);
    return PLAIT_OK;
}
