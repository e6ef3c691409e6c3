/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan against brute force: rows, ranges, slots and pages token by token, the schedule cell by
 * cell, refresh against a fresh plan. Numbers in test names are those of the cases they pin.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

#include <plait/plan.h>

enum { max_seqs = 8, max_rows = 160, max_pages = 256, n_heads = 4 };

static plait_plan_options options(int32_t d, int32_t r, int32_t i, int32_t page)
{
    plait_plan_options o = PLAIT_PLAN_OPTIONS_INIT;
    o.shard = (plait_shard){d, r, i};
    o.h_q = n_heads;
    o.d_qk = 16;
    o.d_v = 8;
    o.page_size = page;
    o.max_seqs = max_seqs;
    o.max_rows = max_rows;
    o.max_pages_per_seq = max_pages;
    o.n_workers = 3;
    o.min_split_keys = 4;
    return o;
}

static plait_plan *open_plan(const plait_plan_options *o)
{
    plait_plan *plan;
    assert_int_equal(plait_plan_open(o, &plan), PLAIT_OK);
    return plan;
}

/* A batch with its arrays; page ids are unlike for all requests, and shuffled. */
typedef struct test_batch {
    plait_plan_batch b;
    int64_t committed[max_seqs];
    int32_t q_len[max_seqs];
    uint8_t is_prompt[max_seqs];
    int32_t table[max_seqs * max_pages];
} test_batch;

static void batch_init(test_batch *t, int32_t n, const int64_t *committed, const int32_t *q_len)
{
    memset(t, 0, sizeof(*t));
    t->b = (plait_plan_batch)PLAIT_PLAN_BATCH_INIT;
    t->b.num_seqs = n;
    memcpy(t->committed, committed, sizeof(*committed) * (size_t)n);
    memcpy(t->q_len, q_len, sizeof(*q_len) * (size_t)n);
    for (int32_t i = 0; i < max_seqs * max_pages; i++)
        t->table[i] = (i * 1237 + 11) % (max_seqs * max_pages);
    t->b.committed = t->committed;
    t->b.q_len = t->q_len;
    t->b.is_prompt = t->is_prompt;
    t->b.page_table = t->table;
    t->b.page_table_stride = max_pages;
}

static void check_classes(const test_batch *t, const plait_plan_view *v)
{
    int32_t seq = 0;
    for (int32_t c = 0; c < PLAIT_CLASS_COUNT; c++)
        for (int32_t i = 0, last = -1; i < v->class_count[c]; i++, seq++) {
            int32_t r = v->order[seq];
            int32_t rows = t->q_len[r];
            int32_t want = rows <= 1 ? 0 : rows <= 16 ? 1 : 2;
            if (t->is_prompt[r])
                want = v->committed[seq] > 0 ? 2 : 3;
            assert_int_equal(c, want);
            assert_true(r > last);
            assert_int_equal(v->place[r], seq);
            last = r;
        }
    assert_int_equal(seq, t->b.num_seqs);
}

/* A row at `index` sees the tokens of this rank in (index - window, index]. */
static void check_row(const plait_plan_options *o, const plait_plan_view *v, int32_t seq,
                      int32_t row, int64_t index, const int32_t *table)
{
    int32_t begin = 0, end = 0;
    for (int64_t p = 0; p <= index; p++)
        if (p / o->shard.i % o->shard.d == o->shard.r) {
            end++;
            begin += o->window > 0 && p <= index - o->window;
        }
    assert_int_equal(v->index[row], index);
    assert_int_equal(v->position[row], index);
    assert_int_equal(v->kv_begin[row], begin);
    assert_int_equal(v->kv_end[row], end);
    int64_t slot = -1;
    if (index / o->shard.i % o->shard.d == o->shard.r) {
        assert_true((end - 1) / o->page_size < v->pages_needed[seq]);
        slot = (int64_t)table[(end - 1) / o->page_size] * o->page_size + (end - 1) % o->page_size;
    }
    assert_int_equal(v->slot[row], slot);
}

/* Every row and head is written once: directly with all of its keys, or by the partials of one
   reduction, which together see each key once. */
static void check_cell(const plait_plan_view *v, int32_t seq, int32_t row, int32_t head)
{
    int32_t direct = 0, splits = 0, at = v->kv_begin[row], partial = -1, merged = 0;
    for (int32_t i = 0; i < v->num_reduce; i++) {
        const plait_attn_reduce *r = &v->reduce[i];
        if (row < r->row_begin || row >= r->row_end || head < r->head_begin || head >= r->head_end)
            continue;
        int32_t heads = r->head_end - r->head_begin;
        merged++;
        splits = r->n_splits;
        partial = r->first_partial + (row - r->row_begin) * heads + head - r->head_begin;
        for (int32_t s = 0; s < splits; s++) {
            int32_t found = 0;
            for (int32_t k = 0; k < v->num_work; k++) {
                const plait_attn_work *w = &v->work[k];
                int32_t n = w->head_end - w->head_begin;
                if (w->partial < 0 || row < w->row_begin || row >= w->row_end ||
                    head < w->head_begin || head >= w->head_end ||
                    w->partial + (row - w->row_begin) * n + head - w->head_begin !=
                        partial + s * heads * (r->row_end - r->row_begin))
                    continue;
                found++;
                assert_int_equal(w->seq, seq);
                assert_true(w->kv_begin <= at && w->kv_begin < w->kv_end);
                if (w->kv_end > at)
                    at = w->kv_end;
            }
            assert_int_equal(found, 1);
        }
        assert_true(at >= v->kv_end[row]);
        assert_true(partial + (splits - 1) * heads < v->num_partials);
    }
    for (int32_t k = 0; k < v->num_work; k++) {
        const plait_attn_work *w = &v->work[k];
        if (row < w->row_begin || row >= w->row_end || head < w->head_begin || head >= w->head_end)
            continue;
        if (w->partial < 0) {
            direct++;
            assert_int_equal(w->seq, seq);
            assert_true(w->kv_begin <= v->kv_begin[row] && w->kv_end >= v->kv_end[row]);
        } else {
            splits--;
        }
    }
    assert_int_equal(splits, 0);
    assert_int_equal(direct + merged, 1);
}

static void check_plan(const plait_plan_options *o, const test_batch *t, const plait_plan *plan)
{
    const plait_plan_view *v = plait_plan_get(plan);
    plait_shard first = {o->shard.d, 0, o->shard.i};
    int32_t row = 0;
    assert_int_equal(v->num_seqs, t->b.num_seqs);
    check_classes(t, v);
    for (int32_t seq = 0; seq < v->num_seqs; seq++) {
        int32_t r = v->order[seq];
        const int32_t *table = t->table + r * max_pages;
        assert_int_equal(v->committed[seq], t->committed[r]);
        assert_int_equal(v->length[seq], t->committed[r] + t->q_len[r]);
        int64_t most = plait_shard_len(first, v->length[seq]);
        assert_int_equal(v->pages_needed[seq], (most + o->page_size - 1) / o->page_size);
        assert_memory_equal(v->page_table + seq * v->page_table_stride, table,
                            sizeof(*table) * (size_t)v->pages_needed[seq]);
        assert_int_equal(v->row_start[seq], row);
        for (int32_t j = 0; j < t->q_len[r]; j++, row++) {
            check_row(o, v, seq, row, t->committed[r] + j, table);
            for (int32_t head = 0; head < o->h_q; head++)
                check_cell(v, seq, row, head);
        }
    }
    assert_int_equal(v->row_start[v->num_seqs], row);
    assert_int_equal(v->num_rows, row);
    assert_int_equal(v->padded_rows, t->b.padded_rows ? t->b.padded_rows : row);
    for (; row < v->padded_rows; row++) {
        assert_int_equal(v->index[row], -1);
        assert_int_equal(v->position[row], 0);
        assert_int_equal(v->slot[row], -1);
        assert_int_equal(v->kv_begin[row], 0);
        assert_int_equal(v->kv_end[row], 0);
    }
}

static void build_and_check(const plait_plan_options *o, test_batch *t)
{
    plait_plan *plan = open_plan(o);
    assert_int_equal(plait_plan_build(plan, &t->b), PLAIT_OK);
    check_plan(o, t, plan);
    plait_plan_close(&plan);
    assert_null(plan);
}

/* The same arrays, by content; page ids as far as they are needed. */
static void assert_same_plan(const plait_plan *x, const plait_plan *y)
{
    const plait_plan_view *a = plait_plan_get(x), *b = plait_plan_get(y);
    size_t seqs = (size_t)a->num_seqs, rows = (size_t)a->padded_rows;
    assert_int_equal(a->num_seqs, b->num_seqs);
    assert_int_equal(a->num_rows, b->num_rows);
    assert_int_equal(a->padded_rows, b->padded_rows);
    assert_memory_equal(a->class_count, b->class_count, sizeof(a->class_count));
    assert_int_equal(a->num_work, b->num_work);
    assert_int_equal(a->num_reduce, b->num_reduce);
    assert_int_equal(a->num_partials, b->num_partials);
    if (seqs > 0) {
        assert_memory_equal(a->order, b->order, seqs * sizeof(*a->order));
        assert_memory_equal(a->committed, b->committed, seqs * sizeof(*a->committed));
        assert_memory_equal(a->length, b->length, seqs * sizeof(*a->length));
        assert_memory_equal(a->pages_needed, b->pages_needed, seqs * sizeof(*a->pages_needed));
    }
    assert_memory_equal(a->row_start, b->row_start, (seqs + 1) * sizeof(*a->row_start));
    if (rows > 0) {
        assert_memory_equal(a->index, b->index, rows * sizeof(*a->index));
        assert_memory_equal(a->position, b->position, rows * sizeof(*a->position));
        assert_memory_equal(a->kv_begin, b->kv_begin, rows * sizeof(*a->kv_begin));
        assert_memory_equal(a->kv_end, b->kv_end, rows * sizeof(*a->kv_end));
        assert_memory_equal(a->slot, b->slot, rows * sizeof(*a->slot));
    }
    if (a->num_work > 0)
        assert_memory_equal(a->work, b->work, (size_t)a->num_work * sizeof(*a->work));
    if (a->num_reduce > 0)
        assert_memory_equal(a->reduce, b->reduce, (size_t)a->num_reduce * sizeof(*a->reduce));
    for (size_t s = 0; s < seqs; s++)
        for (int32_t i = 0; i < a->pages_needed[s]; i++)
            assert_int_equal(a->page_table[s * max_pages + (size_t)i],
                             b->page_table[s * max_pages + (size_t)i]);
}

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
                    plait_plan_options o = options(d, r, interleave[i], 16);
                    test_batch t;
                    o.window = window[w];
                    batch_init(&t, 6, committed, q_len);
                    t.is_prompt[0] = 1;
                    t.b.padded_rows = w % 2 ? 40 : 0;
                    build_and_check(&o, &t);
                }
}

static void case_10_rows_before_position_0_are_refused_and_warm_up_leaves_nothing(void **state)
{
    (void)state;
    const int32_t four = 4, lengths[] = {1, 0, 3};
    plait_plan_options o = options(2, 1, 1, 16);
    plait_plan *warm = open_plan(&o), *cold = open_plan(&o);
    test_batch t;
    for (size_t i = 0; i < 3; i++) {
        const int64_t committed = lengths[i] - 4;
        batch_init(&t, 1, &committed, &four);
        assert_int_equal(plait_plan_build(warm, &t.b), PLAIT_E_ARG);
        assert_non_null(strstr(plait_last_error(), "request 0"));
        assert_int_equal(plait_plan_get(warm)->generation, 0);
    }
    const int64_t none = 0, committed[] = {33, 7};
    const int32_t q_len[] = {4, 4};
    batch_init(&t, 1, &none, &four);
    assert_int_equal(plait_plan_build(warm, &t.b), PLAIT_OK);
    batch_init(&t, 0, committed, q_len);
    t.b.padded_rows = 12;
    assert_int_equal(plait_plan_build(warm, &t.b), PLAIT_OK);
    check_plan(&o, &t, warm);
    batch_init(&t, 2, committed, q_len);
    t.b.padded_rows = 12;
    assert_int_equal(plait_plan_build(warm, &t.b), PLAIT_OK);
    assert_int_equal(plait_plan_build(cold, &t.b), PLAIT_OK);
    check_plan(&o, &t, warm);
    assert_same_plan(warm, cold);
    plait_plan_close(&warm);
    plait_plan_close(&cold);
}

static void case_26_pages_cover_the_drafts(void **state)
{
    (void)state;
    plait_plan_options o = options(1, 0, 1, 16);
    plait_plan *plan = open_plan(&o);
    test_batch t;
    for (int64_t h = 0; h < 48; h++)
        for (int32_t k = 1; k <= 8; k++) {
            const int64_t committed[] = {h, 40};
            const int32_t q_len[] = {1 + k, 5};
            batch_init(&t, 2, committed, q_len);
            assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
            check_plan(&o, &t, plan);
            const plait_plan_view *v = plait_plan_get(plan);
            assert_int_equal(v->pages_needed[v->place[0]], (h + 1 + k + 15) / 16);
            for (int32_t a = 0; a < v->num_rows; a++)
                for (int32_t b = 0; b < a; b++)
                    assert_true(v->slot[a] != v->slot[b]);
        }
    const int64_t committed = 30;
    const int32_t q_len = 5, two = 2;
    batch_init(&t, 1, &committed, &q_len);
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
    plait_plan *alone = open_plan(o);
    test_batch one;
    batch_init(&one, 1, &t->committed[r], &t->q_len[r]);
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
    plait_plan_options o = options(2, 1, 3, 16);
    plait_plan *plan = open_plan(&o);
    test_batch t = *from;
    t.b.committed = t.committed;
    t.b.q_len = t.q_len;
    t.b.is_prompt = t.is_prompt;
    t.b.page_table = t.table;
    assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
    check_plan(&o, &t, plan);
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
        batch_init(&t, n[i], committed, q_len[i]);
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
        batch_init(&t, 3, c, q);
        t.is_prompt[tail] = 1;
        check_ragged(&t);
        plait_plan_options o = options(1, 0, 1, 16);
        plait_plan *plan = open_plan(&o);
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
        plait_plan_options o = options(2, r, 1, 16);
        plait_plan *plan = open_plan(&o);
        const plait_plan_view *v = plait_plan_get(plan);
        const int64_t committed = 100;
        const int32_t q_len = 4, accepted = 1;
        test_batch t;
        batch_init(&t, 1, &committed, &q_len);
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
        check_plan(&o, &t, plan);
        plait_plan_close(&plan);
    }
}

static void case_35_refresh_through_all_rejections_equals_a_fresh_plan(void **state)
{
    (void)state;
    const int32_t shards[][2] = {{1, 1}, {2, 1}, {2, 3}, {3, 16}, {4, 5}};
    for (size_t g = 0; g < 5; g++)
        for (int32_t r = 0; r < shards[g][0]; r++) {
            plait_plan_options o = options(shards[g][0], r, shards[g][1], 16);
            plait_plan *plan = open_plan(&o), *fresh = open_plan(&o);
            const int64_t committed[] = {100, 15, 40, 7};
            const int32_t q_len[] = {4, 4, 1, 24};
            test_batch t;
            batch_init(&t, 4, committed, q_len);
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
                    check_plan(&o, &t, plan);
            }
            plait_plan_close(&plan);
            plait_plan_close(&fresh);
        }
}

static void a_batch_of_another_generation_is_refused(void **state)
{
    (void)state;
    plait_plan_options o = options(2, 0, 1, 16);
    plait_plan *plan = open_plan(&o);
    const int64_t committed = 10;
    const int32_t q_len = 4, accepted = 2, all = 4;
    test_batch t;
    batch_init(&t, 1, &committed, &q_len);
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
    plait_plan_options o = options(2, 0, 1, 16);
    plait_plan *plan = open_plan(&o), *same = open_plan(&o);
    const int64_t committed[max_seqs] = {20, 30};
    const int32_t q_len[max_seqs] = {3, 2};
    test_batch good, t;
    batch_init(&good, 2, committed, q_len);
    assert_int_equal(plait_plan_build(plan, &good.b), PLAIT_OK);
    assert_int_equal(plait_plan_build(same, &good.b), PLAIT_OK);

    batch_init(&t, 2, committed, q_len);
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
    plait_plan_options o = options(2, 2, 1, 16);
    assert_int_equal(plait_plan_open(&o, &plan), PLAIT_E_ARG);
    assert_null(plan);
    o = options(2, 0, 1, 0);
    assert_int_equal(plait_plan_open(&o, &plan), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "page_size 0"));
    o = options(2, 0, 1, 16);
    o.n_workers = 0;
    assert_int_equal(plait_plan_open(&o, &plan), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "n_workers 0"));
    o = options(2, 0, 1, 16);
    o.op = PLAIT_OP_GQA;
    o.h_kv = 1;
    o.q_per_kv = 3;
    assert_int_equal(plait_plan_open(&o, &plan), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "past h_kv 1"));
    o = options(2, 0, 1, 16);
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
    plait_plan_options o = options(2, 1, 3, 16);
    o.allocator = &allocator;
    plait_plan *plan = open_plan(&o);
    struct counts opened = counts;
    plait_plan_view before = *plait_plan_get(plan);
    const int64_t committed[] = {300, 8, 0, 1000, 64, 3, 2, 1};
    const int32_t q_len[] = {4, 1, 100, 1, 30, 0, 2, 1}, accepted[max_seqs] = {2};
    plait_attn_args args = PLAIT_ATTN_ARGS_INIT;
    test_batch t;
    batch_init(&t, max_seqs, committed, q_len);
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

/* ---- the schedule ---------------------------------------------------------------------------- */

static void schedules_cover_every_cell_once(void **state)
{
    (void)state;
    const int64_t committed[] = {1327, 13, 334, 0, 64, 0};
    const int32_t q_len[] = {1, 5, 70, 40, 3, 1};
    for (int32_t workers = 1; workers <= 17; workers += 4)
        for (int32_t gqa = 0; gqa < 2; gqa++)
            for (int32_t n = 1; n <= 6; n++)
                for (int32_t least = 1; least <= 64; least *= 8) {
                    plait_plan_options o = options(2, 0, 1, 16);
                    test_batch t;
                    o.n_workers = workers;
                    o.min_split_keys = least;
                    o.window = n % 2 ? 0 : 100;
                    o.h_q = gqa ? 6 : 20;
                    if (gqa) { /* heads 2 .. 7 of four to a KV head */
                        o.op = PLAIT_OP_GQA;
                        o.h_kv = 2;
                        o.q_head0 = 2;
                        o.q_per_kv = 4;
                    }
                    batch_init(&t, n, committed, q_len);
                    t.is_prompt[3] = 1;
                    build_and_check(&o, &t);
                }
}

/* The largest load of a worker over the mean, in cost of keys. */
static double imbalance(const plait_plan *plan, int32_t workers)
{
    const plait_plan_view *v = plait_plan_get(plan);
    double load[64] = {0}, sum = 0, most = 0;
    for (int32_t i = 0; i < v->num_work; i++) {
        const plait_attn_work *w = &v->work[i];
        for (int32_t row = w->row_begin; row < w->row_end; row++) {
            int32_t begin = w->kv_begin > v->kv_begin[row] ? w->kv_begin : v->kv_begin[row];
            int32_t end = w->kv_end < v->kv_end[row] ? w->kv_end : v->kv_end[row];
            double cost = (double)(end > begin ? end - begin : 0) * (w->head_end - w->head_begin);
            load[i % workers] += cost;
            sum += cost;
        }
    }
    for (int32_t i = 0; i < workers; i++)
        most = load[i] > most ? load[i] : most;
    return most * workers / sum;
}

static void work_is_split_until_the_workers_are_nearly_even(void **state)
{
    (void)state;
    const int64_t committed[] = {4000, 4000, 4000, 200, 90};
    const int32_t q_len[] = {4, 4, 4, 1, 1};
    for (int32_t workers = 1; workers <= 16; workers++)
        for (int32_t n = 1; n <= 5; n++) {
            plait_plan_options o = options(1, 0, 1, 16);
            test_batch t;
            o.n_workers = workers;
            batch_init(&t, n, committed, q_len);
            plait_plan *plan = open_plan(&o);
            assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
            if (!(imbalance(plan, workers) <= 1.26))
                fail_msg("%d requests on %d workers: %g", n, workers, imbalance(plan, workers));
            if (workers == 1)
                assert_int_equal(plait_plan_get(plan)->num_partials, 0);
            plait_plan_close(&plan);
        }
}

static void splits_have_the_least_number_of_keys_and_gqa_is_cut_at_kv_heads(void **state)
{
    (void)state;
    const int64_t committed = 999;
    const int32_t one = 1;
    plait_plan_options o = options(1, 0, 1, 16);
    test_batch t;
    o.n_workers = 32;
    o.min_split_keys = 128;
    batch_init(&t, 1, &committed, &one);
    plait_plan *plan = open_plan(&o);
    const plait_plan_view *v = plait_plan_get(plan);
    assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
    assert_true(v->num_work > 1);
    for (int32_t i = 0; i < v->num_work; i++)
        assert_true(v->work[i].kv_end - v->work[i].kv_begin >= 128);
    plait_plan_close(&plan);
    o.op = PLAIT_OP_GQA;
    o.h_kv = 2;
    o.q_per_kv = 2;
    o.n_workers = 2;
    plan = open_plan(&o);
    v = plait_plan_get(plan);
    assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
    assert_int_equal(v->num_work, 2);
    assert_int_equal(v->num_reduce, 0);
    assert_int_equal(v->work[0].head_end - v->work[0].head_begin, 2);
    plait_plan_close(&plan);
}

/* ---- through a kernel ------------------------------------------------------------------------ */

enum { qk = 16, dv = 8, pool = max_seqs * max_pages * 16 };

typedef struct tensors {
    float *q, *k, *v, *out, *lse;
} tensors;

static float *numbers(size_t n, uint32_t seed)
{
    float *x = malloc(n * sizeof(*x));
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
    }
    return x;
}

/* Runs the reference with the plan's schedule in the workspace that the plan asks for. */
static void attend(const plait_plan_options *o, test_batch *t, const tensors *x)
{
    plait_plan *plan = open_plan(o);
    plait_attn_args a = PLAIT_ATTN_ARGS_INIT;
    const plait_kernel *kernel = plait_kernel_find(o->op == PLAIT_OP_MLA ? "mla_ref" : "gqa_ref");
    assert_non_null(kernel);
    assert_int_equal(plait_plan_build(plan, &t->b), PLAIT_OK);
    assert_int_equal(plait_plan_bind(plan, &t->b, &a), PLAIT_OK);
    if (o->n_workers >= 16)
        assert_true(plait_plan_get(plan)->num_reduce > 0);
    a.q = x->q;
    a.q_head_stride = qk;
    a.q_row_stride = n_heads * qk;
    a.k = x->k;
    a.k_head_stride = qk;
    a.k_token_stride = o->h_kv * qk;
    a.k_page_stride = 16 * a.k_token_stride;
    if (o->op == PLAIT_OP_GQA) {
        a.v = x->v;
        a.v_head_stride = dv;
        a.v_token_stride = o->h_kv * dv;
        a.v_page_stride = 16 * a.v_token_stride;
    }
    a.num_pages = max_seqs * max_pages;
    a.out = x->out;
    a.out_head_stride = dv;
    a.out_row_stride = n_heads * dv;
    a.lse = x->lse;
    a.lse_head_stride = 1;
    a.lse_row_stride = n_heads;
    a.workspace_bytes = plait_plan_workspace(plan, kernel);
    assert_int_equal(a.workspace_bytes, plait_attn_workspace(kernel, &a, o->n_workers));
    assert_true(a.workspace_bytes <= plait_plan_workspace_max(plan, kernel));
    a.workspace = aligned_alloc(64, (a.workspace_bytes + 63) / 64 * 64);
    assert_int_equal(plait_attn_check(&a), PLAIT_OK);
    for (int32_t w = 0; w < o->n_workers; w++)
        assert_int_equal(kernel->run(&a, w, o->n_workers), PLAIT_OK);
    for (int32_t w = 0; w < o->n_workers && a.num_reduce > 0; w++)
        assert_int_equal(kernel->reduce(&a, w, o->n_workers), PLAIT_OK);
    free(a.workspace);
    plait_plan_close(&plan);
}

static void assert_near(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= 2e-6f * (1.0f + fabsf(b[i]))))
            fail_msg("value %zu: %g, wanted %g", i, (double)a[i], (double)b[i]);
}

static void all_splits_agree(plait_op op, const int64_t *committed, const int32_t *q_len)
{
    const int32_t workers[] = {1, 2, 3, 16, 64};
    plait_plan_options o = options(1, 0, 1, 16);
    test_batch t;
    tensors x = {numbers((size_t)max_rows * n_heads * qk, 1), numbers((size_t)pool * 2 * qk, 2),
                 numbers((size_t)pool * 2 * dv, 3), NULL, NULL};
    tensors one = x;
    size_t outs = (size_t)max_rows * n_heads * dv, lses = (size_t)max_rows * n_heads;
    o.op = op;
    o.h_kv = op == PLAIT_OP_GQA ? 2 : 1;
    o.min_split_keys = 1;
    batch_init(&t, 3, committed, q_len);
    t.b.padded_rows = max_rows;
    one.out = numbers(outs, 4);
    one.lse = numbers(lses, 5);
    for (size_t i = 0; i < 5; i++) {
        x.out = i ? numbers(outs, 6) : one.out;
        x.lse = i ? numbers(lses, 7) : one.lse;
        o.n_workers = workers[i];
        attend(&o, &t, &x);
        assert_near(x.out, one.out, outs);
        for (size_t j = 0; j < lses; j++)
            if (isinf(one.lse[j])) /* padding: -inf on both sides */
                assert_true(x.lse[j] == one.lse[j]);
            else
                assert_near(&x.lse[j], &one.lse[j], 1);
        if (i) {
            free(x.out);
            free(x.lse);
        }
    }
    free(one.out);
    free(one.lse);
    free(x.q);
    free(x.k);
    free(x.v);
}

static void case_16_all_splits_agree_for_ragged_and_uniform_rows(void **state)
{
    (void)state;
    const int32_t ragged[] = {1, 5, 129}, uniform[] = {4, 4, 4};
    const int64_t before_ragged[] = {1327, 13, 334}, before_uniform[] = {1324, 14, 459};
    for (int32_t op = PLAIT_OP_MLA; op <= PLAIT_OP_GQA; op++) {
        all_splits_agree((plait_op)op, before_ragged, ragged);
        all_splits_agree((plait_op)op, before_uniform, uniform);
    }
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
        cmocka_unit_test(schedules_cover_every_cell_once),
        cmocka_unit_test(work_is_split_until_the_workers_are_nearly_even),
        cmocka_unit_test(splits_have_the_least_number_of_keys_and_gqa_is_cut_at_kv_heads),
        cmocka_unit_test(case_16_all_splits_agree_for_ragged_and_uniform_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
