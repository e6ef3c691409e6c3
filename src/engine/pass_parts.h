/* SPDX-License-Identifier: Apache-2.0 */
/* engine/pass_parts.h - what the passes of the target and of draft layers are made of. */
#ifndef PLAIT_ENGINE_PASS_PARTS_H
#define PLAIT_ENGINE_PASS_PARTS_H

#include "engine/model_pass.h"

typedef plait_status (*plait_pass_item_fn)(plait_pass *pass, int32_t item, int32_t worker);

/* Runs items 0 .. count - 1. They write distinct outputs, so that it does not matter which worker
   takes one. */
plait_status plait_pass_items(plait_pass *pass, int32_t count, plait_pass_item_fn fn);

void plait_pass_rms_norm(const float *x, const float *weight, int32_t n, float eps, float *out);

/* The norm of num_rows rows of x, with pass->eps. */
void plait_pass_norm_rows(const plait_pass *pass, const float *x, const float *weight, float *out);

/* Rounds n values into a row of queries. */
void plait_pass_put_query(const plait_attend *attend, int64_t at, const float *values, int32_t n);

/* Adds the partial sums of all ranks, pass->sum, to the residual stream. */
plait_status plait_pass_add_sums(plait_pass *pass);

/* The MLP of pass->layer over the residual stream. */
plait_status plait_pass_mlp(plait_pass *pass);

/* Logits of n states: pass->pieces [rank][n][stride] of all ranks. */
plait_status plait_pass_head(plait_pass *pass, const plait_head *head, const float *states,
                             int32_t n);

#endif
