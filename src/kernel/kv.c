/* SPDX-License-Identifier: Apache-2.0 */
/* Rows into and out of a paged cache: checks, and the walk over slots and heads. */
#include <plait/kv.h>

#include <inttypes.h>
#include <string.h>

#include "core/status.h"
#include "kernel/routine.h"

enum { ds_latent = 512, ds_rope = 64, ds_rope_at = 528 };

/* The cache of one tensor; strides in bytes. */
struct cache {
    unsigned char *base;
    int64_t page_stride, token_stride, head_stride;
    int32_t page_size, scale_n;
    const float *scale;
};

static const float *scale_of(const struct cache *c, int32_t head)
{
    return c->scale_n == 0 ? NULL : c->scale + (c->scale_n == 1 ? 0 : head);
}

static unsigned char *at(const struct cache *c, int64_t slot, int32_t head)
{
    return c->base + slot / c->page_size * c->page_stride + slot % c->page_size * c->token_stride +
           head * c->head_stride;
}

static int is_value(plait_dtype dtype)
{
    return dtype == PLAIT_F32 || dtype == PLAIT_BF16 || dtype == PLAIT_F16;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static plait_status check_slots(const char *what, const int64_t *slot, int32_t num_rows,
                                int32_t page_size, int32_t num_pages)
{
    const int64_t most = num_pages ? (int64_t)num_pages * page_size : INT64_MAX;
    if (num_rows < 0 || page_size < 1 || num_pages < 0 || (num_rows > 0 && !slot))
        return plait_fail(PLAIT_E_ARG,
                          "%s: %d rows%s, page_size %d, num_pages %d; wanted rows >= 0 with slots, "
                          "page_size >= 1, num_pages >= 0",
                          what, num_rows, slot ? "" : " without slots", page_size, num_pages);
    for (int32_t i = 0; i < num_rows; i++)
        if (slot[i] < -1 || slot[i] >= most)
            return plait_fail(PLAIT_E_ARG,
                              "%s: slot %" PRId64 " of row %d, wanted -1 or one of the %d pages of "
                              "%d tokens",
                              what, slot[i], i, num_pages, page_size);
    return PLAIT_OK;
}

static plait_status check_scale(const char *what, const char *name, const float *scale, int32_t n,
                                int32_t heads)
{
    if (n != 0 && n != 1 && n != heads)
        return plait_fail(PLAIT_E_ARG, "%s: %s_n is %d, wanted 0, 1 or %d", what, name, n, heads);
    if (n > 0 && !scale)
        return plait_fail(PLAIT_E_ARG, "%s: %s is NULL, but %s_n is %d", what, name, name, n);
    for (int32_t i = 0; i < n; i++)
        if (!(scale[i] > 0))
            return plait_fail(PLAIT_E_ARG, "%s: %s[%d] is %g, wanted more than 0", what, name, i,
                              (double)scale[i]);
    return PLAIT_OK;
}

static plait_status check_dims(const plait_kv_append_args *a)
{
    const int mla = a->op == PLAIT_OP_MLA, ds = a->kv_dtype == PLAIT_FP8_DS656;
    if (!mla && a->op != PLAIT_OP_GQA)
        return plait_fail(PLAIT_E_ARG, "append: op is %d, wanted MLA or GQA", (int)a->op);
    if (mla && (a->h_kv != 1 || a->d_qk < 1 || a->d_rope < 0 || a->d_rope >= a->d_qk || a->v ||
                a->v_cache || a->v_scale_n))
        return plait_fail(PLAIT_E_ARG,
                          "append: MLA with h_kv %d, d_qk %d, d_rope %d%s; wanted h_kv 1, "
                          "0 <= d_rope < d_qk, no v",
                          a->h_kv, a->d_qk, a->d_rope,
                          a->v || a->v_cache || a->v_scale_n ? " and a v" : "");
    if (!mla && (a->h_kv < 1 || a->d_qk < 1 || a->d_v < 1 || a->d_rope != 0))
        return plait_fail(PLAIT_E_ARG,
                          "append: GQA with h_kv %d, d_qk %d, d_v %d, d_rope %d; wanted all "
                          "positive, d_rope 0",
                          a->h_kv, a->d_qk, a->d_v, a->d_rope);
    if (ds && (!mla || a->d_qk != ds_latent + ds_rope || (a->d_rope && a->d_rope != ds_rope) ||
               a->k_scale_n))
        return plait_fail(PLAIT_E_ARG,
                          "append: fp8_ds656 with d_qk %d, d_rope %d, k_scale_n %d; wanted MLA, "
                          "576, 0 or 64, 0",
                          a->d_qk, a->d_rope, a->k_scale_n);
    return PLAIT_OK;
}

static plait_status check_append(const plait_kv_append_args *a)
{
    if (!a || a->size != sizeof *a)
        return plait_fail(PLAIT_E_ARG, "append: arguments of size %zu, wanted %zu", a ? a->size : 0,
                          sizeof *a);
    PLAIT_TRY(check_dims(a));
    if (!is_value(a->dtype) || !plait_dtype_bytes(a->kv_dtype))
        return plait_fail(PLAIT_E_ARG,
                          "append: values in %s for a cache in %s; wanted f32, bf16 "
                          "or f16 for a cache's type",
                          plait_dtype_name(a->dtype), plait_dtype_name(a->kv_dtype));
    PLAIT_TRY(check_scale("append", "k_scale", a->k_scale, a->k_scale_n, a->h_kv));
    PLAIT_TRY(check_scale("append", "v_scale", a->v_scale, a->v_scale_n, a->h_kv));
    PLAIT_TRY(check_slots("append", a->slot, a->num_rows, a->page_size, a->num_pages));
    if (a->num_rows > 0 && (!a->k || !a->k_cache || (a->d_rope && !a->rope) ||
                            (a->op == PLAIT_OP_GQA && (!a->v || !a->v_cache))))
        return plait_fail(PLAIT_E_ARG, "append: k, v, rope or a cache is NULL with %d rows",
                          a->num_rows);
    return PLAIT_OK;
}

static plait_status check_gather(const plait_kv_gather_args *a)
{
    if (!a || a->size != sizeof *a)
        return plait_fail(PLAIT_E_ARG, "gather: arguments of size %zu, wanted %zu", a ? a->size : 0,
                          sizeof *a);
    const int same = a->out_dtype == a->kv_dtype;
    if (!plait_dtype_bytes(a->kv_dtype) || (!same && !is_value(a->out_dtype)))
        return plait_fail(PLAIT_E_ARG,
                          "gather: a cache in %s to rows in %s; wanted f32, bf16, f16 or the "
                          "cache's type",
                          plait_dtype_name(a->kv_dtype), plait_dtype_name(a->out_dtype));
    if (a->h_kv < 1 || a->d < 1 ||
        (a->kv_dtype == PLAIT_FP8_DS656 && (a->h_kv != 1 || a->d != ds_latent + ds_rope)))
        return plait_fail(PLAIT_E_ARG, "gather: h_kv %d and d %d; wanted positive ones%s", a->h_kv,
                          a->d, a->kv_dtype == PLAIT_FP8_DS656 ? ": 1 and 576" : "");
    if (a->scale_n != 0 && (same || a->kv_dtype == PLAIT_FP8_DS656))
        return plait_fail(PLAIT_E_ARG, "gather: scale_n is %d, but %s takes no scale", a->scale_n,
                          same ? "a copy of bits" : "fp8_ds656");
    PLAIT_TRY(check_scale("gather", "scale", a->scale, a->scale_n, a->h_kv));
    PLAIT_TRY(check_slots("gather", a->slot, a->num_rows, a->page_size, a->num_pages));
    if (a->num_rows > 0 && (!a->cache || !a->out))
        return plait_fail(PLAIT_E_ARG, "gather: cache or out is NULL with %d rows", a->num_rows);
    return PLAIT_OK;
}

/* ---- append ---------------------------------------------------------------------------------- */

/* Latent and rope of an MLA row. */
static void append_mla(const plait_routine *r, const plait_kv_append_args *a, const struct cache *c,
                       int32_t row, int64_t slot)
{
    const int64_t bytes = (int64_t)plait_dtype_bytes(a->dtype);
    const int ds = a->kv_dtype == PLAIT_FP8_DS656;
    const int32_t d_rope = ds ? ds_rope : a->d_rope, latent = a->d_qk - d_rope;
    const unsigned char *from = (const unsigned char *)a->k + row * a->k_row_stride * bytes;
    const unsigned char *rope = from + latent * bytes;
    unsigned char *to = at(c, slot, 0);
    if (a->d_rope)
        rope = (const unsigned char *)a->rope + row * a->rope_row_stride * bytes;
    r->convert(to, a->kv_dtype, from, a->dtype, latent, scale_of(c, 0));
    if (ds)
        r->convert(to + ds_rope_at, PLAIT_BF16, rope, a->dtype, d_rope, NULL);
    else if (d_rope)
        r->convert(to + latent * (int64_t)plait_dtype_bytes(a->kv_dtype), a->kv_dtype, rope,
                   a->dtype, d_rope, scale_of(c, 0));
}

/* The heads of a row, from `from` on, d values each. */
static void append_heads(const plait_routine *r, const plait_kv_append_args *a,
                         const struct cache *c, const void *from, int64_t head_stride, int32_t d,
                         int64_t slot)
{
    const int64_t bytes = (int64_t)plait_dtype_bytes(a->dtype);
    for (int32_t h = 0; h < a->h_kv; h++)
        r->convert(at(c, slot, h), a->kv_dtype,
                   (const unsigned char *)from + h * head_stride * bytes, a->dtype, d,
                   scale_of(c, h));
}

plait_status plait_kv_append_with(const plait_routine *routine, const plait_kv_append_args *a)
{
    PLAIT_TRY(check_append(a));
    const int64_t from = (int64_t)plait_dtype_bytes(a->dtype);
    const int64_t to = (int64_t)plait_dtype_bytes(a->kv_dtype);
    const struct cache k = {a->k_cache,
                            a->k_page_stride * to,
                            a->k_token_stride * to,
                            a->k_head_cache_stride * to,
                            a->page_size,
                            a->k_scale_n,
                            a->k_scale};
    const struct cache v = {a->v_cache,
                            a->v_page_stride * to,
                            a->v_token_stride * to,
                            a->v_head_cache_stride * to,
                            a->page_size,
                            a->v_scale_n,
                            a->v_scale};
    for (int32_t row = 0; row < a->num_rows; row++) {
        const int64_t slot = a->slot[row];
        if (slot < 0)
            continue;
        if (a->op == PLAIT_OP_MLA) {
            append_mla(routine, a, &k, row, slot);
            continue;
        }
        append_heads(routine, a, &k, (const unsigned char *)a->k + row * a->k_row_stride * from,
                     a->k_head_stride, a->d_qk, slot);
        append_heads(routine, a, &v, (const unsigned char *)a->v + row * a->v_row_stride * from,
                     a->v_head_stride, a->d_v, slot);
    }
    return PLAIT_OK;
}

plait_status plait_kv_append(const plait_kv_append_args *args)
{
    return plait_kv_append_with(plait_routine_best(PLAIT_ROUTINE_APPEND), args);
}

/* ---- gather ---------------------------------------------------------------------------------- */

/* One head of one row. */
static void gather_head(const plait_routine *r, const plait_kv_gather_args *a,
                        const struct cache *c, unsigned char *to, int64_t slot, int32_t head)
{
    const unsigned char *from = at(c, slot, head);
    const int64_t bytes = (int64_t)plait_dtype_bytes(a->out_dtype);
    if (a->out_dtype == a->kv_dtype) {
        memcpy(to, from, (size_t)(a->kv_dtype == PLAIT_FP8_DS656 ? bytes : a->d * bytes));
    } else if (a->kv_dtype == PLAIT_FP8_DS656) {
        r->convert(to, a->out_dtype, from, PLAIT_FP8_DS656, ds_latent, NULL);
        r->convert(to + ds_latent * bytes, a->out_dtype, from + ds_rope_at, PLAIT_BF16, ds_rope,
                   NULL);
    } else {
        r->convert(to, a->out_dtype, from, a->kv_dtype, a->d, scale_of(c, head));
    }
}

plait_status plait_kv_gather_with(const plait_routine *routine, const plait_kv_gather_args *a)
{
    PLAIT_TRY(check_gather(a));
    const int64_t in = (int64_t)plait_dtype_bytes(a->kv_dtype);
    const int64_t out = (int64_t)plait_dtype_bytes(a->out_dtype);
    const struct cache c = {(unsigned char *)(uintptr_t)a->cache,
                            a->page_stride * in,
                            a->token_stride * in,
                            a->head_stride * in,
                            a->page_size,
                            a->scale_n,
                            a->scale};
    for (int32_t i = 0; i < a->num_rows; i++) {
        const int64_t row = a->out_row ? a->out_row[i] : i;
        for (int32_t h = 0; h < a->h_kv && a->slot[i] >= 0; h++)
            gather_head(routine, a, &c,
                        (unsigned char *)a->out + row * a->out_row_stride * out +
                            h * a->out_head_stride * out,
                        a->slot[i], h);
    }
    return PLAIT_OK;
}

plait_status plait_kv_gather(const plait_kv_gather_args *args)
{
    return plait_kv_gather_with(plait_routine_best(PLAIT_ROUTINE_GATHER), args);
}
