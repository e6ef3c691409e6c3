/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c: plans of batches and the attention step of one rank. */
#include "engine/attend.h"

#include <string.h>

#include "core/status.h"
#include "cp/dcp.h"

static plait_status open_dcp(plait_attend *a)
{
    const plait_attend_options *o = &a->options;
    plait_dcp_options d = PLAIT_DCP_OPTIONS_INIT;
    d.comm = o->dcp_ranks;
    d.heads = o->dcp_heads;
    d.d_qk = o->d_qk;
    d.d_v = o->d_v;
    d.max_rows = o->max_rows;
    d.q_dtype = o->q_dtype;
    d.partial_dtype = PLAIT_F32;
    d.exchange = o->exchange;
    d.allocator = o->allocator;
    PLAIT_TRY(plait_dcp_open(&d, &a->dcp));
    plait_dcp_set_trace(a->dcp, o->trace);
    return PLAIT_OK;
}

static void lay_out(plait_arena *arena, plait_attend *a)
{
    const plait_attend_options *o = &a->options;
    const size_t rows = (size_t)o->max_rows, heads = (size_t)o->num_heads;
    const size_t seqs = (size_t)o->max_seqs;
    a->committed = plait_arena_take(arena, seqs, sizeof *a->committed);
    a->counts = plait_arena_take(arena, seqs, sizeof *a->counts);
    a->table_len = plait_arena_take(arena, seqs, sizeof *a->table_len);
    a->is_prompt = plait_arena_take(arena, seqs, sizeof *a->is_prompt);
    a->page_table = plait_arena_take(arena, seqs, (size_t)a->table_stride * sizeof(int32_t));
    a->q = plait_arena_take(arena, rows * heads * (size_t)o->d_qk, plait_dtype_bytes(o->q_dtype));
    a->out = plait_arena_take(arena, rows * heads * (size_t)o->d_v, sizeof *a->out);
}

plait_status plait_attend_open(const plait_attend_options *o, plait_attend *a)
{
    memset(a, 0, sizeof *a);
    a->options = *o;
    /* Pages are most where nothing is sharded. */
    a->table_stride = (int32_t)(o->max_length / o->page_size + 1);
    lay_out(&a->arena, a);
    plait_status status = plait_arena_reserve(&a->arena, o->allocator, "attention of a step");
    if (status == PLAIT_OK)
        lay_out(&a->arena, a);
    if (o->dcp_ranks)
        status = plait_comm_agree(o->dcp_ranks, "open attention", status);
    if (status == PLAIT_OK && o->dcp_ranks)
        status = open_dcp(a);
    if (status != PLAIT_OK)
        plait_attend_close(a);
    return status;
}

void plait_attend_close(plait_attend *a)
{
    plait_dcp_close(&a->dcp);
    plait_mem_free(a->options.allocator, a->workspace, a->workspace_bytes);
    plait_arena_free(&a->arena, a->options.allocator);
    memset(a, 0, sizeof *a);
}

static int is_sharded(const plait_attend *a, const plait_kv_group *g)
{
    return a->dcp && g->shard.d > 1;
}

/* Room for whatever kernel a batch of this plan gets: the choice depends on the batch. */
static plait_status reserve_workspace(plait_attend *a, const plait_plan *plan, plait_op op)
{
    const plait_attend_options *o = &a->options;
    size_t bytes = 0;
    for (int32_t i = 0; i < plait_kernel_count(); i++) {
        const plait_kernel *k = plait_kernel_get(i);
        if (k->op != op || k->device != PLAIT_DEVICE_CPU || (k->needs & ~o->features) ||
            !plait_kernel_match(k->name, o->pattern))
            continue;
        const size_t more = plait_plan_workspace_max(plan, k);
        bytes = more > bytes ? more : bytes;
    }
    if (bytes <= a->workspace_bytes)
        return PLAIT_OK;
    plait_mem_free(o->allocator, a->workspace, a->workspace_bytes);
    a->workspace_bytes = 0;
    PLAIT_TRY(plait_mem_alloc(o->allocator, bytes, "workspace of attention", &a->workspace));
    a->workspace_bytes = bytes;
    return PLAIT_OK;
}

plait_status plait_attend_open_plan(plait_attend *a, plait_kv_group *g)
{
    const plait_attend_options *o = &a->options;
    plait_plan_options p = PLAIT_PLAN_OPTIONS_INIT;
    p.shard = g->shard;
    p.op = o->op;
    p.q_head0 = o->q_head0;
    p.q_per_kv = o->q_per_kv;
    p.h_q = is_sharded(a, g) ? o->group_heads : o->num_heads;
    p.h_kv = o->num_kv_heads;
    p.d_qk = o->d_qk;
    p.d_v = o->d_v;
    p.page_size = g->page_size;
    p.max_seqs = o->max_seqs;
    p.max_rows = o->max_rows;
    p.max_pages_per_seq = (int32_t)plait_shard_pages(g->shard, o->max_length, g->page_size);
    p.n_workers = o->executor->n_workers;
    p.allocator = o->allocator;
    p.invariant = o->invariant;
    PLAIT_TRY(plait_plan_open(&p, &g->plan));
    return reserve_workspace(a, g->plan, p.op);
}

/* The requests' tables side by side, as a batch holds them. */
static void gather_tables(plait_attend *a, const plait_kv_group *g, int32_t num_seqs,
                          const int32_t *tables)
{
    for (int32_t s = 0; s < num_seqs; s++) {
        a->table_len[s] = g->requests[tables[s]].used;
        memcpy(a->page_table + (int64_t)s * a->table_stride, g->tables + tables[s] * g->table_len,
               (size_t)a->table_len[s] * sizeof *a->page_table);
    }
}

/* GQA: a token's values follow its keys. */
static void set_layer(plait_attend *a, const plait_kv_group *g, int32_t layer)
{
    const plait_attend_options *o = &a->options;
    const unsigned char *at = plait_kv_layer(g, layer);
    a->args.k = at;
    if (o->op == PLAIT_OP_GQA)
        a->args.v = at + (size_t)o->num_kv_heads * (size_t)o->d_qk * plait_dtype_bytes(g->dtype);
}

/* The arguments that all layers of the batch share, the kernel for them, and its workspace. */
static plait_status prepare(plait_attend *a, const plait_kv_group *g)
{
    const plait_attend_options *o = &a->options;
    plait_attn_args *args = &a->args;
    *args = (plait_attn_args)PLAIT_ATTN_ARGS_INIT;
    PLAIT_TRY(plait_plan_bind(g->plan, &a->batch, args));
    args->num_pages = g->num_pages;
    args->q = a->q;
    args->q_dtype = o->q_dtype;
    args->q_head_stride = o->d_qk;
    args->q_row_stride = (int64_t)o->num_heads * o->d_qk;
    set_layer(a, g, 0);
    args->kv_dtype = g->dtype;
    args->k_token_stride = args->v_token_stride = g->width;
    args->k_page_stride = args->v_page_stride = (int64_t)g->width * g->page_size;
    args->k_head_stride = o->d_qk;
    args->v_head_stride = o->d_v;
    args->out = a->out;
    args->out_dtype = PLAIT_F32;
    args->out_head_stride = o->d_v;
    args->out_row_stride = (int64_t)o->num_heads * o->d_v;
    args->softmax_scale = o->softmax_scale;
    PLAIT_TRY(plait_attn_pick(args, o->features, o->executor->n_workers, o->pattern, &a->kernel));
    args->workspace = a->workspace;
    args->workspace_bytes = a->workspace_bytes;
    return PLAIT_OK;
}

plait_status plait_attend_begin(plait_attend *a, const plait_kv_group *g, int32_t num_seqs,
                                int32_t *tables, int64_t *starts, int32_t *counts,
                                uint8_t *is_prompt)
{
    gather_tables(a, g, num_seqs, tables);
    memcpy(a->committed, starts, (size_t)num_seqs * sizeof *starts);
    memcpy(a->counts, counts, (size_t)num_seqs * sizeof *counts);
    memcpy(a->is_prompt, is_prompt, (size_t)num_seqs);
    a->batch = (plait_plan_batch)PLAIT_PLAN_BATCH_INIT;
    a->batch.num_seqs = num_seqs;
    a->batch.committed = a->committed;
    a->batch.q_len = a->counts;
    a->batch.is_prompt = a->is_prompt;
    a->batch.page_table = a->page_table;
    a->batch.page_table_stride = a->table_stride;
    a->batch.table_len = a->table_len;
    PLAIT_TRY(plait_plan_build(g->plan, &a->batch));
    a->view = plait_plan_get(g->plan);
    a->num_rows = a->view->num_rows;
    /* table_len is free now: the tables in the order that they came in. */
    memcpy(a->table_len, tables, (size_t)num_seqs * sizeof *tables);
    for (int32_t s = 0; s < num_seqs; s++) {
        const int32_t from = a->view->order[s];
        tables[s] = a->table_len[from];
        starts[s] = a->committed[from];
        counts[s] = a->counts[from];
        is_prompt[s] = a->is_prompt[from];
    }
    return prepare(a, g);
}

plait_status plait_attend_step(plait_attend *a, const plait_kv_group *g, int32_t layer)
{
    set_layer(a, g, layer);
    if (is_sharded(a, g))
        return plait_dcp_step(a->dcp, a->kernel, &a->args, a->options.executor);
    return plait_attn_run(a->kernel, &a->args, a->options.executor);
}

plait_status plait_attend_sum(plait_attend *a, const float *x, int64_t n, float *out)
{
    return plait_comm_all_reduce(a->options.ranks, "sum over ranks", -1, NULL, x, n, out);
}

plait_status plait_attend_gather(plait_attend *a, const float *x, int64_t n, float *all)
{
    int64_t bytes[PLAIT_COMM_MAX_RANKS];
    for (int32_t r = 0; r < plait_comm_size(a->options.ranks); r++)
        bytes[r] = n * (int64_t)sizeof *x;
    return plait_comm_all_gather(a->options.ranks, "gather logits", -1, NULL, x, bytes, all);
}
