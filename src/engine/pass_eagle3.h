/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/pass_eagle3.h - passes of an EAGLE-3 head beside those of its target.
 *
 * Row i holds token i + 1 and the states of token i: fc of three of the target's layers where the
 * target has run, the state that the row before gave where it has not.
 */
#ifndef PLAIT_ENGINE_PASS_EAGLE3_H
#define PLAIT_ENGINE_PASS_EAGLE3_H

#include "engine/eagle3.h"
#include "engine/model_pass.h"

typedef struct plait_pass_eagle3 {
    plait_attend *attend;   /* of the head's own batches */
    plait_rope_table *rope; /* of the head */
    float *aux;             /* [max_rows][3][hidden] of the last target pass */
    int32_t aux_rows;
    float *fused;  /* [max_rows][hidden] fc of them */
    float *q, *kv; /* [max_rows] queries of this rank's heads; keys and values */
} plait_pass_eagle3;

/* Buffers for pass->model->eagle3 into pass->eagle3. attend and rope are to be set before a pass.
 */
void plait_pass_eagle3_lay_out(plait_arena *arena, plait_pass *pass);

/* Keeps the residual stream that enters `layer`, if the head takes it. */
void plait_pass_eagle3_keep(plait_pass *pass, int32_t layer);

/* fc of the states of the last target pass, whose rows keep their order, into fused. */
plait_status plait_pass_eagle3_fuse(plait_pass *pass);

/* The layer over the rows of the head's current batch: ids[i] is the token after the row's index,
   states [num_rows][hidden] rows of fused or fed back. pass->hidden receives the states before the
   final norm, which are those to feed back. */
plait_status plait_pass_eagle3_run(plait_pass *pass, plait_kv_group *group, const int32_t *ids,
                                   const float *states);

/* What plait_pass_eagle3_run writes to the cache, alone. */
plait_status plait_pass_eagle3_write(plait_pass *pass, plait_kv_group *group, const int32_t *ids,
                                     const float *states);

/* Logits of n <= max_logit_rows such states into pass->logits, -inf at ids that the head has not.
 */
plait_status plait_pass_eagle3_logits(plait_pass *pass, const float *states, int32_t n);

#endif
