/* SPDX-License-Identifier: Apache-2.0 */
/* What: cache codes to rows in 256-bit vectors, with the bits of gather_ref. */
#include "kernel/lanes_avx2.h"
#define ROWS_GATHER
#include "kernel/rows_tmpl.h"

const plait_routine plait_kernel_gather_avx2 = {
    .name = "gather_avx2",
    .op = PLAIT_ROUTINE_GATHER,
    .needs = PLAIT_CPU_AVX2,
    .convert = convert,
};
