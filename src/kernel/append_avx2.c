/* SPDX-License-Identifier: Apache-2.0 */
/* What: rows to cache codes in 256-bit vectors, with the bits of append_ref. */
#include "kernel/lanes_avx2.h"
#define ROWS_APPEND
#include "kernel/rows_tmpl.h"

const plait_routine plait_kernel_append_avx2 = {
    .name = "append_avx2",
    .op = PLAIT_ROUTINE_APPEND,
    .needs = PLAIT_CPU_AVX2,
    .convert = convert,
};
