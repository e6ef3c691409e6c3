/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/dtype.h - element types.
 */
#ifndef PLAIT_DTYPE_H
#define PLAIT_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#include <plait/version.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum plait_dtype {
    PLAIT_F32 = 0,
    PLAIT_BF16 = 1,
    PLAIT_F16 = 2,
    PLAIT_FP8_E4M3 = 3, /* e4m3fn: no infinity, NaN is 0x7f and 0xff, largest 448 */
    /*
     * One MLA cache row of 656 bytes as DeepSeek's FlashMLA stores it: 512 latent values in e4m3,
     * 4 float32 scales (one for each 128 of them; value = code * scale), 64 rope values in bf16.
     * For this type a "row" is one element: strides of a cache in it count rows.
     */
    PLAIT_FP8_DS656 = 4
} plait_dtype;

/* Bytes of one element: 4, 2, 2, 1, 656; 0 for a value that is no dtype. */
PLAIT_API size_t plait_dtype_bytes(plait_dtype dtype);

/* "f32", "bf16", "f16", "fp8", "fp8_ds656"; "?" for a value that is no dtype. */
PLAIT_API const char *plait_dtype_name(plait_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
