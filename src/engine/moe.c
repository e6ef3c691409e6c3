/* SPDX-License-Identifier: Apache-2.0 */
/* moe.c: routing by sigmoid or softmax scores with a group limit. */
#include "engine/moe.h"

#include <math.h>

/* Sum of the two best of n values. */
static float best_two(const float *x, int32_t n)
{
    float a = -INFINITY, b = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (x[i] > a) {
            b = a;
            a = x[i];
        } else if (x[i] > b) {
            b = x[i];
        }
    }
    return n > 1 ? a + b : a;
}

static int32_t index_of_best(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (x[i] > x[best])
            best = i;
    }
    return best;
}

/* Sets the choice scores of all experts outside the best groups to -inf. Returns the gap between
   the last group that stays and the first that goes. `sums` holds num_groups values. */
static float limit_groups(const plait_config *c, float *choice, float *sums)
{
    const int32_t size = c->num_experts / c->num_groups;
    if (c->groups_per_token >= c->num_groups)
        return INFINITY;
    for (int32_t g = 0; g < c->num_groups; g++) {
        const float *group = choice + g * size;
        sums[g] = c->softmax_scores ? group[index_of_best(group, size)] : best_two(group, size);
    }
    float last = 0;
    for (int32_t i = 0; i < c->groups_per_token; i++) {
        const int32_t g = index_of_best(sums, c->num_groups);
        last = sums[g];
        sums[g] = -INFINITY;
    }
    float next = -INFINITY;
    for (int32_t g = 0; g < c->num_groups; g++) {
        if (!(sums[g] > -INFINITY))
            continue;
        next = sums[g] > next ? sums[g] : next;
        for (int32_t e = 0; e < size; e++)
            choice[g * size + e] = -INFINITY;
    }
    return last - next;
}

/* Turns logits into scores: score = exp(logit - top) * inv_sum, or the sigmoid where inv_sum is 0.
 */
struct scorer {
    float top, inv_sum;
};

static struct scorer scorer_of(const plait_config *c, const float *logits)
{
    struct scorer s = {0, 0};
    if (!c->softmax_scores)
        return s;
    float sum = 0;
    s.top = logits[index_of_best(logits, c->num_experts)];
    for (int32_t e = 0; e < c->num_experts; e++)
        sum += expf(logits[e] - s.top);
    s.inv_sum = 1.0f / sum;
    return s;
}

static float score(const struct scorer *s, float logit)
{
    return s->inv_sum != 0 ? expf(logit - s->top) * s->inv_sum : 1.0f / (1.0f + expf(-logit));
}

float plait_moe_route(const plait_config *config, const float *logits, const float *bias,
                      float *scratch, int32_t *experts, float *weights)
{
    const int32_t n = config->num_experts, k = config->experts_per_token;
    float *choice = scratch, *sums = scratch + n;
    const struct scorer scorer = scorer_of(config, logits);
    for (int32_t e = 0; e < n; e++)
        choice[e] = score(&scorer, logits[e]) + (bias ? bias[e] : 0.0f);
    float margin = limit_groups(config, choice, sums);
    float sum = 0, last = 0;
    for (int32_t i = 0; i < k; i++) {
        experts[i] = index_of_best(choice, n);
        last = choice[experts[i]];
        choice[experts[i]] = -INFINITY;
        /* The score itself, not (score + bias) - bias, which loses small scores. */
        weights[i] = score(&scorer, logits[experts[i]]);
        sum += weights[i];
    }
    const float next = choice[index_of_best(choice, n)];
    margin = last - next < margin ? last - next : margin;
    const float scale =
        config->routed_scaling_factor / (config->norm_topk_prob ? sum + 1e-20f : 1.0f);
    for (int32_t i = 0; i < k; i++)
        weights[i] *= scale;
    return margin;
}
