/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel/peak_tmpl.h - the loop of a peak: 12 independent sums hide the latency of one instruction.
 * Included once by peak_<isa>.c after
 *   VECTOR, LOAD, STORE   the vector of sums, and how it gets from and to float32
 *   FACTOR                the type of what is multiplied
 *   STEP(sum, x)          the instruction: sum + x * x
 */
#include <immintrin.h>

#include "kernel/peak.h"

enum { SUMS = 12 };

static float run(int64_t rounds)
{
    float zero[16 + SUMS] = {0}, sum = 0;
    /* Or the compiler would know the products, and that all sums are equal. */
    __asm__ volatile("" : "+m"(zero));
    const FACTOR x = (FACTOR)LOAD(zero);
    VECTOR a[SUMS];
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++)
        a[i] = LOAD(zero + i);
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++)
            a[i] = STEP(a[i], x);
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) {
        STORE(zero, a[i]);
        sum += zero[0];
    }
    return sum;
}
