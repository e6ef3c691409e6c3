/* SPDX-License-Identifier: Apache-2.0 */
/* The geometry against brute force over whole periods, and the table of head layouts. */
#include <string.h>

#include "unit.h"

#include <plait/shard.h>

/* One period of every rank, walked token by token. The lemma f(n + D*I) = f(n) + I, tested at the
   same points, carries it to every length. */
static void walk_periods(int32_t d, int32_t i)
{
    int64_t period = (int64_t)d * i;
    int64_t count[64] = {0};
    for (int64_t p = 0; p < 2 * period; p++) {
        plait_shard s = {d, 0, i};
        int32_t owner = plait_shard_owner(s, p);
        assert_int_equal(owner, p / i % d);
        assert_int_equal(plait_shard_local(s, p), count[owner]);
        assert_int_equal(plait_shard_local(s, p + period), count[owner] + i);
        s.r = owner;
        assert_int_equal(plait_shard_global(s, count[owner]), p);
        assert_int_equal(plait_shard_global(s, count[owner] + i), p + period);
        count[owner]++;
        /* After token p only the owner's length has moved; neighbours are checked with it. */
        for (int32_t r = owner > 0 ? owner - 1 : 0; r < d && r <= owner + 1; r++) {
            s.r = r;
            assert_int_equal(plait_shard_len(s, p + 1), count[r]);
            assert_int_equal(plait_shard_len(s, p + 1 + period), count[r] + i);
        }
    }
}

static void geometry_matches_brute_force_over_two_periods(void **state)
{
    (void)state;
    for (int32_t d = 1; d <= 64; d++)
        for (int32_t i = 1; i <= 1024; i += i < 40 ? 1 : 61 + d % 7)
            walk_periods(d, i);
}

static void lengths_of_all_ranks_sum_to_the_global_length(void **state)
{
    (void)state;
    for (int32_t d = 1; d <= 9; d++)
        for (int32_t i = 1; i <= 17; i++)
            for (int64_t n = -2; n <= 3 * d * i; n++) {
                int64_t sum = 0;
                for (int32_t r = 0; r < d; r++)
                    sum += plait_shard_len((plait_shard){d, r, i}, n);
                assert_int_equal(sum, n < 0 ? 0 : n);
            }
}

static void largest_lengths_do_not_overflow(void **state)
{
    (void)state;
    const int64_t n = (int64_t)1 << 62;
    const int32_t most = 2147483647;
    plait_shard s[] = {{1, 0, 1}, {64, 63, 1024}, {most, most - 1, most}, {3, 2, 5}};
    for (size_t k = 0; k < sizeof s / sizeof *s; k++) {
        int64_t len = plait_shard_len(s[k], n);
        assert_true(len >= n / s[k].d - s[k].i && len <= n / s[k].d + s[k].i);
        int64_t local = plait_shard_local(s[k], n - 1);
        plait_shard owner = s[k];
        owner.r = plait_shard_owner(s[k], n - 1);
        assert_int_equal(plait_shard_global(owner, local), n - 1);
        assert_true(plait_shard_pages(s[k], n, 64) > 0);
    }
}

static void slots_are_distinct_and_complete_when_interleave_does_not_divide_page(void **state)
{
    (void)state;
    const int32_t page = 16, interleave[] = {1, 3, 5, 16, 32};
    for (int32_t d = 1; d <= 5; d++)
        for (int k = 0; k < 5; k++)
            for (int64_t n = 1; n < 200; n += 7) {
                plait_shard s = {d, 0, interleave[k]};
                int64_t pages = plait_shard_pages(s, n, page);
                int32_t table[256];
                for (int64_t t = 0; t < pages; t++)
                    table[t] = (int32_t)(pages - 1 - t) * 3 + 1;
                char seen[256 * 3 * 16] = {0};
                for (s.r = 0; s.r < d; s.r++) {
                    memset(seen, 0, sizeof seen);
                    for (int64_t p = 0; p < n; p++) {
                        int64_t slot = plait_shard_slot(s, p, table, pages, page);
                        if (plait_shard_owner(s, p) != s.r) {
                            assert_int_equal(slot, -1);
                            continue;
                        }
                        assert_true(slot >= 0 && !seen[slot]);
                        seen[slot] = 1;
                        int64_t c = plait_shard_local(s, p);
                        assert_int_equal(slot, (int64_t)table[c / page] * page + c % page);
                    }
                }
            }
}

static void slot_refuses_what_the_table_does_not_hold(void **state)
{
    (void)state;
    plait_shard s = {1, 0, 1};
    const int32_t table[] = {7, -1};
    assert_int_equal(plait_shard_slot(s, -1, table, 2, 4), -1);
    assert_int_equal(plait_shard_slot(s, 3, table, 2, 4), 31);
    assert_int_equal(plait_shard_slot(s, 4, table, 2, 4), -1);
    assert_int_equal(plait_shard_slot(s, 8, table, 2, 4), -1);
    const int32_t far = 2147483647;
    assert_int_equal(plait_shard_slot(s, 999, &far, 1, 1000), (int64_t)far * 1000 + 999);
}

static void vectors_from_the_field(void **state)
{
    (void)state;
    const int64_t want44[] = {15, 15, 14}, want3553[] = {1185, 1184, 1184};
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(plait_shard_len((plait_shard){3, r, 1}, 44), want44[r]);
        assert_int_equal(plait_shard_len((plait_shard){3, r, 1}, 3553), want3553[r]);
    }
    assert_int_equal(plait_shard_local((plait_shard){2, 1, 1}, 35), 17);
    assert_int_equal(plait_shard_local((plait_shard){2, 0, 16}, 35), 19);
    /* Case 11: D 2, I 1, length 6, rows at 2..5. */
    const int32_t want[2][4] = {{2, 2, 3, 3}, {1, 2, 2, 3}};
    for (int32_t r = 0; r < 2; r++)
        for (int64_t j = 0; j < 4; j++) {
            int32_t begin, end;
            plait_shard_range((plait_shard){2, r, 1}, 2 + j, 0, &begin, &end);
            assert_int_equal(begin, 0);
            assert_int_equal(end, want[r][j]);
        }
}

static void window_range_holds_exactly_the_keys_in_the_window(void **state)
{
    (void)state;
    for (int32_t d = 1; d <= 4; d++)
        for (int32_t i = 1; i <= 5; i++)
            for (int64_t index = 0; index < 60; index++)
                for (int32_t r = 0; r < d; r++) {
                    int32_t begin, end, seen = 0;
                    plait_shard s = {d, r, i};
                    plait_shard_range(s, index, 7, &begin, &end);
                    for (int64_t p = index < 6 ? 0 : index - 6; p <= index; p++)
                        if (plait_shard_owner(s, p) == r) {
                            int64_t c = plait_shard_local(s, p);
                            assert_true(c >= begin && c < end);
                            seen++;
                        }
                    assert_int_equal(end - begin, seen);
                }
}

static void prefix_unit_is_lcm_times_d(void **state)
{
    (void)state;
    assert_int_equal(plait_shard_prefix_unit((plait_shard){4, 0, 1}, 16), 64);
    assert_int_equal(plait_shard_prefix_unit((plait_shard){2, 0, 3}, 16), 96);
    assert_int_equal(plait_shard_prefix_unit((plait_shard){3, 0, 32}, 16), 96);
    assert_int_equal(plait_shard_prefix_unit((plait_shard){1, 0, 6}, 4), 12);
}

static void bad_geometry_is_refused_with_its_value(void **state)
{
    (void)state;
    assert_int_equal(plait_shard_check((plait_shard){2, 1, 16}), PLAIT_OK);
    assert_int_equal(plait_shard_check((plait_shard){0, 0, 1}), PLAIT_E_ARG);
    assert_int_equal(plait_shard_check((plait_shard){2, 2, 1}), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "rank is 2"));
    assert_int_equal(plait_shard_check((plait_shard){2, -1, 1}), PLAIT_E_ARG);
    assert_int_equal(plait_shard_check((plait_shard){2, 0, 0}), PLAIT_E_ARG);
}

static void table_of_head_layouts(void **state)
{
    (void)state;
    static const struct {
        plait_heads h;
        plait_status want;
        const char *text;
    } rows[] = {
        {{1, 8, 1, 2, 2}, PLAIT_OK, ""},
        {{1, 8, 1, 3, 3}, PLAIT_OK, ""},
        {{1, 12, 1, 8, 8}, PLAIT_OK, ""},
        {{1, 128, 1, 16, 4}, PLAIT_OK, ""},
        {{0, 64, 8, 16, 2}, PLAIT_OK, ""},
        {{0, 32, 2, 4, 2}, PLAIT_OK, ""},
        {{0, 32, 2, 4, 1}, PLAIT_OK, ""},
        {{0, 12, 1, 3, 3}, PLAIT_OK, ""},
        {{0, 32, 2, 4, 4}, PLAIT_E_UNSUPPORTED, "= 2"}, /* case 15 as reported */
        {{0, 64, 8, 16, 4}, PLAIT_E_UNSUPPORTED, "= 2"},
        {{0, 64, 8, 4, 2}, PLAIT_E_UNSUPPORTED, "multiple of the 8 KV heads"},
        {{0, 12, 1, 8, 8}, PLAIT_E_UNSUPPORTED, "12 query heads"},
        {{0, 10, 4, 4, 1}, PLAIT_E_UNSUPPORTED, "no multiple of 4"},
        {{1, 8, 1, 4, 3}, PLAIT_E_UNSUPPORTED, "DCP 3 must divide"},
        {{1, 8, 1, 9, 1}, PLAIT_E_UNSUPPORTED, "more than the 8 query heads"},
        {{1, 8, 2, 2, 2}, PLAIT_E_ARG, "found 2"},
        {{1, 0, 1, 2, 2}, PLAIT_E_ARG, "at least 1"},
        {{1, 8, 1, 0, 1}, PLAIT_E_ARG, "at least 1"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        assert_int_equal(plait_heads_check(&rows[k].h), rows[k].want);
        if (rows[k].want != PLAIT_OK)
            assert_non_null(strstr(plait_last_error(), rows[k].text));
    }
}

static void heads_of_case_15_use_the_kv_head_of_the_global_query_head(void **state)
{
    (void)state;
    plait_heads h = {0, 32, 2, 4, 2};
    for (int32_t rank = 0; rank < 4; rank++) {
        plait_heads_rank got;
        assert_int_equal(plait_heads_of_rank(&h, rank, &got), PLAIT_OK);
        assert_int_equal(got.head_begin, rank * 8);
        assert_int_equal(got.head_end, rank * 8 + 8);
        assert_int_equal(got.group_head_begin, rank / 2 * 16);
        assert_int_equal(got.group_head_end, rank / 2 * 16 + 16);
        assert_int_equal(got.kv_begin, rank / 2);
        assert_int_equal(got.kv_end, rank / 2 + 1);
        assert_int_equal(got.q_per_kv, 16);
        assert_int_equal(got.dcp_rank, rank % 2);
    }
    plait_heads_rank unused;
    assert_int_equal(plait_heads_of_rank(&h, 4, &unused), PLAIT_E_ARG);
}

static void uneven_mla_heads_cover_all_heads_once(void **state)
{
    (void)state;
    for (int32_t heads = 1; heads <= 33; heads++)
        for (int32_t w = 1; w <= heads; w++) {
            plait_heads h = {1, heads, 1, w, w};
            int32_t next = 0;
            for (int32_t rank = 0; rank < w; rank++) {
                plait_heads_rank got;
                assert_int_equal(plait_heads_of_rank(&h, rank, &got), PLAIT_OK);
                assert_int_equal(got.head_begin, next);
                assert_true(got.head_end > next);
                assert_int_equal(got.group_head_begin, 0);
                assert_int_equal(got.group_head_end, heads);
                assert_int_equal(got.kv_end - got.kv_begin, 1);
                next = got.head_end;
            }
            assert_int_equal(next, heads);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(geometry_matches_brute_force_over_two_periods),
        cmocka_unit_test(lengths_of_all_ranks_sum_to_the_global_length),
        cmocka_unit_test(largest_lengths_do_not_overflow),
        cmocka_unit_test(slots_are_distinct_and_complete_when_interleave_does_not_divide_page),
        cmocka_unit_test(slot_refuses_what_the_table_does_not_hold),
        cmocka_unit_test(vectors_from_the_field),
        cmocka_unit_test(window_range_holds_exactly_the_keys_in_the_window),
        cmocka_unit_test(prefix_unit_is_lcm_times_d),
        cmocka_unit_test(bad_geometry_is_refused_with_its_value),
        cmocka_unit_test(table_of_head_layouts),
        cmocka_unit_test(heads_of_case_15_use_the_kv_head_of_the_global_query_head),
        cmocka_unit_test(uneven_mla_heads_cover_all_heads_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
