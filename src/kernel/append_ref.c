/* SPDX-License-Identifier: Apache-2.0 */
/* What: rows to cache codes, one value at a time. It is what other variants must equal. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernel/convert_ref.h"
#include "kernel/routine.h"

/* Each 128 values and their scale. */
static void convert_ds656(unsigned char *to, const void *from, plait_dtype dtype, int32_t n)
{
    for (int32_t group = 0; group < n / 128; group++) {
        float largest = 0;
        for (int32_t i = 128 * group; i < 128 * (group + 1); i++) {
            const float size = fabsf(plait_value_get(from, dtype, i));
            if (size > largest) /* no NaN is */
                largest = size < FLT_MAX ? size : FLT_MAX;
        }
        float scale = largest / 448;
        scale = scale > FLT_MIN ? scale : FLT_MIN;
        for (int32_t i = 128 * group; i < 128 * (group + 1); i++)
            plait_value_put(to, PLAIT_FP8_E4M3, i, plait_value_get(from, dtype, i) / scale);
        memcpy(to + n + 4 * group, &scale, sizeof scale);
    }
}

static void convert(void *to, plait_dtype to_dtype, const void *from, plait_dtype from_dtype,
                    int32_t n, const float *scale)
{
    if (to_dtype == PLAIT_FP8_DS656) {
        convert_ds656(to, from, from_dtype, n);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const float x = plait_value_get(from, from_dtype, i);
        plait_value_put(to, to_dtype, i, scale ? x / *scale : x);
    }
}

const plait_routine plait_kernel_append_ref = {
    .name = "append_ref",
    .op = PLAIT_ROUTINE_APPEND,
    .convert = convert,
};
