/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of plan_check.h. */
#include <string.h>

#include "plan_check.h"

plait_plan_options test_plan_options(int32_t d, int32_t r, int32_t i, int32_t page)
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

plait_plan *test_plan_open(const plait_plan_options *o)
{
    plait_plan *plan;
    assert_int_equal(plait_plan_open(o, &plan), PLAIT_OK);
    return plan;
}

void test_batch_init(test_batch *t, int32_t n, const int64_t *committed, const int32_t *q_len)
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

void test_plan_check(const plait_plan_options *o, const test_batch *t, const plait_plan *plan)
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

void test_plan_build_and_check(const plait_plan_options *o, test_batch *t)
{
    plait_plan *plan = test_plan_open(o);
    assert_int_equal(plait_plan_build(plan, &t->b), PLAIT_OK);
    test_plan_check(o, t, plan);
    plait_plan_close(&plan);
    assert_null(plan);
}

void assert_same_plan(const plait_plan *x, const plait_plan *y)
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
