/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/attend.h - attention of one rank: the batch's metadata and the step over the DCP group.
 *
 * begin derives, for the rows of some requests, everything from global lengths under the group's
 * own geometry; step gathers the heads, attends the local shard and merges.
 */
#ifndef PLAIT_ENGINE_ATTEND_H
#define PLAIT_ENGINE_ATTEND_H

#include <plait/attn.h>
#include <plait/threads.h>

#include "engine/kvcache.h"

typedef struct plait_attend_options {
    int32_t num_heads;   /* of this rank */
    int32_t d_qk, d_v;   /* latent + rope, latent */
    float softmax_scale;
    plait_dtype q_dtype;
    int32_t max_rows, max_seqs;
    int64_t max_pages;   /* of one request, in any group */
    int32_t page_size;
    plait_cpu_features features;
    const char *pattern; /* of kernels; NULL: all */
    const plait_executor *executor;
} plait_attend_options;

typedef struct plait_attend {
    plait_attend_options options;
    const plait_kernel *kernel; /* of the last step */
    /* The current batch. */
    int32_t num_seqs, num_rows;
    int32_t *row_start;  /* [max_seqs + 1] */
    int32_t *positions;  /* [max_rows] */
    int64_t *slots;      /* [max_rows] */
    int32_t *kv_end;     /* [max_rows] */
    int32_t *page_table; /* [max_seqs][max_pages] */
    void *q;             /* [max_rows][num_heads][d_qk] in q_dtype: input of the step */
    float *out;          /* [max_rows][num_heads][d_v] result */
    float *lse;
    void *workspace;
    size_t workspace_bytes;
} plait_attend;

plait_status plait_attend_open(const plait_attend_options *options, plait_attend *attend);
void plait_attend_close(plait_attend *attend);

/* A batch: for each of num_seqs requests (table numbers of the group) `counts` rows from index
   `starts`. The pages must have been reserved. */
plait_status plait_attend_begin(plait_attend *attend, const plait_kv_group *group,
                                int32_t num_seqs, const int32_t *tables, const int64_t *starts,
                                const int32_t *counts);

/* attend->q over the layer's cache into attend->out. */
plait_status plait_attend_step(plait_attend *attend, const plait_kv_group *group, int32_t layer);

/* Sums n floats over the ranks of tensor parallelism, in place. */
plait_status plait_attend_sum(plait_attend *attend, float *x, int64_t n);

/* Gathers n floats of each rank of tensor parallelism, [ranks][n]. */
plait_status plait_attend_gather(plait_attend *attend, const float *x, int64_t n, float *all);

#endif
