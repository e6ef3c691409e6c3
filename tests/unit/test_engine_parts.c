/* SPDX-License-Identifier: Apache-2.0 */
/* Routing, rope, matrix products and the rules of verification, each against its definition. */
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <plait/spec.h>

#include "core/convert.h"
#include "engine/gemm.h"
#include "engine/moe.h"
#include "engine/rope.h"

static void near(double got, double want, double tol)
{
    if (!(fabs(got - want) <= tol))
        fail_msg("got %.9g, want %.9g", got, want);
}

static void moe_bias_only_in_selection_case41(void **state)
{
    (void)state;
    plait_config c = {.num_experts = 4,
                      .experts_per_token = 2,
                      .num_groups = 2,
                      .groups_per_token = 2,
                      .norm_topk_prob = true,
                      .routed_scaling_factor = 1};
    const float logits[] = {1, .5f, -.5f, -1}, bias[] = {0, 0, .9f, 0};
    float scratch[8], weights[4];
    int32_t experts[4];
    plait_moe_route(&c, logits, bias, scratch, experts, weights);
    assert_int_equal(experts[0], 2);
    assert_int_equal(experts[1], 0);
    near(weights[0], .340556, 1e-6);
    near(weights[1], .659444, 1e-6);
    c.num_experts = c.experts_per_token = 3;
    c.num_groups = c.groups_per_token = 1;
    const float small[] = {-16, -17, -18}, large[] = {12, 12, 12};
    float margin = plait_moe_route(&c, small, large, scratch, experts, weights);
    assert_true(isinf(margin));
    float by_id[3];
    for (int i = 0; i < 3; i++)
        by_id[experts[i]] = weights[i];
    near(by_id[0], .665241, 1e-6);
    near(by_id[1], .244728, 1e-6);
    near(by_id[2], .090031, 1e-6);
}

/* Double-precision routing by counting what is better, for comparison. */
static void route_double(const plait_config *c, const float *logits, const float *bias,
                         double *weight_of)
{
    double score[16], choice[16], sums[8];
    const int size = c->num_experts / c->num_groups;
    double all = 0;
    for (int e = 0; e < c->num_experts; e++)
        all += exp((double)logits[e]);
    for (int e = 0; e < c->num_experts; e++) {
        score[e] =
            c->softmax_scores ? exp((double)logits[e]) / all : 1 / (1 + exp(-(double)logits[e]));
        choice[e] = score[e] + (bias ? bias[e] : 0);
        weight_of[e] = 0;
    }
    for (int g = 0; g < c->num_groups; g++) {
        double a = -1e9, b = -1e9;
        for (int e = g * size; e < (g + 1) * size; e++) {
            b = fmax(b, fmin(a, choice[e]));
            a = fmax(a, choice[e]);
        }
        sums[g] = c->softmax_scores ? a : a + b;
    }
    double sum = 0;
    for (int e = 0; e < c->num_experts; e++) {
        int better_groups = 0, better = 0;
        for (int g = 0; g < c->num_groups; g++)
            better_groups += sums[g] > sums[e / size];
        for (int o = 0; o < c->num_experts; o++) {
            int above = 0;
            for (int g = 0; g < c->num_groups; g++)
                above += sums[g] > sums[o / size];
            better += above < c->groups_per_token && choice[o] > choice[e];
        }
        if (better_groups < c->groups_per_token && better < c->experts_per_token)
            sum += weight_of[e] = score[e];
    }
    for (int e = 0; e < c->num_experts; e++)
        weight_of[e] *= c->routed_scaling_factor / (c->norm_topk_prob ? sum : 1);
}

static void moe_routing_equals_double_reference(void **state)
{
    (void)state;
    plait_config c = {.num_experts = 16,
                      .experts_per_token = 4,
                      .num_groups = 4,
                      .groups_per_token = 2,
                      .norm_topk_prob = true,
                      .routed_scaling_factor = 2.5f};
    srand(7);
    for (int trial = 0; trial < 2000; trial++) {
        c.softmax_scores = trial % 2; /* V2 has no bias */
        c.norm_topk_prob = trial / 2 % 2;
        float logits[16], bias[16], scratch[32], weights[4];
        double want[16];
        int32_t experts[4];
        for (int e = 0; e < 16; e++) {
            logits[e] = (float)(rand() % 4000 - 2000) / 500;
            bias[e] = (float)(rand() % 4000 - 2000) / 4000;
        }
        const float *used = c.softmax_scores ? NULL : bias;
        if (!(plait_moe_route(&c, logits, used, scratch, experts, weights) > 1e-5f))
            continue;
        route_double(&c, logits, used, want);
        for (int i = 0; i < 4; i++) {
            near(weights[i], want[experts[i]], 1e-5);
            want[experts[i]] = 0;
        }
        for (int e = 0; e < 16; e++)
            assert_true(want[e] == 0);
    }
}

static void rope_pairs_neighbours_case40(void **state)
{
    (void)state;
    for (int interleave = 0; interleave < 2; interleave++) {
        plait_rope rope = {.dim = 64, .interleave = interleave, .theta = 1e4};
        plait_rope_table table;
        assert_int_equal(plait_rope_table_open(&rope, 4, &table), PLAIT_OK);
        const int at = 1, other = interleave ? 0 : 33, pair = interleave ? 0 : 1;
        const double angle = pow(1e4, -2.0 * pair / 64);
        float x[64] = {0};
        x[at] = 1;
        plait_rope_apply(&table, 0, x);
        near(x[at], 1, 0);
        plait_rope_apply(&table, 1, x);
        near(x[at], cos(angle), 1e-6);
        near(x[other], interleave ? -sin(angle) : sin(angle), 1e-6);
        for (int i = 0; i < 64; i++)
            assert_true(i == at || i == other || x[i] == 0);
        plait_rope_table_close(&table);
    }
}

static double operand(float x, int bf16)
{
    return bf16 ? plait_bf16_to_f32(plait_bf16_from_f32(x)) : x;
}

static void gemm_equals_double_products(void **state)
{
    (void)state;
    enum { K = 43, N = 77, M = 37 };
    static float w[N * K], a[M * (K + 3)], c[M * (N + 5)];
    srand(3);
    for (int i = 0; i < N * K; i++)
        w[i] = (float)(rand() % 2001 - 1000) / 1000;
    for (int i = 0; i < M * (K + 3); i++)
        a[i] = (float)(rand() % 2001 - 1000) / 1000;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        plait_gemm_set *set;
        plait_gemm *g;
        assert_int_equal(plait_gemm_set_open(2, M, NULL, &set), PLAIT_OK);
        assert_int_equal(plait_gemm_open(set, bf16 ? PLAIT_BF16 : PLAIT_F32, w, K, N, 1, K, &g),
                         PLAIT_OK);
        for (int m = 1; m <= M; m++) {
            for (int i = 0; i < M * (N + 5); i++)
                c[i] = 99;
            assert_int_equal(plait_gemm_run(g, 1, m, a, K + 3, c, N + 5), PLAIT_OK);
            for (int i = 0; i < M; i++) {
                for (int j = 0; j < N + 5; j++) {
                    double want = 0;
                    for (int k = 0; k < K && j < N; k++)
                        want += operand(a[i * (K + 3) + k], bf16) * operand(w[j * K + k], bf16);
                    near(c[i * (N + 5) + j], i < m && j < N ? want : 99, 1e-5);
                }
            }
        }
        assert_int_equal(plait_gemm_run(g, 0, M + 28, a, K, c, N), PLAIT_E_ARG);
        plait_gemm_set_close(&set);
    }
}

static void argmax_takes_lowest_id_on_ties_case17(void **state)
{
    (void)state;
    const float ties[] = {1, 5, 2, 5, 5}, equal[] = {3, 3, 3}, bad[] = {1, NAN, 7},
                infinite[] = {-INFINITY, INFINITY};
    assert_int_equal(plait_spec_argmax(ties, 5), 1);
    assert_int_equal(plait_spec_argmax(equal, 3), 0);
    assert_int_equal(plait_spec_argmax(bad, 3), -1);
    assert_int_equal(plait_spec_argmax(infinite, 2), -1);
}

/* One value after the other, as the rule has it. */
static int32_t first_highest(const float *x, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(x[i]))
            return -1;
        best = best < 0 || x[i] > x[best] ? i : best;
    }
    return best >= 0 && isfinite(x[best]) ? best : -1;
}

static void argmax_of_any_length_is_the_first_highest(void **state)
{
    (void)state;
    float x[100];
    srand(11);
    for (int run = 0; run < 20000; run++) {
        const int32_t n = rand() % 100;
        for (int32_t i = 0; i < n; i++)
            x[i] = rand() % 5 ? (float)(rand() % 9 - 4) : -INFINITY;
        if (n && run % 5 == 1)
            x[rand() % n] = NAN;
        if (n && run % 5 == 2)
            x[rand() % n] = INFINITY;
        assert_int_equal(plait_spec_argmax(x, n), first_highest(x, n));
    }
}

static void greedy_verification_keeps_the_equal_prefix(void **state)
{
    (void)state;
    const int32_t chosen[] = {4, 5, 6, 7}, all[] = {4, 5, 6}, some[] = {4, 9, 6},
                  none[] = {1, 5, 6};
    assert_int_equal(plait_spec_verify_greedy(all, 3, chosen), 4);
    assert_int_equal(plait_spec_verify_greedy(some, 3, chosen), 2);
    assert_int_equal(plait_spec_verify_greedy(none, 3, chosen), 1);
    assert_int_equal(plait_spec_verify_greedy(NULL, 0, chosen), 1);
}

static void stop_and_length_cut_once_case34(void **state)
{
    (void)state;
    enum { STOP = 99 };
    const int32_t run[] = {10, 11, STOP, 20, 21, 22}, stop = STOP;
    int32_t stopped;
    assert_int_equal(plait_spec_cut(run, 6, 5, &stop, 1, &stopped), 3);
    assert_int_equal(stopped, 1);
    assert_int_equal(plait_spec_cut(run, 6, 2, &stop, 1, &stopped), 2);
    assert_int_equal(stopped, 0);
    assert_int_equal(plait_spec_cut(run, 6, 3, &stop, 1, &stopped), 3);
    assert_int_equal(stopped, 1);
    assert_int_equal(plait_spec_cut(run, 3, 9, &stop, 1, &stopped), 3);
    assert_int_equal(stopped, 1);
    assert_int_equal(plait_spec_cut(run, 6, 5, NULL, 0, &stopped), 5);
    assert_int_equal(stopped, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moe_bias_only_in_selection_case41),
        cmocka_unit_test(moe_routing_equals_double_reference),
        cmocka_unit_test(rope_pairs_neighbours_case40),
        cmocka_unit_test(gemm_equals_double_products),
        cmocka_unit_test(argmax_takes_lowest_id_on_ties_case17),
        cmocka_unit_test(argmax_of_any_length_is_the_first_highest),
        cmocka_unit_test(greedy_verification_keeps_the_equal_prefix),
        cmocka_unit_test(stop_and_length_cut_once_case34),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
