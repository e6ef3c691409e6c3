/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/dcp.h - decode context parallelism: one attention step over a KV cache that is split
 * across the D ranks of a group.
 *
 *     q [rows, own heads, d_qk]   --gather-->  q [rows, all heads of the group, d_qk]
 *     attend the local shard with all gathered heads  ->  partial (out, lse)
 *     exchange + merge, each rank keeps its own heads ->  out [rows, own heads, d_v]
 *
 * Every rank makes every call, also with an empty shard: what it computes then is the neutral
 * state. All sizes follow from group-wide data (head counts, rows, global lengths), so the ranks
 * run the same collectives without asking each other. With D = 1 nothing is copied or sent.
 *
 * A handle belongs to one rank. Only open allocates.
 */
#ifndef PLAIT_DCP_H
#define PLAIT_DCP_H

#include <stddef.h>
#include <stdint.h>

#include <plait/attn.h>
#include <plait/comm.h>
#include <plait/merge.h>
#include <plait/shard.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum plait_exchange {
    PLAIT_EXCHANGE_AUTO = 0,  /* A2A: one message, and its order is fixed */
    PLAIT_EXCHANGE_AG_RS = 1, /* gather the LSE, reduce-scatter the weighted out */
    PLAIT_EXCHANGE_A2A = 2    /* one packed all-to-all of out and LSE, merged in rank order */
} plait_exchange;

typedef struct plait_dcp plait_dcp;

typedef struct plait_dcp_options {
    size_t size;          /* sizeof(plait_dcp_options) */
    plait_comm *comm;     /* of the D ranks; must outlive the handle */
    const int32_t *heads; /* [D] query heads of each rank, >= 1; copied */
    int32_t d_qk, d_v;
    int32_t max_rows;
    plait_dtype q_dtype;     /* f32, bf16 or f16; partials are exchanged in float32 */
    plait_exchange exchange; /* the same on all ranks */
    /* Most bytes of one plait_dcp_gather_context, all ranks together; 0: not used. */
    size_t context_bytes;
    const plait_allocator *allocator; /* NULL: the C library's */
} plait_dcp_options;
#define PLAIT_DCP_OPTIONS_INIT                                                                     \
    {                                                                                              \
        sizeof(plait_dcp_options), NULL, NULL, 0, 0, 0, PLAIT_F32, PLAIT_EXCHANGE_AUTO, 0, NULL    \
    }

/* Collective: the ranks agree on all options. On failure *out is NULL. */
PLAIT_API plait_status plait_dcp_open(const plait_dcp_options *options, plait_dcp **out);

/* Frees the handle, not its communicator, and sets it to NULL; NULL is accepted. */
PLAIT_API void plait_dcp_close(plait_dcp **dcp);

/* Heads of the whole group, the first of this rank among them, and the exchange in use. */
PLAIT_API int32_t plait_dcp_heads(const plait_dcp *dcp);
PLAIT_API int32_t plait_dcp_head_offset(const plait_dcp *dcp);
PLAIT_API plait_exchange plait_dcp_exchange(const plait_dcp *dcp);

/*
 * Gathers the query heads: q [rows][own heads][d_qk] in the strides given (elements) gives
 * *gathered [rows][all heads][d_qk], dense, which belongs to the handle until the next call.
 */
PLAIT_API plait_status plait_dcp_gather_q(plait_dcp *dcp, int32_t rows, const void *q,
                                          int64_t row_stride, int64_t head_stride,
                                          const void **gathered);

/* Merges the ranks' partials over all heads of the group into dst, which has this rank's heads.
   part: float32, [rows][all heads]. */
PLAIT_API plait_status plait_dcp_merge(plait_dcp *dcp, int32_t rows, const plait_partial *part,
                                       const plait_merged *dst);

/*
 * The whole step. args describes this rank's heads (h_q, q, out, lse, q_head0 and their strides)
 * and the local shard; schedule, per-head q_scale and workspace are those of the gathered heads, as
 * a plan with h_q = plait_dcp_heads gives them. GQA with D > 1 needs q_per_kv. A kernel that fails
 * makes the group fail on all ranks.
 */
PLAIT_API plait_status plait_dcp_step(plait_dcp *dcp, const plait_kernel *kernel,
                                      const plait_attn_args *args, const plait_executor *executor);

/* ---- prefill ------------------------------------------------------------------------------- */

/* Tokens [begin, end) of one sequence, a chunk of its context. */
typedef struct plait_dcp_context {
    int64_t begin, end;        /* global, 0 <= begin <= end */
    const int32_t *page_table; /* of this sequence */
    void *dst;                 /* [end - begin][token_bytes], in global order */
} plait_dcp_context;

/* The largest chunk of at most `want` tokens that ends on a prefix unit (lcm(page_size, i) * d),
   but at least one unit. */
PLAIT_API int64_t plait_dcp_chunk(plait_shard shard, int32_t page_size, int64_t want);

/*
 * Gathers chunks of n sequences from the ranks' shards and restores the global order. The cache:
 * page k of a table has its tokens at pool + page_table[k] * page_bytes, token_bytes apart. The
 * begins and ends must be equal on all ranks. PLAIT_E_NOMEM if the chunks do not fit
 * context_bytes, with both sizes.
 */
PLAIT_API plait_status plait_dcp_gather_context(plait_dcp *dcp, plait_shard shard,
                                                const plait_dcp_context *chunks, int32_t n,
                                                const void *pool, int64_t page_bytes,
                                                int32_t page_size, int64_t token_bytes);

#ifdef __cplusplus
}
#endif
#endif
