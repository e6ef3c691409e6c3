/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/dcp.h - decode context parallelism: attention over a cache that D ranks share.
 *
 *     q [rows][own heads]     gathered in the group    -> q [rows][all heads]
 *     all heads attend this rank's shard               -> partial (out, lse) [rows][all heads]
 *     exchange and merge, each rank keeps its heads    -> out [rows][own heads]
 *
 * plait_dcp_step does all three; they are also there one by one. Every rank of the group calls the
 * same functions with the same rows, ranks whose shard is empty too. With one rank the step is
 * plait_attn_run and nothing else.
 *
 * Buffers are allocated by plait_dcp_open for max_rows and never move; run paths do not allocate.
 * An object is used by one thread at a time. A kernel that fails aborts the group, so that the
 * other ranks get PLAIT_E_COMM at once. This release exchanges host memory.
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
    PLAIT_EXCHANGE_AUTO = 0,  /* a2a: it sends the fewest bytes */
    PLAIT_EXCHANGE_AG_RS = 1, /* gather LSE, reduce-scatter weighted float32 outputs */
    PLAIT_EXCHANGE_A2A = 2    /* one all-to-all of outputs and LSE, merged in rank order */
} plait_exchange;

typedef struct plait_dcp plait_dcp;

typedef struct plait_dcp_options {
    size_t size;          /* sizeof(plait_dcp_options) */
    plait_comm *comm;     /* the DCP group of D ranks; must outlive the object */
    const int32_t *heads; /* [D] query heads of each rank, >= 0; read during the call */
    int32_t d_qk, d_v;
    int32_t max_rows;          /* rows of a step */
    plait_dtype q_dtype;       /* of q: f32, bf16 or f16 */
    plait_dtype partial_dtype; /* of partial outputs, and what a2a sends: f32, bf16 or f16 */
    plait_exchange exchange;
    int64_t max_context_rows;         /* of plait_dcp_gather_context, all sequences; 0: not used */
    int64_t context_row_bytes;        /* largest row of it */
    const plait_allocator *allocator; /* NULL: the C library's */
} plait_dcp_options;

#define PLAIT_DCP_OPTIONS_INIT                                                                     \
    {                                                                                              \
        sizeof(plait_dcp_options), NULL, NULL, 0, 0, 0, PLAIT_F32, PLAIT_F32, PLAIT_EXCHANGE_AUTO, \
            0, 0, NULL                                                                             \
    }

/* Collective: the ranks compare their options. PLAIT_E_ARG, PLAIT_E_NOMEM, PLAIT_E_COMM (they
   differ, or a rank is missing). On failure *out is NULL. */
PLAIT_API plait_status plait_dcp_open(const plait_dcp_options *options, plait_dcp **out);
/* Not collective; the communicator stays open. Sets *dcp to NULL; NULL is accepted. */
PLAIT_API void plait_dcp_close(plait_dcp **dcp);

/* Heads of all ranks together, the number of the first own one, and the exchange in use. */
PLAIT_API int32_t plait_dcp_heads(const plait_dcp *dcp);
PLAIT_API int32_t plait_dcp_first_head(const plait_dcp *dcp);
PLAIT_API plait_exchange plait_dcp_exchange(const plait_dcp *dcp);

/*
 * The whole step. `args` is the call for all heads of the group (h_q = plait_dcp_heads, schedule
 * and workspace for them, q_head0 of the group's first head), except that q, out and lse with their
 * strides are this rank's own heads:
 *
 *     q [num_rows][own][d_qk] of q_dtype     out [num_rows][own][d_v] f32, bf16 or f16
 *     lse [num_rows][own], or NULL           (natural log, over all ranks' keys)
 *
 * out_bases must be NULL, and q_scale_n at most 1 or h_q (all heads). executor NULL: inline.
 * PLAIT_E_ARG, the kernel's own statuses, PLAIT_E_NOMEM (more than max_rows), PLAIT_E_COMM. A rank
 * that fails aborts the communicator, so that the others are told at once.
 */
PLAIT_API plait_status plait_dcp_step(plait_dcp *dcp, const plait_kernel *kernel,
                                      const plait_attn_args *args, const plait_executor *executor);

/* First third: own q (strides in elements) of `rows` rows; *gathered is [rows][all heads][d_qk],
   contiguous, valid until the next call. */
PLAIT_API plait_status plait_dcp_gather_q(plait_dcp *dcp, int32_t rows, const void *q,
                                          int64_t row_stride, int64_t head_stride,
                                          const plait_executor *executor, const void **gathered);

/* Last third: `partial` holds all heads of this rank's shard, of partial_dtype; *dst gets the own
   heads over all shards. The rules are those of plait/merge.h. */
PLAIT_API plait_status plait_dcp_merge(plait_dcp *dcp, int32_t rows, const plait_partial *partial,
                                       const plait_executor *executor, const plait_merged *dst);

/* ---- prefill -------------------------------------------------------------------------------- */

/*
 * A chunk of the cached context: tokens [begin[s], end[s]) of each sequence, taken from the paged
 * caches of all ranks. All but the cache and `shard.r` is the same on every rank. Any chunk is
 * valid; chunks that begin at a multiple of plait_shard_prefix_unit start on a page everywhere.
 */
typedef struct plait_dcp_context {
    size_t size; /* sizeof(plait_dcp_context) */
    plait_shard shard;
    int32_t num_seqs;
    int32_t page_size;
    const int64_t *begin, *end; /* [num_seqs], 0 <= begin <= end */
    const int32_t *page_table;  /* [num_seqs][page_table_stride] */
    int64_t page_table_stride;
    const void *cache;
    int64_t page_stride_bytes, token_stride_bytes;
    int64_t row_bytes; /* of one token */

    /* What a row holds, for a prefill that attends values: h_kv heads of d values of kv_dtype with
       scales as in plait_kv_gather_args, to be written as out_dtype. Rows travel as they are
       stored and are decoded where they arrive; scales are the same on every rank. d 0: bytes,
       copied. */
    int32_t h_kv, d;
    plait_dtype kv_dtype, out_dtype;
    const float *scale;
    int32_t scale_n;
} plait_dcp_context;

/* Collective. out [sum of end - begin][h_kv][d], or [row_bytes]: sequence after sequence, tokens in
   their global order. PLAIT_E_ARG; PLAIT_E_NOMEM (more than was opened for); PLAIT_E_COMM. */
PLAIT_API plait_status plait_dcp_gather_context(plait_dcp *dcp, const plait_dcp_context *context,
                                                void *out);

#ifdef __cplusplus
}
#endif
#endif
