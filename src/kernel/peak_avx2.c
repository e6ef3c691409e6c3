/* SPDX-License-Identifier: Apache-2.0 */
/* Peak of 256-bit fp32 FMA. */
#define VECTOR       __m256
#define FACTOR       __m256
#define LOAD         _mm256_loadu_ps
#define STORE        _mm256_storeu_ps
#define STEP(sum, x) _mm256_fmadd_ps(x, x, sum)
#include "kernel/peak_tmpl.h"

const plait_peak plait_peak_avx2 = {"256-bit fp32 FMA", PLAIT_CPU_AVX2, SUMS * 16, run};
