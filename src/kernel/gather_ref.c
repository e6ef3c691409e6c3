/* SPDX-License-Identifier: Apache-2.0 */
/* What: cache codes to rows, one value at a time. It is what other variants must equal. */
#include <string.h>

#include "kernel/convert_ref.h"
#include "kernel/routine.h"

static void convert(void *to, plait_dtype to_dtype, const void *from, plait_dtype from_dtype,
                    int32_t n, const float *scale)
{
    for (int32_t i = 0; i < n; i++) {
        float x = plait_value_get(from, from_dtype, i), group_scale;
        if (from_dtype == PLAIT_FP8_DS656) {
            memcpy(&group_scale, (const unsigned char *)from + n + i / 128 * 4, sizeof group_scale);
            x *= group_scale;
        } else if (scale) {
            x *= *scale;
        }
        plait_value_put(to, to_dtype, i, x);
    }
}

const plait_routine plait_kernel_gather_ref = {
    .name = "gather_ref",
    .op = PLAIT_ROUTINE_GATHER,
    .convert = convert,
};
