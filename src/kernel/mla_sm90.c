/* SPDX-License-Identifier: Apache-2.0 */
/* The host half of mla_sm90: what it takes, and its launches. The device half is mla_sm90.cu. */
#include "kernel/mla_sm90.h"

#include <stdio.h>

#include "core/status.h"
#include "device/cuda.h"
#include "kernel/kernel.h"

enum { D_QK = 576, D_V = 512, ALIGN = 8 /* elements of 16 bytes */ };

#define OUTS (PLAIT_DTYPE_BIT(PLAIT_F32) | PLAIT_DTYPE_BIT(PLAIT_BF16) | PLAIT_DTYPE_BIT(PLAIT_F16))
#define ROW(dtype)                                                                                 \
    {                                                                                              \
        .op = PLAIT_OP_MLA, .phases = PLAIT_PHASE_DECODE | PLAIT_PHASE_PREFILL,                    \
        .device = PLAIT_DEVICE_CUDA, .device_min = 90, .device_max = 90,                           \
        .q_dtypes = PLAIT_DTYPE_BIT(dtype), .kv_dtypes = PLAIT_DTYPE_BIT(dtype),                   \
        .out_dtypes = OUTS, .d_qk_min = D_QK, .d_qk_max = D_QK, .d_v_min = D_V, .d_v_max = D_V,    \
        .d_multiple = 1, .page_min = 1, .page_multiple = 1, .rows = PLAIT_ROWS_RAGGED,             \
        .ranges = PLAIT_RANGES_PER_ROW, .lse = PLAIT_LSE_BASE_E, .empty = PLAIT_EMPTY_EXACT,       \
        .capture = 1                                                                               \
    }
static const plait_caps rows[] = {ROW(PLAIT_BF16), ROW(PLAIT_F16)};

static int aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

static const char *refuse(const plait_attn_args *a)
{
    if (!plait_cuda_find(a->device))
        return "the device is not open (plait_cuda_open)";
    if (a->q_row_stride % ALIGN || a->q_head_stride % ALIGN || !aligned(a->q))
        return "q or its strides are not aligned to 16 bytes";
    if (a->k_page_stride % ALIGN || a->k_token_stride % ALIGN || !aligned(a->k))
        return "k or its strides are not aligned to 16 bytes";
    if (a->out_row_stride % 2 || a->out_head_stride % 2 || (uintptr_t)a->out % 8)
        return "out is not aligned to two elements";
    if (a->num_pages <= 0)
        return "num_pages is not told, so that page ids cannot be bounded";
    return NULL;
}

/* 4 TB/s of the cache, once for each 64 rows x heads; 700 TFLOP/s; two launches. Ranges are in
   device memory, so that the length is a guess. */
static double cost(const plait_attn_args *a, int32_t n_workers)
{
    double tiles = ((double)a->num_rows * a->h_q + 63) / 64, keys = 4096;
    (void)n_workers;
    return 8 + tiles * keys * 64 * (D_QK + D_V) * 2 / 7e8;
}

static size_t workspace(const plait_attn_args *args, int32_t n_workers)
{
    (void)n_workers;
    return plait_attn_partial_bytes(args);
}

/* The largest box of tokens that never crosses a page: the common divisor of 64 and the page. */
static int32_t box_of(int32_t page_size)
{
    int32_t box = 64;
    while (page_size % box)
        box /= 2;
    return box >= 8 ? box : 0;
}

static plait_mla_sm90 device_args(const plait_attn_args *a)
{
    float *partial = a->workspace;
    return (plait_mla_sm90){.row_start = a->row_start,
                            .kv_begin = a->kv_begin,
                            .kv_end = a->kv_end,
                            .page_table = a->page_table,
                            .work = a->work,
                            .reduce = a->reduce,
                            .worker_start = a->worker_start,
                            .q_scale = a->q_scale,
                            .k_scale = a->k_scale,
                            .q = a->q,
                            .k = a->k,
                            .out = a->out,
                            .lse = a->lse,
                            .out_bases = a->out_bases,
                            .lse_bases = a->lse_bases,
                            .partial = partial,
                            .partial_lse =
                                partial ? partial + (int64_t)a->num_partials * D_V : NULL,
                            .q_row_stride = a->q_row_stride,
                            .q_head_stride = a->q_head_stride,
                            .k_page_stride = a->k_page_stride,
                            .k_token_stride = a->k_token_stride,
                            .page_table_stride = a->page_table_stride,
                            .out_row_stride = a->out_row_stride,
                            .out_head_stride = a->out_head_stride,
                            .lse_row_stride = a->lse_row_stride,
                            .lse_head_stride = a->lse_head_stride,
                            .num_seqs = a->num_seqs,
                            .num_rows = a->num_rows,
                            .h_q = a->h_q,
                            .num_work = a->num_work,
                            .num_reduce = a->num_reduce,
                            .page_size = a->page_size,
                            .box = box_of(a->page_size),
                            .heads_per_base = a->heads_per_base,
                            .q_scale_n = a->q_scale_n,
                            .k_scale_n = a->k_scale_n,
                            .out_dtype = (int32_t)a->out_dtype,
                            .softmax_scale = a->softmax_scale,
                            .out_scale = a->out_scale};
}

static plait_status run(const plait_attn_args *a, int32_t worker, int32_t n_workers)
{
    (void)n_workers;
    if (worker != 0)
        return PLAIT_OK; /* the device has workers of its own */
    plait_cuda *cuda = plait_cuda_find(a->device);
    if (!cuda)
        return plait_fail(PLAIT_E_STATE, "mla_sm90: device %d is not open", a->device);
    plait_mla_sm90 args = device_args(a);
    plait_cuda_map map = {{0}};
    if (args.box)
        PLAIT_TRY(plait_cuda_map_pages(cuda, &map, a->kv_dtype, a->k, D_QK, a->page_size,
                                       a->num_pages, a->k_token_stride, a->k_page_stride,
                                       args.box));
    plait_cuda_function function =
        a->kv_dtype == PLAIT_F16 ? PLAIT_CUDA_plait_mla_sm90_f16 : PLAIT_CUDA_plait_mla_sm90_bf16;
    int32_t grid = a->worker_start ? a->num_workers : plait_cuda_sms(cuda);
    void *params[] = {&map, &args};
    return plait_cuda_launch(cuda, function, (uint32_t)grid, 0, a->stream, params);
}

static plait_status reduce(const plait_attn_args *a, int32_t worker, int32_t n_workers)
{
    (void)n_workers;
    if (worker != 0)
        return PLAIT_OK;
    plait_cuda *cuda = plait_cuda_find(a->device);
    if (!cuda)
        return plait_fail(PLAIT_E_STATE, "mla_sm90: device %d is not open", a->device);
    plait_mla_sm90 args = device_args(a);
    void *params[] = {&args};
    /* A block for each quarter of a row and head, as far as blocks can run at once. */
    int64_t units = 4 * (int64_t)a->num_rows * a->h_q, most = 4 * (int64_t)plait_cuda_sms(cuda);
    uint32_t grid = (uint32_t)(units < 1 ? 1 : units < most ? units : most);
    return plait_cuda_launch(cuda, PLAIT_CUDA_plait_mla_sm90_reduce, grid, 1, a->stream, params);
}

const plait_kernel plait_kernel_mla_sm90 = {
    .name = "mla_sm90",
    .op = PLAIT_OP_MLA,
    .device = PLAIT_DEVICE_CUDA,
    .rows = rows,
    .n_rows = 2,
    .refuse = refuse,
    .cost = cost,
    .workspace = workspace,
    .run = run,
    .reduce = reduce,
};
