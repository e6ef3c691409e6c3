/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the vectors of tests/vectors (README.md there), and how far logits are from them. */
#ifndef PLAIT_TESTS_VECTOR_FILE_H
#define PLAIT_TESTS_VECTOR_FILE_H

#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <plait/engine.h>

struct vectors {
    uint32_t cases, vocab;
    FILE *file;
};

struct vector_case {
    uint32_t tokens, rows;
    float deviation;
    int32_t *ids; /* [tokens + 1], the last for a token that is chosen later */
    float *margin;
    uint32_t *places; /* [rows][2] step, row index */
    float *logits;    /* [rows][vocab] */
};

static inline void read_all(FILE *f, void *to, size_t bytes)
{
    assert_int_equal(fread(to, 1, bytes, f), bytes);
}

static inline struct vectors open_vectors(const char *name)
{
    char path[512], magic[8];
    uint32_t head[3];
    snprintf(path, sizeof path, "%s/tests/vectors/%s", PLAIT_SOURCE_DIR, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    read_all(f, magic, sizeof magic);
    read_all(f, head, sizeof head);
    assert_memory_equal(magic, "PLAITVEC", 8);
    assert_int_equal(head[0], 1);
    return (struct vectors){head[1], head[2], f};
}

static inline struct vector_case read_case(const struct vectors *v)
{
    struct vector_case c = {0};
    read_all(v->file, &c.tokens, 4);
    read_all(v->file, &c.rows, 4);
    read_all(v->file, &c.deviation, 4);
    assert_in_range(c.tokens, 1, 4096);
    assert_in_range(c.rows, 1, 4096);
    c.ids = calloc(c.tokens + 1, 4);
    c.margin = malloc(4 * (size_t)c.tokens);
    c.places = malloc(8 * (size_t)c.rows);
    c.logits = malloc(4 * (size_t)c.rows * v->vocab);
    assert_true(c.ids && c.margin && c.places && c.logits);
    read_all(v->file, c.ids, 4 * (size_t)c.tokens);
    read_all(v->file, c.margin, 4 * (size_t)c.tokens);
    read_all(v->file, c.places, 8 * (size_t)c.rows);
    read_all(v->file, c.logits, 4 * (size_t)c.rows * v->vocab);
    return c;
}

static inline void free_case(struct vector_case *c)
{
    free(c->ids);
    free(c->margin);
    free(c->places);
    free(c->logits);
}

static inline int32_t best(const float *x, uint32_t n)
{
    int32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        at = x[i] > x[at] ? (int32_t)i : at;
    return at;
}

static inline double largest_difference(const float *a, const float *b, uint32_t n)
{
    double worst = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - b[i]);
        if (!(d <= worst))
            worst = d;
    }
    return worst;
}

static inline double divergence(const float *p, const float *q, uint32_t n)
{
    double top_p = p[best(p, n)], top_q = q[best(q, n)], sum_p = 0, sum_q = 0, kl = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum_p += exp(p[i] - top_p);
        sum_q += exp(q[i] - top_q);
    }
    for (uint32_t i = 0; i < n; i++) {
        const double log_p = p[i] - top_p - log(sum_p), log_q = q[i] - top_q - log(sum_q);
        kl += exp(log_p) * (log_p - log_q);
    }
    return kl;
}

static inline double top_gap(const float *x, uint32_t n)
{
    const int32_t at = best(x, n);
    double second = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        second = (int32_t)i != at && x[i] > second ? x[i] : second;
    return x[at] - second;
}

/* Moves the logits of a reduced vocabulary to the front: the others are -inf. */
static inline void keep_ids(float *logits, uint32_t target, uint32_t kept)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < target; i++) {
        if (logits[i] != -INFINITY)
            logits[n++] = logits[i];
    }
    assert_int_equal(n, kept);
}

/* The worst difference of draft logits, teacher-forced and fed back, in standard deviations. */
static inline double worst_draft(plait_engine *e, const char *file, int32_t chunk)
{
    struct vectors v = open_vectors(file);
    plait_engine_info info;
    assert_int_equal(plait_engine_get_info(e, &info), PLAIT_OK);
    const size_t vocab = (size_t)info.vocab_size;
    double worst = 0;
    for (uint32_t i = 0; i < v.cases; i++) {
        struct vector_case c = read_case(&v);
        float *got = malloc(4 * (size_t)(c.tokens + 2) * vocab);
        float *target = malloc(4 * (size_t)c.tokens * vocab);
        /* Row T-1 joins the target's choice after the prompt. */
        if (plait_engine_logits(e, c.ids, c.tokens, chunk, target, NULL, NULL, 0) != PLAIT_OK)
            fail_msg("%s", plait_last_error());
        c.ids[c.tokens] = best(target + (size_t)(c.tokens - 1) * vocab, (uint32_t)vocab);
        if (plait_engine_logits(e, c.ids, c.tokens + 1, chunk, NULL, NULL, got, 2) != PLAIT_OK)
            fail_msg("%s", plait_last_error());
        int deep = 0;
        for (uint32_t r = 0; r < c.rows; r++) {
            float *row = got + (size_t)c.places[2 * r + 1] * vocab;
            keep_ids(row, (uint32_t)vocab, v.vocab);
            const double d = largest_difference(row, c.logits + (size_t)r * v.vocab, v.vocab);
            worst = fmax(worst, isnan(d) ? INFINITY : d / c.deviation);
            deep += c.places[2 * r] > 1;
        }
        assert_int_equal(deep, 2);
        free(got);
        free(target);
        free_case(&c);
    }
    fclose(v.file);
    return worst;
}

/*
 * The worst difference of target rows from a file's, in its standard deviations, through passes of
 * `chunk` rows. Closes the file. Router margins must lie within margin_limit; +inf: not looked at.
 */
static inline double worst_target(plait_engine *e, struct vectors v, int32_t chunk,
                                  double margin_limit)
{
    double worst = 0;
    for (uint32_t i = 0; i < v.cases; i++) {
        struct vector_case c = read_case(&v);
        float *got = malloc(4 * (size_t)c.tokens * v.vocab), *margin = malloc(4 * c.tokens);
        if (plait_engine_logits(e, c.ids, c.tokens, chunk, got, margin, NULL, 0) != PLAIT_OK)
            fail_msg("%s", plait_last_error());
        for (uint32_t r = 0; r < c.rows; r++) {
            const double d = largest_difference(got + (size_t)c.places[2 * r + 1] * v.vocab,
                                                c.logits + (size_t)r * v.vocab, v.vocab);
            worst = fmax(worst, isnan(d) ? INFINITY : d / c.deviation);
        }
        for (uint32_t t = 0; t < c.tokens && isfinite(margin_limit); t++)
            if (!(fabs(margin[t] - c.margin[t]) <= margin_limit))
                fail_msg("margin %g at %u, not %g", margin[t], t, c.margin[t]);
        free(got);
        free(margin);
        free_case(&c);
    }
    fclose(v.file);
    return worst;
}

#endif
