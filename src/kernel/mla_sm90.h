/* SPDX-License-Identifier: Apache-2.0 */
/* kernel/mla_sm90.h - what the host (mla_sm90.c) and device (mla_sm90.cu) halves share. */
#ifndef PLAIT_KERNEL_MLA_SM90_H
#define PLAIT_KERNEL_MLA_SM90_H

#include <plait/attn.h>

/* Pointers are device memory; strides count elements. */
typedef struct plait_mla_sm90 {
    const int32_t *row_start, *kv_begin, *kv_end, *page_table;
    const plait_attn_work *work; /* NULL: one item for each sequence */
    const plait_attn_reduce *reduce;
    const int32_t *worker_start; /* NULL: item i belongs to worker i % the grid */
    const float *q_scale, *k_scale;
    const void *q, *k;
    void *out;
    float *lse;
    void *const *out_bases;
    float *const *lse_bases;
    float *partial, *partial_lse; /* [num_partials][512] and [num_partials] */
    int64_t q_row_stride, q_head_stride, k_page_stride, k_token_stride, page_table_stride;
    int64_t out_row_stride, out_head_stride, lse_row_stride, lse_head_stride;
    int32_t num_seqs, num_rows, h_q, num_work, num_reduce, page_size;
    int32_t box; /* tokens of a tensor copy: 8, 16, 32 or 64; 0: ordinary copies */
    int32_t heads_per_base, q_scale_n, k_scale_n;
    int32_t out_dtype;
    float softmax_scale, out_scale;
} plait_mla_sm90;

enum {
    PLAIT_MLA_SM90_THREADS = 384,
    PLAIT_MLA_SM90_SMEM = 64 * 1152 * 3 + 2048,
    PLAIT_MLA_SM90_REDUCE_THREADS = 256
};

#endif
