/* SPDX-License-Identifier: Apache-2.0 */
/* What: the weighted sum of states in 256-bit vectors, with the bits of merge_ref. */
#include "kernel/lanes_avx2.h"
#define ROWS_MERGE
#include "kernel/rows_tmpl.h"

const plait_routine plait_kernel_merge_avx2 = {
    .name = "merge_avx2",
    .op = PLAIT_ROUTINE_MERGE,
    .needs = PLAIT_CPU_AVX2,
    .merge = merge,
};
