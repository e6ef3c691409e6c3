/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The field's known kernels as data: nothing here runs. Each row names its source; costs are
 * estimates, from the order in which vLLM prefers the kernels of a device.
 */
#include "backend/backend.h"

#define BIT(d) PLAIT_DTYPE_BIT(PLAIT_##d)
#define HALF   (BIT(F16) | BIT(BF16))
#define BOTH   (PLAIT_PHASE_DECODE | PLAIT_PHASE_PREFILL)

/* The fields that the rows of an attention kind share. */
#define MLA_ROW(least, most)                                                                       \
    .op = PLAIT_OP_MLA, .phases = PLAIT_PHASE_DECODE, .device = PLAIT_DEVICE_CUDA,                 \
    .device_min = (least), .device_max = (most), .out_dtypes = HALF, .d_qk_min = 576,              \
    .d_qk_max = 576, .d_v_min = 512, .d_v_max = 512, .d_multiple = 1
#define GQA_ROW(least, most)                                                                       \
    .op = PLAIT_OP_GQA, .device = PLAIT_DEVICE_CUDA, .device_min = (least), .device_max = (most),  \
    .out_dtypes = HALF, .capture = 1
#define PAGES(least, most, multiple)                                                               \
    .page_min = (least), .page_max = (most), .page_multiple = (multiple)
#define DIMS(least, most, multiple)                                                                \
    .d_qk_min = (least), .d_qk_max = (most), .d_v_min = (least), .d_v_max = (most),                \
    .d_multiple = (multiple)

static const plait_caps native_rows[] = {
    {GQA_ROW(80, 121), .phases = PLAIT_PHASE_DECODE, .q_dtypes = HALF,
     .kv_dtypes = HALF | BIT(FP8_E4M3), DIMS(64, 256, 64), PAGES(16, 64, 16),
     .rows = PLAIT_ROWS_SINGLE, .lse = PLAIT_LSE_BASE_2},
    {GQA_ROW(80, 121), .phases = BOTH, .q_dtypes = HALF, .kv_dtypes = HALF | BIT(FP8_E4M3),
     DIMS(64, 256, 64), PAGES(16, 64, 16), .rows = PLAIT_ROWS_RAGGED,
     .ranges = PLAIT_RANGES_END_ALIGNED, .lse = PLAIT_LSE_BASE_2},
};
static const plait_row_note native_notes[] = {
    {.mode = "decode", .source = "vLLM v1/attention/backends/flashinfer.py"},
    {.mode = "prefill",
     .source = "vLLM BatchDCPPrefillWrapper: context, then the newest keys",
     .windows = 1},
};

static const plait_caps xqa_rows[] = {
    {GQA_ROW(90, 90), .phases = PLAIT_PHASE_DECODE, .q_dtypes = HALF,
     .kv_dtypes = HALF | BIT(FP8_E4M3), DIMS(16, 256, 16), PAGES(16, 64, 16),
     .rows = PLAIT_ROWS_SINGLE, .lse = PLAIT_LSE_NONE},
    {GQA_ROW(120, 121), .phases = PLAIT_PHASE_DECODE, .q_dtypes = HALF,
     .kv_dtypes = HALF | BIT(FP8_E4M3), DIMS(16, 256, 16), PAGES(16, 64, 16),
     .rows = PLAIT_ROWS_RAGGED, .ranges = PLAIT_RANGES_END_ALIGNED, .lse = PLAIT_LSE_NONE},
};
static const plait_row_note xqa_notes[] = {
    {.mode = "sm90",
     .source = "vLLM FlashInferDecodeKernel.XQA: no LSE, one query token",
     .sinks = 1,
     .windows = 1},
    {.mode = "sm120",
     .source = "FlashInfer pull request 4137: ragged queries",
     .sinks = 1,
     .windows = 1},
};

static const plait_caps trtllm_rows[] = {
    {GQA_ROW(100, 103), .phases = PLAIT_PHASE_DECODE, .q_dtypes = HALF | BIT(FP8_E4M3),
     .kv_dtypes = HALF | BIT(FP8_E4M3), DIMS(64, 256, 64), PAGES(16, 1024, 16),
     .rows = PLAIT_ROWS_UNIFORM, .ranges = PLAIT_RANGES_END_ALIGNED, .lse = PLAIT_LSE_BASE_2},
    {GQA_ROW(100, 103), .phases = PLAIT_PHASE_PREFILL, .q_dtypes = HALF | BIT(FP8_E4M3),
     .kv_dtypes = HALF | BIT(FP8_E4M3), DIMS(64, 256, 64), PAGES(16, 1024, 16),
     .rows = PLAIT_ROWS_RAGGED, .ranges = PLAIT_RANGES_END_ALIGNED, .lse = PLAIT_LSE_NONE},
};
static const plait_row_note trtllm_notes[] = {
    {.mode = "decode",
     .source = "vLLM pull request 48180: LSE in log2, end-aligned mask",
     .sinks = 1,
     .windows = 1},
    {.mode = "prefill",
     .source = "vLLM utils/flashinfer.py: TRTLLM prefill does not support DCP",
     .sinks = 1,
     .windows = 1},
};

static const plait_caps tokenspeed_rows[] = {
    {MLA_ROW(100, 103), .q_dtypes = BIT(FP8_E4M3), .kv_dtypes = BIT(FP8_E4M3), PAGES(32, 64, 32),
     .rows = PLAIT_ROWS_UNIFORM, .ranges = PLAIT_RANGES_END_ALIGNED, .lse = PLAIT_LSE_NONE,
     .capture = 1},
    {MLA_ROW(100, 103), .q_dtypes = BIT(FP8_E4M3), .kv_dtypes = BIT(FP8_E4M3), PAGES(32, 64, 32),
     .rows = PLAIT_ROWS_UNIFORM, .ranges = PLAIT_RANGES_PER_ROW, .lse = PLAIT_LSE_BASE_2,
     .interleave_max = 1, .capture = 1},
};
static const plait_row_note tokenspeed_notes[] = {
    {.mode = "decode",
     .package = "tokenspeed-mla",
     .q_in_kv_dtype = 1,
     .heads_max = 128,
     .source = "vLLM mla/tokenspeed_mla.py"},
    /* 0.2.5 is the version whose source was read; the first one may be older. */
    {.mode = "decode with LSE",
     .package = "tokenspeed-mla",
     .since = "0.2.5",
     .q_in_kv_dtype = 1,
     .heads_max = 128,
     .source = "tokenspeed-mla 0.2.5 mla_decode_fp8.py; vLLM pull request 48180"},
};

static const plait_caps flashmla_rows[] = {
    {MLA_ROW(90, 103), .q_dtypes = HALF, .kv_dtypes = HALF, PAGES(64, 64, 64),
     .rows = PLAIT_ROWS_UNIFORM, .ranges = PLAIT_RANGES_END_ALIGNED, .lse = PLAIT_LSE_BASE_E,
     .capture = 1},
    {MLA_ROW(90, 103), .q_dtypes = BIT(FP8_E4M3), .kv_dtypes = BIT(FP8_E4M3), PAGES(64, 64, 64),
     .rows = PLAIT_ROWS_UNIFORM, .ranges = PLAIT_RANGES_END_ALIGNED, .lse = PLAIT_LSE_BASE_E,
     .capture = 1},
};
static const plait_row_note flashmla_notes[] = {
    {.mode = "decode", .source = "vLLM mla/flashmla.py: no arguments for context parallelism"},
    {.mode = "decode, fp8", .q_in_kv_dtype = 1, .source = "vLLM mla/flashmla.py"},
};

static const plait_caps flash_attn_rows[] = {
    {MLA_ROW(90, 90), .q_dtypes = HALF, .kv_dtypes = HALF, PAGES(16, 0, 16),
     .rows = PLAIT_ROWS_RAGGED, .ranges = PLAIT_RANGES_PER_ROW, .lse = PLAIT_LSE_BASE_E,
     .interleave_max = 1, .capture = 1},
};
static const plait_row_note flash_attn_notes[] = {
    {.mode = "decode", .source = "vLLM mla/flashattn_mla.py: cp_tot_seqused_k, interleave 1"},
};

static const plait_caps cutlass_rows[] = {
    {MLA_ROW(100, 103), .q_dtypes = HALF, .kv_dtypes = HALF, PAGES(128, 128, 128),
     .rows = PLAIT_ROWS_SINGLE, .lse = PLAIT_LSE_BASE_E, .capture = 1},
};
static const plait_row_note cutlass_notes[] = {
    {.mode = "decode", .heads_max = 128, .source = "vLLM mla/cutlass_mla.py: pads heads to 128"},
};

static const plait_caps triton_rows[] = {
    {MLA_ROW(70, 121), .q_dtypes = HALF, .kv_dtypes = HALF, PAGES(16, 0, 16),
     .rows = PLAIT_ROWS_SINGLE, .lse = PLAIT_LSE_BASE_E, .capture = 1},
};
static const plait_row_note triton_notes[] = {
    {.mode = "decode", .source = "vLLM mla/triton_mla.py"},
};

static const plait_caps flashinfer_mla_rows[] = {
    {MLA_ROW(100, 103), .q_dtypes = HALF, .kv_dtypes = HALF, PAGES(32, 64, 32),
     .rows = PLAIT_ROWS_UNIFORM, .ranges = PLAIT_RANGES_END_ALIGNED, .lse = PLAIT_LSE_BASE_2,
     .capture = 1},
    {MLA_ROW(100, 103), .q_dtypes = BIT(FP8_E4M3), .kv_dtypes = BIT(FP8_E4M3), PAGES(32, 64, 32),
     .rows = PLAIT_ROWS_UNIFORM, .ranges = PLAIT_RANGES_END_ALIGNED, .lse = PLAIT_LSE_BASE_2,
     .capture = 1},
    {MLA_ROW(100, 103), .q_dtypes = HALF, .kv_dtypes = HALF, PAGES(32, 64, 32),
     .rows = PLAIT_ROWS_UNIFORM, .ranges = PLAIT_RANGES_PER_ROW, .lse = PLAIT_LSE_BASE_E,
     .empty = PLAIT_EMPTY_EXACT, .interleave_max = 1, .capture = 1},
};
static const plait_row_note flashinfer_mla_notes[] = {
    {.mode = "trtllm-gen", .source = "vLLM mla/flashinfer_mla.py: LSE in log2"},
    {.mode = "trtllm-gen, fp8", .q_in_kv_dtype = 1, .source = "vLLM mla/flashinfer_mla.py"},
    {.mode = "cute-dsl", .source = "FlashInfer mla/_core.py enable_dcp: natural log, interleave 1"},
};

#define PROFILE(text, table, notes, factor)                                                        \
    {                                                                                              \
        .size = sizeof(plait_backend), .name = (text), .from = PLAIT_FROM_PROFILES,                \
        .rows = (table), .note = (notes), .n_rows = sizeof(table) / sizeof *(table),               \
        .cost = (factor), .cost_source = "estimate"                                                \
    }

static const plait_backend profiles[] = {
    PROFILE("flashinfer.native", native_rows, native_notes, 1.4),
    PROFILE("flashinfer.xqa", xqa_rows, xqa_notes, 1.2),
    PROFILE("flashinfer.trtllm_gen", trtllm_rows, trtllm_notes, 1.15),
    PROFILE("tokenspeed_mla", tokenspeed_rows, tokenspeed_notes, 1.15),
    PROFILE("flashmla", flashmla_rows, flashmla_notes, 1.3),
    PROFILE("flash_attn_mla", flash_attn_rows, flash_attn_notes, 1.25),
    PROFILE("cutlass_mla", cutlass_rows, cutlass_notes, 1.4),
    PROFILE("triton_mla", triton_rows, triton_notes, 2.5),
    PROFILE("flashinfer_mla", flashinfer_mla_rows, flashinfer_mla_notes, 1.2),
};

int32_t plait_profile_count(void)
{
    return sizeof profiles / sizeof *profiles;
}

const plait_backend *plait_profile_get(int32_t i)
{
    return i >= 0 && i < plait_profile_count() ? &profiles[i] : NULL;
}
