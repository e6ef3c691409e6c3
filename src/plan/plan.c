/* SPDX-License-Identifier: Apache-2.0 */
/*
 * src/plan: the metadata of a step. A batch is checked whole before anything is written, then all
 * arrays are derived from the requests' global lengths; refresh only changes those lengths.
 */
#include <string.h>

#include "core/status.h"
#include "plan/plan.h"

#define FAIL(...) plait_fail(PLAIT_E_ARG, "plan: " __VA_ARGS__)

/* ---- opening -------------------------------------------------------------------------------- */

static plait_status check_heads(const plait_plan_options *o)
{
    if (o->op != PLAIT_OP_MLA && o->op != PLAIT_OP_GQA)
        return FAIL("op is %d, wanted PLAIT_OP_MLA or PLAIT_OP_GQA", (int)o->op);
    if (o->h_q < 1 || o->h_kv < 1 || o->d_qk < 1 || o->d_v < 1)
        return FAIL("h_q %d, h_kv %d, d_qk %d, d_v %d; wanted at least 1 each", o->h_q, o->h_kv,
                    o->d_qk, o->d_v);
    if (o->q_head0 < 0 || o->q_per_kv < 0)
        return FAIL("q_head0 %d, q_per_kv %d; wanted at least 0", o->q_head0, o->q_per_kv);
    if (o->op == PLAIT_OP_GQA && o->q_per_kv == 0 && o->h_q % o->h_kv != 0)
        return FAIL("h_q %d is no multiple of h_kv %d and q_per_kv is not given", o->h_q, o->h_kv);
    if (o->op == PLAIT_OP_GQA && o->q_per_kv > 0 &&
        ((int64_t)o->q_head0 + o->h_q - 1) / o->q_per_kv >= o->h_kv)
        return FAIL("q_head0 %d, h_q %d and q_per_kv %d reach past h_kv %d", o->q_head0, o->h_q,
                    o->q_per_kv, o->h_kv);
    return PLAIT_OK;
}

static plait_status check_options(const plait_plan_options *o)
{
    PLAIT_TRY(plait_shard_check(o->shard));
    PLAIT_TRY(check_heads(o));
    if (o->page_size < 1 || o->window < 0)
        return FAIL("page_size %d, window %lld; wanted at least 1 and 0", o->page_size,
                    (long long)o->window);
    if (o->max_seqs < 1 || o->max_rows < 1 || o->max_pages_per_seq < 1)
        return FAIL("max_seqs %d, max_rows %d, max_pages_per_seq %d; wanted at least 1 each",
                    o->max_seqs, o->max_rows, o->max_pages_per_seq);
    if (o->short_rows < 1 || o->n_workers < 1 || o->min_split_keys < 1)
        return FAIL("short_rows %d, n_workers %d, min_split_keys %d; wanted at least 1 each",
                    o->short_rows, o->n_workers, o->min_split_keys);
    return PLAIT_OK;
}

static void lay_out(plait_arena *arena, plait_plan *p)
{
    size_t seqs = (size_t)p->o.max_seqs, rows = (size_t)p->o.max_rows;
    size_t work = (size_t)p->max_work, workers = (size_t)p->o.n_workers;
    size_t pages = (size_t)p->o.max_pages_per_seq;
    p->req_committed = plait_arena_take(arena, seqs, sizeof(int64_t));
    p->req_q_len = plait_arena_take(arena, seqs, sizeof(int32_t));
    p->req_class = plait_arena_take(arena, seqs, sizeof(uint8_t));
    p->order = plait_arena_take(arena, seqs, sizeof(int32_t));
    p->place = plait_arena_take(arena, seqs, sizeof(int32_t));
    p->committed = plait_arena_take(arena, seqs, sizeof(int64_t));
    p->length = plait_arena_take(arena, seqs, sizeof(int64_t));
    p->pages_needed = plait_arena_take(arena, seqs, sizeof(int32_t));
    p->row_start = plait_arena_take(arena, seqs + 1, sizeof(int32_t));
    p->index = plait_arena_take(arena, rows, sizeof(int64_t));
    p->slot = plait_arena_take(arena, rows, sizeof(int64_t));
    p->position = plait_arena_take(arena, rows, sizeof(int32_t));
    p->kv_begin = plait_arena_take(arena, rows, sizeof(int32_t));
    p->kv_end = plait_arena_take(arena, rows, sizeof(int32_t));
    p->page_table = plait_arena_take(arena, seqs, pages * sizeof(int32_t));
    p->work = plait_arena_take(arena, work, sizeof(plait_attn_work));
    p->reduce = plait_arena_take(arena, work, sizeof(plait_attn_reduce));
    p->pieces = plait_arena_take(arena, work, sizeof(plait_attn_work));
    p->piece_cost = plait_arena_take(arena, work, sizeof(int64_t));
    p->load = plait_arena_take(arena, workers, sizeof(int64_t));
    p->dealt = plait_arena_take(arena, workers, sizeof(int32_t));
}

static void set_view(plait_plan *p)
{
    p->view = (plait_plan_view){.order = p->order,
                                .place = p->place,
                                .committed = p->committed,
                                .length = p->length,
                                .pages_needed = p->pages_needed,
                                .row_start = p->row_start,
                                .index = p->index,
                                .position = p->position,
                                .kv_begin = p->kv_begin,
                                .kv_end = p->kv_end,
                                .slot = p->slot,
                                .page_table = p->page_table,
                                .page_table_stride = p->o.max_pages_per_seq,
                                .work = p->work,
                                .reduce = p->reduce};
    p->row_start[0] = 0;
}

plait_status plait_plan_open(const plait_plan_options *options, plait_plan **out)
{
    *out = NULL;
    if (options->size != sizeof(*options))
        return FAIL("options have size %zu, wanted %zu", options->size, sizeof(*options));
    PLAIT_TRY(check_options(options));
    void *memory;
    PLAIT_TRY(plait_mem_zalloc(options->allocator, sizeof(plait_plan), "plan", &memory));
    plait_plan *plan = memory;
    plan->o = *options;
    plait_status status = plait_schedule_capacity(plan);
    if (status == PLAIT_OK) {
        lay_out(&plan->arena, plan);
        status = plait_arena_reserve(&plan->arena, options->allocator, "plan");
    }
    if (status != PLAIT_OK) {
        plait_mem_free(options->allocator, plan, sizeof(*plan));
        return status;
    }
    lay_out(&plan->arena, plan);
    set_view(plan);
    *out = plan;
    return PLAIT_OK;
}

void plait_plan_close(plait_plan **plan)
{
    if (!plan || !*plan)
        return;
    const plait_allocator *allocator = (*plan)->o.allocator;
    plait_arena_free(&(*plan)->arena, allocator);
    plait_mem_free(allocator, *plan, sizeof(**plan));
    *plan = NULL;
}

/* ---- checking a batch ----------------------------------------------------------------------- */

/* Committed length of request s in the step to plan: the batch's, or after acceptance. */
static int64_t next_committed(const plait_plan *p, const plait_plan_batch *b,
                              const int32_t *accepted, int32_t s)
{
    if (!accepted)
        return b->committed[s];
    return p->req_committed[s] + (p->req_q_len[s] > 0 ? 1 + accepted[s] : 0);
}

static plait_status check_table(const plait_plan *p, const plait_plan_batch *b, int32_t s,
                                int64_t length)
{
    int64_t need = plait_shard_pages(p->o.shard, length, p->o.page_size);
    int64_t have = b->table_len ? b->table_len[s] : b->page_table_stride;
    const int32_t *table = b->page_table + s * b->page_table_stride;
    if (need > p->o.max_pages_per_seq)
        return plait_fail(PLAIT_E_NOMEM,
                          "plan: request %d needs %lld pages for %lld tokens, "
                          "max_pages_per_seq is %d",
                          s, (long long)need, (long long)length, p->o.max_pages_per_seq);
    if (have > b->page_table_stride)
        return FAIL("request %d: table_len is %lld, page_table_stride %lld", s, (long long)have,
                    (long long)b->page_table_stride);
    if (need > have)
        return FAIL("request %d needs %lld pages of %d tokens for %lld tokens, its table has %lld",
                    s, (long long)need, p->o.page_size, (long long)length, (long long)have);
    for (int64_t i = 0; i < need; i++)
        if (table[i] < 0)
            return FAIL("request %d: page table entry %lld is %d", s, (long long)i, table[i]);
    return PLAIT_OK;
}

static plait_status check_request(const plait_plan *p, const plait_plan_batch *b,
                                  const int32_t *accepted, int32_t s)
{
    if (accepted && (accepted[s] < 0 || accepted[s] > (p->req_q_len[s] ? p->req_q_len[s] - 1 : 0)))
        return FAIL("request %d: %d drafts accepted of a step of %d rows", s, accepted[s],
                    p->req_q_len[s]);
    int64_t committed = next_committed(p, b, accepted, s);
    if (committed < 0 || b->q_len[s] < 0)
        return FAIL("request %d: committed is %lld and q_len %d, wanted at least 0", s,
                    (long long)committed, b->q_len[s]);
    if (committed > INT32_MAX - b->q_len[s])
        return plait_fail(PLAIT_E_NOMEM,
                          "plan: request %d: %lld committed tokens and %d rows are more "
                          "than %d tokens",
                          s, (long long)committed, b->q_len[s], INT32_MAX);
    return check_table(p, b, s, committed + b->q_len[s]);
}

static plait_status check_batch(const plait_plan *p, const plait_plan_batch *b,
                                const int32_t *accepted)
{
    int64_t rows = 0;
    if (b->size != sizeof(*b))
        return FAIL("the batch has size %zu, wanted %zu", b->size, sizeof(*b));
    if (b->num_seqs < 0 || b->padded_rows < 0 || b->page_table_stride < 0)
        return FAIL("num_seqs %d, padded_rows %d, page_table_stride %lld; wanted at least 0",
                    b->num_seqs, b->padded_rows, (long long)b->page_table_stride);
    if (b->num_seqs > p->o.max_seqs)
        return plait_fail(PLAIT_E_NOMEM, "plan: %d requests, max_seqs is %d", b->num_seqs,
                          p->o.max_seqs);
    if (b->num_seqs > 0 && (!b->q_len || !b->page_table || (!accepted && !b->committed)))
        return FAIL("committed, q_len or page_table is NULL");
    for (int32_t s = 0; s < b->num_seqs; s++) {
        PLAIT_TRY(check_request(p, b, accepted, s));
        rows += b->q_len[s];
    }
    if (b->padded_rows > 0 && rows > b->padded_rows)
        return FAIL("%lld rows, padded_rows is %d", (long long)rows, b->padded_rows);
    rows = b->padded_rows > 0 ? b->padded_rows : rows;
    if (rows > p->o.max_rows)
        return plait_fail(PLAIT_E_NOMEM, "plan: %lld rows, max_rows is %d", (long long)rows,
                          p->o.max_rows);
    return PLAIT_OK;
}

/* ---- deriving ------------------------------------------------------------------------------- */

static plait_plan_class class_of(const plait_plan *p, int64_t committed, int32_t rows, int prompt)
{
    if (prompt)
        return committed > 0 ? PLAIT_CLASS_LONG_EXTEND : PLAIT_CLASS_PREFILL;
    if (rows <= 1)
        return PLAIT_CLASS_DECODE;
    return rows <= p->o.short_rows ? PLAIT_CLASS_SHORT_EXTEND : PLAIT_CLASS_LONG_EXTEND;
}

/* Takes over the requests and orders them by class, a stable counting sort. */
static void order_requests(plait_plan *p, const plait_plan_batch *b, const int32_t *accepted)
{
    plait_plan_view *v = &p->view;
    int32_t at[PLAIT_CLASS_COUNT] = {0};
    memset(v->class_count, 0, sizeof(v->class_count));
    v->num_seqs = b->num_seqs;
    for (int32_t s = 0; s < b->num_seqs; s++) {
        p->req_committed[s] = next_committed(p, b, accepted, s);
        p->req_q_len[s] = b->q_len[s];
        p->req_class[s] =
            (uint8_t)class_of(p, p->req_committed[s], b->q_len[s], b->is_prompt && b->is_prompt[s]);
        v->class_count[p->req_class[s]]++;
    }
    for (int32_t c = 1; c < PLAIT_CLASS_COUNT; c++)
        at[c] = at[c - 1] + v->class_count[c - 1];
    for (int32_t s = 0; s < b->num_seqs; s++) {
        p->place[s] = at[p->req_class[s]]++;
        p->order[p->place[s]] = s;
    }
}

static void derive_sequence(plait_plan *p, const plait_plan_batch *b, int32_t s)
{
    int32_t request = p->order[s];
    int32_t *table = p->page_table + s * p->view.page_table_stride;
    p->committed[s] = p->req_committed[request];
    p->length[s] = p->committed[s] + p->req_q_len[request];
    p->pages_needed[s] = (int32_t)plait_shard_pages(p->o.shard, p->length[s], p->o.page_size);
    p->row_start[s + 1] = p->row_start[s] + p->req_q_len[request];
    memcpy(table, b->page_table + request * b->page_table_stride,
           sizeof(*table) * (size_t)p->pages_needed[s]);
    for (int32_t row = p->row_start[s]; row < p->row_start[s + 1]; row++) {
        p->index[row] = p->committed[s] + row - p->row_start[s];
        p->position[row] = (int32_t)p->index[row];
        plait_shard_range(p->o.shard, p->index[row], p->o.window, &p->kv_begin[row],
                          &p->kv_end[row]);
        p->slot[row] =
            plait_shard_slot(p->o.shard, p->index[row], table, p->pages_needed[s], p->o.page_size);
    }
}

static void derive(plait_plan *p, plait_plan_batch *b, const int32_t *accepted)
{
    plait_plan_view *v = &p->view;
    order_requests(p, b, accepted);
    for (int32_t s = 0; s < v->num_seqs; s++)
        derive_sequence(p, b, s);
    v->num_rows = p->row_start[v->num_seqs];
    v->padded_rows = b->padded_rows > 0 ? b->padded_rows : v->num_rows;
    for (int32_t row = v->num_rows; row < v->padded_rows; row++) {
        p->index[row] = p->slot[row] = -1;
        p->position[row] = p->kv_begin[row] = p->kv_end[row] = 0;
    }
    plait_schedule(p);
    b->generation = ++v->generation;
}

plait_status plait_plan_build(plait_plan *plan, plait_plan_batch *batch)
{
    PLAIT_TRY(check_batch(plan, batch, NULL));
    derive(plan, batch, NULL);
    return PLAIT_OK;
}

static plait_status check_generation(const plait_plan *p, const plait_plan_batch *b)
{
    if (p->view.generation == 0 || b->generation != p->view.generation ||
        b->num_seqs != p->view.num_seqs)
        return plait_fail(PLAIT_E_STATE,
                          "plan: the batch has generation %llu and %d requests, the plan %llu "
                          "and %d: it was built for another batch",
                          (unsigned long long)b->generation, b->num_seqs,
                          (unsigned long long)p->view.generation, p->view.num_seqs);
    return PLAIT_OK;
}

plait_status plait_plan_refresh(plait_plan *plan, const int32_t *accepted, plait_plan_batch *batch)
{
    if (!accepted)
        return FAIL("accepted is NULL");
    PLAIT_TRY(check_generation(plan, batch));
    PLAIT_TRY(check_batch(plan, batch, accepted));
    derive(plan, batch, accepted);
    return PLAIT_OK;
}

/* ---- using ---------------------------------------------------------------------------------- */

const plait_plan_view *plait_plan_get(const plait_plan *plan)
{
    return &plan->view;
}

static void fill_args(const plait_plan *p, plait_attn_args *args)
{
    const plait_plan_view *v = &p->view;
    args->op = p->o.op;
    args->num_seqs = v->num_seqs;
    args->num_rows = v->padded_rows;
    args->h_q = p->o.h_q;
    args->h_kv = p->o.h_kv;
    args->q_head0 = p->o.q_head0;
    args->q_per_kv = p->o.q_per_kv;
    args->d_qk = p->o.d_qk;
    args->d_v = p->o.d_v;
    args->page_size = p->o.page_size;
    args->row_start = p->row_start;
    args->kv_begin = p->o.window > 0 ? p->kv_begin : NULL;
    args->kv_end = p->kv_end;
    args->page_table = p->page_table;
    args->page_table_stride = v->page_table_stride;
    args->work = p->work;
    args->num_work = v->num_work;
    args->reduce = p->reduce;
    args->num_reduce = v->num_reduce;
    args->num_partials = v->num_partials;
    args->invariant = p->o.invariant;
}

plait_status plait_plan_bind(const plait_plan *plan, const plait_plan_batch *batch,
                             plait_attn_args *args)
{
    PLAIT_TRY(check_generation(plan, batch));
    fill_args(plan, args);
    return PLAIT_OK;
}

size_t plait_plan_workspace(const plait_plan *plan, const plait_kernel *kernel)
{
    plait_attn_args args = PLAIT_ATTN_ARGS_INIT;
    fill_args(plan, &args);
    return plait_attn_workspace(kernel, &args, plan->o.n_workers);
}

size_t plait_plan_workspace_max(const plait_plan *plan, const plait_kernel *kernel)
{
    plait_attn_args args = PLAIT_ATTN_ARGS_INIT;
    fill_args(plan, &args);
    args.num_partials = plan->max_partials;
    return plait_attn_workspace(kernel, &args, plan->o.n_workers);
}
