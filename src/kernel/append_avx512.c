/* SPDX-License-Identifier: Apache-2.0 */
/* What: rows to cache codes in 512-bit vectors, with the bits of append_ref. */
#include "kernel/lanes_avx512.h"
#define ROWS_APPEND
#include "kernel/rows_tmpl.h"

const plait_routine plait_kernel_append_avx512 = {
    .name = "append_avx512",
    .op = PLAIT_ROUTINE_APPEND,
    .needs = PLAIT_CPU_AVX512,
    .convert = convert,
};
