/* SPDX-License-Identifier: Apache-2.0 */
/* engine/moe.h - which experts a token goes to. */
#ifndef PLAIT_ENGINE_MOE_H
#define PLAIT_ENGINE_MOE_H

#include "engine/config.h"

/*
 * Routes one token by its router logits. V3: scores are sigmoids, the correction bias (may be NULL)
 * takes part in the choice only, and a group counts as the sum of its two best. V2: scores are a
 * softmax over all experts and a group counts as its best. The groups_per_token best groups stay;
 * of their experts the experts_per_token best are chosen, lowest id on ties, best first. Weights
 * are normalised (norm_topk_prob), then scaled. scratch: 2 * num_experts floats.
 * Returns the margin of the choice: the smallest gap between what was chosen and what was left out,
 * of groups and of experts; +inf when nothing is left out.
 */
float plait_moe_route(const plait_config *config, const float *logits, const float *bias,
                      float *scratch, int32_t *experts, float *weights);

#endif
