/* SPDX-License-Identifier: Apache-2.0 */
/* Greedy outputs of settings compared with those of one rank without drafts. Included by the short
   and the long test. */
#ifndef PLAIT_TESTS_ENGINE_MATRIX_H
#define PLAIT_TESTS_ENGINE_MATRIX_H

#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <plait/engine.h>

#include "engine/tokenizer.h"

typedef struct matrix_setting {
    int32_t dcp, interleave;
    plait_draft_kind draft;
    int32_t spec_tokens, replicated, exchange;
} matrix_setting;

/* What a reference choice rests on: outputs may differ only where one of these is small. */
typedef struct matrix_reference {
    int32_t num_prompt, num_new;
    int32_t *ids;  /* prompt, then new tokens */
    float *gap;    /* [num_new] distance of the two best logits */
    float *margin; /* [num_new] router margin of the row that chose the token */
} matrix_reference;

typedef struct matrix {
    plait_dtype dtype;
    int32_t num_prompts, num_new;
    double gap_limit, margin_limit;
    matrix_reference *references;
    int64_t tokens, other; /* compared so far, and those taken otherwise within the limits */
} matrix;

enum { MAX_PROMPTS = 32, LINE_BYTES = 4096 };

static plait_engine *open_setting(plait_dtype dtype, const matrix_setting *s)
{
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    plait_engine *e;
    o.model_dir = PLAIT_SOURCE_DIR "/models/tiny";
    o.dtype = dtype;
    o.dcp = s->dcp;
    o.interleave = s->interleave;
    o.draft = s->draft;
    o.spec_tokens = s->spec_tokens ? s->spec_tokens : 1;
    o.draft_kv_replicated = s->replicated;
    o.exchange = s->exchange;
    o.draft_dir = PLAIT_SOURCE_DIR "/models/tiny/eagle3";
    if (plait_engine_open(&o, &e) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    return e;
}

/* The text of a {"prompt": "..."} line, whose escapes are \" and \\ only where they matter. */
static size_t prompt_of_line(char *line, char **text)
{
    char *from = strstr(line, "\": \""), *to;
    assert_non_null(from);
    *text = to = from += 4;
    while (*from && *from != '"') {
        if (*from == '\\')
            from++;
        *to++ = *from++;
    }
    return (size_t)(to - *text);
}

static void rate(const matrix *m, plait_engine *e, matrix_reference *r)
{
    plait_engine_info info;
    const int64_t n = r->num_prompt + r->num_new;
    assert_int_equal(plait_engine_get_info(e, &info), PLAIT_OK);
    const int32_t vocab = info.vocab_size;
    float *logits = malloc((size_t)n * (size_t)vocab * sizeof *logits);
    float *margin = malloc((size_t)n * sizeof *margin);
    if (plait_engine_logits(e, r->ids, n, 0, logits, margin, NULL, 0) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    for (int32_t i = 0; i < r->num_new; i++) {
        const float *x = logits + (int64_t)(r->num_prompt - 1 + i) * vocab;
        const int32_t token = r->ids[r->num_prompt + i];
        float second = -INFINITY;
        for (int32_t v = 0; v < vocab; v++)
            second = v != token && x[v] > second ? x[v] : second;
        r->gap[i] = x[token] - second;
        /* Decoding and the teacher-forced pass must agree, or the reference proves nothing. */
        if (!(r->gap[i] >= -m->gap_limit))
            fail_msg("reference token %d is %g below the best of its logits", i, -r->gap[i]);
        r->margin[i] = margin[r->num_prompt - 1 + i];
    }
    free(logits);
    free(margin);
}

/* Decodes request q alone and keeps its tokens and what they rest on. */
static void make_request_reference(const matrix *m, plait_engine *e, const plait_tokenizer *t,
                                   const plait_request *q, matrix_reference *r)
{
    plait_generation *g;
    if (plait_engine_generate(e, q, 1, NULL, NULL, &g) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    const plait_result *out = &g->results[0];
    assert_int_equal(out->num_new, q->max_new_tokens);
    assert_int_equal(out->steps, q->max_new_tokens - 1);
    r->num_prompt = (int32_t)out->num_prompt;
    r->num_new = out->num_new;
    r->ids = malloc((size_t)(r->num_prompt + r->num_new) * sizeof *r->ids);
    r->gap = malloc((size_t)r->num_new * sizeof *r->gap);
    r->margin = malloc((size_t)r->num_new * sizeof *r->margin);
    int32_t *prompt;
    size_t n;
    assert_int_equal(plait_tokenizer_encode(t, q->text, q->text_bytes, true, &prompt, &n),
                     PLAIT_OK);
    assert_int_equal(n, r->num_prompt);
    memcpy(r->ids, prompt, n * sizeof *prompt);
    free(prompt);
    memcpy(r->ids + r->num_prompt, out->ids, (size_t)r->num_new * sizeof *r->ids);
    plait_generation_close(&g);
    rate(m, e, r);
}

static void make_reference(const matrix *m, plait_engine *e, const plait_tokenizer *t, char *line,
                           matrix_reference *r)
{
    plait_request q = PLAIT_REQUEST_INIT;
    char *text;
    q.text_bytes = prompt_of_line(line, &text);
    q.text = text;
    q.max_new_tokens = m->num_new;
    q.ignore_eos = 1;
    make_request_reference(m, e, t, &q, r);
}

/* Decodes the held-out prompts with one rank and no drafts. Less of it under a sanitizer. */
static inline void matrix_open(matrix *m, plait_dtype dtype, int32_t num_prompts, int32_t num_new)
{
    const matrix_setting plain = {1, 1, PLAIT_DRAFT_NONE, 0, 0, 0};
    char line[LINE_BYTES];
    memset(m, 0, sizeof *m);
    m->dtype = dtype;
    const char *sanitizer = getenv("PLAIT_SANITIZED");
    if (sanitizer && *sanitizer) {
        num_prompts = 1;
        num_new = 8;
    }
    m->num_prompts = num_prompts;
    m->num_new = num_new;
    m->gap_limit = dtype == PLAIT_F32 ? 1e-4 : 0.3;
    m->margin_limit = dtype == PLAIT_F32 ? 1e-5 : 0.02;
    m->references = calloc((size_t)num_prompts, sizeof *m->references);
    FILE *f = fopen(PLAIT_SOURCE_DIR "/tests/vectors/heldout_prompts.jsonl", "r");
    assert_non_null(f);
    plait_tokenizer *t;
    assert_int_equal(plait_tokenizer_open(PLAIT_SOURCE_DIR "/models/tiny", &t), PLAIT_OK);
    plait_engine *e = open_setting(dtype, &plain);
    for (int32_t i = 0; i < num_prompts; i++) {
        assert_non_null(fgets(line, sizeof line, f));
        make_reference(m, e, t, line, &m->references[i]);
    }
    plait_engine_close(&e);
    plait_tokenizer_close(&t);
    fclose(f);
}

static void matrix_close(matrix *m)
{
    for (int32_t i = 0; i < m->num_prompts; i++) {
        free(m->references[i].ids);
        free(m->references[i].gap);
        free(m->references[i].margin);
    }
    free(m->references);
}

/* Compares from new token `done` on; returns where the request goes on, num_new when it is done. */
static int32_t compare(matrix *m, const matrix_reference *r, const matrix_setting *s, int32_t done,
                       const int32_t *got, int32_t num)
{
    for (int32_t i = 0; i < num; i++) {
        const int32_t at = done + i;
        m->tokens++;
        if (got[i] == r->ids[r->num_prompt + at])
            continue;
        if (!(r->gap[at] <= m->gap_limit || r->margin[at] <= m->margin_limit))
            fail_msg("dcp %d, interleave %d, draft %d, K %d: token %d is %d, not %d (gap %g, "
                     "margin %g)",
                     s->dcp, s->interleave, s->draft, s->spec_tokens, at, got[i],
                     r->ids[r->num_prompt + at], r->gap[at], r->margin[at]);
        m->other++;
        return at + 1;
    }
    return r->num_new;
}

/*
 * Decodes all prompts in one call under a setting and fails on a token that differs from the
 * reference where the reference was sure. After a difference that is allowed, the request goes on
 * from the reference's tokens.
 */
static inline void matrix_check(matrix *m, const matrix_setting *s)
{
    plait_engine *e = open_setting(m->dtype, s);
    int32_t done[MAX_PROMPTS] = {0}, open[MAX_PROMPTS];
    int64_t drafted = 0, accepted = 0;
    const int64_t other = m->other;
    for (;;) {
        plait_request q[MAX_PROMPTS];
        int32_t n = 0;
        for (int32_t i = 0; i < m->num_prompts; i++) {
            const matrix_reference *r = &m->references[i];
            if (done[i] == r->num_new)
                continue;
            open[n] = i;
            q[n] = (plait_request)PLAIT_REQUEST_INIT;
            q[n].ids = r->ids;
            q[n].num_ids = r->num_prompt + done[i];
            q[n].max_new_tokens = r->num_new - done[i];
            q[n++].ignore_eos = 1;
        }
        if (n == 0)
            break;
        plait_generation *g;
        if (plait_engine_generate(e, q, n, NULL, NULL, &g) != PLAIT_OK)
            fail_msg("%s", plait_last_error());
        for (int32_t i = 0; i < n; i++) {
            const plait_result *out = &g->results[i];
            assert_int_equal(out->num_new, q[i].max_new_tokens);
            assert_int_equal(out->num_new, 1 + out->steps + out->num_accepted);
            drafted += out->num_drafted;
            accepted += out->num_accepted;
            done[open[i]] =
                compare(m, &m->references[open[i]], s, done[open[i]], out->ids, out->num_new);
        }
        plait_generation_close(&g);
    }
    if (s->draft == PLAIT_DRAFT_ORACLE && m->dtype == PLAIT_F32 && m->other == other)
        assert_int_equal(accepted, drafted);
    /* The few tokens under a sanitizer may hold nothing that a drafter guesses. */
    if (s->draft != PLAIT_DRAFT_NONE && m->num_prompts > 1)
        assert_true(accepted > 0);
    plait_engine_close(&e);
}

#endif
