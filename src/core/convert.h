/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scalar conversions between float32 and the storage types: bf16, f16 and fp8 e4m3. They round to
 * nearest, ties to even, and are the definition that vector conversions are compared with.
 */
#ifndef PLAIT_CORE_CONVERT_H
#define PLAIT_CORE_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t plait_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float plait_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* x in units of 1/scale, rounded to an integer with ties to even; 0 <= x * scale < 2^22. */
static inline uint32_t plait_round_scaled(float x, float scale)
{
    const float magic = 8388608.0f; /* 2^23: one ulp is 1 there */
    return plait_f32_bits(x * scale + magic) - plait_f32_bits(magic);
}

static inline float plait_bf16_to_f32(uint16_t b)
{
    return plait_f32_from_bits((uint32_t)b << 16);
}

/* NaN stays NaN (made quiet); overflow gives infinity. */
static inline uint16_t plait_bf16_from_f32(float x)
{
    uint32_t u = plait_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float plait_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = h >> 10 & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 0) {
        const float tiny = (float)mantissa * 0x1p-24f;
        return plait_f32_from_bits(sign | plait_f32_bits(tiny));
    }
    if (exponent == 0x1f)
        return plait_f32_from_bits(sign | 0x7f800000u | mantissa << 13);
    return plait_f32_from_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

/* NaN stays NaN (made quiet); overflow gives infinity; subnormals are kept. */
static inline uint16_t plait_f16_from_f32(float x)
{
    const uint32_t u = plait_f32_bits(x);
    const uint32_t sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x1ffu));
    if (a < 0x38800000u) /* below 2^-14, the smallest normal */
        return (uint16_t)(sign | plait_round_scaled(plait_f32_from_bits(a), 0x1p24f));
    const uint32_t rounded = a + 0xfffu + (a >> 13 & 1u);
    const uint32_t code = (rounded >> 13) - (112u << 10);
    return (uint16_t)(sign | (code < 0x7c00u ? code : 0x7c00u));
}

/* e4m3 "fn": no infinities, 0x7f and 0xff are NaN, the largest value is 448. */
static inline float plait_e4m3_to_f32(uint8_t e)
{
    const uint32_t sign = (uint32_t)(e & 0x80u) << 24;
    const uint32_t exponent = e >> 3 & 0xfu, mantissa = e & 7u;
    if ((e & 0x7fu) == 0x7fu)
        return plait_f32_from_bits(sign | 0x7fc00000u);
    if (exponent == 0) {
        const float tiny = (float)mantissa * 0x1p-9f;
        return plait_f32_from_bits(sign | plait_f32_bits(tiny));
    }
    return plait_f32_from_bits(sign | (exponent + 120u) << 23 | mantissa << 20);
}

/* NaN stays NaN; everything beyond 448, infinity too, saturates to 448. */
static inline uint8_t plait_e4m3_from_f32(float x)
{
    const uint32_t u = plait_f32_bits(x);
    const uint32_t sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (a >= 0x43e00000u) /* 448 */
        return (uint8_t)(sign | 0x7eu);
    if (a < 0x3c800000u) /* below 2^-6, the smallest normal */
        return (uint8_t)(sign | plait_round_scaled(plait_f32_from_bits(a), 512.0f));
    const uint32_t rounded = a + 0x7ffffu + (a >> 20 & 1u);
    return (uint8_t)(sign | ((rounded >> 20) - (120u << 3)));
}

#endif
