/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the AVX-512 kernels, on 16 floats at a time. */
#ifndef PLAIT_KERNEL_VEC_AVX512_H
#define PLAIT_KERNEL_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* Lanes [0, n) of 16 and of 32. */
static inline __mmask16 plait_first16(int32_t n)
{
    return (__mmask16)(n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1);
}

static inline __mmask32 plait_first32(int32_t n)
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1;
}

/* 2^x for x <= 128, NaN stays NaN: 2^f for f in [-0.5, 0.5] by a polynomial that is exact at 0 and
   interpolates (2^f - 1) / f at 5 Chebyshev nodes, off by at most 2.1e-7 of its value, scaled by
   the integer part. */
static inline __m512 plait_exp2_16(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x); /* this order keeps a NaN */
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(x, n);
    __m512 y = _mm512_set1_ps(0.00133813021f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.00966636837f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.0555038117f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.240223497f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.693147182f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, n);
}

/* Transposes 16 x 16 dwords. */
static inline void plait_transpose16(__m512i r[16])
{
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#endif
