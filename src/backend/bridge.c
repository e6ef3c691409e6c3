/* SPDX-License-Identifier: Apache-2.0 */
/* One rule for rows, and the gathering of sequences with equal numbers of rows. */
#include <stdio.h>
#include <string.h>

#include "backend/bridge.h"

enum plait_bridge plait_bridge_of(const plait_caps *caps, plait_strategy strategy,
                                  const struct plait_bridge_rows *rows, char *text, size_t n)
{
    const int32_t take = caps->rows == PLAIT_ROWS_SINGLE ? 1 : caps->rows_max;
    const int64_t folded = (int64_t)rows->heads * rows->most;
    if (rows->heads_max && rows->heads > rows->heads_max) {
        snprintf(text, n, "%d heads, it takes %d", rows->heads, rows->heads_max);
        return PLAIT_BRIDGE_NONE;
    }
    if (strategy == PLAIT_STRATEGY_FLATTEN)
        return PLAIT_BRIDGE_WHOLE;
    /* A kernel that aligns ranges to the end gets the history, one range for all, as one row. */
    if (strategy == PLAIT_STRATEGY_WINDOW &&
        (caps->ranges == PLAIT_RANGES_END_ALIGNED || (take && rows->most > take))) {
        if (caps->ranges != PLAIT_RANGES_PER_ROW && (!rows->heads_max || folded <= rows->heads_max))
            return PLAIT_BRIDGE_FOLDED;
        if (caps->ranges != PLAIT_RANGES_PER_ROW) {
            snprintf(text, n, "a window of %d rows folds %lld heads, it takes %d", rows->most,
                     (long long)folded, rows->heads_max);
            return PLAIT_BRIDGE_NONE;
        }
    }
    if (take && rows->most > take) {
        snprintf(text, n, "sequences have up to %d rows, it takes %d", rows->most, take);
        return PLAIT_BRIDGE_NONE;
    }
    if (caps->rows == PLAIT_ROWS_RAGGED || (rows->least == rows->most && rows->least > 0))
        return PLAIT_BRIDGE_WHOLE;
    return PLAIT_BRIDGE_GROUPS;
}

static int serves(const plait_caps *caps, const plait_requirement *need)
{
    const plait_backend_config *c = &need->config;
    return caps->op == c->op && caps->device == c->device && (caps->phases & PLAIT_PHASE_DECODE) &&
           caps->ranges == PLAIT_RANGES_PER_ROW && caps->rows == PLAIT_ROWS_RAGGED &&
           caps->lse == PLAIT_LSE_BASE_E && caps->empty == PLAIT_EMPTY_EXACT &&
           (caps->q_dtypes & PLAIT_DTYPE_BIT(c->dtype)) &&
           (caps->kv_dtypes & PLAIT_DTYPE_BIT(c->kv_dtype)) &&
           (caps->out_dtypes & PLAIT_DTYPE_BIT(PLAIT_F32)) && c->d_qk >= caps->d_qk_min &&
           (!caps->d_qk_max || c->d_qk <= caps->d_qk_max) && c->d_v >= caps->d_v_min &&
           (!caps->d_v_max || c->d_v <= caps->d_v_max) && c->d_qk % caps->d_multiple == 0 &&
           c->d_v % caps->d_multiple == 0 && c->page_size >= caps->page_min &&
           (!caps->page_max || c->page_size <= caps->page_max) &&
           c->page_size % caps->page_multiple == 0;
}

const plait_kernel *plait_bridge_newest(const plait_requirement *need)
{
    const plait_kernel *kernel;
    for (int32_t i = 0; (kernel = plait_kernel_get(i)) != NULL; i++)
        for (int32_t row = 0; row < kernel->n_rows && !(kernel->needs & ~need->config.features);
             row++)
            if (serves(&kernel->rows[row], need))
                return kernel;
    return NULL;
}

/* ---- groups --------------------------------------------------------------------------------- */

int32_t plait_group_next(const plait_attn_args *args, int32_t rows)
{
    int32_t next = INT32_MAX;
    for (int32_t s = 0; s < args->num_seqs; s++) {
        int32_t q = args->row_start[s + 1] - args->row_start[s];
        if (q > rows && q < next)
            next = q;
    }
    return next == INT32_MAX ? 0 : next;
}

/* Heads are folded in the order [KV head][row][head of the KV head], so that a KV head's queries
   stay together: where row j, head h of `rows` rows comes to be. */
static int32_t folded_head(const plait_attn_args *a, int32_t rows, int32_t j, int32_t h)
{
    if (a->op == PLAIT_OP_MLA)
        return j * a->h_q + h;
    const int32_t per = a->q_per_kv ? a->q_per_kv : a->h_q / a->h_kv;
    const int32_t kv = (a->q_head0 + h) / per;
    const int32_t first = kv * per > a->q_head0 ? kv * per - a->q_head0 : 0;
    const int32_t end = (kv + 1) * per - a->q_head0;
    const int32_t heads = (end < a->h_q ? end : a->h_q) - first;
    return first * rows + j * heads + h - first;
}

/* Where in a group row j, head h of its sequence i is, in rows of heads. */
static int64_t place(const plait_attn_args *a, int32_t rows, int fold, int32_t i, int32_t j,
                     int32_t h)
{
    if (fold)
        return (int64_t)i * rows * a->h_q + folded_head(a, rows, j, h);
    return ((int64_t)i * rows + j) * a->h_q + h;
}

static void gather_queries(const plait_attn_args *a, int32_t rows, int fold, int32_t n,
                           const struct plait_group_buffers *to)
{
    const size_t bytes = plait_dtype_bytes(a->q_dtype);
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < rows; j++)
            for (int32_t h = 0; h < a->h_q; h++) {
                int64_t from =
                    (a->row_start[to->seqs[i]] + j) * a->q_row_stride + h * a->q_head_stride;
                memcpy(to->q + (size_t)(place(a, rows, fold, i, j, h) * a->d_qk) * bytes,
                       (const unsigned char *)a->q + (size_t)from * bytes, (size_t)a->d_qk * bytes);
            }
}

static int32_t gather_ranges(const plait_attn_args *a, int32_t rows, int fold,
                             const struct plait_group_buffers *to)
{
    const size_t stride = (size_t)a->page_table_stride;
    const int32_t each = fold ? 1 : rows;
    int32_t n = 0;
    for (int32_t s = 0; s < a->num_seqs; s++) {
        if (a->row_start[s + 1] - a->row_start[s] != rows)
            continue;
        for (int32_t j = 0; j < each; j++) {
            to->kv_begin[n * each + j] = a->kv_begin ? a->kv_begin[a->row_start[s] + j] : 0;
            to->kv_end[n * each + j] = a->kv_end[a->row_start[s] + j];
        }
        memcpy(to->page_table + (size_t)n * stride, a->page_table + (size_t)s * stride,
               stride * sizeof(int32_t));
        to->row_start[n] = n * each;
        to->seqs[n++] = s;
    }
    to->row_start[n] = n * each;
    return n;
}

plait_attn_args plait_group_gather(const plait_attn_args *args, int32_t rows, int fold,
                                   const struct plait_group_buffers *to)
{
    plait_attn_args a = *args;
    a.num_seqs = gather_ranges(args, rows, fold, to);
    gather_queries(args, rows, fold, a.num_seqs, to);
    a.num_rows = to->row_start[a.num_seqs];
    a.row_start = to->row_start;
    a.kv_begin = args->kv_begin ? to->kv_begin : NULL;
    a.kv_end = to->kv_end;
    a.page_table = to->page_table;
    if (fold) {
        a.h_q *= rows;
        a.q_head0 *= rows;
        a.q_per_kv *= rows;
        for (int32_t j = 0; args->q_scale_n > 1 && j < rows; j++)
            for (int32_t h = 0; h < args->h_q; h++)
                to->q_scale[folded_head(args, rows, j, h)] = args->q_scale[h];
        if (args->q_scale_n > 1) {
            a.q_scale = to->q_scale;
            a.q_scale_n = a.h_q;
        }
    }
    a.q = to->q;
    a.q_head_stride = a.d_qk;
    a.q_row_stride = (int64_t)a.h_q * a.d_qk;
    a.out = to->out;
    a.out_head_stride = a.d_v;
    a.out_row_stride = (int64_t)a.h_q * a.d_v;
    a.lse = args->lse ? to->lse : NULL;
    a.lse_head_stride = 1;
    a.lse_row_stride = a.h_q;
    return a;
}

void plait_group_scatter(const plait_attn_args *args, const plait_attn_args *group, int32_t rows,
                         int fold, const struct plait_group_buffers *from)
{
    const size_t bytes = plait_dtype_bytes(args->out_dtype);
    for (int32_t i = 0; i < group->num_seqs; i++)
        for (int32_t j = 0; j < rows; j++)
            for (int32_t h = 0; h < args->h_q; h++) {
                const int32_t row = args->row_start[from->seqs[i]] + j;
                const int64_t at = place(args, rows, fold, i, j, h);
                int64_t to = row * args->out_row_stride + h * args->out_head_stride;
                memcpy((unsigned char *)args->out + (size_t)to * bytes,
                       from->out + (size_t)(at * args->d_v) * bytes, (size_t)args->d_v * bytes);
                if (args->lse)
                    args->lse[row * args->lse_row_stride + h * args->lse_head_stride] =
                        from->lse[at];
            }
}
