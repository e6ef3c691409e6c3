/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/merge.h - partial attention states and their merge.
 *
 * A partial state is out [rows][heads][d_v] with lse [rows][heads]: float32, natural log, softmax
 * scale included, sink excluded. Over disjoint sets of keys,
 *
 *     lse = log(sum_i exp(lse_i))        out = sum_i exp(lse_i - lse) * out_i
 *
 * The rules, kept by every entry point, since all are one routine:
 *   - an empty state (out 0, lse -inf) is the identity: merging it changes no bit;
 *   - all empty gives out 0 and lse -inf;
 *   - an lse of +inf counts as -inf: some kernels write it for empty rows;
 *   - an lse that is NaN makes the row's out and lse NaN, unless PLAIT_MERGE_NAN_IS_EMPTY;
 *   - out_i is not read where its weight is 0, so it may hold anything there;
 *   - weights and sums are float32, taken in the order given; the result is rounded once.
 *
 * Nothing here allocates. Thread-safe for distinct destinations.
 */
#ifndef PLAIT_MERGE_H
#define PLAIT_MERGE_H

#include <stddef.h>
#include <stdint.h>

#include <plait/dtype.h>
#include <plait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most states in one merge. */
#define PLAIT_MERGE_MAX 256

/* Flags. */
#define PLAIT_MERGE_NAN_IS_EMPTY (1u << 0) /* an lse that is NaN counts as -inf */

/* One state to read. Strides count elements; d_v is contiguous. dtype: f32, bf16 or f16. */
typedef struct plait_partial {
    const void *out; /* NULL: zeros, as for an attention sink */
    plait_dtype dtype;
    int64_t row_stride, head_stride;
    const float *lse;
    int64_t lse_row_stride, lse_head_stride;
} plait_partial;

/* Where the result goes. It may be the same memory as one of the states, if dtype and strides are
   equal too; a partial overlap is not allowed. */
typedef struct plait_merged {
    void *out;
    plait_dtype dtype; /* f32, bf16 or f16 */
    int64_t row_stride, head_stride;
    float *lse; /* may be NULL */
    int64_t lse_row_stride, lse_head_stride;
} plait_merged;

/*
 * Merges n states (0 .. PLAIT_MERGE_MAX; none gives empty rows) into *dst. To spread it over
 * threads, call it on ranges of rows. PLAIT_E_ARG names what is out of its domain; nothing is
 * written then.
 */
PLAIT_API plait_status plait_merge(const plait_partial *parts, int32_t n, int32_t rows,
                                   int32_t heads, int32_t d_v, uint32_t flags,
                                   const plait_merged *dst);

/* plait_merge of two. */
PLAIT_API plait_status plait_merge_pair(const plait_partial *a, const plait_partial *b,
                                        int32_t rows, int32_t heads, int32_t d_v, uint32_t flags,
                                        const plait_merged *dst);

/* Merges `part` into the state at *dst, which is read first: dst = merge(dst, part). dst->lse must
   not be NULL. */
PLAIT_API plait_status plait_merge_into(const plait_merged *dst, const plait_partial *part,
                                        int32_t rows, int32_t heads, int32_t d_v, uint32_t flags);

/*
 * Adds attention sinks in place: sink[h] is the score of a key whose value is 0. Done once, after
 * all ranks are merged. A sink of -inf changes no bit; one of +inf counts as -inf.
 */
PLAIT_API plait_status plait_merge_sink(const plait_merged *dst, const float *sink, int32_t rows,
                                        int32_t heads, int32_t d_v);

#ifdef __cplusplus
}
#endif
#endif
