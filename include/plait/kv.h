/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/kv.h - rows of K and V into a paged cache, and out of it.
 *
 * A slot is page id * page_size + offset, as plait_plan_view.slot and plait_shard_slot give it. It
 * is -1 for a token that another rank holds: that row is skipped, nothing is read or written for
 * it. Cache strides are those of plait_attn_args, so that both calls are filled from one place.
 *
 *     append   code  = round(value / scale)     scale 1 where there is none
 *     gather   value = code * scale
 *
 * Division, product and rounding are single operations in float32, to nearest, ties to even:
 * bf16, f16   too large becomes infinity; subnormal numbers are kept
 * fp8         too large, infinity too, becomes 448 * scale
 * fp8_ds656   each 128 of the 512 latent values have the scale max |x| / 448, at least 2^-126,
 *             where NaN is left out and infinity counts as the largest float; the 64 rope values
 *             are rounded to bf16, so no scale of the latent reaches them
 * A NaN stays a NaN, in every type.
 *
 * Every variant gives the same bits, so the best that the processor has is used, and no call needs
 * an executor: to spread one over threads, call it on ranges of rows. Slots of one call should be
 * distinct; rows are written in order. Nothing here allocates. Thread-safe for distinct slots and
 * rows.
 */
#ifndef PLAIT_KV_H
#define PLAIT_KV_H

#include <stddef.h>
#include <stdint.h>

#include <plait/caps.h>
#include <plait/dtype.h>
#include <plait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * New rows for a cache. The caller owns everything; the library keeps no pointer. Strides count
 * elements (fp8_ds656: rows of 656 bytes); the innermost dimension is contiguous. Start from
 * PLAIT_KV_APPEND_ARGS_INIT.
 *
 *     MLA   a token's d_qk values: d_qk - d_rope of k (the latent), then d_rope of `rope`; h_kv 1,
 *           v and v_cache NULL. d_rope 0: all of them are in k.
 *     GQA   k [h_kv][d_qk] and v [h_kv][d_v]; d_rope 0.
 */
typedef struct plait_kv_append_args {
    size_t size; /* sizeof(plait_kv_append_args) */
    plait_op op;
    int32_t num_rows; /* >= 0 */
    int32_t h_kv, d_qk, d_v, d_rope;
    int32_t page_size;   /* tokens in a page, >= 1 */
    int32_t num_pages;   /* pages in the pool, to check slots against; 0: unknown */
    const int64_t *slot; /* [num_rows], or -1 */

    const void *k;     /* [num_rows][h_kv][d_qk]; MLA: [num_rows][d_qk - d_rope] */
    const void *v;     /* [num_rows][h_kv][d_v]; MLA: NULL */
    const void *rope;  /* [num_rows][d_rope]; NULL with d_rope 0 */
    plait_dtype dtype; /* of the three: f32, bf16 or f16 */
    int64_t k_row_stride, k_head_stride;
    int64_t v_row_stride, v_head_stride;
    int64_t rope_row_stride;

    void *k_cache, *v_cache; /* MLA: v_cache NULL */
    plait_dtype kv_dtype;    /* f32, bf16, f16, fp8; MLA with d_qk 576 and d_rope 0 or 64: ds656 */
    int64_t k_page_stride, k_token_stride, k_head_cache_stride;
    int64_t v_page_stride, v_token_stride, v_head_cache_stride;

    /* n = 0: 1.0; 1: one for the tensor; h_kv: one for each KV head. Positive. MLA has no v_scale,
       fp8_ds656 none at all. */
    const float *k_scale, *v_scale;
    int32_t k_scale_n, v_scale_n;
} plait_kv_append_args;

#define PLAIT_KV_APPEND_ARGS_INIT                                                                  \
    {                                                                                              \
        sizeof(plait_kv_append_args), PLAIT_OP_MLA, 0, 1, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL,   \
            PLAIT_F32, 0, 0, 0, 0, 0, NULL, NULL, PLAIT_F32, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, 0    \
    }

/*
 * Writes the rows to their slots. PLAIT_E_ARG names the field, or the row and its slot when that is
 * neither -1 nor in [0, num_pages * page_size); nothing is written then.
 */
PLAIT_API plait_status plait_kv_append(const plait_kv_append_args *args);

/*
 * Rows of one tensor of a cache, K or V. out_dtype is f32, bf16 or f16, or equal to kv_dtype: then
 * the stored bits are copied, which takes no scale (to send them to another rank, say).
 */
typedef struct plait_kv_gather_args {
    size_t size;      /* sizeof(plait_kv_gather_args) */
    int32_t num_rows; /* >= 0 */
    int32_t h_kv, d;  /* fp8_ds656: 1 and 576 */
    int32_t page_size, num_pages;
    const int64_t *slot; /* [num_rows], or -1: the row of out stays as it is */

    const void *cache;
    plait_dtype kv_dtype;
    int64_t page_stride, token_stride, head_stride;
    const float *scale; /* as k_scale */
    int32_t scale_n;

    void *out; /* [rows][h_kv][d]; bits of fp8_ds656: [rows] */
    plait_dtype out_dtype;
    int64_t out_row_stride, out_head_stride;
    const int64_t *out_row; /* [num_rows] the row of out that row i goes to, or NULL: row i */
} plait_kv_gather_args;

#define PLAIT_KV_GATHER_ARGS_INIT                                                                  \
    {                                                                                              \
        sizeof(plait_kv_gather_args), 0, 1, 0, 0, 0, NULL, NULL, PLAIT_F32, 0, 0, 0, NULL, 0,      \
            NULL, PLAIT_F32, 0, 0, NULL                                                            \
    }

/* Reads the rows at the slots. Errors as plait_kv_append. */
PLAIT_API plait_status plait_kv_gather(const plait_kv_gather_args *args);

#ifdef __cplusplus
}
#endif
#endif
