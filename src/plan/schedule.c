/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The split-KV schedule: cuts sequences into items and deals the items to the workers.
 *
 * A sequence that costs more than a worker's fair share is cut: GQA by KV head first, since that
 * reads no key twice; then long extends by blocks of rows; then by keys, which needs partials and a
 * reduction; MLA by blocks of heads last, since each block reads the keys again.
 *
 * Invariant mode: keys are cut between the splits that a row has by its own length, which say its
 * bits; every split has a partial, so blocks of many heads come first.
 */
#include <string.h>

#include "core/status.h"
#include "plan/plan.h"

/* Blocks below this size leave a kernel's register tile partly empty. */
enum { row_block = 16, mla_head_block = 16, key_align = 32, finest = 4 };

/* Invariant mode: splits of a row, lengths that they have, and heads with which MLA computes for
   longer than it reads. */
enum { most_splits = 16, split_lengths = 19, many_heads = 64 };

static int32_t min32(int64_t a, int64_t b)
{
    return (int32_t)(a < b ? a : b);
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

plait_status plait_schedule_capacity(plait_plan *plan)
{
    const plait_plan_options *o = &plan->o;
    /* At most ceil(cost / target) pieces are wanted of a sequence, and rounding up in three
       directions gives fewer than twice as many. */
    int64_t work = 2 * ((int64_t)o->max_seqs + (int64_t)finest * o->n_workers);
    if (o->invariant) /* rows whose splits have different lengths are apart */
        work += 2 * (int64_t)min32((int64_t)split_lengths * o->max_seqs, o->max_rows);
    if (work > INT32_MAX)
        return plait_fail(PLAIT_E_ARG, "plan: max_seqs %d and n_workers %d are too many",
                          o->max_seqs, o->n_workers);
    /* Keys are split when workers would idle: then a block of rows for each of them, and as much
       again for finer pieces, is enough. */
    int64_t rows = (int64_t)row_block * o->n_workers;
    rows += min32(rows, o->max_rows);
    rows = min32(rows, (int64_t)o->max_rows * PLAIT_ATTN_MAX_SPLITS);
    if (o->invariant)
        rows = (int64_t)most_splits * min32(row_block, o->max_rows);
    plan->max_work = (int32_t)work;
    plan->max_partials = o->n_workers > 1 ? min32(rows * o->h_q, INT32_MAX) : 0;
    return PLAIT_OK;
}

/* Row-head-key triples of an item, and one for each row-head that is written. */
static int64_t item_cost(const plait_plan *plan, const plait_attn_work *w)
{
    int64_t keys = 0;
    for (int32_t row = w->row_begin; row < w->row_end; row++) {
        int32_t begin = plan->kv_begin[row] > w->kv_begin ? plan->kv_begin[row] : w->kv_begin;
        int32_t end = min32(plan->kv_end[row], w->kv_end);
        keys += 1 + (end > begin ? end - begin : 0);
    }
    return keys * (w->head_end - w->head_begin);
}

/* Sequence s as one item. */
static plait_attn_work whole(const plait_plan *plan, int32_t s)
{
    int32_t begin = plan->row_start[s], end = plan->row_start[s + 1];
    return (plait_attn_work){.seq = s,
                             .row_begin = begin,
                             .row_end = end,
                             .head_end = plan->o.h_q,
                             .kv_begin = begin < end ? plan->kv_begin[begin] : 0,
                             .kv_end = begin < end ? plan->kv_end[end - 1] : 0,
                             .partial = -1};
}

/* Heads are cut at multiples of `block`, counted from `skew` heads before the first. */
struct head_blocks {
    int32_t block, skew, n;
};

static struct head_blocks blocks_of_heads(const plait_plan_options *o)
{
    struct head_blocks b = {mla_head_block, 0, 0};
    if (o->op == PLAIT_OP_GQA) {
        b.block = o->q_per_kv ? o->q_per_kv : o->h_q / o->h_kv;
        b.skew = o->q_head0 % b.block;
    }
    b.n = (int32_t)ceil_div((int64_t)o->h_q + b.skew, b.block);
    return b;
}

/* First head of cut i of n. */
static int32_t head_cut(const struct head_blocks *b, int32_t i, int32_t n, int32_t h_q)
{
    int64_t head = (int64_t)b->n * i / n * b->block - b->skew;
    return head < 0 ? 0 : min32(head, h_q);
}

static void add_piece(plait_plan *plan, const plait_attn_work *w)
{
    plan->piece_cost[plan->view.num_work] = item_cost(plan, w);
    plan->pieces[plan->view.num_work++] = *w;
}

/* The splits [*first, *end) that hold keys of w's rows in invariant mode; returns their length. */
static int32_t splits_of(const plait_attn_work *w, int32_t *first, int32_t *end)
{
    const int32_t keys = plait_attn_split_keys(w->kv_end);
    *first = w->kv_begin / keys;
    *end = (int32_t)ceil_div(w->kv_end, keys);
    return keys;
}

/* Cuts `w` n ways between splits, with a partial for each split. */
static void cut_splits(plait_plan *plan, plait_attn_work w, int32_t n)
{
    plait_plan_view *v = &plan->view;
    int32_t first, end, cells = (w.row_end - w.row_begin) * (w.head_end - w.head_begin);
    const int32_t keys = splits_of(&w, &first, &end), splits = end - first;
    plan->reduce[v->num_reduce++] = (plait_attn_reduce){w.row_begin, w.row_end,       w.head_begin,
                                                        w.head_end,  v->num_partials, splits};
    for (int32_t i = 0; i < n; i++) {
        const int32_t from = (int32_t)((int64_t)splits * i / n);
        const int32_t to = (int32_t)((int64_t)splits * (i + 1) / n);
        w.kv_begin = (first + from) * keys;
        w.kv_end = (first + to) * keys;
        w.partial = v->num_partials + from * cells;
        add_piece(plan, &w);
    }
    v->num_partials += splits * cells;
}

/* Cuts the keys of `w` n ways, with a reduction if n > 1. */
static void cut_keys(plait_plan *plan, plait_attn_work w, int32_t n)
{
    plait_plan_view *v = &plan->view;
    if (n == 1) {
        add_piece(plan, &w);
        return;
    }
    if (plan->o.invariant) {
        cut_splits(plan, w, n);
        return;
    }
    int32_t begin = w.kv_begin, end = w.kv_end;
    int32_t align = min32(plan->o.min_split_keys, key_align);
    int32_t cells = (w.row_end - w.row_begin) * (w.head_end - w.head_begin);
    plan->reduce[v->num_reduce++] =
        (plait_attn_reduce){w.row_begin, w.row_end, w.head_begin, w.head_end, v->num_partials, n};
    for (int32_t i = 0; i < n; i++) {
        w.kv_end = end;
        if (i + 1 < n)
            w.kv_end = (int32_t)((begin + (int64_t)(end - begin) * (i + 1) / n) / align * align);
        w.partial = v->num_partials;
        v->num_partials += cells;
        add_piece(plan, &w);
        w.kv_begin = w.kv_end;
    }
}

/* How many ways the keys of sequence `w` are cut when `wanted` would suit the workers. */
static int32_t key_cuts(const plait_plan *plan, const plait_attn_work *w, int64_t wanted)
{
    int32_t least = plan->o.min_split_keys;
    int64_t with_align = (int64_t)least + min32(least, key_align) - 1;
    int64_t cells = (int64_t)(w->row_end - w->row_begin) * plan->o.h_q;
    int32_t n = min32(wanted, PLAIT_ATTN_MAX_SPLITS);
    if (plan->o.invariant) {
        int32_t first, end;
        splits_of(w, &first, &end);
        if ((end - first) * cells > plan->max_partials - plan->view.num_partials)
            return 1;
        return n < end - first ? n : end > first ? end - first : 1;
    }
    n = min32(n, (w->kv_end - w->kv_begin) / with_align);
    n = min32(n, (plan->max_partials - plan->view.num_partials) / cells);
    return n > 1 ? n : 1;
}

/* Cuts sequence `w` into about `wanted` pieces. */
static void cut(plait_plan *plan, const plait_attn_work *w, int64_t wanted)
{
    const plait_plan_options *o = &plan->o;
    struct head_blocks blocks = blocks_of_heads(o);
    int32_t rows = w->row_end - w->row_begin;
    int32_t n_h = o->op == PLAIT_OP_GQA ? min32(wanted, blocks.n) : 1;
    if (o->op == PLAIT_OP_MLA && o->invariant && o->h_q > many_heads)
        n_h = min32(wanted, o->h_q / many_heads);
    int32_t n_r = min32(ceil_div(wanted, n_h), ceil_div(rows, row_block));
    int32_t n_k = key_cuts(plan, w, ceil_div(wanted, (int64_t)n_h * n_r));
    if (o->op == PLAIT_OP_MLA && !(o->invariant && n_k > 1))
        n_h = min32(ceil_div(wanted, (int64_t)n_r * n_k), blocks.n);
    for (int32_t r = 0; r < n_r; r++) {
        plait_attn_work part = *w;
        part.row_begin = w->row_begin + (int32_t)((int64_t)rows * r / n_r);
        part.row_end = w->row_begin + (int32_t)((int64_t)rows * (r + 1) / n_r);
        part.kv_begin = plan->kv_begin[part.row_begin];
        part.kv_end = plan->kv_end[part.row_end - 1];
        /* Blocks of early rows see fewer keys than the sequence does. */
        int32_t n = n_k > 1 ? key_cuts(plan, &part, n_k) : 1;
        for (int32_t h = 0; h < n_h; h++) {
            part.head_begin = head_cut(&blocks, h, n_h, o->h_q);
            part.head_end = head_cut(&blocks, h + 1, n_h, o->h_q);
            cut_keys(plan, part, n);
        }
    }
}

/* Dearest first; ties by place, so that the order does not depend on the sort. */
static int before(const plait_plan *plan, const plait_attn_work *a, int64_t cost, int32_t j)
{
    const plait_attn_work *b = &plan->pieces[j];
    if (cost != plan->piece_cost[j])
        return cost > plan->piece_cost[j];
    if (a->row_begin != b->row_begin)
        return a->row_begin < b->row_begin;
    if (a->head_begin != b->head_begin)
        return a->head_begin < b->head_begin;
    return a->kv_begin < b->kv_begin;
}

/* A shell sort, because the C library's sort may allocate. */
static void sort_pieces(plait_plan *plan)
{
    int32_t n = plan->view.num_work;
    int32_t gap = 1;
    while (gap < n / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (int32_t i = gap; i < n; i++) {
            plait_attn_work w = plan->pieces[i];
            int64_t cost = plan->piece_cost[i];
            int32_t j = i;
            for (; j >= gap && before(plan, &w, cost, j - gap); j -= gap) {
                plan->pieces[j] = plan->pieces[j - gap];
                plan->piece_cost[j] = plan->piece_cost[j - gap];
            }
            plan->pieces[j] = w;
            plan->piece_cost[j] = cost;
        }
}

/* Gives each piece to the worker with the least to do. Worker w runs items w, w + n, ..., so the
   first num_work % n workers have one place more. Returns the largest load. */
static int64_t deal(plait_plan *plan)
{
    int32_t n = plan->o.n_workers, items = plan->view.num_work;
    int64_t most = 0;
    memset(plan->load, 0, sizeof(*plan->load) * (size_t)n);
    memset(plan->dealt, 0, sizeof(*plan->dealt) * (size_t)n);
    for (int32_t i = 0; i < items; i++) {
        int32_t best = -1;
        for (int32_t w = 0; w < n; w++)
            if (plan->dealt[w] < items / n + (w < items % n) &&
                (best < 0 || plan->load[w] < plan->load[best]))
                best = w;
        plan->work[(int64_t)plan->dealt[best]++ * n + best] = plan->pieces[i];
        plan->load[best] += plan->piece_cost[i];
        most = plan->load[best] > most ? plan->load[best] : most;
    }
    return most;
}

/* Ends w's rows, which go on to `end`, where the length of their splits changes. */
static void equal_splits(const plait_plan *plan, plait_attn_work *w, int32_t end)
{
    const int32_t keys = plait_attn_split_keys(plan->kv_end[w->row_begin]);
    w->row_end = w->row_begin + 1;
    while (w->row_end < end && plait_attn_split_keys(plan->kv_end[w->row_end]) == keys)
        w->row_end++;
    w->kv_begin = plan->kv_begin[w->row_begin];
    w->kv_end = plan->kv_end[w->row_end - 1];
}

/* Schedules with pieces of at most 1/grain of a worker's fair share. */
static int64_t schedule(plait_plan *plan, int64_t total, int32_t grain)
{
    plait_plan_view *v = &plan->view;
    int64_t target = ceil_div(total, (int64_t)plan->o.n_workers * grain);
    v->num_work = v->num_reduce = v->num_partials = 0;
    for (int32_t s = 0; s < v->num_seqs; s++) {
        plait_attn_work w = whole(plan, s);
        for (; w.row_begin < plan->row_start[s + 1]; w.row_begin = w.row_end) {
            if (plan->o.invariant)
                equal_splits(plan, &w, plan->row_start[s + 1]);
            cut(plan, &w, ceil_div(item_cost(plan, &w), target));
        }
    }
    sort_pieces(plan);
    return deal(plan);
}

void plait_schedule(plait_plan *plan)
{
    int64_t total = 0, best_time = INT64_MAX;
    int32_t best = 1, grain;
    for (int32_t s = 0; s < plan->view.num_seqs; s++) {
        plait_attn_work w = whole(plan, s);
        total += item_cost(plan, &w);
    }
    /* Finer pieces cost more merging: they must gain a sixteenth. */
    for (grain = 1;; grain *= 2) {
        int64_t time = schedule(plan, total, grain);
        if (best_time == INT64_MAX || time < best_time - best_time / 16) {
            best_time = time;
            best = grain;
        }
        if (grain == finest || time <= ceil_div(total, plan->o.n_workers) * 11 / 10)
            break;
    }
    if (best != grain)
        schedule(plan, total, best);
}
