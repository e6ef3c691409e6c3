/* SPDX-License-Identifier: Apache-2.0 */
/* Peak of 512-bit fp32 FMA. */
#define VECTOR       __m512
#define FACTOR       __m512
#define LOAD         _mm512_loadu_ps
#define STORE        _mm512_storeu_ps
#define STEP(sum, x) _mm512_fmadd_ps(x, x, sum)
#include "kernel/peak_tmpl.h"

const plait_peak plait_peak_avx512 = {"512-bit fp32 FMA", PLAIT_CPU_AVX512, SUMS * 32, run};
