/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/caps.h - what an attention kernel can do, as data.
 *
 * A kernel (or a kernel family from elsewhere) has one or more capability rows. It takes a batch if
 * one of its rows does. Selection compares what a batch needs with each row and keeps every
 * difference, so that a refusal can name all of its reasons.
 */
#ifndef PLAIT_CAPS_H
#define PLAIT_CAPS_H

#include <stddef.h>
#include <stdint.h>

#include <plait/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum plait_op {
    PLAIT_OP_MLA = 0, /* one latent "KV head"; v is the first d_v values of k */
    PLAIT_OP_GQA = 1  /* separate k and v, h_q a multiple of the KV heads (MHA, MQA included) */
} plait_op;

/* Phases, as bits. */
#define PLAIT_PHASE_DECODE  (1u << 0)
#define PLAIT_PHASE_PREFILL (1u << 1)

/* The devices a row is for. Versions are 10 * major + minor of the compute capability. */
typedef enum plait_device_kind {
    PLAIT_DEVICE_CPU = 0,
    PLAIT_DEVICE_CUDA = 1,
    PLAIT_DEVICE_ROCM = 2,
    PLAIT_DEVICE_NPU = 3
} plait_device_kind;

/* How many rows (query tokens) each sequence may have in one call. */
typedef enum plait_rows_mode {
    PLAIT_ROWS_SINGLE = 0,  /* one */
    PLAIT_ROWS_UNIFORM = 1, /* several, the same number for each sequence */
    PLAIT_ROWS_RAGGED = 2   /* any number, zero included, for each sequence */
} plait_rows_mode;

/* What a row may say about the keys it sees. */
typedef enum plait_ranges_mode {
    PLAIT_RANGES_NONE = 0,        /* all keys of the sequence, for every row */
    PLAIT_RANGES_END_ALIGNED = 1, /* causal, the last row sees the last key */
    PLAIT_RANGES_PER_ROW = 2      /* [kv_begin, kv_end) of its own for each row */
} plait_ranges_mode;

typedef enum plait_lse_mode {
    PLAIT_LSE_NONE = 0,
    PLAIT_LSE_BASE_E = 1,
    PLAIT_LSE_BASE_2 = 2
} plait_lse_mode;

/* What is written for a row without keys. */
typedef enum plait_empty_mode {
    PLAIT_EMPTY_UNDEFINED = 0,
    PLAIT_EMPTY_EXACT = 1 /* out 0 and lse -inf */
} plait_empty_mode;

/* The bit of a dtype in the masks below. */
#define PLAIT_DTYPE_BIT(dtype) (1u << (dtype))

/* One mode of a kernel. Ranges hold both ends; a maximum of 0 means no limit. */
typedef struct plait_caps {
    plait_op op;
    uint32_t phases;
    plait_device_kind device;
    int32_t device_min, device_max; /* device versions; ignored for the CPU */
    uint32_t q_dtypes, kv_dtypes;   /* every pair of one from each is taken */
    uint32_t out_dtypes;
    int32_t d_qk_min, d_qk_max, d_v_min, d_v_max;
    int32_t d_multiple; /* d_qk and d_v are multiples of this; >= 1 */
    int32_t page_min, page_max, page_multiple;
    plait_rows_mode rows;
    int32_t rows_max; /* rows of one sequence in one call */
    plait_ranges_mode ranges;
    plait_lse_mode lse;
    plait_empty_mode empty;
    int32_t interleave_max; /* largest DCP interleave; 0: any, since ranges say everything */
    int32_t capture;        /* 1: can be captured in a graph of device work */
    /* 1: the bits of a row and head depend on its own query, range and keys only, not on the rows
       and heads beside it, where an item is cut at multiples of 512 keys. */
    int32_t invariant;
} plait_caps;

#ifdef __cplusplus
}
#endif
#endif
