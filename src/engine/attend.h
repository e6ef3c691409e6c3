/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/attend.h - attention of one rank: the batch's plan and the step over the DCP group.
 *
 * begin plans the rows of some requests under the group's own geometry; step gathers the heads,
 * attends the local shard and merges. Rows are in the plan's order from then on.
 */
#ifndef PLAIT_ENGINE_ATTEND_H
#define PLAIT_ENGINE_ATTEND_H

#include <plait/dcp.h>
#include <plait/plan.h>

#include "core/trace.h"
#include "engine/kvcache.h"

typedef struct plait_attend_options {
    int32_t num_heads;        /* of this rank */
    int32_t group_heads;      /* of its DCP group */
    const int32_t *dcp_heads; /* [D] heads of each rank of the DCP group */
    plait_op op;
    int32_t num_kv_heads;      /* in the cache; MLA: 1 */
    int32_t q_head0, q_per_kv; /* of the first head of a call, as in plait_attn_args; MLA: 0 */
    int32_t d_qk, d_v;         /* MLA: latent + rope, latent */
    float softmax_scale;
    plait_dtype q_dtype;
    int32_t max_rows, max_seqs, page_size;
    int64_t max_length;
    plait_cpu_features features;
    const char *pattern; /* of kernels; NULL: all */
    const plait_executor *executor;
    plait_comm *ranks, *dcp_ranks; /* tensor parallelism, DCP group */
    plait_exchange exchange;
    int32_t invariant;
    plait_trace *trace;               /* NULL: none */
    const plait_allocator *allocator; /* NULL: the C library */
} plait_attend_options;

typedef struct plait_attend {
    plait_attend_options options;
    plait_dcp *dcp;
    const plait_kernel *kernel; /* of the current batch */
    const plait_plan_view *view;
    plait_attn_args args;
    plait_plan_batch batch;
    int32_t num_rows;
    /* The batch as it was given: [max_seqs] each. */
    int64_t *committed;
    int32_t *counts, *page_table, *table_len;
    uint8_t *is_prompt;
    int32_t table_stride;
    void *q;    /* [max_rows][num_heads][d_qk] in q_dtype: input of the step */
    float *out; /* [max_rows][num_heads][d_v] result */
    void *workspace;
    size_t workspace_bytes;
    plait_arena arena;
} plait_attend;

/* Collective over the DCP group. */
plait_status plait_attend_open(const plait_attend_options *options, plait_attend *attend);
void plait_attend_close(plait_attend *attend);

/* A plan for batches of `group`, whose geometry is set: over the DCP group's heads when it is
   sharded, else over this rank's own. Makes room for its workspace. No run allocates. */
plait_status plait_attend_open_plan(plait_attend *attend, plait_kv_group *group);

/*
 * A batch: for each of num_seqs requests (table numbers of the group) `counts` rows from index
 * `starts`, rows of a prompt or not. The pages must have been taken. The four arrays come back in
 * the plan's order.
 */
plait_status plait_attend_begin(plait_attend *attend, const plait_kv_group *group, int32_t num_seqs,
                                int32_t *tables, int64_t *starts, int32_t *counts,
                                uint8_t *is_prompt);

/* attend->q over the layer's cache into attend->out. */
plait_status plait_attend_step(plait_attend *attend, const plait_kv_group *group, int32_t layer);

/* Sums n floats over the ranks of tensor parallelism: out = sum of all ranks' x. */
plait_status plait_attend_sum(plait_attend *attend, const float *x, int64_t n, float *out);

/* Gathers n floats of each rank of tensor parallelism, [ranks][n]. */
plait_status plait_attend_gather(plait_attend *attend, const float *x, int64_t n, float *all);

#endif
