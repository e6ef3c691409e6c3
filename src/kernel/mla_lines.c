/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/mla_lines.h"

#include <math.h>

void plait_mla_lines_open(plait_mla_lines *l, const plait_attn_args *args,
                          const plait_attn_work *item, int64_t first, int32_t lanes)
{
    const float log2e = 1.44269504f;
    const int64_t left = plait_mla_count(item) - first;
    const float k_scale = plait_attn_scale(args->k_scale, args->k_scale_n,
                                           plait_attn_kv_head(args, item->head_begin));
    l->n = left < PLAIT_MLA_LINES ? (int32_t)left : PLAIT_MLA_LINES;
    l->padded = (l->n + lanes - 1) / lanes * lanes;
    l->kv_begin = INT32_MAX;
    l->kv_end = 0;
    for (int32_t i = 0; i < l->padded; i++) {
        l->begin[i] = l->end[i] = 0;
        l->top[i] = -INFINITY;
        l->sum[i] = 0;
        l->scale[i] = 0;
        if (i >= l->n)
            continue;
        const int32_t head = plait_mla_head(item, first + i);
        int32_t begin, end;
        plait_attn_row_range(args, item, plait_mla_row(item, first + i), &begin, &end);
        l->scale[i] = args->softmax_scale * log2e * k_scale *
                      plait_attn_scale(args->q_scale, args->q_scale_n, head);
        if (begin >= end)
            continue;
        l->begin[i] = begin;
        l->end[i] = end;
        l->kv_begin = begin < l->kv_begin ? begin : l->kv_begin;
        l->kv_end = end > l->kv_end ? end : l->kv_end;
    }
}

plait_mla_view plait_mla_lines_view(const plait_mla_lines *l, int32_t from, int32_t lanes,
                                    int32_t at, int32_t tile)
{
    int some = 0, all = 1;
    for (int32_t i = from; i < from + lanes && i < l->n; i++) {
        some |= l->begin[i] < at + tile && l->end[i] > at;
        all &= l->begin[i] <= at && l->end[i] >= at + tile;
    }
    return all ? PLAIT_MLA_FULL : some ? PLAIT_MLA_EDGE : PLAIT_MLA_NONE;
}

void plait_mla_line_write(const plait_mla_lines *l, const plait_attn_args *args,
                          const plait_attn_work *whole, const plait_attn_work *item, int64_t first,
                          int32_t i, const float *out)
{
    const float ln2 = 0.693147181f;
    plait_attn_write(args, whole, plait_mla_row(item, first + i), plait_mla_head(item, first + i),
                     l->begin[i] < l->end[i] ? out : NULL, (l->top[i] + log2f(l->sum[i])) * ln2);
}

/* `base`: where key 0 of page 0 lies, head included. */
static void rows_at(const plait_attn_args *args, const char *base, int64_t page_stride,
                    int64_t token_stride, int32_t seq, int32_t at, int32_t tile, int32_t begin,
                    int32_t end, const char **rows)
{
    const int64_t bytes = (int64_t)plait_dtype_bytes(args->kv_dtype);
    int32_t c = at > begin ? at : begin, token = c % args->page_size;
    const char *row = base + bytes * plait_attn_key_offset(args, seq, c, page_stride, token_stride);
    for (int32_t i = 0; i < tile; i++) {
        rows[i] = row;
        if (at + i < c || c + 1 >= end)
            continue;
        c++;
        token++;
        row += bytes * token_stride;
        if (token == args->page_size) {
            token = 0;
            row = base + bytes * plait_attn_key_offset(args, seq, c, page_stride, token_stride);
        }
    }
}

void plait_mla_key_rows(const plait_attn_args *args, int32_t seq, int32_t kv_head, int32_t at,
                        int32_t tile, int32_t begin, int32_t end, const char **rows)
{
    const int64_t bytes = (int64_t)plait_dtype_bytes(args->kv_dtype);
    const char *base = args->k;
    if (args->op == PLAIT_OP_GQA)
        base += bytes * kv_head * args->k_head_stride;
    rows_at(args, base, args->k_page_stride, args->k_token_stride, seq, at, tile, begin, end, rows);
}

void plait_mla_value_rows(const plait_attn_args *args, int32_t seq, int32_t kv_head, int32_t at,
                          int32_t tile, int32_t begin, int32_t end, const char **rows)
{
    const int64_t bytes = (int64_t)plait_dtype_bytes(args->kv_dtype);
    const char *base = (const char *)args->v + bytes * kv_head * args->v_head_stride;
    rows_at(args, base, args->v_page_stride, args->v_token_stride, seq, at, tile, begin, end, rows);
}

float plait_mla_value_scale(const plait_attn_args *args, int32_t kv_head)
{
    return args->op == PLAIT_OP_MLA ? plait_attn_scale(args->k_scale, args->k_scale_n, 0)
                                    : plait_attn_scale(args->v_scale, args->v_scale_n, kv_head);
}

void plait_mla_run(const plait_attn_args *args, int32_t worker, int32_t n_workers,
                   plait_mla_block block, void *scratch, const plait_attn_work **whole)
{
    for (int32_t i = worker; i < plait_attn_items(args); i += n_workers) {
        const plait_attn_work item = plait_attn_item(args, i);
        plait_attn_work part = item;
        *whole = &item;
        for (int32_t head = item.head_begin; head < item.head_end; head = part.head_end) {
            const int32_t kv_head = plait_attn_kv_head(args, head);
            part.head_begin = head;
            for (part.head_end = head + 1; part.head_end < item.head_end; part.head_end++)
                if (plait_attn_kv_head(args, part.head_end) != kv_head)
                    break;
            for (int64_t first = 0; first < plait_mla_count(&part); first += PLAIT_MLA_LINES)
                block(args, &part, first, scratch);
        }
    }
    *whole = NULL;
    plait_attn_write_padding(args, worker, n_workers);
}
