/* SPDX-License-Identifier: Apache-2.0 */
/* What: the weighted sum of states in 512-bit vectors, with the bits of merge_ref. */
#include "kernel/lanes_avx512.h"
#define ROWS_MERGE
#include "kernel/rows_tmpl.h"

const plait_routine plait_kernel_merge_avx512 = {
    .name = "merge_avx512",
    .op = PLAIT_ROUTINE_MERGE,
    .needs = PLAIT_CPU_AVX512,
    .merge = merge,
};
