/* SPDX-License-Identifier: Apache-2.0 */
/* What: cache codes to rows in 512-bit vectors, with the bits of gather_ref. */
#include "kernel/lanes_avx512.h"
#define ROWS_GATHER
#include "kernel/rows_tmpl.h"

const plait_routine plait_kernel_gather_avx512 = {
    .name = "gather_avx512",
    .op = PLAIT_ROUTINE_GATHER,
    .needs = PLAIT_CPU_AVX512,
    .convert = convert,
};
