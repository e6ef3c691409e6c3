/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session_sample.c: tokens from logits. Every rank draws from the same float32 logits with the same
 * random numbers, so that all come to the same tokens without a message.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <plait/spec.h>

#include "core/status.h"
#include "engine/engine_ranks.h"
#include "engine/session.h"

enum { MAX_LOGPROBS = 20 };

static int32_t vocab_size(const plait_session *s)
{
    return s->pass->model->config->vocab_size;
}

plait_status plait_sample_check(const plait_request *r, int32_t index)
{
    if (!(r->temperature >= 0 && isfinite(r->temperature)))
        return plait_fail(PLAIT_E_ARG, "request %d: temperature %g must be a number from 0 on",
                          (int)index, r->temperature);
    if (r->top_k < 0 || !(r->top_p > 0 && r->top_p <= 1))
        return plait_fail(PLAIT_E_ARG,
                          "request %d: top_k %d must not be negative, top_p %g must be above 0 and "
                          "at most 1",
                          (int)index, (int)r->top_k, r->top_p);
    if (r->num_logprobs < 0 || r->num_logprobs > MAX_LOGPROBS)
        return plait_fail(PLAIT_E_ARG, "request %d: num_logprobs %d must be 0 .. %d", (int)index,
                          (int)r->num_logprobs, MAX_LOGPROBS);
    return PLAIT_OK;
}

plait_status plait_sample_open_result(const plait_request *r, int64_t num_new, plait_result *out)
{
    const size_t n = (size_t)num_new, top = (size_t)r->num_logprobs;
    if (!top)
        return PLAIT_OK;
    out->num_top = r->num_logprobs;
    out->logprobs = malloc(n * sizeof *out->logprobs);
    out->top_ids = malloc(n * top * sizeof *out->top_ids);
    out->top_logprobs = malloc(n * top * sizeof *out->top_logprobs);
    if (out->logprobs && out->top_ids && out->top_logprobs)
        return PLAIT_OK;
    return plait_fail(PLAIT_E_NOMEM, "no memory for log-probabilities of %zu tokens", n);
}

/* ---- buffers --------------------------------------------------------------------------------- */

void plait_sample_lay_out(plait_arena *arena, plait_session *s)
{
    plait_sampler *m = &s->sampler;
    const size_t vocab = (size_t)vocab_size(s), rows = (size_t)s->max_rows;
    const int keeps = s->drafter && s->drafter->advance;
    m->picks = plait_arena_take(arena, rows, sizeof *m->picks);
    m->probs = plait_arena_take(arena, vocab, sizeof *m->probs);
    m->order = plait_arena_take(arena, vocab, sizeof *m->order);
    m->draft_probs = plait_arena_take(arena, keeps ? rows * vocab : 0, sizeof *m->draft_probs);
}

/* ---- one row --------------------------------------------------------------------------------- */

static plait_sampling sampling_of(const plait_request *r)
{
    return (plait_sampling){r->temperature, r->top_k, r->top_p, r->seed, r->seed_request};
}

/* A draft of a sampled request, drawn from a distribution that is kept for its judgement. */
static int32_t pick_draft(plait_session *s, const plait_pick *k, const float *logits)
{
    plait_sampler *m = &s->sampler;
    plait_sequence *q = k->sequence;
    const plait_sampling sampling = sampling_of(q->request);
    const int32_t vocab = vocab_size(s), row = m->num_draft_rows++;
    float *probs = m->draft_probs + (int64_t)row * vocab;
    q->draft_rows[k->offset] = row;
    if (plait_spec_distribution(logits, vocab, &sampling, m->order, probs) < 0)
        return -1;
    return plait_spec_draw(probs, vocab,
                           plait_spec_random(sampling.seed, sampling.request,
                                             q->num_known + k->offset, PLAIT_SPEC_DRAFT));
}

/* The token after row `offset` of a sampled request. Rows behind a draft that does not stand mean
   nothing; they get any token. */
static int32_t pick_token(plait_session *s, const plait_pick *k, const float *logits)
{
    plait_sampler *m = &s->sampler;
    plait_sequence *q = k->sequence;
    const plait_sampling sampling = sampling_of(q->request);
    const int64_t position = q->num_known + k->offset;
    const int32_t vocab = vocab_size(s);
    if (k->offset == 0)
        q->rejected = 0;
    if (q->rejected)
        return 0;
    if (plait_spec_distribution(logits, vocab, &sampling, m->order, m->probs) < 0)
        return -1;
    if (k->offset == k->num_drafts)
        return plait_spec_draw(
            m->probs, vocab,
            plait_spec_random(sampling.seed, sampling.request, position, PLAIT_SPEC_TOKEN));
    const int32_t draft = q->drafts[k->offset];
    const float *of_draft =
        m->draft_probs ? m->draft_probs + (int64_t)q->draft_rows[k->offset] * vocab : NULL;
    const int32_t token = plait_spec_judge(m->probs, of_draft, vocab, draft, &sampling, position);
    q->rejected = token != draft;
    return token;
}

/* What rank 0 tells of a token. Rows that do not stand are written anew later. */
static void keep_logprobs(const plait_session *s, const plait_pick *k, const float *logits,
                          int32_t token)
{
    const plait_sequence *q = k->sequence;
    plait_result *r = s->output ? &s->output->results[q->index] : NULL;
    const int64_t at = q->num_known + k->offset - q->num_prompt;
    if (!r || !r->num_top || at >= q->limit - q->num_prompt)
        return;
    plait_spec_logprobs(logits, vocab_size(s), token, r->num_top, &r->logprobs[at],
                        r->top_ids + at * r->num_top, r->top_logprobs + at * r->num_top);
}

static int32_t pick(plait_session *s, const plait_pick *k, const float *logits)
{
    const int sampled = k && k->sequence->request->temperature > 0;
    const int32_t token = !sampled            ? plait_spec_argmax(logits, vocab_size(s))
                          : k->num_drafts < 0 ? pick_draft(s, k, logits)
                                              : pick_token(s, k, logits);
    if (token >= 0 && k && k->num_drafts >= 0)
        keep_logprobs(s, k, logits, token);
    return token;
}

plait_status plait_session_choose(plait_session *s, plait_logits_fn logits, const float *states,
                                  int32_t n, const plait_pick *picks, int32_t *chosen)
{
    const int64_t vocab = vocab_size(s), hidden = s->pass->model->config->hidden_size;
    const int32_t step = s->pass->max_logit_rows;
    for (int32_t at = 0; at < n; at += step) {
        const int32_t count = n - at < step ? n - at : step;
        const float *from = states + at * hidden;
        PLAIT_TRY(logits ? logits(s, from, count) : plait_pass_logits(s->pass, from, count));
        for (int32_t i = 0; i < count; i++) {
            chosen[at + i] = pick(s, picks ? &picks[at + i] : NULL, s->pass->logits + i * vocab);
            if (chosen[at + i] < 0)
                return plait_fail(PLAIT_E_FORMAT,
                                  "the logits of row %d are not finite: the model's weights or the "
                                  "compute dtype do not suit it",
                                  (int)(at + i));
        }
    }
    return PLAIT_OK;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

plait_status plait_sample_compare(plait_session *s, int32_t num_rows, int32_t num_chosen)
{
    plait_comm *ranks = s->pass->attend->options.ranks;
    uint64_t all[PLAIT_COMM_MAX_RANKS];
    if (!s->debug_ranks || plait_comm_size(ranks) == 1)
        return PLAIT_OK;
    uint64_t hash = plait_engine_hash(0, s->ids, (size_t)num_rows * sizeof *s->ids);
    hash = plait_engine_hash(hash, s->chosen, (size_t)num_chosen * sizeof *s->chosen);
    PLAIT_TRY(plait_comm_exchange(ranks, "hash of tokens", PLAIT_OK, &hash, sizeof hash, all));
    for (int32_t i = 1; i < plait_comm_size(ranks); i++) {
        if (all[i] != all[0])
            return plait_fail(PLAIT_E_COMM,
                              "rank %d has other tokens than rank 0 after a step of %d rows (hash "
                              "%016llx, not %016llx)",
                              (int)i, (int)num_rows, (unsigned long long)all[i],
                              (unsigned long long)all[0]);
    }
    return PLAIT_OK;
}
