/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan against brute force: rows, ranges, slots, pages and capacities, refresh against a fresh
 * plan. Numbers in test names are those of the cases they pin.
 */
#include <stdlib.h>
#include <string.h>

#include "plan_check.h"

/* ---- rows, ranges, slots, pages -------------------------------------------------------------- */

static void rows_match_brute_force_also_where_i_does_not_divide_p(void **state)
{
    (void)state;
    const int32_t interleave[] = {1, 3, 5, 16, 32};
    const int64_t window[] = {0, 1, 5, 40}, committed[] = {0, 31, 47, 96, 200, 1};
    const int32_t q_len[] = {20, 4, 1, 3, 0, 2};
    for (int32_t d = 1; d <= 4; d++)
        for (int32_t r = 0; r < d; r++)
            for (size_t i = 0; i < 5; i++)
                for (size_t w = 0; w < 4; w++) {
                    plait_plan_options o = test_plan_options(d, r, interleave[i], 16);
                    test_batch t;
                    o.window = window[w];
                    test_batch_init(&t, 6, committed, q_len);
                    t.is_prompt[0] = 1;
                    t.b.padded_rows = w % 2 ? 40 : 0;
                    test_plan_build_and_check(&o, &t);
                }
}

static void case_10_rows_before_position_0_are_refused_and_warm_up_leaves_nothing(void **state)
{
    (void)state;
    const int32_t four = 4, lengths[] = {1, 0, 3};
    plait_plan_options o = test_plan_options(2, 1, 1, 16);
    plait_plan *warm = test_plan_open(&o), *cold = test_plan_open(&o);
    test_batch t;
    for (size_t i = 0; i < 3; i++) {
        const int64_t committed = lengths[i] - 4;
        test_batch_init(&t, 1, &committed, &four);
        assert_int_equal(plait_plan_build(warm, &t.b), PLAIT_E_ARG);
        assert_non_null(strstr(plait_last_error(), "request 0"));
        assert_int_equal(plait_plan_get(warm)->generation, 0);
    }
    const int64_t none = 0, committed[] = {33, 7};
    const int32_t q_len[] = {4, 4};
    test_batch_init(&t, 1, &none, &four);
    assert_int_equal(plait_plan_build(warm, &t.b), PLAIT_OK);
    test_batch_init(&t, 0, committed, q_len);
    t.b.padded_rows = 12;
    assert_int_equal(plait_plan_build(warm, &t.b), PLAIT_OK);
    test_plan_check(&o, &t, warm);
    test_batch_init(&t, 2, committed, q_len);
    t.b.padded_rows = 12;
    assert_int_equal(plait_plan_build(warm, &t.b), PLAIT_OK);
    assert_int_equal(plait_plan_build(cold, &t.b), PLAIT_OK);
    test_plan_check(&o, &t, warm);
    assert_same_plan(warm, cold);
    plait_plan_close(&warm);
    plait_plan_close(&cold);
}

static void case_26_pages_cover_the_drafts(void **state)
{
    (void)state;
    plait_plan_options o = test_plan_options(1, 0, 1, 16);
    plait_plan *plan = test_plan_open(&o);
    test_batch t;
    for (int64_t h = 0; h < 48; h++)
        for (int32_t k = 1; k <= 8; k++) {
            const int64_t committed[] = {h, 40};
            const int32_t q_len[] = {1 + k, 5};
            test_batch_init(&t, 2, committed, q_len);
            assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
            test_plan_check(&o, &t, plan);
            const plait_plan_view *v = plait_plan_get(plan);
            assert_int_equal(v->pages_needed[v->place[0]], (h + 1 + k + 15) / 16);
            for (int32_t a = 0; a < v->num_rows; a++)
                for (int32_t b = 0; b < a; b++)
                    assert_true(v->slot[a] != v->slot[b]);
        }
    const int64_t committed = 30;
    const int32_t q_len = 5, two = 2;
    test_batch_init(&t, 1, &committed, &q_len);
    assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
    assert_int_equal(plait_plan_get(plan)->pages_needed[0], 3);
    t.b.table_len = &two;
    assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "needs 3 pages of 16 tokens for 35 tokens"));
    t.b.table_len = NULL;
    t.table[2] = -1;
    assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "entry 2 is -1"));
    plait_plan_close(&plan);
}

/* Rows of request r in `plan` are those of the request planned alone. */
static void assert_rows_of_request_alone(const plait_plan_options *o, const test_batch *t,
                                         const plait_plan *plan, int32_t r)
{
    plait_plan *alone = test_plan_open(o);
    test_batch one;
    test_batch_init(&one, 1, &t->committed[r], &t->q_len[r]);
    one.is_prompt[0] = t->is_prompt[r];
    one.b.page_table = t->table + r * max_pages;
    assert_int_equal(plait_plan_build(alone, &one.b), PLAIT_OK);
    const plait_plan_view *a = plait_plan_get(alone), *v = plait_plan_get(plan);
    int32_t first = v->row_start[v->place[r]];
    assert_int_equal(v->row_start[v->place[r] + 1] - first, t->q_len[r]);
    for (int32_t j = 0; j < t->q_len[r]; j++) {
        assert_int_equal(v->index[first + j], a->index[j]);
        assert_int_equal(v->kv_begin[first + j], a->kv_begin[j]);
        assert_int_equal(v->kv_end[first + j], a->kv_end[j]);
        assert_int_equal(v->slot[first + j], a->slot[j]);
    }
    plait_plan_close(&alone);
}

static void check_ragged(const test_batch *from)
{
    plait_plan_options o = test_plan_options(2, 1, 3, 16);
    plait_plan *plan = test_plan_open(&o);
    test_batch t = *from;
    t.b.committed = t.committed;
    t.b.q_len = t.q_len;
    t.b.is_prompt = t.is_prompt;
    t.b.page_table = t.table;
    assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
    test_plan_check(&o, &t, plan);
    for (int32_t r = 0; r < t.b.num_seqs; r++)
        assert_rows_of_request_alone(&o, &t, plan, r);
    plait_plan_close(&plan);
}

static void case_32_ragged_batches_keep_their_own_rows(void **state)
{
    (void)state;
    const int64_t committed[] = {50, 77, 1300, 9, 16};
    const int32_t q_len[][5] = {{1, 2, 3}, {2, 2, 2, 1, 1}, {4, 0, 4}, {3, 2, 5, 3}};
    const int32_t n[] = {3, 5, 3, 4};
    test_batch t;
    for (size_t i = 0; i < 4; i++) {
        test_batch_init(&t, n[i], committed, q_len[i]);
        check_ragged(&t);
    }
}

static void case_32_a_prompt_tail_of_one_row_is_no_decode_in_any_order(void **state)
{
    (void)state;
    const int32_t order[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const int64_t committed[] = {64, 31, 99};
    const int32_t q_len[] = {1, 4, 1}; /* prompt tail, verification of 3 drafts, decode */
    for (size_t i = 0; i < 6; i++) {
        int64_t c[3];
        int32_t q[3], tail = 0;
        test_batch t;
        for (int32_t j = 0; j < 3; j++) {
            c[j] = committed[order[i][j]];
            q[j] = q_len[order[i][j]];
            if (order[i][j] == 0)
                tail = j;
        }
        test_batch_init(&t, 3, c, q);
        t.is_prompt[tail] = 1;
        check_ragged(&t);
        plait_plan_options o = test_plan_options(1, 0, 1, 16);
        plait_plan *plan = test_plan_open(&o);
        assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
        const plait_plan_view *v = plait_plan_get(plan);
        assert_int_equal(v->class_count[PLAIT_CLASS_DECODE], 1);
        assert_int_equal(v->class_count[PLAIT_CLASS_SHORT_EXTEND], 1);
        assert_int_equal(v->class_count[PLAIT_CLASS_LONG_EXTEND], 1);
        assert_int_equal(v->place[tail], 2);
        plait_plan_close(&plan);
    }
}

/* ---- refresh and generations ----------------------------------------------------------------- */

static void case_35_lengths_after_a_rejection_come_from_the_global_length(void **state)
{
    (void)state;
    for (int32_t r = 0; r < 2; r++) {
        plait_plan_options o = test_plan_options(2, r, 1, 16);
        plait_plan *plan = test_plan_open(&o);
        const plait_plan_view *v = plait_plan_get(plan);
        const int64_t committed = 100;
        const int32_t q_len = 4, accepted = 1;
        test_batch t;
        test_batch_init(&t, 1, &committed, &q_len);
        assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
        assert_int_equal(v->length[0], 104);
        int64_t old_slot[] = {v->slot[2], v->slot[3]};
        assert_int_equal(plait_plan_refresh(plan, &accepted, &t.b), PLAIT_OK);
        assert_int_equal(v->committed[0], 102);
        assert_int_equal(plait_shard_len(o.shard, v->committed[0]), 51);
        assert_int_equal(v->index[0], 102);
        assert_int_equal(v->position[0], 102);
        /* The rejected rows' slots are written again. */
        assert_int_equal(v->slot[0], old_slot[0]);
        assert_int_equal(v->slot[1], old_slot[1]);
        t.committed[0] = 102;
        test_plan_check(&o, &t, plan);
        plait_plan_close(&plan);
    }
}

static void case_35_refresh_through_all_rejections_equals_a_fresh_plan(void **state)
{
    (void)state;
    const int32_t shards[][2] = {{1, 1}, {2, 1}, {2, 3}, {3, 16}, {4, 5}};
    for (size_t g = 0; g < 5; g++)
        for (int32_t r = 0; r < shards[g][0]; r++) {
            plait_plan_options o = test_plan_options(shards[g][0], r, shards[g][1], 16);
            plait_plan *plan = test_plan_open(&o), *fresh = test_plan_open(&o);
            const int64_t committed[] = {100, 15, 40, 7};
            const int32_t q_len[] = {4, 4, 1, 24};
            test_batch t;
            test_batch_init(&t, 4, committed, q_len);
            t.is_prompt[3] = 1;
            assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
            for (int32_t pattern = 0; pattern < 64; pattern++) {
                int32_t a = pattern % 4, b = pattern / 4 % 4;
                int32_t accepted[] = {a < t.q_len[0] ? a : t.q_len[0] - 1,
                                      b < t.q_len[1] ? b : t.q_len[1] - 1, 0,
                                      t.q_len[3] > 0 ? t.q_len[3] - 1 : 0};
                for (int32_t s = 0; s < 4; s++)
                    t.committed[s] += t.q_len[s] > 0 ? 1 + accepted[s] : 0;
                /* Drafts are cut now and then, request 2 rests, and the prompt goes on decoding. */
                t.q_len[0] = pattern % 5 == 4 ? 2 : 4;
                t.q_len[2] = pattern % 3 == 1 ? 0 : 1;
                t.q_len[3] = pattern == 0 ? 1 : 3;
                t.is_prompt[3] = pattern == 0;
                t.b.committed = NULL;
                assert_int_equal(plait_plan_refresh(plan, accepted, &t.b), PLAIT_OK);
                t.b.committed = t.committed;
                plait_plan_batch copy = t.b;
                assert_int_equal(plait_plan_build(fresh, &copy), PLAIT_OK);
                assert_same_plan(plan, fresh);
                if (pattern % 8 == 0)
                    test_plan_check(&o, &t, plan);
            }
            plait_plan_close(&plan);
            plait_plan_close(&fresh);
        }
}

static void a_batch_of_another_generation_is_refused(void **state)
{
    (void)state;
    plait_plan_options o = test_plan_options(2, 0, 1, 16);
    plait_plan *plan = test_plan_open(&o);
    const int64_t committed = 10;
    const int32_t q_len = 4, accepted = 2, all = 4;
    test_batch t;
    test_batch_init(&t, 1, &committed, &q_len);
    plait_attn_args args = PLAIT_ATTN_ARGS_INIT, untouched = args;
    assert_int_equal(plait_plan_bind(plan, &t.b, &args), PLAIT_E_STATE);
    assert_int_equal(plait_plan_refresh(plan, &accepted, &t.b), PLAIT_E_STATE);
    assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
    plait_plan_batch stale = t.b;
    assert_int_equal(plait_plan_refresh(plan, &all, &t.b), PLAIT_E_ARG);
    assert_int_equal(plait_plan_refresh(plan, &accepted, &t.b), PLAIT_OK);
    /* A second correction for the same step is a fault, not a step back. */
    assert_int_equal(plait_plan_refresh(plan, &accepted, &stale), PLAIT_E_STATE);
    assert_int_equal(plait_plan_bind(plan, &stale, &args), PLAIT_E_STATE);
    assert_memory_equal(&args, &untouched, sizeof(args));
    assert_int_equal(plait_plan_get(plan)->committed[0], 13);
    assert_int_equal(plait_plan_bind(plan, &t.b, &args), PLAIT_OK);
    assert_ptr_equal(args.row_start, plait_plan_get(plan)->row_start);
    assert_null(args.kv_begin);
    plait_plan_close(&plan);
}

/* ---- capacities and memory ------------------------------------------------------------------- */

static void refused_with(plait_plan *plan, test_batch *t, plait_status status, const char *words)
{
    uint64_t generation = plait_plan_get(plan)->generation;
    assert_int_equal(plait_plan_build(plan, &t->b), status);
    if (!strstr(plait_last_error(), words))
        fail_msg("\"%s\" lacks \"%s\"", plait_last_error(), words);
    assert_int_equal(plait_plan_get(plan)->generation, generation);
}

static void over_capacity_gives_both_numbers_and_leaves_the_plan(void **state)
{
    (void)state;
    plait_plan_options o = test_plan_options(2, 0, 1, 16);
    plait_plan *plan = test_plan_open(&o), *same = test_plan_open(&o);
    const int64_t committed[max_seqs] = {20, 30};
    const int32_t q_len[max_seqs] = {3, 2};
    test_batch good, t;
    test_batch_init(&good, 2, committed, q_len);
    assert_int_equal(plait_plan_build(plan, &good.b), PLAIT_OK);
    assert_int_equal(plait_plan_build(same, &good.b), PLAIT_OK);

    test_batch_init(&t, 2, committed, q_len);
    t.b.num_seqs = max_seqs + 1;
    refused_with(plan, &t, PLAIT_E_NOMEM, "9 requests, max_seqs is 8");
    t.b.num_seqs = 2;
    t.q_len[1] = max_rows - 2;
    refused_with(plan, &t, PLAIT_E_NOMEM, "161 rows, max_rows is 160");
    t.q_len[1] = 2;
    t.b.padded_rows = max_rows + 1;
    refused_with(plan, &t, PLAIT_E_NOMEM, "161 rows, max_rows is 160");
    t.b.padded_rows = 4;
    refused_with(plan, &t, PLAIT_E_ARG, "5 rows, padded_rows is 4");
    t.b.padded_rows = 0;
    t.committed[1] = 2 * 16 * max_pages - 1;
    refused_with(plan, &t, PLAIT_E_NOMEM, "request 1 needs 257 pages for 8193 tokens");
    t.committed[1] = INT32_MAX;
    refused_with(plan, &t, PLAIT_E_NOMEM, "2147483647 committed tokens and 2 rows");
    t.committed[1] = 30;
    t.q_len[0] = -1;
    refused_with(plan, &t, PLAIT_E_ARG, "q_len -1");
    assert_same_plan(plan, same);
    plait_plan_close(&plan);
    plait_plan_close(&same);
}

static void wrong_options_are_refused_by_name(void **state)
{
    (void)state;
    plait_plan *plan = (plait_plan *)&state;
    plait_plan_options o = test_plan_options(2, 2, 1, 16);
    assert_int_equal(plait_plan_open(&o, &plan), PLAIT_E_ARG);
    assert_null(plan);
    o = test_plan_options(2, 0, 1, 0);
    assert_int_equal(plait_plan_open(&o, &plan), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "page_size 0"));
    o = test_plan_options(2, 0, 1, 16);
    o.n_workers = 0;
    assert_int_equal(plait_plan_open(&o, &plan), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "n_workers 0"));
    o = test_plan_options(2, 0, 1, 16);
    o.op = PLAIT_OP_GQA;
    o.h_kv = 1;
    o.q_per_kv = 3;
    assert_int_equal(plait_plan_open(&o, &plan), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "past h_kv 1"));
    o = test_plan_options(2, 0, 1, 16);
    o.max_seqs = o.n_workers = INT32_MAX;
    assert_int_equal(plait_plan_open(&o, &plan), PLAIT_E_ARG);
}

struct counts {
    size_t bytes, calls;
};

static void *counting_alloc(void *user, size_t bytes, size_t align)
{
    struct counts *c = user;
    c->bytes += bytes;
    c->calls++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void counting_free(void *user, void *ptr, size_t bytes)
{
    struct counts *c = user;
    c->bytes -= bytes;
    free(ptr);
}

static void nothing_is_allocated_or_moved_after_open(void **state)
{
    (void)state;
    struct counts counts = {0, 0};
    const plait_allocator allocator = {sizeof(allocator), &counts, counting_alloc, counting_free};
    plait_plan_options o = test_plan_options(2, 1, 3, 16);
    o.allocator = &allocator;
    plait_plan *plan = test_plan_open(&o);
    struct counts opened = counts;
    plait_plan_view before = *plait_plan_get(plan);
    const int64_t committed[] = {300, 8, 0, 1000, 64, 3, 2, 1};
    const int32_t q_len[] = {4, 1, 100, 1, 30, 0, 2, 1}, accepted[max_seqs] = {2};
    plait_attn_args args = PLAIT_ATTN_ARGS_INIT;
    test_batch t;
    test_batch_init(&t, max_seqs, committed, q_len);
    assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
    assert_int_equal(plait_plan_refresh(plan, accepted, &t.b), PLAIT_OK);
    assert_int_equal(plait_plan_bind(plan, &t.b, &args), PLAIT_OK);
    assert_int_equal(counts.calls, opened.calls);
    assert_int_equal(counts.bytes, opened.bytes);
    const plait_plan_view *v = plait_plan_get(plan);
    assert_ptr_equal(v->row_start, before.row_start);
    assert_ptr_equal(v->slot, before.slot);
    assert_ptr_equal(v->page_table, before.page_table);
    assert_ptr_equal(v->work, before.work);
    assert_ptr_equal(v->reduce, before.reduce);
    plait_plan_close(&plan);
    assert_int_equal(counts.bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_match_brute_force_also_where_i_does_not_divide_p),
        cmocka_unit_test(case_10_rows_before_position_0_are_refused_and_warm_up_leaves_nothing),
        cmocka_unit_test(case_26_pages_cover_the_drafts),
        cmocka_unit_test(case_32_ragged_batches_keep_their_own_rows),
        cmocka_unit_test(case_32_a_prompt_tail_of_one_row_is_no_decode_in_any_order),
        cmocka_unit_test(case_35_lengths_after_a_rejection_come_from_the_global_length),
        cmocka_unit_test(case_35_refresh_through_all_rejections_equals_a_fresh_plan),
        cmocka_unit_test(a_batch_of_another_generation_is_refused),
        cmocka_unit_test(over_capacity_gives_both_numbers_and_leaves_the_plan),
        cmocka_unit_test(wrong_options_are_refused_by_name),
        cmocka_unit_test(nothing_is_allocated_or_moved_after_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
