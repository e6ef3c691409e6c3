/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of partial states. plait_merge_with is the one routine; the others arrange its
   arguments. */
#include <plait/merge.h>

#include <math.h>
#include "core/status.h"
#include "kernel/convert_ref.h"
#include "kernel/routine.h"

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

/* The states of one row and head that have a weight and a payload. */
static void choose(const plait_partial *parts, const float *weight, int32_t n, int64_t row,
                   int64_t head, plait_merge_terms *t)
{
    t->n = 0;
    for (int32_t i = 0; i < n; i++) {
        if (weight[i] == 0 || !parts[i].out)
            continue;
        const int64_t at = row * parts[i].row_stride + head * parts[i].head_stride;
        t->out[t->n] = (const char *)parts[i].out + at * (int64_t)plait_dtype_bytes(parts[i].dtype);
        t->dtype[t->n] = parts[i].dtype;
        t->weight[t->n++] = weight[i];
    }
}

static void fill_nan(void *to, plait_dtype dtype, int32_t d_v)
{
    for (int32_t d = 0; d < d_v; d++)
        plait_value_put(to, dtype, d, NAN);
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

plait_status plait_merge_with(const plait_routine *routine, const plait_partial *parts, int32_t n,
                              int32_t rows, int32_t heads, int32_t d_v, uint32_t flags,
                              const plait_merged *dst)
{
    PLAIT_TRY(check(parts, n, rows, heads, d_v, dst));
    float weight[PLAIT_MERGE_MAX];
    plait_merge_terms terms;
    const int64_t bytes = (int64_t)plait_dtype_bytes(dst->dtype);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < heads; head++) {
            for (int32_t i = 0; i < n; i++)
                weight[i] =
                    parts[i].lse[row * parts[i].lse_row_stride + head * parts[i].lse_head_stride];
            const float lse = weigh(weight, n, flags);
            void *to = (char *)dst->out + (row * dst->row_stride + head * dst->head_stride) * bytes;
            if (isnan(lse)) {
                fill_nan(to, dst->dtype, d_v);
            } else {
                choose(parts, weight, n, row, head, &terms);
                routine->merge(&terms, d_v, to, dst->dtype);
            }
            if (dst->lse)
                dst->lse[row * dst->lse_row_stride + head * dst->lse_head_stride] = lse;
        }
    return PLAIT_OK;
}

plait_status plait_merge(const plait_partial *parts, int32_t n, int32_t rows, int32_t heads,
                         int32_t d_v, uint32_t flags, const plait_merged *dst)
{
    return plait_merge_with(plait_routine_best(PLAIT_ROUTINE_MERGE), parts, n, rows, heads, d_v,
                            flags, dst);
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
