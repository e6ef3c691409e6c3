/* SPDX-License-Identifier: Apache-2.0 */
/* What: the weighted sum of states, one value at a time. It is what other variants must equal. */
#include "kernel/convert_ref.h"
#include "kernel/routine.h"

static void merge(const plait_merge_terms *t, int32_t d_v, void *to, plait_dtype dtype)
{
    for (int32_t d = 0; d < d_v; d++) {
        float sum = 0;
        for (int32_t i = 0; i < t->n; i++) {
            const float x = t->weight[i] * plait_value_get(t->out[i], t->dtype[i], d);
            sum = i == 0 ? x : sum + x; /* not from 0: a single -0 keeps its sign */
        }
        plait_value_put(to, dtype, d, sum);
    }
}

const plait_routine plait_kernel_merge_ref = {
    .name = "merge_ref",
    .op = PLAIT_ROUTINE_MERGE,
    .merge = merge,
};
