/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of sampling: the distribution, random numbers, draws, and lossless judgement of drafts. */
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <plait/spec.h>

enum { VOCAB = 6, MAX_DRAFTS = 4, TRIALS = 1000000 };

/* ---- the distribution, against double and a full sort ---------------------------------------- */

struct entry {
    double weight;
    float logit;
    int32_t id;
};

static int by_logit(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id - y->id;
}

static void expected_distribution(const float *logits, int32_t n, const plait_sampling *s,
                                  double *out)
{
    struct entry *e = malloc((size_t)n * sizeof *e);
    for (int32_t i = 0; i < n; i++)
        e[i] = (struct entry){0, logits[i], i};
    qsort(e, (size_t)n, sizeof *e, by_logit);
    for (int32_t i = 0; i < n; i++) {
        e[i].weight = s->temperature > 0
                          ? exp(((double)e[i].logit - (double)e[0].logit) / s->temperature)
                          : (double)(i == 0);
        out[i] = 0;
    }
    const int32_t most = s->top_k && s->top_k < n ? s->top_k : n;
    double total = 0, mass = 0;
    for (int32_t i = 0; i < most; i++)
        total += e[i].weight;
    int32_t kept = 0;
    while (kept < most && (kept == 0 || s->top_p >= 1 || mass < s->top_p * total))
        mass += e[kept++].weight;
    for (int32_t i = 0; i < kept; i++)
        out[e[i].id] = e[i].weight / mass;
    free(e);
}

static void distribution_equals_a_sort_in_double(void **state)
{
    (void)state;
    enum { N = 300 };
    static float logits[N], probs[N];
    static double want[N];
    static int32_t scratch[N];
    const double temperatures[] = {0, 1e-3, 0.5, 1, 2, 50};
    const int32_t ks[] = {0, 1, 2, 7, 299, 300, 1000};
    const double ps[] = {1e-9, 0.1, 0.5, 0.9, 0.999, 1};
    for (int32_t trial = 0; trial < 3; trial++) {
        for (int32_t i = 0; i < N; i++) {
            const double u = plait_spec_random(1, (uint64_t)trial, i, PLAIT_SPEC_TOKEN);
            /* Trial 1 has many ties, trial 2 tokens that cannot come. */
            logits[i] = trial == 1 ? (float)(int32_t)(u * 4) : (float)(u * 16 - 8);
            if (trial == 2 && i % 3)
                logits[i] = -INFINITY;
        }
        for (size_t t = 0; t < 6; t++) {
            for (size_t k = 0; k < 7; k++) {
                for (size_t p = 0; p < 6; p++) {
                    const plait_sampling s = {temperatures[t], ks[k], ps[p], 0, 0};
                    expected_distribution(logits, N, &s, want);
                    assert_true(plait_spec_distribution(logits, N, &s, scratch, probs) >= 0);
                    for (int32_t i = 0; i < N; i++) {
                        /* Which tokens are kept is exact but where a share falls on top_p. */
                        if (!(fabs((double)probs[i] - want[i]) <= 1e-6 * (1e-3 + want[i])))
                            fail_msg("trial %d, T %g, k %d, p %g: token %d has %g, not %g", trial,
                                     s.temperature, s.top_k, s.top_p, i, (double)probs[i], want[i]);
                    }
                }
            }
        }
    }
}

static void logits_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    const plait_sampling s = {1, 0, 1, 0, 0};
    float logits[3] = {0, NAN, 1}, probs[3];
    int32_t scratch[3];
    assert_int_equal(plait_spec_distribution(logits, 3, &s, scratch, probs), -1);
    logits[1] = INFINITY;
    assert_int_equal(plait_spec_distribution(logits, 3, &s, scratch, probs), -1);
    logits[0] = logits[1] = logits[2] = -INFINITY;
    assert_int_equal(plait_spec_distribution(logits, 3, &s, scratch, probs), -1);
}

static void logprobs_are_those_of_the_plain_softmax(void **state)
{
    (void)state;
    const float logits[] = {1, 3, -INFINITY, 3, 2};
    const double norm = log(exp(1) + 2 * exp(3) + exp(2));
    float logprob, top[7];
    int32_t ids[7];
    plait_spec_logprobs(logits, 5, 4, 7, &logprob, ids, top);
    assert_true(fabs((double)logprob - (2 - norm)) < 1e-6);
    const int32_t want[] = {1, 3, 4, 0, 2, -1, -1};
    assert_memory_equal(ids, want, sizeof want);
    for (int32_t i = 0; i < 4; i++)
        assert_true(fabs((double)top[i] - ((double)logits[want[i]] - norm)) < 1e-6);
    assert_true(top[4] == -INFINITY && top[5] == -INFINITY);
    plait_spec_logprobs(logits, 5, 1, 1, &logprob, ids, top);
    assert_int_equal(ids[0], 1);
}

/* ---- random numbers -------------------------------------------------------------------------- */

/* Upper limit of chi-square with n degrees of freedom that chance passes once in about 1e6 times
   (Wilson and Hilferty's approximation). */
static double chi_limit(int32_t n)
{
    const double a = 2.0 / (9.0 * n), b = 1 - a + 4.75 * sqrt(a);
    return n * b * b * b;
}

static void random_numbers_are_uniform_and_independent(void **state)
{
    (void)state;
    enum { BINS = 16 };
    /* Neighbours in each argument, as pairs. */
    for (int32_t which = 0; which < 4; which++) {
        int64_t count[BINS * BINS] = {0};
        for (int64_t i = 0; i < 200000; i++) {
            const double a = plait_spec_random(7, 3, 2 * i, PLAIT_SPEC_TOKEN);
            const double b = which == 0   ? plait_spec_random(8, 3, 2 * i, PLAIT_SPEC_TOKEN)
                             : which == 1 ? plait_spec_random(7, 4, 2 * i, PLAIT_SPEC_TOKEN)
                             : which == 2 ? plait_spec_random(7, 3, 2 * i + 1, PLAIT_SPEC_TOKEN)
                                          : plait_spec_random(7, 3, 2 * i, PLAIT_SPEC_ACCEPT);
            assert_true(a >= 0 && a < 1 && b >= 0 && b < 1);
            count[(int32_t)(a * BINS) * BINS + (int32_t)(b * BINS)]++;
        }
        double chi = 0;
        const double want = 200000.0 / (BINS * BINS);
        for (int32_t i = 0; i < BINS * BINS; i++)
            chi += ((double)count[i] - want) * ((double)count[i] - want) / want;
        if (!(chi < chi_limit(BINS * BINS - 1)))
            fail_msg("argument %d: chi-square %g", which, chi);
    }
    /* Pinned: seeds mean the same in all releases and on all machines. */
    assert_true(plait_spec_random(0, 0, 0, PLAIT_SPEC_TOKEN) == 0x1.cad2ea3432f1cp-2);
    assert_true(plait_spec_random(1, 2, 3, PLAIT_SPEC_REDRAW) == 0x1.9d8d24fdf3f2ep-2);
}

/* ---- losslessness ---------------------------------------------------------------------------- */

typedef enum rule {
    RULE,          /* plait_spec_judge */
    REDRAW_FROM_P, /* faults that the test must see */
    ACCEPT_BY_P,
    SHARED_RANDOM
} rule;

/* A toy target and drafter whose distributions depend on the last token. */
struct toy {
    plait_sampling sampling;
    float p[VOCAB + 1][VOCAB], q[VOCAB + 1][VOCAB];
    int32_t best[VOCAB + 1]; /* of q: what an argmax drafter proposes */
    int one_hot;
};

static void open_toy(struct toy *t, const plait_sampling *s, int one_hot)
{
    int32_t scratch[VOCAB];
    t->sampling = *s;
    t->one_hot = one_hot;
    for (int32_t last = 0; last <= VOCAB; last++) {
        float target[VOCAB], draft[VOCAB];
        for (int32_t i = 0; i < VOCAB; i++) {
            const double u = plait_spec_random(99, 0, last * VOCAB + i, PLAIT_SPEC_TOKEN);
            const double v = plait_spec_random(99, 1, last * VOCAB + i, PLAIT_SPEC_TOKEN);
            target[i] = (float)(3 * u);
            draft[i] = (float)(1.5 * u + 2 * v);
        }
        assert_true(plait_spec_distribution(target, VOCAB, s, scratch, t->p[last]) >= 0);
        t->best[last] = plait_spec_distribution(draft, VOCAB, s, scratch, t->q[last]);
    }
}

static int32_t judge(const struct toy *t, rule r, int32_t last, int32_t draft,
                     const plait_sampling *s, int64_t at)
{
    const float *p = t->p[last], *q = t->one_hot ? NULL : t->q[last];
    if (r == RULE)
        return plait_spec_judge(p, q, VOCAB, draft, s, at);
    const double chance = plait_spec_random(s->seed, s->request, at, PLAIT_SPEC_ACCEPT);
    const double of_draft = q && r != ACCEPT_BY_P ? (double)q[draft] : 1;
    if (chance * of_draft < (double)p[draft])
        return draft;
    if (r == REDRAW_FROM_P)
        return plait_spec_draw(p, VOCAB,
                               plait_spec_random(s->seed, s->request, at, PLAIT_SPEC_REDRAW));
    float rest[VOCAB];
    for (int32_t i = 0; i < VOCAB; i++)
        rest[i] = q ? fmaxf(p[i] - q[i], 0) : i == draft ? 0 : p[i];
    return plait_spec_draw(
        rest, VOCAB,
        plait_spec_random(s->seed, s->request, at,
                          r == SHARED_RANDOM ? PLAIT_SPEC_DRAFT : PLAIT_SPEC_REDRAW));
}

/* Two tokens with k drafts a step, as the engine makes them. */
static void decode(const struct toy *t, rule r, int32_t k, uint64_t trial, int32_t *out)
{
    plait_sampling s = t->sampling;
    s.request = trial;
    int32_t num = 0, last = VOCAB;
    while (num < 2) {
        int32_t drafts[MAX_DRAFTS], before = last, j = 0;
        for (int32_t i = 0; i < k; i++) {
            drafts[i] = t->one_hot ? t->best[before]
                                   : plait_spec_draw(t->q[before], VOCAB,
                                                     plait_spec_random(s.seed, s.request, num + i,
                                                                       PLAIT_SPEC_DRAFT));
            before = drafts[i];
        }
        for (; j < k; j++) {
            const int32_t token = judge(t, r, last, drafts[j], &s, num);
            const int stands = token == drafts[j];
            last = token;
            if (num < 2)
                out[num] = token;
            num++;
            if (!stands)
                break;
        }
        if (j < k)
            continue;
        last = plait_spec_draw(t->p[last], VOCAB,
                               plait_spec_random(s.seed, s.request, num, PLAIT_SPEC_TOKEN));
        if (num < 2)
            out[num] = last;
        num++;
    }
}

/* Chi-square of pairs of tokens against p(a) p(b | a), over its limit. */
static double misfit(const struct toy *t, rule r, int32_t k, int64_t trials)
{
    int64_t count[VOCAB * VOCAB] = {0};
    double chi = 0;
    int32_t cells = 0;
    for (int64_t i = 0; i < trials; i++) {
        int32_t pair[2];
        decode(t, r, k, (uint64_t)i, pair);
        count[pair[0] * VOCAB + pair[1]]++;
    }
    for (int32_t a = 0; a < VOCAB; a++) {
        for (int32_t b = 0; b < VOCAB; b++) {
            const double want = (double)trials * (double)t->p[VOCAB][a] * (double)t->p[a][b];
            const double got = (double)count[a * VOCAB + b];
            if (want <= 0) {
                if (got > 0)
                    return INFINITY;
                continue;
            }
            chi += (got - want) * (got - want) / want;
            cells++;
        }
    }
    return cells == 1 ? chi : chi / chi_limit(cells - 1);
}

static const plait_sampling settings[] = {
    {0, 0, 1, 11, 0},   {0.5, 0, 1, 12, 0}, {1, 0, 1, 13, 0},   {2, 0, 1, 14, 0},
    {0.5, 4, 1, 15, 0}, {1, 0, 0.8, 16, 0}, {2, 4, 0.9, 17, 0},
};

/* A sanitizer's run is slower by far: fewer trials see less, but the same code. */
static int64_t num_trials(void)
{
    const char *sanitizer = getenv("PLAIT_SANITIZED");
    return sanitizer && *sanitizer ? TRIALS / 50 : TRIALS;
}

static void drafts_do_not_change_the_distribution_case38(void **state)
{
    (void)state;
    double worst = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        for (int one_hot = 0; one_hot <= 1; one_hot++) {
            struct toy t;
            open_toy(&t, &settings[i], one_hot);
            for (int32_t k = one_hot; k <= MAX_DRAFTS; k++) {
                const double over = misfit(&t, RULE, k, num_trials() / (i >= 1 && i <= 3 ? 1 : 4));
                if (!(over < 1))
                    fail_msg("setting %zu, one-hot %d, K %d: chi-square is %g of its limit", i,
                             one_hot, k, over);
                worst = over > worst ? over : worst;
            }
        }
    }
    print_message("# highest chi-square: %.2f of the limit\n", worst);
}

static void biased_rules_are_rejected_by_the_same_test(void **state)
{
    (void)state;
    struct toy soft, hot;
    open_toy(&soft, &settings[2], 0);
    open_toy(&hot, &settings[2], 1);
    for (int32_t k = 1; k <= MAX_DRAFTS; k++) {
        assert_true(misfit(&soft, REDRAW_FROM_P, k, TRIALS / 50) > 1);
        assert_true(misfit(&hot, REDRAW_FROM_P, k, TRIALS / 50) > 1);
        assert_true(misfit(&soft, ACCEPT_BY_P, k, TRIALS / 50) > 1);
        assert_true(misfit(&soft, SHARED_RANDOM, k, TRIALS / 50) > 1);
    }
}

/* The numbers of the published example: the ratio rule accepts 0.60 of the drafts. */
static void ratio_rule_accepts_as_much_as_it_may_case38(void **state)
{
    (void)state;
    const float p[] = {0.6f, 0.3f, 0.1f}, q[] = {0.2f, 0.5f, 0.3f};
    int64_t accepted = 0, count[3] = {0};
    for (int64_t i = 0; i < TRIALS; i++) {
        const plait_sampling s = {1, 0, 1, 5, (uint64_t)i};
        const int32_t draft =
            plait_spec_draw(q, 3, plait_spec_random(5, s.request, 0, PLAIT_SPEC_DRAFT));
        const int32_t token = plait_spec_judge(p, q, 3, draft, &s, 0);
        accepted += token == draft;
        count[token]++;
    }
    assert_true(fabs((double)accepted / TRIALS - 0.6) < 0.003);
    for (int32_t i = 0; i < 3; i++)
        assert_true(fabs((double)count[i] / TRIALS - (double)p[i]) < 0.003);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distribution_equals_a_sort_in_double),
        cmocka_unit_test(logits_that_are_not_finite_are_refused),
        cmocka_unit_test(logprobs_are_those_of_the_plain_softmax),
        cmocka_unit_test(random_numbers_are_uniform_and_independent),
        cmocka_unit_test(drafts_do_not_change_the_distribution_case38),
        cmocka_unit_test(biased_rules_are_rejected_by_the_same_test),
        cmocka_unit_test(ratio_rule_accepts_as_much_as_it_may_case38),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
