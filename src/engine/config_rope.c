/* SPDX-License-Identifier: Apache-2.0 */
/*
 * YaRN (Peng et al. 2023, arXiv:2309.00071) as DeepSeek V2 and V3 use it: slow pairs are
 * interpolated by `factor`, fast ones kept, a linear ramp between; two factors make up for the
 * longer context. Where only one of mscale and mscale_all_dim is given, the other has the default
 * of the authors' code, which the checkpoints were trained with; transformers ignores both then.
 */
#include <math.h>

#include "engine/config.h"

/* The pair that turns `turns` times within the original context. */
static double pair_of_turns(const plait_rope *rope, double turns)
{
    const double two_pi = 6.283185307179586;
    return rope->dim * log(rope->original_max_position / (turns * two_pi)) /
           (2.0 * log(rope->theta));
}

void plait_rope_inv_freq(const plait_rope *rope, float *inv_freq)
{
    double low = 0, high = 0;
    if (rope->yarn) {
        low = pair_of_turns(rope, rope->beta_fast);
        high = pair_of_turns(rope, rope->beta_slow);
        if (rope->truncate) {
            low = floor(low);
            high = ceil(high);
        }
        low = fmax(low, 0);
        high = fmin(high, rope->dim - 1);
        if (low == high)
            high += 0.001; /* no division by zero */
    }
    for (int32_t i = 0; i < rope->dim / 2; i++) {
        const double freq = pow(rope->theta, -2.0 * i / rope->dim);
        double slow = 0;
        if (rope->yarn)
            slow = fmin(fmax((i - low) / (high - low), 0), 1);
        inv_freq[i] = (float)(rope->yarn ? freq * (1 - slow) + freq / rope->factor * slow : freq);
    }
}

static double mscale_of(double factor, double mscale)
{
    return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

float plait_rope_cos_sin_factor(const plait_rope *rope)
{
    if (!rope->yarn)
        return 1.0f;
    if (rope->attention_factor > 0)
        return (float)rope->attention_factor;
    return (float)(mscale_of(rope->factor, rope->mscale) /
                   mscale_of(rope->factor, rope->mscale_all_dim));
}

float plait_rope_softmax_scale(const plait_rope *rope, int32_t d_qk)
{
    double scale = 1.0 / sqrt(d_qk);
    if (rope->yarn && rope->mscale_all_dim > 0) {
        const double m = mscale_of(rope->factor, rope->mscale_all_dim);
        scale *= m * m;
    }
    return (float)scale;
}
