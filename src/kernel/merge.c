/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of partial states. plait_merge is the one routine; the others arrange its arguments. */
#include <plait/merge.h>

#include <math.h>
#include <string.h>

#include "core/convert.h"
#include "core/status.h"

enum { chunk = 64 }; /* values of d_v whose sums are held at a time */

/* Reads n values of a state's payload from element `offset` on. */
static void load(float *dst, const plait_partial *part, int64_t offset, int32_t n)
{
    if (part->dtype == PLAIT_F32) {
        memcpy(dst, (const float *)part->out + offset, sizeof(float) * (size_t)n);
        return;
    }
    const uint16_t *src = (const uint16_t *)part->out + offset;
    if (part->dtype == PLAIT_BF16)
        for (int32_t i = 0; i < n; i++)
            dst[i] = plait_bf16_to_f32(src[i]);
    else
        for (int32_t i = 0; i < n; i++)
            dst[i] = plait_f16_to_f32(src[i]);
}

static void store(const plait_merged *dst, int64_t offset, const float *src, int32_t n)
{
    if (dst->dtype == PLAIT_F32) {
        memcpy((float *)dst->out + offset, src, sizeof(float) * (size_t)n);
        return;
    }
    uint16_t *out = (uint16_t *)dst->out + offset;
    if (dst->dtype == PLAIT_BF16)
        for (int32_t i = 0; i < n; i++)
            out[i] = plait_bf16_from_f32(src[i]);
    else
        for (int32_t i = 0; i < n; i++)
            out[i] = plait_f16_from_f32(src[i]);
}

/* Turns lses of one row-head into weights, in place, and returns the merged lse. */
static float weigh(float *lse, int32_t n, uint32_t flags)
{
    float top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        if (lse[i] == INFINITY || (isnan(lse[i]) && (flags & PLAIT_MERGE_NAN_IS_EMPTY)))
            lse[i] = -INFINITY;
        if (!(lse[i] <= top)) /* NaN becomes the maximum and stays it */
            top = isnan(top) ? top : lse[i];
    }
    for (int32_t i = 0; i < n; i++) {
        /* Without any key, (-inf) - (-inf) would make a NaN. */
        lse[i] = top == -INFINITY ? 0 : expf(lse[i] - top);
        sum += lse[i];
    }
    if (sum == 0)
        return -INFINITY;
    for (int32_t i = 0; i < n; i++)
        lse[i] /= sum;
    return top + logf(sum);
}

/* Sum of the weighted payloads of one row-head. It starts from the first term rather than from 0,
   so that a single non-empty state keeps its bits, -0 included. */
static void sum_payloads(const plait_partial *parts, const float *weight, int32_t n, int64_t row,
                         int64_t head, int32_t d_v, const plait_merged *dst)
{
    float x[chunk] = {0};
    for (int32_t d = 0; d < d_v; d += chunk) {
        float acc[chunk] = {0};
        int32_t len = d_v - d < chunk ? d_v - d : chunk, terms = 0;
        for (int32_t i = 0; i < n; i++) {
            if (weight[i] == 0 || !parts[i].out)
                continue;
            load(x, &parts[i], row * parts[i].row_stride + head * parts[i].head_stride + d, len);
            /* Always a whole chunk, since a fixed count is what compilers turn into vectors. */
            if (terms++ == 0)
                for (int32_t j = 0; j < chunk; j++)
                    acc[j] = weight[i] * x[j];
            else
                for (int32_t j = 0; j < chunk; j++)
                    acc[j] += weight[i] * x[j];
        }
        store(dst, row * dst->row_stride + head * dst->head_stride + d, acc, len);
    }
}

static void fill_nan(const plait_merged *dst, int64_t row, int64_t head, int32_t d_v)
{
    float x[chunk];
    for (int32_t j = 0; j < chunk; j++)
        x[j] = NAN;
    for (int32_t d = 0; d < d_v; d += chunk)
        store(dst, row * dst->row_stride + head * dst->head_stride + d, x,
              d_v - d < chunk ? d_v - d : chunk);
}

static int mergeable(plait_dtype dtype)
{
    return dtype == PLAIT_F32 || dtype == PLAIT_BF16 || dtype == PLAIT_F16;
}

static plait_status check(const plait_partial *parts, int32_t n, int32_t rows, int32_t heads,
                          int32_t d_v, const plait_merged *dst)
{
    if (n < 0 || n > PLAIT_MERGE_MAX || (n > 0 && !parts))
        return plait_fail(PLAIT_E_ARG, "merge: n is %d, wanted 0 to %d states", n, PLAIT_MERGE_MAX);
    if (rows < 0 || heads < 0 || d_v < 1)
        return plait_fail(PLAIT_E_ARG, "merge: rows %d, heads %d, d_v %d; wanted >= 0, >= 0, >= 1",
                          rows, heads, d_v);
    if (!dst || !dst->out || !mergeable(dst->dtype))
        return plait_fail(PLAIT_E_ARG, "merge: the destination needs an out in f32, bf16 or f16");
    for (int32_t i = 0; i < n; i++)
        if (!parts[i].lse || (parts[i].out && !mergeable(parts[i].dtype)))
            return plait_fail(PLAIT_E_ARG, "merge: state %d needs an lse and f32, bf16 or f16", i);
    return PLAIT_OK;
}

plait_status plait_merge(const plait_partial *parts, int32_t n, int32_t rows, int32_t heads,
                         int32_t d_v, uint32_t flags, const plait_merged *dst)
{
    PLAIT_TRY(check(parts, n, rows, heads, d_v, dst));
    float weight[PLAIT_MERGE_MAX];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < heads; head++) {
            for (int32_t i = 0; i < n; i++)
                weight[i] =
                    parts[i].lse[row * parts[i].lse_row_stride + head * parts[i].lse_head_stride];
            float lse = weigh(weight, n, flags);
            if (isnan(lse))
                fill_nan(dst, row, head, d_v);
            else
                sum_payloads(parts, weight, n, row, head, d_v, dst);
            if (dst->lse)
                dst->lse[row * dst->lse_row_stride + head * dst->lse_head_stride] = lse;
        }
    return PLAIT_OK;
}

plait_status plait_merge_pair(const plait_partial *a, const plait_partial *b, int32_t rows,
                              int32_t heads, int32_t d_v, uint32_t flags, const plait_merged *dst)
{
    if (!a || !b)
        return plait_fail(PLAIT_E_ARG, "merge: a state is NULL, wanted two");
    const plait_partial parts[2] = {*a, *b};
    return plait_merge(parts, 2, rows, heads, d_v, flags, dst);
}

plait_status plait_merge_into(const plait_merged *dst, const plait_partial *part, int32_t rows,
                              int32_t heads, int32_t d_v, uint32_t flags)
{
    if (!dst || !dst->lse || !part)
        return plait_fail(PLAIT_E_ARG, "merge: in place needs a state and a destination with lse");
    const plait_partial mine = {
        dst->out, dst->dtype,          dst->row_stride,     dst->head_stride,
        dst->lse, dst->lse_row_stride, dst->lse_head_stride};
    return plait_merge_pair(&mine, part, rows, heads, d_v, flags, dst);
}

plait_status plait_merge_sink(const plait_merged *dst, const float *sink, int32_t rows,
                              int32_t heads, int32_t d_v)
{
    const plait_partial zero = {.lse = sink, .lse_head_stride = 1};
    return plait_merge_into(dst, &zero, rows, heads, d_v, 0);
}
