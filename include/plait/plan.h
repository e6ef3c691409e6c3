/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/plan.h - the metadata of one step: rows, ranges, slots, pages and the attention schedule.
 *
 * A plan belongs to one KV group on one rank (target layers, draft layers). It is built once for a
 * step and serves all layers of the group. Everything is derived from the sequences' global
 * lengths by plait/shard.h; nothing is moved by +1 or -k. Typical use:
 *
 *     plait_plan_options o = PLAIT_PLAN_OPTIONS_INIT;  ... dims, capacities ...
 *     plait_plan_open(&o, &plan);
 *     bytes = plait_plan_workspace_max(plan, kernel);   once; never grows
 *   per step:
 *     plait_plan_build(plan, &batch);                   or plait_plan_refresh after acceptance
 *     const plait_plan_view *view = plait_plan_get(plan);
 *     ... q rows in the plan's order; KV of row i goes to view->slot[i] ...
 *     plait_plan_bind(plan, &batch, &args);             then plait_attn_run in each layer
 *
 * The plan orders requests by class, stably; "plan order" below. `order` and `place` translate.
 * A plan's buffers are allocated at open, never move, and no later call allocates. Functions of
 * one plan are not to be called at the same time, apart from those that take it const.
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

typedef struct plait_plan plait_plan;

/* Classes of requests, in plan order. A prompt's chunk is never taken for a decode, however short
   it is. */
typedef enum plait_plan_class {
    PLAIT_CLASS_DECODE = 0,       /* one row, or none */
    PLAIT_CLASS_SHORT_EXTEND = 1, /* 2 .. short_rows rows: verification */
    PLAIT_CLASS_LONG_EXTEND = 2,  /* more rows, or prompt rows after committed tokens */
    PLAIT_CLASS_PREFILL = 3,      /* prompt rows, nothing committed */
    PLAIT_CLASS_COUNT = 4
} plait_plan_class;

typedef struct plait_plan_options {
    size_t size; /* sizeof(plait_plan_options) */
    plait_shard shard;
    plait_op op;
    int32_t h_q;               /* query heads of an attention call: gathered over the DCP group */
    int32_t h_kv;              /* KV heads in the cache; MLA: 1 */
    int32_t q_head0, q_per_kv; /* as in plait_attn_args */
    int32_t d_qk, d_v;
    int32_t page_size;
    int64_t window;                                /* sliding window in tokens; 0: none */
    int32_t max_seqs, max_rows, max_pages_per_seq; /* capacities; max_rows includes padding */
    int32_t short_rows;                            /* longest short extend */
    int32_t n_workers;                             /* of the executor that runs the attention */
    int32_t min_split_keys;                        /* a split has at least so many keys, >= 1 */
    const plait_allocator *allocator;              /* NULL: the C library; kept until close */
    /* 1: keys are cut at the splits that plait_attn_args.invariant has, and bind sets it. What is
       cut depends on the batch and the workers, the bits do not. */
    int32_t invariant;
} plait_plan_options;

#define PLAIT_PLAN_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(plait_plan_options), {1, 0, 1}, PLAIT_OP_MLA, 0, 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 16, \
            1, 128, NULL, 0                                                                        \
    }

/* Checks the options (PLAIT_E_ARG names the field) and allocates. On failure *out is NULL. */
PLAIT_API plait_status plait_plan_open(const plait_plan_options *options, plait_plan **out);

/* Frees everything and sets *plan to NULL; NULL is accepted. */
PLAIT_API void plait_plan_close(plait_plan **plan);

/* What a step computes. The caller owns it; the plan copies what it needs. */
typedef struct plait_plan_batch {
    size_t size; /* sizeof(plait_plan_batch) */
    int32_t num_seqs;
    int32_t padded_rows;       /* rows are padded to this number; 0: no padding */
    const int64_t *committed;  /* [num_seqs] tokens already in the cache, >= 0; refresh: ignored */
    const int32_t *q_len;      /* [num_seqs] rows, >= 0, at index committed, committed + 1, ... */
    const uint8_t *is_prompt;  /* [num_seqs] 1: rows of a prompt; NULL: none */
    const int32_t *page_table; /* [num_seqs][page_table_stride] page ids */
    int64_t page_table_stride;
    const int32_t *table_len; /* [num_seqs] ids in each table; NULL: page_table_stride each */
    uint64_t generation;      /* written by build and refresh: the plan that this batch has */
} plait_plan_batch;

#define PLAIT_PLAN_BATCH_INIT                                                                      \
    {                                                                                              \
        sizeof(plait_plan_batch), 0, 0, NULL, NULL, NULL, NULL, 0, NULL, 0                         \
    }

/*
 * Plans a batch. Each table must hold the pages of committed + q_len tokens (plait_shard_pages).
 * PLAIT_E_ARG names the request and the field; PLAIT_E_NOMEM gives the size and the capacity. On
 * failure the plan stays as it was.
 */
PLAIT_API plait_status plait_plan_build(plait_plan *plan, plait_plan_batch *batch);

/*
 * Plans the step after the one that `batch` was planned for. Of each request's rows (accepted + 1)
 * stay, so that its committed length grows by that number, or by 0 if it had no row; a prompt's
 * chunk stays whole with accepted = rows - 1. The batch has q_len, tables and padding of the new
 * step, for the same requests. All is derived again from the new global lengths.
 * accepted: [num_seqs] in the batch's order, 0 .. rows - 1. PLAIT_E_STATE if the plan was built
 * or refreshed since by another batch. On failure the plan stays as it was.
 */
PLAIT_API plait_status plait_plan_refresh(plait_plan *plan, const int32_t *accepted,
                                          plait_plan_batch *batch);

/* The plan as arrays. Pointers are the same for the plan's life; the content is that of the last
   build or refresh. Sequences and rows are in plan order. */
typedef struct plait_plan_view {
    uint64_t generation; /* 0: nothing built */
    int32_t num_seqs;
    int32_t num_rows;    /* rows of requests */
    int32_t padded_rows; /* with padding, >= num_rows: index -1, position 0, slot -1, no keys */
    int32_t class_count[PLAIT_CLASS_COUNT];
    const int32_t *order; /* [num_seqs] request of sequence */
    const int32_t *place; /* [num_seqs] sequence of request, the inverse */

    const int64_t *committed;    /* [num_seqs] tokens before the rows */
    const int64_t *length;       /* [num_seqs] committed + rows */
    const int32_t *pages_needed; /* [num_seqs] for `length` tokens, the same on all ranks */
    const int32_t *row_start;    /* [num_seqs + 1] */

    const int64_t *index;    /* [padded_rows] place in the sequence's cache */
    const int32_t *position; /* [padded_rows] for rope; equals the index for chains */
    const int32_t *kv_begin; /* [padded_rows] local keys */
    const int32_t *kv_end;
    const int64_t *slot; /* [padded_rows] where the row's KV goes, -1: not on this rank */

    const int32_t *page_table; /* [num_seqs][page_table_stride]; entries past the needed: old */
    int64_t page_table_stride;

    const plait_attn_work *work;
    const plait_attn_reduce *reduce;
    int32_t num_work, num_reduce, num_partials;
} plait_plan_view;

PLAIT_API const plait_plan_view *plait_plan_get(const plait_plan *plan);

/* Exact workspace bytes that this kernel needs for the plan as it is, and an upper bound for every
   batch within the capacities. */
PLAIT_API size_t plait_plan_workspace(const plait_plan *plan, const plait_kernel *kernel);
PLAIT_API size_t plait_plan_workspace_max(const plait_plan *plan, const plait_kernel *kernel);

/*
 * Fills the metadata of *args: op, counts, dims, page size, row_start, ranges, page table, q_head0,
 * q_per_kv and the schedule. The rest stays. PLAIT_E_STATE, with *args untouched, unless the
 * plan's last build or refresh was for this batch.
 */
PLAIT_API plait_status plait_plan_bind(const plait_plan *plan, const plait_plan_batch *batch,
                                       plait_attn_args *args);

#ifdef __cplusplus
}
#endif
#endif
