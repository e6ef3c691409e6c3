/* SPDX-License-Identifier: Apache-2.0 */
/*
 * src/cp: context parallelism: the decode step with its exchanges (dcp.c), and the gathered context
 * of a prefill (context.c).
 */
#ifndef PLAIT_CP_DCP_H
#define PLAIT_CP_DCP_H

#include <plait/dcp.h>

#include "core/memory.h"
#include "core/trace.h"

struct plait_dcp {
    plait_comm *comm;
    plait_allocator allocator;
    plait_arena arena;
    int32_t n, rank;
    int32_t all_heads, own_heads;
    int32_t d_qk, d_v, max_rows;
    plait_dtype q_dtype, partial_dtype;
    plait_exchange exchange;
    plait_trace *trace; /* NULL: none */
    int64_t max_context_rows, context_row_bytes;

    int32_t *heads, *first; /* [n] heads of each rank, and the first of them */
    int64_t *sizes, *more;  /* [n] of the operation in progress */
    void *q_send;           /* [rows][own][d_qk], where the caller's q is not dense */
    void *q_blocks;         /* rank after rank [rows][its heads][d_qk] */
    void *q;                /* [rows][all][d_qk] */
    void *partial_out;      /* [rows][all][d_v] of partial_dtype, with its lse [rows][all] */
    float *partial_lse;
    unsigned char *a2a_send, *a2a_recv; /* blocks of block_bytes each */
    float *lse_send, *lse_ranks;        /* [rows][all]; of all ranks */
    float *weighted;                    /* rank after rank [rows][its heads][d_v] */
    float *sum, *own_lse;               /* [rows][own][d_v], [rows][own] */
    unsigned char *context_send, *context_recv;
};

/* Steps record their parts from now on. */
void plait_dcp_set_trace(plait_dcp *dcp, plait_trace *trace);

#endif
