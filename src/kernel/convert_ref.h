/* SPDX-License-Identifier: Apache-2.0 */
/* kernel/convert_ref.h - values of storage types one at a time, for the references. */
#ifndef PLAIT_KERNEL_CONVERT_REF_H
#define PLAIT_KERNEL_CONVERT_REF_H

#include <plait/dtype.h>

#include "core/convert.h"

static inline float plait_value_get(const void *from, plait_dtype dtype, int32_t i)
{
    switch (dtype) {
    case PLAIT_BF16:
        return plait_bf16_to_f32(((const uint16_t *)from)[i]);
    case PLAIT_F16:
        return plait_f16_to_f32(((const uint16_t *)from)[i]);
    case PLAIT_FP8_E4M3:
    case PLAIT_FP8_DS656:
        return plait_e4m3_to_f32(((const uint8_t *)from)[i]);
    default:
        return ((const float *)from)[i];
    }
}

static inline void plait_value_put(void *to, plait_dtype dtype, int32_t i, float x)
{
    switch (dtype) {
    case PLAIT_BF16:
        ((uint16_t *)to)[i] = plait_bf16_from_f32(x);
        break;
    case PLAIT_F16:
        ((uint16_t *)to)[i] = plait_f16_from_f32(x);
        break;
    case PLAIT_FP8_E4M3:
    case PLAIT_FP8_DS656:
        ((uint8_t *)to)[i] = plait_e4m3_from_f32(x);
        break;
    default:
        ((float *)to)[i] = x;
        break;
    }
}

#endif
