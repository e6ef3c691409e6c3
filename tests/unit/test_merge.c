/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of partial states: every rule of plait/merge.h, through every entry point. */
#include <plait/merge.h>

#include <math.h>
#include <string.h>

#include "core/convert.h"
#include "unit.h"

enum { d_v = 72, max_n = 8 }; /* 72: neither a power of two nor a multiple of 64 */

/* Up to 8 states of 2 rows x 3 heads, and a destination. */
struct states {
    float out[max_n][2][3][d_v], lse[max_n][2][3];
    plait_partial part[max_n];
    float merged_out[2][3][d_v], merged_lse[2][3];
    plait_merged to;
};

static void set(struct states *s, int i, float lse, float out)
{
    for (int m = 0; m < 6; m++) {
        s->lse[i][m / 3][m % 3] = lse;
        for (int d = 0; d < d_v; d++)
            s->out[i][m / 3][m % 3][d] = out;
    }
}

static void open_states(struct states *s)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < max_n; i++) {
        s->part[i] = (plait_partial){s->out[i], PLAIT_F32, 3 * d_v, d_v, s->lse[i][0], 3, 1};
        set(s, i, -INFINITY, 0);
    }
    s->to = (plait_merged){s->merged_out, PLAIT_F32, 3 * d_v, d_v, s->merged_lse[0], 3, 1};
    memset(s->merged_out, 0x99, sizeof s->merged_out);
    memset(s->merged_lse, 0x99, sizeof s->merged_lse);
}

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("got %.9g, wanted %.9g", got, want);
}

/* The entry points: n-way, a chain of pairs, and a chain in place. */
enum { n_entries = 3 };
static void merge_by(int entry, struct states *s, int n, uint32_t flags)
{
    if (entry == 0) {
        assert_int_equal(plait_merge(s->part, n, 2, 3, d_v, flags, &s->to), PLAIT_OK);
        return;
    }
    assert_int_equal(plait_merge(s->part, 1, 2, 3, d_v, flags, &s->to), PLAIT_OK);
    const plait_partial self = {s->merged_out, PLAIT_F32, 3 * d_v, d_v, s->merged_lse[0], 3, 1};
    for (int i = 1; i < n; i++)
        if (entry == 1)
            assert_int_equal(plait_merge_pair(&self, &s->part[i], 2, 3, d_v, flags, &s->to),
                             PLAIT_OK);
        else
            assert_int_equal(plait_merge_into(&s->to, &s->part[i], 2, 3, d_v, flags), PLAIT_OK);
}

static void all_equal(const struct states *s, float out, float lse)
{
    for (int m = 0; m < 6; m++) {
        float got = s->merged_lse[m / 3][m % 3];
        assert_memory_equal(&got, &lse, 4);
        for (int d = 0; d < d_v; d++)
            assert_memory_equal(&s->merged_out[m / 3][m % 3][d], &out, 4);
    }
}

static void test_case1_natural_log(void **state)
{
    (void)state;
    struct states s;
    for (int entry = 0; entry < n_entries; entry++) {
        open_states(&s);
        set(&s, 0, 10, 1);
        set(&s, 1, 7, 0);
        merge_by(entry, &s, 2, 0);
        near(s.merged_out[1][2][d_v - 1], 0.952574, 1e-6);
        near(s.merged_lse[1][2], 10.048587, 1e-6);
    }
}

static void test_case2_large_lse(void **state)
{
    (void)state;
    struct states s;
    for (int entry = 0; entry < n_entries; entry++) {
        open_states(&s);
        set(&s, 0, 5000, 1);
        set(&s, 1, 4990, 0);
        merge_by(entry, &s, 2, 0);
        assert_true(s.merged_lse[0][0] == 5000);
        near(s.merged_out[0][0][0], 1 / (1 + exp(-10)), 1e-6);
    }
}

static void test_case3_empty_states(void **state)
{
    (void)state;
    static const int counts[] = {2, 3, 8};
    struct states s;
    for (int entry = 0; entry < n_entries; entry++)
        for (int c = 0; c < 3; c++) {
            open_states(&s);
            merge_by(entry, &s, counts[c], 0);
            all_equal(&s, 0, -INFINITY);
            for (int i = 0; i < counts[c]; i++) {
                open_states(&s);
                set(&s, i, 3.7f, -0.1234567f);
                merge_by(entry, &s, counts[c], 0);
                all_equal(&s, -0.1234567f, 3.7f);
                open_states(&s);
                set(&s, i, -1e30f, -0.0f); /* the sign of zero is a bit too */
                merge_by(entry, &s, counts[c], 0);
                all_equal(&s, -0.0f, -1e30f);
            }
        }
}

static void test_none_gives_empty(void **state)
{
    (void)state;
    struct states s;
    open_states(&s);
    assert_int_equal(plait_merge(NULL, 0, 2, 3, d_v, 0, &s.to), PLAIT_OK);
    all_equal(&s, 0, -INFINITY);
}

static void test_case4_positive_infinity_is_empty(void **state)
{
    (void)state;
    struct states s;
    for (int entry = 0; entry < n_entries; entry++) {
        open_states(&s);
        set(&s, 0, INFINITY, NAN);
        set(&s, 1, 2, 5);
        merge_by(entry, &s, 3, 0);
        all_equal(&s, 5, 2);
        set(&s, 1, INFINITY, NAN);
        merge_by(entry, &s, 3, 0);
        all_equal(&s, 0, -INFINITY);
    }
}

static void test_nan_lse_propagates_unless_flagged(void **state)
{
    (void)state;
    struct states s;
    for (int entry = 0; entry < n_entries; entry++)
        for (int i = 0; i < 3; i++) {
            open_states(&s);
            for (int j = 0; j < 3; j++)
                set(&s, j, j == i ? NAN : INFINITY, 7);
            set(&s, (i + 1) % 3, 2, 5);
            merge_by(entry, &s, 3, 0);
            assert_true(isnan(s.merged_lse[1][1]) && isnan(s.merged_out[1][1][d_v - 1]));
            merge_by(entry, &s, 3, PLAIT_MERGE_NAN_IS_EMPTY);
            all_equal(&s, 5, 2);
        }
}

static void test_payload_of_weight_zero_is_not_read(void **state)
{
    (void)state;
    struct states s;
    for (int entry = 0; entry < n_entries; entry++) {
        open_states(&s);
        set(&s, 0, -INFINITY, NAN);
        set(&s, 1, 1000, 4);
        set(&s, 2, 0, INFINITY); /* exp(-1000) is 0 */
        merge_by(entry, &s, 3, 0);
        all_equal(&s, 4, 1000);
    }
}

static void test_nan_payload_with_weight_shows(void **state)
{
    (void)state;
    struct states s;
    open_states(&s);
    set(&s, 0, 1, NAN);
    set(&s, 1, 1, 1);
    merge_by(0, &s, 2, 0);
    assert_true(isnan(s.merged_out[0][0][0]) && !isnan(s.merged_lse[0][0]));
}

/* Case 49: the error must not grow with the number of ranks. */
static void test_case49_sums_in_float32_and_rounds_once(void **state)
{
    (void)state;
    enum { n = 16 };
    uint16_t out[n][8], merged[8];
    float lse[n], merged_lse;
    plait_partial part[n];
    double want = 0;
    for (int i = 0; i < n; i++) {
        lse[i] = 3;
        for (int d = 0; d < 8; d++)
            out[i][d] = plait_bf16_from_f32(1 + 0.0078125f * (float)(i % 3));
        want += plait_bf16_to_f32(out[i][0]) / n;
        part[i] = (plait_partial){out[i], PLAIT_BF16, 8, 8, &lse[i], 1, 1};
    }
    plait_merged to = {merged, PLAIT_BF16, 8, 8, &merged_lse, 1, 1};
    assert_int_equal(plait_merge(part, n, 1, 1, 8, 0, &to), PLAIT_OK);
    for (int d = 0; d < 8; d++)
        assert_int_equal(merged[d], plait_bf16_from_f32((float)want));
    near(merged_lse, 3 + log(n), 1e-6);
}

/* States over random subsets of keys give what all keys give, in any dtype and in any order. */
static void test_matches_double(void **state)
{
    (void)state;
    struct states s;
    uint32_t x = 1;
    for (int n = 1; n <= max_n; n++) {
        open_states(&s);
        for (int i = 0; i < n; i++)
            for (int m = 0; m < 6; m++) {
                s.lse[i][m / 3][m % 3] = (float)((x = x * 1664525u + 1013904223u) >> 16) / 4096 - 8;
                for (int d = 0; d < d_v; d++)
                    s.out[i][m / 3][m % 3][d] =
                        (float)((x = x * 1664525u + 1013904223u) >> 16) / 32768 - 1;
            }
        merge_by(0, &s, n, 0);
        for (int m = 0; m < 6; m++) {
            double sum = 0, out = 0;
            for (int i = 0; i < n; i++) {
                double w = exp((double)s.lse[i][m / 3][m % 3]);
                sum += w;
                out += w * (double)s.out[i][m / 3][m % 3][d_v - 1];
            }
            near(s.merged_lse[m / 3][m % 3], log(sum), 2e-6);
            near(s.merged_out[m / 3][m % 3][d_v - 1], out / sum, 1e-6);
        }
    }
}

static void test_sink(void **state)
{
    (void)state;
    struct states s;
    const float sink[3] = {-INFINITY, 2, INFINITY};
    open_states(&s);
    set(&s, 0, 2, 5);
    merge_by(0, &s, 1, 0);
    assert_int_equal(plait_merge_sink(&s.to, sink, 2, 3, d_v), PLAIT_OK);
    for (int row = 0; row < 2; row++) {
        assert_true(s.merged_out[row][0][0] == 5 && s.merged_lse[row][0] == 2);
        near(s.merged_out[row][1][d_v - 1], 2.5, 1e-6);
        near(s.merged_lse[row][1], 2 + log(2), 1e-6);
        assert_true(s.merged_out[row][2][0] == 5 && s.merged_lse[row][2] == 2);
    }
    open_states(&s); /* an empty row with a sink: out 0, lse the sink's */
    merge_by(0, &s, 1, 0);
    assert_int_equal(plait_merge_sink(&s.to, sink, 2, 3, d_v), PLAIT_OK);
    assert_true(s.merged_out[0][1][0] == 0 && s.merged_lse[0][1] == 2);
}

static void test_refuses_by_name(void **state)
{
    (void)state;
    struct states s;
    open_states(&s);
    assert_int_equal(plait_merge(s.part, PLAIT_MERGE_MAX + 1, 1, 1, d_v, 0, &s.to), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "257"));
    assert_int_equal(plait_merge(s.part, 1, -1, 1, d_v, 0, &s.to), PLAIT_E_ARG);
    s.part[1].dtype = PLAIT_FP8_E4M3;
    assert_int_equal(plait_merge(s.part, 2, 1, 1, d_v, 0, &s.to), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "state 1"));
    s.part[0].lse = NULL;
    assert_int_equal(plait_merge(s.part, 1, 1, 1, d_v, 0, &s.to), PLAIT_E_ARG);
    s.to.lse = NULL;
    assert_int_equal(plait_merge_into(&s.to, &s.part[2], 1, 1, d_v, 0), PLAIT_E_ARG);
    uint32_t untouched;
    memcpy(&untouched, &s.merged_out[0][0][0], 4);
    assert_int_equal(untouched, 0x99999999u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_case1_natural_log),
        cmocka_unit_test(test_case2_large_lse),
        cmocka_unit_test(test_case3_empty_states),
        cmocka_unit_test(test_none_gives_empty),
        cmocka_unit_test(test_case4_positive_infinity_is_empty),
        cmocka_unit_test(test_nan_lse_propagates_unless_flagged),
        cmocka_unit_test(test_payload_of_weight_zero_is_not_read),
        cmocka_unit_test(test_nan_payload_with_weight_shows),
        cmocka_unit_test(test_case49_sums_in_float32_and_rounds_once),
        cmocka_unit_test(test_matches_double),
        cmocka_unit_test(test_sink),
        cmocka_unit_test(test_refuses_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
