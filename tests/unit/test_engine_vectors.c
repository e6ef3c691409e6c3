/* SPDX-License-Identifier: Apache-2.0 */
/* Logits of models/tiny against those of other implementations (tests/vectors/README.md). */
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <plait/engine.h>

#define MODEL PLAIT_SOURCE_DIR "/models/tiny"

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

static void read_all(FILE *f, void *to, size_t bytes)
{
    assert_int_equal(fread(to, 1, bytes, f), bytes);
}

static struct vectors open_vectors(const char *name)
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

static struct vector_case read_case(const struct vectors *v)
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

static void free_case(struct vector_case *c)
{
    free(c->ids);
    free(c->margin);
    free(c->places);
    free(c->logits);
}

static plait_engine *open_engine(plait_dtype dtype, int32_t dcp, int32_t interleave,
                                 int32_t replicated)
{
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    plait_engine *e;
    o.model_dir = MODEL;
    o.dtype = dtype;
    o.dcp = dcp;
    o.interleave = interleave;
    o.draft = PLAIT_DRAFT_MTP;
    o.draft_kv_replicated = replicated;
    if (plait_engine_open(&o, &e) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    return e;
}

static int32_t best(const float *x, uint32_t n)
{
    int32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        at = x[i] > x[at] ? (int32_t)i : at;
    return at;
}

static double largest_difference(const float *a, const float *b, uint32_t n)
{
    double worst = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - b[i]);
        if (!(d <= worst))
            worst = d;
    }
    return worst;
}

/* The worst difference of all target rows, in standard deviations. */
static double worst_target(plait_engine *e, int32_t chunk)
{
    struct vectors v = open_vectors("logits.bin");
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
        for (uint32_t t = 0; t < c.tokens; t++)
            assert_true(fabs(margin[t] - c.margin[t]) <= 1e-4);
        free(got);
        free(margin);
        free_case(&c);
    }
    fclose(v.file);
    return worst;
}

static double worst_mtp(plait_engine *e, int32_t chunk)
{
    struct vectors v = open_vectors("mtp.bin");
    double worst = 0;
    for (uint32_t i = 0; i < v.cases; i++) {
        struct vector_case c = read_case(&v);
        float *got = malloc(4 * (size_t)(c.tokens + 2) * v.vocab);
        float *target = malloc(4 * (size_t)c.tokens * v.vocab);
        /* Row T-1 joins the target's choice after the prompt. */
        if (plait_engine_logits(e, c.ids, c.tokens, chunk, target, NULL, NULL, 0) != PLAIT_OK)
            fail_msg("%s", plait_last_error());
        c.ids[c.tokens] = best(target + (size_t)(c.tokens - 1) * v.vocab, v.vocab);
        if (plait_engine_logits(e, c.ids, c.tokens + 1, chunk, NULL, NULL, got, 2) != PLAIT_OK)
            fail_msg("%s", plait_last_error());
        int deep = 0;
        for (uint32_t r = 0; r < c.rows; r++) {
            const double d = largest_difference(got + (size_t)c.places[2 * r + 1] * v.vocab,
                                                c.logits + (size_t)r * v.vocab, v.vocab);
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

static void check_f32(int32_t dcp, int32_t interleave, int32_t replicated, int32_t chunk)
{
    plait_engine *e = open_engine(PLAIT_F32, dcp, interleave, replicated);
    const double target = worst_target(e, chunk), mtp = worst_mtp(e, chunk);
    print_message("# dcp %d: target %.2g, mtp %.2g of the deviation\n", (int)dcp, target, mtp);
    assert_true(target <= 1e-3);
    assert_true(mtp <= 1e-3);
    plait_engine_close(&e);
}

static void f32_logits_equal_transformers(void **state)
{
    (void)state;
    check_f32(1, 1, 0, 0);
}

static void f32_logits_equal_in_small_chunks_on_two_ranks(void **state)
{
    (void)state;
    check_f32(2, 3, 0, 37);
}

static void f32_logits_equal_with_a_replicated_draft_case37(void **state)
{
    (void)state;
    check_f32(3, 1, 1, 100);
}

static double divergence(const float *p, const float *q, uint32_t n)
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

static double top_gap(const float *x, uint32_t n)
{
    const int32_t at = best(x, n);
    double second = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        second = (int32_t)i != at && x[i] > second ? x[i] : second;
    return x[at] - second;
}

static void bf16_logits_are_close_to_transformers(void **state)
{
    (void)state;
    plait_engine *e = open_engine(PLAIT_BF16, 1, 1, 0);
    struct vectors v = open_vectors("logits.bin");
    double kl = 0;
    uint32_t rows = 0, left_out = 0;
    for (uint32_t i = 0; i < v.cases; i++) {
        struct vector_case c = read_case(&v);
        float *got = malloc(4 * (size_t)c.tokens * v.vocab);
        if (plait_engine_logits(e, c.ids, c.tokens, 0, got, NULL, NULL, 0) != PLAIT_OK)
            fail_msg("%s", plait_last_error());
        for (uint32_t r = 0; r < c.rows; r++) {
            const uint32_t at = c.places[2 * r + 1];
            const float *want = c.logits + (size_t)r * v.vocab, *have = got + (size_t)at * v.vocab;
            if (c.margin[at] < 0.02f) {
                left_out++;
                continue;
            }
            rows++;
            kl += divergence(want, have, v.vocab);
            if (top_gap(want, v.vocab) > 0.3)
                assert_int_equal(best(want, v.vocab), best(have, v.vocab));
        }
        free(got);
        free_case(&c);
    }
    print_message("# bf16: mean KL %.2g over %u rows, %.0f%% left out\n", kl / rows, rows,
                  100.0 * left_out / (rows + left_out));
    assert_true(rows > 0);
    assert_true(kl / rows <= 2e-3);
    fclose(v.file);
    plait_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_logits_equal_transformers),
        cmocka_unit_test(f32_logits_equal_in_small_chunks_on_two_ranks),
        cmocka_unit_test(f32_logits_equal_with_a_replicated_draft_case37),
        cmocka_unit_test(bf16_logits_are_close_to_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
