/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel/attn_avx2_tmpl.h - MLA and GQA for every cache type in 256-bit vectors of float32.
 * Layout: lines (rows x heads) go in groups of 8, one to a lane. Per block of up to 128 lines, and
 *   per tile of 32 keys, which is converted to float32 once for all lines and serves as K and, in
 *   its first d_v columns, as V (GQA: beside a tile v [32][d_v] of its own):
 *
 *       q [group][d][8 lines]   k [32][d]   p [group][32][8 lines]   acc [line][d]
 *
 * Plan: scores transposed, keys x lines, in blocks of 4 keys x 16 lines along d, so that the
 * softmax runs down the lanes; acc in blocks of 4 lines x 16 columns over the tile's keys: 8 sums
 * each, as many as hide the latency of the FMA. The top is raised, and acc scaled down, only when a
 * score exceeds it by 2^8. Precision: everything in float; cache values without k_scale, which
 * enters scores and output. Limits: NaN outside a line's range never enters: its scores are masked,
 * and where the ranges of 4 lines differ, each visits its own keys only.
 */
#ifndef PLAIT_KERNEL_ATTN_AVX2_TMPL_H
#define PLAIT_KERNEL_ATTN_AVX2_TMPL_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernel/mla_lines.h"

enum { lanes = 8, tile = 32, max_groups = PLAIT_MLA_LINES / lanes, columns = 16 };

struct scratch {
    int32_t d, d_v;                 /* d_qk, and of acc and v, rounded up to 16 */
    float *q, *k, *v, *s, *p, *acc; /* v NULL: part of k, MLA */
    plait_mla_lines *lines;
    const char *row[tile], *value[tile];
    const plait_attn_work *whole; /* the item that the lines are of */
};

static int32_t padded_d(const plait_attn_args *args)
{
    return (args->d_qk + columns - 1) / columns * columns;
}

static int32_t padded_d_v(const plait_attn_args *args)
{
    return (args->d_v + columns - 1) / columns * columns;
}

static size_t scratch_bytes(const plait_attn_args *args)
{
    const size_t floats = (size_t)(padded_d(args) + padded_d_v(args)) * (PLAIT_MLA_LINES + tile) +
                          2 * tile * lanes + (size_t)PLAIT_MLA_LINES * tile;
    return floats * sizeof(float) + (sizeof(plait_mla_lines) + 63) / 64 * 64;
}

static void scratch_open(struct scratch *x, const plait_attn_args *args, int32_t worker)
{
    x->d = padded_d(args);
    x->d_v = padded_d_v(args);
    x->q = (float *)(void *)((char *)args->workspace + plait_attn_partial_bytes(args) +
                             (size_t)worker * scratch_bytes(args));
    x->acc = x->q + (size_t)x->d * PLAIT_MLA_LINES;
    x->k = x->acc + (size_t)x->d_v * PLAIT_MLA_LINES;
    x->v = x->k + (size_t)x->d * tile;
    x->s = x->v + (size_t)x->d_v * tile;
    x->p = x->s + 2 * tile * lanes;
    x->lines = (void *)(x->p + (size_t)PLAIT_MLA_LINES * tile);
    if (args->op == PLAIT_OP_MLA)
        x->v = NULL;
}

/* ---- conversion ----------------------------------------------------------------------------- */

/* e4m3 has the mantissa and exponent bits of a float that is 2^120 times smaller. */
static inline __m256 e4m3_8(const char *p)
{
    const __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    const __m256i size = _mm256_and_si256(b, _mm256_set1_epi32(0x7f));
    const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(b, size), 24);
    const __m256 nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(size, _mm256_set1_epi32(0x7f)));
    const __m256 y =
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(size, 20)), _mm256_set1_ps(0x1p120f));
    return _mm256_or_ps(_mm256_or_ps(y, nan), _mm256_castsi256_ps(sign));
}

static inline __m256 load8(const char *p, plait_dtype dtype)
{
    if (dtype == PLAIT_F32)
        return _mm256_loadu_ps((const float *)(const void *)p);
    if (dtype == PLAIT_FP8_E4M3)
        return e4m3_8(p);
    const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (dtype == PLAIT_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* n values as floats, then zeros up to a multiple of 16. */
static inline __attribute__((always_inline)) void convert(float *to, const char *from,
                                                          plait_dtype dtype, int32_t n)
{
    const int32_t bytes = (int32_t)plait_dtype_bytes(dtype);
    char rest[32] = {0};
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, load8(from + i * bytes, dtype));
    if (i < n) {
        memcpy(rest, from + i * bytes, (size_t)((n - i) * bytes));
        _mm256_storeu_ps(to + i, load8(rest, dtype));
        i += 8;
    }
    for (; i % columns; i += 8)
        _mm256_storeu_ps(to + i, _mm256_setzero_ps());
}

/* 512 fp8 values, 4 float scales of 128 each, 64 bf16 values. */
static void convert_ds656(float *to, const char *from)
{
    for (int32_t i = 0; i < 512; i += 8) {
        float scale;
        memcpy(&scale, from + 512 + i / 128 * 4, sizeof scale);
        _mm256_storeu_ps(to + i, _mm256_mul_ps(e4m3_8(from + i), _mm256_set1_ps(scale)));
    }
    convert(to + 512, from + 528, PLAIT_BF16, 64);
}

static void convert_row(float *to, const char *from, plait_dtype dtype, int32_t n)
{
    switch (dtype) {
    case PLAIT_FP8_DS656:
        convert_ds656(to, from);
        break;
    case PLAIT_FP8_E4M3:
        convert(to, from, PLAIT_FP8_E4M3, n);
        break;
    case PLAIT_F16:
        convert(to, from, PLAIT_F16, n);
        break;
    case PLAIT_BF16:
        convert(to, from, PLAIT_BF16, n);
        break;
    default:
        convert(to, from, PLAIT_F32, n);
        break;
    }
}

/* q of the block's lines as [d][8 lines]; k serves as a buffer. */
static void pack_q(const struct scratch *x, const plait_attn_args *args,
                   const plait_attn_work *item, int64_t first)
{
    const plait_mla_lines *l = x->lines;
    for (int32_t i = 0; i < l->padded; i++) {
        float *to = x->q + (size_t)(i / lanes * lanes) * (size_t)x->d + i % lanes;
        memset(x->k, 0, sizeof(float) * (size_t)x->d);
        if (l->begin[i] < l->end[i]) {
            int64_t at = plait_mla_row(item, first + i) * args->q_row_stride +
                         plait_mla_head(item, first + i) * args->q_head_stride;
            at *= (int64_t)plait_dtype_bytes(args->q_dtype);
            convert_row(x->k, (const char *)args->q + at, args->q_dtype, args->d_qk);
        }
        for (int32_t d = 0; d < x->d; d++)
            to[d * lanes] = x->k[d];
    }
}

/* ---- scores --------------------------------------------------------------------------------- */

/* s[group][0..4)[8] += q of one or two groups . k of 4 keys, over n values of d. */
static inline __attribute__((always_inline)) void
score_block(const int groups, const float *q, const float *k, int32_t d, int32_t n, float *s)
{
    __m256 a[2][4];
    for (int g = 0; g < 2; g++)
        for (int j = 0; j < 4; j++)
            a[g][j] = _mm256_setzero_ps();
    for (int32_t i = 0; i < n; i++) {
        const __m256 q0 = _mm256_loadu_ps(q + i * lanes);
        const __m256 q1 = groups == 2 ? _mm256_loadu_ps(q + (i + d) * lanes) : q0;
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const __m256 w = _mm256_broadcast_ss(k + j * d + i);
            a[0][j] = _mm256_fmadd_ps(q0, w, a[0][j]);
            if (groups == 2)
                a[1][j] = _mm256_fmadd_ps(q1, w, a[1][j]);
        }
    }
    for (int g = 0; g < groups; g++)
        for (int j = 0; j < 4; j++) {
            float *to = s + (g * tile + j) * lanes;
            _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), a[g][j]));
        }
}

/* Scores of the tile for one or two groups. Sums of 32 products are added up, for one chain along d
   would lose more bits. */
static void score(const struct scratch *x, int32_t group, int32_t groups, int32_t keys)
{
    const float *q = x->q + (size_t)(group * lanes) * (size_t)x->d;
    memset(x->s, 0, sizeof(float) * 2 * tile * lanes);
    for (int32_t c = 0; c < keys; c += 4)
        for (int32_t i = 0; i < x->d; i += 32) {
            const float *k = x->k + (size_t)c * (size_t)x->d + i;
            const int32_t n = x->d - i < 32 ? x->d - i : 32;
            if (groups == 2)
                score_block(2, q + i * lanes, k, x->d, n, x->s + c * lanes);
            else
                score_block(1, q + i * lanes, k, x->d, n, x->s + c * lanes);
        }
}

/* ---- softmax -------------------------------------------------------------------------------- */

/* As plait_exp2_16, for x <= 127; 2^-126 below that. */
static inline __m256 exp2_8(__m256 x)
{
    x = _mm256_max_ps(_mm256_set1_ps(-126.0f), x); /* this order keeps a NaN */
    const __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 f = _mm256_sub_ps(x, n);
    const __m256i power =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    __m256 y = _mm256_set1_ps(0.00133813021f);
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(0.00966636837f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(0.0555038117f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(0.240223497f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(0.693147182f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(1.0f));
    return _mm256_mul_ps(y, _mm256_castsi256_ps(power));
}

static void raise_top(const struct scratch *x, int32_t line, float top)
{
    plait_mla_lines *l = x->lines;
    float *acc = x->acc + (size_t)line * (size_t)x->d_v;
    const float shrink = exp2f(l->top[line] - top);
    l->top[line] = top;
    if (l->sum[line] == 0) /* nothing was added so far */
        return;
    l->sum[line] *= shrink;
    for (int32_t i = 0; i < x->d_v; i++)
        acc[i] *= shrink;
}

/* Turns a group's scores into weights; keys outside a line's range get weight 0. */
static void weigh(const struct scratch *x, int32_t group, const float *s, int32_t at, int32_t keys)
{
    plait_mla_lines *l = x->lines;
    float *p = x->p + (size_t)(group * lanes) * tile, high[lanes];
    const __m256 scale = _mm256_loadu_ps(l->scale + group * lanes);
    const __m256i begin = _mm256_loadu_si256((const void *)(l->begin + group * lanes));
    const __m256i end = _mm256_loadu_si256((const void *)(l->end + group * lanes));
    const __m256 none = _mm256_set1_ps(-INFINITY);
    __m256 peak = none, in[tile];
    for (int32_t j = 0; j < keys; j++) {
        const __m256i c = _mm256_set1_epi32(at + j);
        const __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(begin, c),
                                            _mm256_cmpeq_epi32(_mm256_max_epi32(end, c), c));
        in[j] = _mm256_castsi256_ps(_mm256_xor_si256(out, _mm256_set1_epi32(-1)));
        const __m256 y = _mm256_mul_ps(_mm256_loadu_ps(s + j * lanes), scale);
        peak = _mm256_max_ps(_mm256_blendv_ps(none, y, in[j]), peak); /* NaN is left out */
    }
    _mm256_storeu_ps(high, peak);
    for (int32_t i = 0; i < lanes; i++)
        if (high[i] > l->top[group * lanes + i] + 8)
            raise_top(x, group * lanes + i, high[i]);
    __m256 top = _mm256_loadu_ps(l->top + group * lanes);
    top = _mm256_andnot_ps(_mm256_cmp_ps(top, none, _CMP_EQ_OQ), top);
    __m256 sum = _mm256_setzero_ps();
    for (int32_t j = 0; j < keys; j++) {
        __m256 w = exp2_8(_mm256_fmsub_ps(_mm256_loadu_ps(s + j * lanes), scale, top));
        w = _mm256_and_ps(w, in[j]);
        sum = _mm256_add_ps(sum, w);
        _mm256_storeu_ps(p + j * lanes, w);
    }
    float *sums = l->sum + group * lanes;
    _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_loadu_ps(sums), sum));
}

/* ---- values --------------------------------------------------------------------------------- */

/* acc[0..n)[0..16) += the weights p[lo..hi)[0..n) times v; n is a constant 1 or 4, d the stride of
   v, d_v that of acc. */
static inline __attribute__((always_inline)) void value_block(const int n, float *acc,
                                                              const float *p, const float *v,
                                                              int32_t lo, int32_t hi, int32_t d,
                                                              int32_t d_v)
{
    __m256 a[4][2];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < 2; j++)
            a[i][j] = _mm256_loadu_ps(acc + i * d_v + 8 * j);
    for (int32_t c = lo; c < hi; c++) {
        const __m256 v0 = _mm256_loadu_ps(v + c * d), v1 = _mm256_loadu_ps(v + c * d + 8);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            const __m256 w = _mm256_broadcast_ss(p + c * lanes + i);
            a[i][0] = _mm256_fmadd_ps(w, v0, a[i][0]);
            a[i][1] = _mm256_fmadd_ps(w, v1, a[i][1]);
        }
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < 2; j++)
            _mm256_storeu_ps(acc + i * d_v + 8 * j, a[i][j]);
}

static void add_values(const struct scratch *x, int32_t at, int32_t d_v)
{
    const plait_mla_lines *l = x->lines;
    const float *v = x->v ? x->v : x->k;
    const int32_t d = x->v ? x->d_v : x->d;
    for (int32_t m = 0; m < l->padded; m += 4) {
        const float *p = x->p + (size_t)(m / lanes * lanes) * tile + m % lanes;
        float *acc = x->acc + (size_t)m * (size_t)x->d_v;
        int32_t lo, hi, same = 1;
        for (int32_t i = 1; i < 4; i++)
            same &= l->begin[m + i] == l->begin[m] && l->end[m + i] == l->end[m];
        for (int32_t i = 0; i < (same ? 1 : 4); i++) {
            plait_mla_line_keys(l, m + i, at, tile, &lo, &hi);
            for (int32_t c = 0; c < d_v && lo < hi; c += columns) {
                if (same)
                    value_block(4, acc + c, p, v + c, lo, hi, d, x->d_v);
                else
                    value_block(1, acc + i * x->d_v + c, p + i, v + c, lo, hi, d, x->d_v);
            }
        }
    }
}

/* ---- blocks --------------------------------------------------------------------------------- */

static void attend_tile(struct scratch *x, const plait_attn_args *args, int32_t at)
{
    const plait_mla_lines *l = x->lines;
    const int32_t lo = l->kv_begin > at ? l->kv_begin - at : 0;
    const int32_t hi = l->kv_end - at < tile ? l->kv_end - at : tile;
    const int32_t keys = (hi + 3) / 4 * 4, groups = l->padded / lanes;
    /* Rows outside keep what they hold: their scores are masked, their values never visited. */
    for (int32_t c = lo; c < hi; c++)
        convert_row(x->k + (size_t)c * (size_t)x->d, x->row[c], args->kv_dtype, args->d_qk);
    for (int32_t c = lo; c < hi && x->v; c++)
        convert_row(x->v + (size_t)c * (size_t)x->d_v, x->value[c], args->kv_dtype, args->d_v);
    for (int32_t g = 0; g < groups; g += 2) {
        const int32_t n = g + 1 < groups ? 2 : 1;
        if (plait_mla_lines_view(l, g * lanes, n * lanes, at, tile) == PLAIT_MLA_NONE)
            continue;
        score(x, g, n, keys);
        for (int32_t i = 0; i < n; i++)
            weigh(x, g + i, x->s + i * tile * lanes, at, keys);
    }
    add_values(x, at, args->d_v);
}

static void attend(const plait_attn_args *args, const plait_attn_work *item, int64_t first,
                   void *scratch)
{
    struct scratch *x = scratch;
    plait_mla_lines *l = x->lines;
    const int32_t kv_head = plait_attn_kv_head(args, item->head_begin);
    const float v_scale = plait_mla_value_scale(args, kv_head);
    plait_mla_lines_open(l, args, item, first, lanes);
    const int32_t begin = l->kv_begin, end = l->kv_end;
    if (begin < end) {
        pack_q(x, args, item, first);
        memset(x->acc, 0, sizeof(float) * (size_t)(l->padded * x->d_v));
    }
    for (int32_t at = begin / tile * tile; begin < end && at < end; at += tile) {
        plait_mla_key_rows(args, item->seq, kv_head, at, tile, begin, end, x->row);
        if (x->v)
            plait_mla_value_rows(args, item->seq, kv_head, at, tile, begin, end, x->value);
        attend_tile(x, args, at);
    }
    for (int32_t i = 0; i < l->n; i++) {
        float *acc = x->acc + (size_t)i * (size_t)x->d_v;
        const float scale = args->out_scale * v_scale / l->sum[i];
        for (int32_t c = 0; c < args->d_v && l->begin[i] < l->end[i]; c++)
            acc[c] *= scale;
        plait_mla_line_write(l, args, x->whole, item, first, i, acc);
    }
}

static plait_status run(const plait_attn_args *args, int32_t worker, int32_t n_workers)
{
    struct scratch x;
    scratch_open(&x, args, worker);
    plait_mla_run(args, worker, n_workers, attend, &x, &x.whole);
    return PLAIT_OK;
}

static size_t workspace(const plait_attn_args *args, int32_t n_workers)
{
    return plait_attn_partial_bytes(args) + (size_t)n_workers * scratch_bytes(args);
}

/* Multiply-adds in a microsecond on one core: see Measured. */
static double cost(const plait_attn_args *args, int32_t n_workers)
{
    return 1.0 + plait_attn_macs(args) / (16000.0 * n_workers);
}

/* The including file defines AVX2_OP: PLAIT_OP_MLA or PLAIT_OP_GQA. */
#define DTYPES                                                                                     \
    (PLAIT_DTYPE_BIT(PLAIT_F32) | PLAIT_DTYPE_BIT(PLAIT_BF16) | PLAIT_DTYPE_BIT(PLAIT_F16) |       \
     PLAIT_DTYPE_BIT(PLAIT_FP8_E4M3))

static const plait_caps rows[] = {{
    .op = AVX2_OP,
    .phases = PLAIT_PHASE_DECODE | PLAIT_PHASE_PREFILL,
    .device = PLAIT_DEVICE_CPU,
    .q_dtypes = DTYPES,
    .kv_dtypes = DTYPES | (AVX2_OP == PLAIT_OP_MLA ? PLAIT_DTYPE_BIT(PLAIT_FP8_DS656) : 0),
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

#endif
