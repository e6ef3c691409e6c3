/* SPDX-License-Identifier: Apache-2.0 */
/* Items, output and partials of a call, shared by all CPU kernels. */
#include "kernel/kernel.h"

#include <math.h>
#include <string.h>

#include <plait/merge.h>

#include "core/convert.h"

int32_t plait_attn_items(const plait_attn_args *args)
{
    return args->work ? args->num_work : args->num_seqs;
}

plait_attn_work plait_attn_item(const plait_attn_args *args, int32_t i)
{
    if (args->work)
        return args->work[i];
    return (plait_attn_work){.seq = i,
                             .row_begin = args->row_start[i],
                             .row_end = args->row_start[i + 1],
                             .head_end = args->h_q,
                             .kv_end = INT32_MAX,
                             .partial = -1};
}

void plait_attn_row_range(const plait_attn_args *args, const plait_attn_work *item, int32_t row,
                          int32_t *begin, int32_t *end)
{
    int32_t b = args->kv_begin ? args->kv_begin[row] : 0, e = args->kv_end[row];
    *begin = b > item->kv_begin ? b : item->kv_begin;
    *end = e < item->kv_end ? e : item->kv_end;
}

int32_t plait_attn_kv_head(const plait_attn_args *args, int32_t head)
{
    if (args->op == PLAIT_OP_MLA)
        return 0;
    return args->q_per_kv > 0 ? (args->q_head0 + head) / args->q_per_kv
                              : head / (args->h_q / args->h_kv);
}

/* Rounds n floats to dtype at dst + offset elements; src NULL writes zeros. */
static void store(void *dst, plait_dtype dtype, int64_t offset, const float *src, int32_t n)
{
    size_t bytes = plait_dtype_bytes(dtype);
    unsigned char *p = (unsigned char *)dst + offset * (int64_t)bytes;
    if (!src) {
        memset(p, 0, bytes * (size_t)n);
        return;
    }
    switch (dtype) {
    case PLAIT_BF16:
        for (int32_t i = 0; i < n; i++)
            ((uint16_t *)p)[i] = plait_bf16_from_f32(src[i]);
        break;
    case PLAIT_F16:
        for (int32_t i = 0; i < n; i++)
            ((uint16_t *)p)[i] = plait_f16_from_f32(src[i]);
        break;
    case PLAIT_FP8_E4M3:
        for (int32_t i = 0; i < n; i++)
            p[i] = plait_e4m3_from_f32(src[i]);
        break;
    default:
        memcpy(p, src, sizeof(float) * (size_t)n);
        break;
    }
}

/* Where a head's output lies: base pointers and the head's number within them. */
static void output_of(const plait_attn_args *args, int32_t head, void **out, float **lse,
                      int32_t *local)
{
    *out = args->out;
    *lse = args->lse;
    *local = head;
    if (args->out_bases) {
        int32_t base = head / args->heads_per_base;
        *local = head % args->heads_per_base;
        *out = args->out_bases[base];
        *lse = args->lse_bases ? args->lse_bases[base] : NULL;
    }
}

void plait_attn_write(const plait_attn_args *args, const plait_attn_work *item, int32_t row,
                      int32_t head, const float *out, float lse)
{
    if (item->partial >= 0) {
        int64_t at = item->partial +
                     (int64_t)(row - item->row_begin) * (item->head_end - item->head_begin) +
                     (head - item->head_begin);
        float *partial_out = args->workspace;
        store(partial_out, PLAIT_F32, at * args->d_v, out, args->d_v);
        partial_out[(int64_t)args->num_partials * args->d_v + at] = out ? lse : -INFINITY;
        return;
    }
    void *base;
    float *lse_base;
    int32_t h;
    output_of(args, head, &base, &lse_base, &h);
    store(base, args->out_dtype, row * args->out_row_stride + h * args->out_head_stride, out,
          args->d_v);
    if (lse_base)
        lse_base[row * args->lse_row_stride + h * args->lse_head_stride] = out ? lse : -INFINITY;
}

void plait_attn_write_padding(const plait_attn_args *args, int32_t worker, int32_t n_workers)
{
    const plait_attn_work direct = {.partial = -1};
    int32_t first = args->row_start[args->num_seqs];
    for (int32_t row = first + worker; row < args->num_rows; row += n_workers)
        for (int32_t h = 0; h < args->h_q; h++)
            plait_attn_write(args, &direct, row, h, NULL, 0);
}

size_t plait_attn_partial_bytes(const plait_attn_args *args)
{
    size_t bytes = (size_t)args->num_partials * ((size_t)args->d_v + 1) * sizeof(float);
    return (bytes + 63) / 64 * 64;
}

/* Merges the partials of one row of a reduce entry. fp8 has no merge of its own, so each head is
   merged in place into its first partial and stored from there. */
static plait_status reduce_row(const plait_attn_args *args, const plait_attn_reduce *r, int32_t row)
{
    plait_partial parts[PLAIT_ATTN_MAX_SPLITS];
    const plait_attn_work direct = {.partial = -1};
    int64_t heads = r->head_end - r->head_begin;
    int64_t split = (r->row_end - r->row_begin) * heads;
    int64_t first = r->first_partial + (row - r->row_begin) * heads;
    float *outs = args->workspace, *lses = outs + (int64_t)args->num_partials * args->d_v;
    for (int32_t s = 0; s < r->n_splits; s++)
        parts[s] = (plait_partial){.out = outs + (first + s * split) * args->d_v,
                                   .head_stride = args->d_v,
                                   .lse = lses + first + s * split,
                                   .lse_head_stride = 1};
    float *out = outs + first * args->d_v, *lse = lses + first;
    plait_merged merged = {.out = out, .head_stride = args->d_v, .lse = lse, .lse_head_stride = 1};
    plait_status status = PLAIT_OK;
    /* Invariant mode merges one by one, as it does within an item. */
    for (int32_t s = 1; args->invariant && s < r->n_splits && status == PLAIT_OK; s++)
        status = plait_merge_into(&merged, &parts[s], 1, (int32_t)heads, args->d_v, 0);
    if (!args->invariant)
        status = plait_merge(parts, r->n_splits, 1, (int32_t)heads, args->d_v, 0, &merged);
    for (int32_t h = 0; status == PLAIT_OK && h < heads; h++)
        plait_attn_write(args, &direct, row, r->head_begin + h,
                         lse[h] == -INFINITY ? NULL : out + (int64_t)h * args->d_v, lse[h]);
    return status;
}

plait_status plait_attn_reduce_partials(const plait_attn_args *args, int32_t worker,
                                        int32_t n_workers)
{
    int64_t turn = 0;
    for (int32_t i = 0; i < args->num_reduce; i++) {
        const plait_attn_reduce *r = &args->reduce[i];
        for (int32_t row = r->row_begin; row < r->row_end; row++) {
            plait_status status = PLAIT_OK;
            if (turn++ % n_workers == worker)
                status = reduce_row(args, r, row);
            if (status != PLAIT_OK)
                return status;
        }
    }
    return PLAIT_OK;
}

double plait_attn_macs(const plait_attn_args *args)
{
    double keys = 0;
    for (int32_t row = 0; row < args->row_start[args->num_seqs]; row++)
        keys += args->kv_end[row] - (args->kv_begin ? args->kv_begin[row] : 0);
    return keys * args->h_q * ((double)args->d_qk + args->d_v);
}
