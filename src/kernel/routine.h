/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel/routine.h - the variants of the ops beside attention: merge, append, gather.
 *
 * What an op does with its arguments (merge.c, kv.c) is written once; a variant is its inner loop.
 * All variants of an op give the same bits. A variant is one file <op>_<isa>.c that ends with its
 * descriptor, plus one ROUTINE row in kernels.def, best first.
 */
#ifndef PLAIT_KERNEL_ROUTINE_H
#define PLAIT_KERNEL_ROUTINE_H

#include <plait/cpu.h>
#include <plait/kv.h>
#include <plait/merge.h>

typedef enum plait_routine_op {
    PLAIT_ROUTINE_MERGE,
    PLAIT_ROUTINE_APPEND,
    PLAIT_ROUTINE_GATHER,
    PLAIT_ROUTINE_OPS
} plait_routine_op;

/* The states of one row and head that have a weight, in order. */
typedef struct plait_merge_terms {
    int32_t n;
    const void *out[PLAIT_MERGE_MAX]; /* [d_v] */
    plait_dtype dtype[PLAIT_MERGE_MAX];
    float weight[PLAIT_MERGE_MAX];
} plait_merge_terms;

typedef struct plait_routine {
    const char *name; /* <op>_<isa> */
    plait_routine_op op;
    plait_cpu_features needs;
    /* to = the sum of weight * out, in order: the first product, then one float32 product and one
       sum for each term, rounded to dtype. No term: zeros. */
    void (*merge)(const plait_merge_terms *terms, int32_t d_v, void *to, plait_dtype dtype);
    /* append: n values of from_dtype to cache codes (fp8_ds656: 512 codes and their scales).
       gather: n codes to values of `to_dtype`. scale NULL: none. */
    void (*convert)(void *to, plait_dtype to_dtype, const void *from, plait_dtype from_dtype,
                    int32_t n, const float *scale);
} plait_routine;

/* All variants; NULL past the last. */
const plait_routine *plait_routine_get(int32_t i);

/* "merge", "append", "gather". */
const char *plait_routine_op_name(plait_routine_op op);

/* The first variant of an op that these features allow; there is always the reference. */
const plait_routine *plait_routine_pick(plait_routine_op op, plait_cpu_features features);

/* The one for this processor. */
const plait_routine *plait_routine_best(plait_routine_op op);

/* The ops with a given variant, for checks and measurements. */
plait_status plait_merge_with(const plait_routine *routine, const plait_partial *parts, int32_t n,
                              int32_t rows, int32_t heads, int32_t d_v, uint32_t flags,
                              const plait_merged *dst);
plait_status plait_kv_append_with(const plait_routine *routine, const plait_kv_append_args *args);
plait_status plait_kv_gather_with(const plait_routine *routine, const plait_kv_gather_args *args);

#endif
