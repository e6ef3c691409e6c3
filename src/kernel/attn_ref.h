/* SPDX-License-Identifier: Apache-2.0 */
/* What the two reference kernels share: the definition in plait/attn.h, in double. */
#ifndef PLAIT_KERNEL_ATTN_REF_H
#define PLAIT_KERNEL_ATTN_REF_H

#include "kernel/kernel.h"

plait_status plait_attn_ref_run(const plait_attn_args *args, int32_t worker, int32_t n_workers);
size_t plait_attn_ref_workspace(const plait_attn_args *args, int32_t n_workers);
double plait_attn_ref_cost(const plait_attn_args *args, int32_t n_workers);

#endif
