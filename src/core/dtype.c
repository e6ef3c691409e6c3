/* SPDX-License-Identifier: Apache-2.0 */
#include <plait/dtype.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [PLAIT_F32] = {"f32", 4},
    [PLAIT_BF16] = {"bf16", 2},
    [PLAIT_F16] = {"f16", 2},
    [PLAIT_FP8_E4M3] = {"fp8", 1},
    [PLAIT_FP8_DS656] = {"fp8_ds656", 656},
};

static int is_dtype(plait_dtype dtype)
{
    return (unsigned)dtype < sizeof dtypes / sizeof *dtypes;
}

size_t plait_dtype_bytes(plait_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].bytes : 0;
}

const char *plait_dtype_name(plait_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].name : "?";
}
