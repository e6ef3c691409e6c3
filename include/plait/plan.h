/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/plan.h - the metadata of one step, made once and used by all layers of a KV group.
 *
 * A plan classifies the requests, orders them by class, and derives each row's index, position,
 * slot and range of local keys from global lengths under the group's geometry, then a split-KV
 * schedule and the exact workspace. Capacities are fixed at open: buffers never move, and nothing
 * is allocated afterwards. After acceptance plait_plan_refresh derives everything again.
 *
 * Each build and refresh has a new generation. Whoever uses the plan names the generation that it
 * means, and gets PLAIT_E_STATE if the plan describes another step by then.
 */
#ifndef PLAIT_PLAN_H
#define PLAIT_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include <plait/attn.h>
#include <plait/memory.h>
#include <plait/shard.h>
#include <plait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Classes of requests, in the order in which a plan holds them. */
typedef enum plait_request_class {
    PLAIT_CLASS_DECODE = 0,       /* at most one row, not of a prompt */
    PLAIT_CLASS_SHORT_EXTEND = 1, /* verification: up to short_rows rows */
    PLAIT_CLASS_LONG_EXTEND = 2,
    PLAIT_CLASS_PREFILL = 3 /* a part of a prompt, of any length */
} plait_request_class;
#define PLAIT_CLASSES 4

typedef struct plait_plan plait_plan;

typedef struct plait_plan_options {
    size_t size; /* sizeof(plait_plan_options) */
    plait_op op;
    plait_shard shard;
    int32_t h_q; /* query heads of a call: the gathered heads of the DCP group */
    int32_t h_kv, d_qk, d_v, page_size;
    int32_t window;     /* keys that a row sees at most, global; 0: all */
    int32_t short_rows; /* most rows of a short extend */
    int32_t max_seqs, max_rows, max_pages_per_seq;
    int32_t n_workers;
    const plait_kernel *kernel;       /* for the workspace; NULL: not known yet, bytes are 0 */
    const plait_allocator *allocator; /* NULL: the C library's */
} plait_plan_options;
#define PLAIT_PLAN_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(plait_plan_options), PLAIT_OP_MLA, {1, 0, 1}, 0, 1, 0, 0, 64, 0, 16, 0, 0, 0, 1,    \
            NULL, NULL                                                                             \
    }

/* The requests of a step in the caller's order. */
typedef struct plait_plan_batch {
    size_t size; /* sizeof(plait_plan_batch) */
    int32_t num_seqs;
    const int64_t *committed;  /* [num_seqs] tokens in the cache before this step, >= 0 */
    const int32_t *q_len;      /* [num_seqs] new tokens, >= 0 */
    const uint8_t *is_prefill; /* [num_seqs] 1: they are of a prompt; NULL: none is */
    const int32_t *page_table; /* [num_seqs][page_table_stride]; copied */
    int64_t page_table_stride;
    const int32_t *pages_held; /* [num_seqs] valid entries of each table */
    int32_t pad_rows;          /* the plan has at least this many rows, the rest padding */
} plait_plan_batch;
#define PLAIT_PLAN_BATCH_INIT                                                                      \
    {                                                                                              \
        sizeof(plait_plan_batch), 0, NULL, NULL, NULL, NULL, 0, NULL, 0                            \
    }

/* What a plan holds: pointers stay the same for its life. Sequences and rows are in the plan's
   order unless stated. */
typedef struct plait_plan_view {
    uint64_t generation;
    int32_t num_seqs, num_rows;        /* rows include padding */
    int32_t class_seqs[PLAIT_CLASSES]; /* sequences of each class */
    int32_t class_rows[PLAIT_CLASSES];
    const int32_t *perm;              /* [num_seqs] the caller's number of sequence s */
    const int32_t *inverse;           /* [num_seqs] the plan's number of the caller's sequence */
    const int32_t *row_perm;          /* [num_rows] the caller's row of row i, -1 for padding */
    const int32_t *row_start;         /* [num_seqs + 1] */
    const int64_t *committed;         /* [num_seqs] */
    const int32_t *pages;             /* [num_seqs] pages that committed + q_len tokens need */
    const int64_t *index;             /* [num_rows] place in the sequence; padding 0 */
    const int32_t *positions;         /* [num_rows] for rope; padding 0 */
    const int64_t *slots;             /* [num_rows] where the row's KV goes; -1: not here */
    const int32_t *kv_begin, *kv_end; /* [num_rows] */
    const int32_t *page_table;        /* [num_seqs][page_table_stride] */
    int64_t page_table_stride;
    const plait_attn_work *work;
    int32_t num_work;
    const plait_attn_reduce *reduce;
    int32_t num_reduce, num_partials;
    size_t workspace_bytes; /* exact, for this step */
} plait_plan_view;

PLAIT_API plait_status plait_plan_open(const plait_plan_options *options, plait_plan **out);

/* Frees the plan and sets it to NULL; NULL is accepted. */
PLAIT_API void plait_plan_close(plait_plan **plan);

/* Pages that a sequence needs on every rank before q_len tokens can be added to `committed`:
   reserve them before build. */
PLAIT_API int64_t plait_plan_pages(plait_shard shard, int32_t page_size, int64_t committed,
                                   int32_t q_len);

/* Bytes of workspace that no step of this plan exceeds with options.kernel. */
PLAIT_API size_t plait_plan_workspace_max(const plait_plan *plan);

/*
 * Makes the plan of a step. PLAIT_E_ARG: a value out of its domain, or a length that int32 local
 * indices cannot hold; PLAIT_E_NOMEM: more sequences, rows or pages than the capacities, or a
 * table with fewer pages than the step needs (request, needed, held). A plan whose build failed
 * has no generation.
 */
PLAIT_API plait_status plait_plan_build(plait_plan *plan, const plait_plan_batch *batch,
                                        uint64_t *generation);

/*
 * The next step of the same requests: of the rows of sequence s (the caller's number) the first
 * accepted[s] are kept, 0 .. q_len, so its length becomes committed + accepted[s]. q_len:
 * [num_seqs] rows of the next step, NULL: as before. Everything is derived again from those
 * lengths. Tables stay as they were given to build. PLAIT_E_STATE: the plan has another
 * generation than *generation, which is replaced by the new one.
 */
PLAIT_API plait_status plait_plan_refresh(plait_plan *plan, const int32_t *accepted,
                                          const int32_t *q_len, uint64_t *generation);

/* The plan's arrays. PLAIT_E_STATE as in plait_plan_bind. */
PLAIT_API plait_status plait_plan_get(const plait_plan *plan, uint64_t generation,
                                      plait_plan_view *view);

/*
 * Sets the metadata of *args: op, counts, dims, page size, row_start, ranges, page table and
 * schedule. q, k, v, out, strides, scales and workspace are the caller's. PLAIT_E_STATE if the
 * plan does not have this generation.
 */
PLAIT_API plait_status plait_plan_bind(const plait_plan *plan, uint64_t generation,
                                       plait_attn_args *args);

#ifdef __cplusplus
}
#endif
#endif
