/* SPDX-License-Identifier: Apache-2.0 */
/* MLA by its definition, in double: see attn_ref.c. */
#include "kernel/attn_ref.h"

#define DTYPES                                                                                     \
    (PLAIT_DTYPE_BIT(PLAIT_F32) | PLAIT_DTYPE_BIT(PLAIT_BF16) | PLAIT_DTYPE_BIT(PLAIT_F16) |       \
     PLAIT_DTYPE_BIT(PLAIT_FP8_E4M3))

static const plait_caps rows[] = {{
    .op = PLAIT_OP_MLA,
    .phases = PLAIT_PHASE_DECODE | PLAIT_PHASE_PREFILL,
    .device = PLAIT_DEVICE_CPU,
    .q_dtypes = DTYPES,
    .kv_dtypes = DTYPES | PLAIT_DTYPE_BIT(PLAIT_FP8_DS656),
    .out_dtypes = DTYPES,
    .d_qk_min = 1,
    .d_v_min = 1,
    .d_multiple = 1,
    .page_min = 1,
    .page_multiple = 1,
    .rows = PLAIT_ROWS_RAGGED,
    .ranges = PLAIT_RANGES_PER_ROW,
    .lse = PLAIT_LSE_BASE_E,
    .empty = PLAIT_EMPTY_EXACT,
    .invariant = 1,
}};

const plait_kernel plait_kernel_mla_ref = {
    .name = "mla_ref",
    .op = PLAIT_OP_MLA,
    .device = PLAIT_DEVICE_CPU,
    .rows = rows,
    .n_rows = 1,
    .cost = plait_attn_ref_cost,
    .workspace = plait_attn_ref_workspace,
    .run = plait_attn_ref_run,
    .reduce = plait_attn_reduce_partials,
};
