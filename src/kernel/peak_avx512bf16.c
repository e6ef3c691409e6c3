/* SPDX-License-Identifier: Apache-2.0 */
/* Peak of 512-bit bf16 dot. */
#define VECTOR       __m512
#define FACTOR       __m512bh
#define LOAD         _mm512_loadu_ps
#define STORE        _mm512_storeu_ps
#define STEP(sum, x) _mm512_dpbf16_ps(sum, x, x)
#include "kernel/peak_tmpl.h"

const plait_peak plait_peak_avx512bf16 = {"512-bit bf16 dot", PLAIT_CPU_AVX512BF16, SUMS * 64, run};
