/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend/bridge.h - how the rows of a batch come to a kernel that takes fewer kinds of batches.
 *
 * Selection asks plait_bridge_of with what a configuration says of a batch, execution with the
 * batch itself: one rule for both.
 */
#ifndef PLAIT_BACKEND_BRIDGE_H
#define PLAIT_BACKEND_BRIDGE_H

#include <plait/attn.h>
#include <plait/backend.h>

enum plait_bridge {
    PLAIT_BRIDGE_NONE,   /* none: the rows are refused */
    PLAIT_BRIDGE_WHOLE,  /* one call with all sequences */
    PLAIT_BRIDGE_GROUPS, /* one call for the sequences of each number of rows */
    PLAIT_BRIDGE_FOLDED  /* groups, a sequence's q rows of h heads as one row of q * h heads */
};

/* What the rule looks at. */
struct plait_bridge_rows {
    int32_t least, most; /* rows of a sequence */
    int32_t heads;       /* of the call */
    int32_t heads_max;   /* that the kernel takes; 0: any */
};

/* text (n bytes): the reason of PLAIT_BRIDGE_NONE. */
enum plait_bridge plait_bridge_of(const plait_caps *caps, plait_strategy strategy,
                                  const struct plait_bridge_rows *rows, char *text, size_t n);

/* A built-in kernel for the newest keys of a window: a range for each row, natural-log LSE, exact
   empty rows, and these dims and dtypes. NULL: there is none. */
const plait_kernel *plait_bridge_newest(const plait_requirement *need);

/* ---- groups --------------------------------------------------------------------------------- */

/* Buffers of one group, each large enough for all rows. */
struct plait_group_buffers {
    int32_t *seqs, *row_start, *kv_begin, *kv_end, *page_table;
    float *lse, *q_scale;
    unsigned char *q, *out;
};

/* The next larger number of rows than `rows` of a sequence, or 0. */
int32_t plait_group_next(const plait_attn_args *args, int32_t rows);

/* The arguments of the sequences with `rows` rows, gathered into the buffers. */
plait_attn_args plait_group_gather(const plait_attn_args *args, int32_t rows, int fold,
                                   const struct plait_group_buffers *to);

/* Writes what a group's call gave to the rows of `args`. */
void plait_group_scatter(const plait_attn_args *args, const plait_attn_args *group, int32_t rows,
                         int fold, const struct plait_group_buffers *from);

#endif
