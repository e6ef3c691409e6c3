/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/model_pass.h - one pass of a rank: rows of several requests through the layers.
 *
 * Every rank of the group makes the same calls with the same rows. What is summed or gathered over
 * the ranks comes out with the same bits on all of them, so that they decide alike.
 */
#ifndef PLAIT_ENGINE_MODEL_PASS_H
#define PLAIT_ENGINE_MODEL_PASS_H

#include "core/memory.h"
#include "engine/attend.h"
#include "engine/kvcache.h"
#include "engine/model.h"
#include "engine/rope.h"

typedef struct plait_pass_worker {
    float *in, *mid, *out; /* rows of one MLP unit */
    float *sum;            /* [max_rows][hidden] what this worker's units add */
    float *head;           /* [max_rows][nope + rope] one head's queries */
    int32_t *rows;
    float *weights;
    float *route; /* 2 * num_experts */
} plait_pass_worker;

typedef struct plait_pass {
    const plait_model *model;
    const plait_rope_table *rope;
    const float *embedding; /* [vocab][hidden], shared by the ranks */
    plait_attend *attend;
    struct plait_pass_eagle3 *eagle3; /* NULL: no EAGLE-3 head */
    const plait_executor *executor;
    int32_t max_rows, max_logit_rows, n_workers;

    int32_t num_rows;
    float *x;           /* [max_rows][hidden] residual stream */
    float *y;           /* [max_rows][hidden] normalised */
    float *hidden;      /* [max_rows][hidden] result: states after the last norm */
    float *join;        /* [max_rows][2 * hidden] input of the draft layer */
    float *query;       /* [max_rows][q_lora_rank] what the heads' queries are made of; NULL: y */
    float *latent;      /* [max_rows][latent + rope] */
    float *values;      /* [max_rows][heads * v] */
    float *sum, *total; /* [max_rows][hidden] partial sums of this rank, and over all ranks */
    float *routing;     /* [max_rows][num_experts] */
    int32_t *experts;   /* [max_rows][experts_per_token] */
    float *weights;
    float *margin;                    /* [max_rows] smallest router margin of the pass */
    int32_t *unit_worker, *unit_rows; /* of each unit: who runs it, how many rows it has */
    int64_t *unit_load;               /* of each worker */
    float *logits;                    /* [max_logit_rows][vocab] result of plait_pass_logits */
    float *piece, *pieces;            /* this rank's and all ranks' parts of the logits */
    plait_pass_worker *workers;
    plait_arena arena; /* of all of these */

    /* The rows in progress, for the tasks. */
    float eps; /* of norms */
    const plait_head *head;
    const plait_layer *layer;
    plait_kv_group *group;
    int32_t layer_index;
    const float *head_input;
    int32_t head_rows;
} plait_pass;

/* Memory comes from attend's allocator. */
plait_status plait_pass_open(const plait_model *model, const plait_rope_table *rope,
                             const float *embedding, plait_attend *attend,
                             const plait_executor *executor, int32_t max_rows,
                             int32_t max_logit_rows, plait_pass *pass);
void plait_pass_close(plait_pass *pass);

/*
 * Target layers over the rows of attend's current batch: token ids [num_rows], pass->hidden
 * receives the states after the final norm, pass->margin the router margins.
 */
plait_status plait_pass_target(plait_pass *pass, plait_kv_group *group, const int32_t *ids);

/*
 * The MTP layer: row i joins the embedding of ids[i], the token after the row's index, with
 * states[i] [hidden]. pass->hidden receives the states after shared_head.norm.
 */
plait_status plait_pass_mtp(plait_pass *pass, plait_kv_group *group, const int32_t *ids,
                            const float *states);

/* What plait_pass_mtp writes to the cache, alone: a layer's KV does not depend on its attention. */
plait_status plait_pass_mtp_write(plait_pass *pass, plait_kv_group *group, const int32_t *ids,
                                  const float *states);

/* Logits of n states [n][hidden] into pass->logits, n <= max_logit_rows. */
plait_status plait_pass_logits(plait_pass *pass, const float *states, int32_t n);

#endif
