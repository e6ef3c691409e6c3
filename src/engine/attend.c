/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c: metadata of a batch and the attention step of one rank. */
#include "engine/attend.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"

plait_status plait_attend_open(const plait_attend_options *o, plait_attend *a)
{
    memset(a, 0, sizeof *a);
    a->options = *o;
    const size_t rows = (size_t)o->max_rows, heads = (size_t)o->num_heads;
    a->row_start = malloc((size_t)(o->max_seqs + 1) * sizeof *a->row_start);
    a->positions = malloc(rows * sizeof *a->positions);
    a->slots = malloc(rows * sizeof *a->slots);
    a->kv_end = malloc(rows * sizeof *a->kv_end);
    a->page_table = malloc((size_t)o->max_seqs * (size_t)o->max_pages * sizeof *a->page_table);
    a->q = malloc(rows * heads * (size_t)o->d_qk * plait_dtype_bytes(o->q_dtype));
    a->out = malloc(rows * heads * (size_t)o->d_v * sizeof *a->out);
    a->lse = malloc(rows * heads * sizeof *a->lse);
    if (a->row_start && a->positions && a->slots && a->kv_end && a->page_table && a->q && a->out &&
        a->lse)
        return PLAIT_OK;
    plait_attend_close(a);
    return plait_fail(PLAIT_E_NOMEM, "no memory for attention over %d rows", (int)o->max_rows);
}

void plait_attend_close(plait_attend *a)
{
    void *const all[] = {a->row_start, a->positions, a->slots, a->kv_end, a->page_table,
                         a->q,         a->out,       a->lse,   a->workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    memset(a, 0, sizeof *a);
}

plait_status plait_attend_begin(plait_attend *a, const plait_kv_group *g, int32_t num_seqs,
                                const int32_t *tables, const int64_t *starts,
                                const int32_t *counts)
{
    a->num_seqs = num_seqs;
    a->num_rows = 0;
    for (int32_t s = 0; s < num_seqs; s++) {
        const int32_t *table = g->tables + tables[s] * g->table_len;
        memcpy(a->page_table + s * a->options.max_pages, table,
               (size_t)g->table_len * sizeof *table);
        a->row_start[s] = a->num_rows;
        for (int32_t i = 0; i < counts[s]; i++) {
            int32_t begin;
            const int32_t row = a->num_rows++;
            a->positions[row] = (int32_t)(starts[s] + i);
            a->slots[row] =
                plait_shard_slot(g->shard, starts[s] + i, table, g->table_len, g->page_size);
            plait_shard_range(g->shard, starts[s] + i, 0, &begin, &a->kv_end[row]);
        }
    }
    a->row_start[num_seqs] = a->num_rows;
    return PLAIT_OK;
}

static plait_attn_args fill_args(const plait_attend *a, const plait_kv_group *g, int32_t layer)
{
    const plait_attend_options *o = &a->options;
    plait_attn_args args = PLAIT_ATTN_ARGS_INIT;
    args.op = PLAIT_OP_MLA;
    args.num_seqs = a->num_seqs;
    args.num_rows = a->num_rows;
    args.h_q = o->num_heads;
    args.h_kv = 1;
    args.d_qk = o->d_qk;
    args.d_v = o->d_v;
    args.page_size = g->page_size;
    args.row_start = a->row_start;
    args.kv_end = a->kv_end;
    args.page_table = a->page_table;
    args.page_table_stride = o->max_pages;
    args.num_pages = g->num_pages;
    args.q = a->q;
    args.q_dtype = o->q_dtype;
    args.q_head_stride = o->d_qk;
    args.q_row_stride = (int64_t)o->num_heads * o->d_qk;
    args.k = plait_kv_layer(g, layer);
    args.kv_dtype = g->dtype;
    args.k_token_stride = args.k_head_stride = g->width;
    args.k_page_stride = (int64_t)g->width * g->page_size;
    args.out = a->out;
    args.out_dtype = PLAIT_F32;
    args.out_head_stride = o->d_v;
    args.out_row_stride = (int64_t)o->num_heads * o->d_v;
    args.lse = a->lse;
    args.lse_head_stride = 1;
    args.lse_row_stride = o->num_heads;
    args.softmax_scale = o->softmax_scale;
    return args;
}

plait_status plait_attend_step(plait_attend *a, const plait_kv_group *g, int32_t layer)
{
    const plait_attend_options *o = &a->options;
    plait_attn_args args = fill_args(a, g, layer);
    PLAIT_TRY(plait_attn_pick(&args, o->features, o->executor->n_workers, o->pattern, &a->kernel));
    const size_t bytes = plait_attn_workspace(a->kernel, &args, o->executor->n_workers);
    if (bytes > a->workspace_bytes) {
        free(a->workspace);
        a->workspace_bytes = 0;
        a->workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!a->workspace)
            return plait_fail(PLAIT_E_NOMEM, "no memory for %zu bytes of workspace", bytes);
        a->workspace_bytes = bytes;
    }
    args.workspace = a->workspace;
    args.workspace_bytes = a->workspace_bytes;
    return plait_attn_run(a->kernel, &args, o->executor);
}

plait_status plait_attend_sum(plait_attend *a, float *x, int64_t n)
{
    (void)a, (void)x, (void)n;
    return PLAIT_OK;
}

plait_status plait_attend_gather(plait_attend *a, const float *x, int64_t n, float *all)
{
    (void)a;
    memcpy(all, x, (size_t)n * sizeof *x);
    return PLAIT_OK;
}
