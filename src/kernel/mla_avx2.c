/* SPDX-License-Identifier: Apache-2.0 */
/* MLA for every cache type in 256-bit vectors of float32: attn_avx2_tmpl.h. */
#define AVX2_OP PLAIT_OP_MLA
#include "kernel/attn_avx2_tmpl.h"

const plait_kernel plait_kernel_mla_avx2 = {
    .name = "mla_avx2",
    .op = PLAIT_OP_MLA,
    .needs = PLAIT_CPU_AVX2,
    .device = PLAIT_DEVICE_CPU,
    .rows = rows,
    .n_rows = 1,
    .cost = cost,
    .workspace = workspace,
    .run = run,
    .reduce = plait_attn_reduce_partials,
};
