/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel/kernel.h - what the kernels share: the table, items of a schedule, and how a finished row
 * is written. This folder is the only place with intrinsics.
 *
 * A variant is one file <op>_<isa>[_<trait>].c that ends with its descriptor, plus one row in
 * kernels.def.
 */
#ifndef PLAIT_KERNEL_KERNEL_H
#define PLAIT_KERNEL_KERNEL_H

#include <plait/attn.h>

/* Rows expand to nothing where they cannot be built. */
#if defined(__x86_64__)
#define PLAIT_X86(row) row
#else
#define PLAIT_X86(row)
#endif

#define KERNEL(name)     extern const plait_kernel plait_kernel_##name;
#define KERNEL_X86(name) PLAIT_X86(KERNEL(name))
#include "kernel/kernels.def"

/* Work items of the call: the schedule's, or one for each sequence. */
int32_t plait_attn_items(const plait_attn_args *args);
plait_attn_work plait_attn_item(const plait_attn_args *args, int32_t i);

/* The keys that `row` sees within the item; *begin >= *end when there is none. */
void plait_attn_row_range(const plait_attn_args *args, const plait_attn_work *item, int32_t row,
                          int32_t *begin, int32_t *end);

/* KV head of a local query head. */
int32_t plait_attn_kv_head(const plait_attn_args *args, int32_t head);

/* Entry i of a scale with n entries. */
static inline float plait_attn_scale(const float *scale, int32_t n, int32_t i)
{
    return n == 0 ? 1.0f : n == 1 ? scale[0] : scale[i];
}

/* Element offset of key c of sequence seq: its page and token part. */
static inline int64_t plait_attn_key_offset(const plait_attn_args *args, int32_t seq, int32_t c,
                                            int64_t page_stride, int64_t token_stride)
{
    int64_t entry = (int64_t)seq * args->page_table_stride + c / args->page_size;
    return args->page_table[entry] * page_stride + c % args->page_size * token_stride;
}

/* Writes a finished row-head, d_v values that include out_scale, where the item says: the output
   or its partial. out NULL: an empty row. */
void plait_attn_write(const plait_attn_args *args, const plait_attn_work *item, int32_t row,
                      int32_t head, const float *out, float lse);

/* Writes this worker's share of the padding rows as empty. */
void plait_attn_write_padding(const plait_attn_args *args, int32_t worker, int32_t n_workers);

/* Bytes of the partials at the start of the workspace, a multiple of 64. */
size_t plait_attn_partial_bytes(const plait_attn_args *args);

/* The reduce of every CPU kernel: merges float32 partials into the output. */
plait_status plait_attn_reduce_partials(const plait_attn_args *args, int32_t worker,
                                        int32_t n_workers);

/* Run and workspace of a call with args->invariant: invariant.c. */
plait_status plait_invariant_run(const plait_kernel *kernel, const plait_attn_args *args,
                                 int32_t worker, int32_t n_workers);
size_t plait_invariant_workspace(const plait_kernel *kernel, const plait_attn_args *args,
                                 int32_t n_workers);

/* Multiply-adds of the call: the sum over rows, heads and keys of d_qk + d_v. */
double plait_attn_macs(const plait_attn_args *args);

#endif
