/* SPDX-License-Identifier: Apache-2.0 */
/* Peak of 512-bit bf16 dot: 12 independent sums hide its latency. */
#include <immintrin.h>

#include "kernel/peak.h"

static float run(int64_t rounds)
{
    float zero[16 + 12] = {0}, sum = 0;
    /* Or the compiler would know the products, and that all sums are equal. */
    __asm__ volatile("" : "+m"(zero));
    const __m512bh x = (__m512bh)_mm512_loadu_ps(zero);
    __m512 a[12];
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        a[i] = _mm512_loadu_ps(zero + i);
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            a[i] = _mm512_dpbf16_ps(a[i], x, x);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) {
        _mm512_storeu_ps(zero, a[i]);
        sum += zero[0];
    }
    return sum;
}

const plait_peak plait_peak_avx512bf16 = {"512-bit bf16 dot", PLAIT_CPU_AVX512BF16, 12 * 64, run};
