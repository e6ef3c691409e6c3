/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c: the table of cos and sin, and the rotation. */
#include "engine/rope.h"

#include <math.h>
#include <stdlib.h>

#include "core/status.h"

plait_status plait_rope_table_open(const plait_rope *rope, int64_t length, plait_rope_table *out)
{
    *out = (plait_rope_table){NULL, length, rope->dim, rope->interleave};
    const int32_t half = rope->dim / 2;
    float *freq = malloc((size_t)half * sizeof *freq);
    out->cos_sin = malloc((size_t)length * 2 * (size_t)half * sizeof(float));
    if (!freq || !out->cos_sin) {
        free(freq);
        plait_rope_table_close(out);
        return plait_fail(PLAIT_E_NOMEM, "no memory for a rope table of %lld positions",
                          (long long)length);
    }
    plait_rope_inv_freq(rope, freq);
    const float factor = plait_rope_cos_sin_factor(rope);
    for (int64_t p = 0; p < length; p++) {
        float *row = out->cos_sin + p * 2 * half;
        for (int32_t i = 0; i < half; i++) {
            /* The angle is rounded to float32 first, as the models were trained with. */
            const float angle = (float)p * freq[i];
            row[i] = (float)cos(angle) * factor;
            row[half + i] = (float)sin(angle) * factor;
        }
    }
    free(freq);
    return PLAIT_OK;
}

void plait_rope_table_close(plait_rope_table *table)
{
    free(table->cos_sin);
    table->cos_sin = NULL;
}

void plait_rope_apply(const plait_rope_table *table, int64_t position, float *x)
{
    const int32_t half = table->dim / 2;
    const float *c = table->cos_sin + position * 2 * half, *s = c + half;
    for (int32_t i = 0; i < half; i++) {
        float *a = table->interleave ? x + 2 * i : x + i;
        float *b = table->interleave ? a + 1 : a + half;
        const float u = *a, v = *b;
        *a = u * c[i] - v * s[i];
        *b = v * c[i] + u * s[i];
    }
}
