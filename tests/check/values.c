/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the storage types, apart from how kernels convert them. */
#include <math.h>

#include "core/convert.h"
#include "tests/check/check.h"

double plait_value_at(const void *base, plait_dtype dtype, int64_t offset)
{
    switch (dtype) {
    case PLAIT_F32:
        return ((const float *)base)[offset];
    case PLAIT_BF16:
        return plait_bf16_to_f32(((const uint16_t *)base)[offset]);
    case PLAIT_F16:
        return plait_f16_to_f32(((const uint16_t *)base)[offset]);
    default:
        return plait_e4m3_to_f32(((const uint8_t *)base)[offset]);
    }
}

double plait_half_ulp(plait_dtype dtype, double x)
{
    static const struct {
        int digits, least; /* of the mantissa; exponent of the smallest step */
    } type[] = {[PLAIT_F32] = {24, -149},
                [PLAIT_BF16] = {8, -133},
                [PLAIT_F16] = {11, -24},
                [PLAIT_FP8_E4M3] = {4, -9}};
    int e = 0;
    if (!(fabs(x) <= 0x1p200))
        return 0;
    frexp(x, &e);
    int step = e - type[dtype].digits;
    return ldexp(0.5, step > type[dtype].least ? step : type[dtype].least);
}

/* The value of a positive code; that after the largest is what would follow it. */
static double value_of_code(plait_dtype dtype, uint32_t code)
{
    const uint16_t half = (uint16_t)code;
    const uint8_t byte = (uint8_t)code;
    if (dtype == PLAIT_BF16)
        return code == 0x7f80 ? 0x1p128 : plait_value_at(&half, dtype, 0);
    if (dtype == PLAIT_F16)
        return code == 0x7c00 ? 0x1p16 : plait_value_at(&half, dtype, 0);
    return code == 0x7f ? 480 : plait_value_at(&byte, dtype, 0);
}

uint32_t plait_nearest_code(plait_dtype dtype, float x)
{
    static const struct {
        uint32_t sign, after, nan; /* the code after the largest finite one; quiet NaN */
    } type[] = {
        [PLAIT_BF16] = {0x8000, 0x7f80, 0x7fc0},
        [PLAIT_F16] = {0x8000, 0x7c00, 0x7e00},
        [PLAIT_FP8_E4M3] = {0x80, 0x7f, 0x7f},
    };
    if (dtype == PLAIT_F32)
        return plait_f32_bits(x);
    const uint32_t sign = signbit(x) ? type[dtype].sign : 0;
    const double size = fabs((double)x);
    uint32_t low = 0, high = type[dtype].after; /* value(low) <= size */
    if (isnan(x))
        return sign | type[dtype].nan;
    if (size >= value_of_code(dtype, high))
        low = high;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (value_of_code(dtype, middle) <= size)
            low = middle;
        else
            high = middle;
    }
    if (low != high) {
        const double down = size - value_of_code(dtype, low);
        const double up = value_of_code(dtype, high) - size;
        low += up < down || (up == down && low % 2);
    }
    return sign | (dtype == PLAIT_FP8_E4M3 && low > 0x7e ? 0x7e : low);
}
