/* SPDX-License-Identifier: Apache-2.0 */
/* MLA for bf16 queries and caches with VDPBF16PS: mla_bf16_tmpl.h and dot_avx512bf16.h. */
enum { invariant = 1 };

#include "kernel/dot_avx512bf16.h"

static plait_status run(const plait_attn_args *args, int32_t worker, int32_t n_workers)
{
    struct scratch x;
    run_blocks(args, worker, n_workers, attend, &x);
    return PLAIT_OK;
}

/* Multiply-adds in a microsecond on one core where the dot does 64 in a cycle or more. */
static double cost(const plait_attn_args *args, int32_t n_workers)
{
    return 1.0 + plait_attn_macs(args) / (100000.0 * n_workers);
}

const plait_kernel plait_kernel_mla_avx512bf16 = {
    .name = "mla_avx512bf16",
    .op = PLAIT_OP_MLA,
    .needs = PLAIT_CPU_AVX512 | PLAIT_CPU_AVX512BF16,
    .device = PLAIT_DEVICE_CPU,
    .rows = rows,
    .n_rows = 1,
    .cost = cost,
    .workspace = workspace,
    .run = run,
    .reduce = plait_attn_reduce_partials,
};
