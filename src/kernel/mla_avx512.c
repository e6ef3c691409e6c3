/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What: MLA decode and prefill for bf16, f16 and f32 in 512-bit vectors of float32.
 * Layout: one item's rows x heads are "lines", taken 64 at a time. A tile of 32 keys is converted
 *   to float32 once for all of them and serves as K and, in its first d_v columns, as V:
 *
 *       q [64][d]   tile [32][d]   p [64][32]   acc [64][d]      d = max(d_qk) rounded up to 64
 *
 * Plan: scores in blocks of 4 lines x 4 keys along d (16 sums, reduced by a transpose); then an
 *   online softmax per line; then acc in blocks of 4 lines x 64 columns over the tile's keys. The
 *   score block needs no transposed copy of K, so one tile serves both products. At d 576 the
 *   buffers take 360 KiB, which a second-level cache holds.
 * Precision: q is scaled by softmax_scale * log2(e) in float32; sums, softmax (base 2, a degree-7
 *   polynomial) and acc in float32; output rounded once.
 * Measured: one core of an AMD EPYC with 2 x 256-bit FMA, 1 MiB of second-level cache, 576/512,
 *   page 64, bf16, GMAC/s by lines x keys: 8 x 512 34, 8 x 4096 38, 32 x 4096 44, 128 x 4096 47;
 *   f32 lies within 15 %. The reference reaches 1.
 * Limits: fp8 is refused. NaN and garbage outside a line's range never enter: masked scores are
 *   replaced, and the value product of a line visits only the keys of its range.
 */
#include "kernel/kernel.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

enum { max_lines = 64, tile_keys = 32, columns = 64 };

/* A worker's buffers. Rows of d are padded with zeros to a multiple of 64. Lines are
   padded to a multiple of 4 with empty ones, whose q may be anything.
 */
struct scratch {
    float *q, *acc, *tile, *p;
    float top[max_lines], sum[max_lines];
    int32_t begin[max_lines], end[max_lines];
    int32_t n, padded, d;
};

static int32_t padded_d(const plait_attn_args *args)
{
    return (args->d_qk + columns - 1) / columns * columns;
}

static size_t scratch_floats(const plait_attn_args *args)
{
    return (size_t)padded_d(args) * (2 * max_lines + tile_keys) + (size_t)max_lines * tile_keys;
}

/* Elements [0, n) of a row from p on, as floats times scale, into dst[0, d) with zeros after n. */
static void convert_row(float *dst, int32_t d, const void *base, plait_dtype dtype, int64_t offset,
                        int32_t n, float scale)
{
    const char *p = (const char *)base + offset * (int64_t)plait_dtype_bytes(dtype);
    const __m512 factor = _mm512_set1_ps(scale);
    for (int32_t i = 0; i < d; i += 16) {
        int32_t left = n - i;
        __mmask16 m = left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
        __m512 x;
        if (dtype == PLAIT_F32) {
            x = _mm512_maskz_loadu_ps(m, p + (size_t)i * 4);
        } else {
            __m256i h = _mm256_maskz_loadu_epi16(m, p + (size_t)i * 2);
            x = dtype == PLAIT_F16
                    ? _mm512_cvtph_ps(h)
                    : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
        }
        /* A masked multiply: 0 * scale would be NaN for an infinite scale. */
        _mm512_storeu_ps(dst + i, _mm512_maskz_mul_ps(m, x, factor));
    }
}

/* 2^x for x <= 0 (NaN stays NaN): the Taylor series of 2^f to degree 7 for f in [-0.5, 0.5], whose
   remainder is below 1e-8, scaled by the integer part. */
static inline __m512 exp2_ps(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x); /* this order keeps a NaN */
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, n);
    __m512 y = _mm512_set1_ps(1.5252734e-5f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.5403530e-4f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.3333558e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.6181291e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.5504109e-2f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.4022651e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.9314718e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, n);
}

/* Sums of 4 vectors a line in one quarter: lane j of 128-bit lane k holds a part of sum j. */
static inline __m512 sum4(__m512 a, __m512 b, __m512 c, __m512 d)
{
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d lo = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    __m512d hi = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    return _mm512_add_ps(_mm512_castpd_ps(lo), _mm512_castpd_ps(hi));
}

/* The four 128-bit lanes added up. */
static inline __m128 fold(__m512 x)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

/* p[0..3][0..3] = q[0..3] . k[0..3], over d. */
static void score_block(const float *q, const float *k, float *p, int32_t d)
{
    __m512 s[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            s[i][j] = _mm512_setzero_ps();
    for (int32_t x = 0; x < d; x += 16) {
        __m512 k0 = _mm512_loadu_ps(k + x), k1 = _mm512_loadu_ps(k + d + x);
        __m512 k2 = _mm512_loadu_ps(k + 2 * (size_t)d + x);
        __m512 k3 = _mm512_loadu_ps(k + 3 * (size_t)d + x);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m512 qi = _mm512_loadu_ps(q + (size_t)i * (size_t)d + x);
            s[i][0] = _mm512_fmadd_ps(qi, k0, s[i][0]);
            s[i][1] = _mm512_fmadd_ps(qi, k1, s[i][1]);
            s[i][2] = _mm512_fmadd_ps(qi, k2, s[i][2]);
            s[i][3] = _mm512_fmadd_ps(qi, k3, s[i][3]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        _mm_storeu_ps(p + i * tile_keys, fold(sum4(s[i][0], s[i][1], s[i][2], s[i][3])));
}

/* acc[0..lines)[0..64) += p[0..lines)[lo..hi) times the tile; `lines` is a constant 1 or 4. */
static inline __attribute__((always_inline)) void value_block(const int lines, float *acc,
                                                              const float *p, const float *tile,
                                                              int32_t lo, int32_t hi, int32_t d)
{
    __m512 a[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < lines; i++)
        for (int j = 0; j < 4; j++)
            a[i][j] = _mm512_loadu_ps(acc + (size_t)i * (size_t)d + 16 * j);
    for (int32_t c = lo; c < hi; c++) {
        const float *v = tile + (size_t)c * (size_t)d;
        __m512 v0 = _mm512_loadu_ps(v), v1 = _mm512_loadu_ps(v + 16);
        __m512 v2 = _mm512_loadu_ps(v + 32), v3 = _mm512_loadu_ps(v + 48);
#pragma GCC unroll 4
        for (int i = 0; i < lines; i++) {
            __m512 w = _mm512_set1_ps(p[i * tile_keys + c]);
            a[i][0] = _mm512_fmadd_ps(w, v0, a[i][0]);
            a[i][1] = _mm512_fmadd_ps(w, v1, a[i][1]);
            a[i][2] = _mm512_fmadd_ps(w, v2, a[i][2]);
            a[i][3] = _mm512_fmadd_ps(w, v3, a[i][3]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < lines; i++)
        for (int j = 0; j < 4; j++)
            _mm512_storeu_ps(acc + (size_t)i * (size_t)d + 16 * j, a[i][j]);
}

/* The keys of line m within the tile at `first`, relative to it. */
static inline void line_range(const struct scratch *s, int32_t m, int32_t first, int32_t *lo,
                              int32_t *hi)
{
    *lo = s->begin[m] > first ? s->begin[m] - first : 0;
    *hi = s->end[m] < first + tile_keys ? s->end[m] - first : tile_keys;
}

/* Turns line m's scores of this tile into weights and scales down what it summed before. */
static void softmax_line(struct scratch *s, int32_t m, int32_t first)
{
    int32_t lo, hi;
    line_range(s, m, first, &lo, &hi);
    if (lo >= hi)
        return;
    float *p = s->p + m * tile_keys;
    uint32_t mask = (hi == 32 ? 0xffffffffu : (1u << hi) - 1) & ~((1u << lo) - 1);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 a = _mm512_mask_loadu_ps(none, (__mmask16)mask, p);
    __m512 b = _mm512_mask_loadu_ps(none, (__mmask16)(mask >> 16), p + 16);
    float peak = _mm512_reduce_max_ps(_mm512_max_ps(a, b));
    float top = s->top[m] > peak ? s->top[m] : peak;
    const __m512 shift = _mm512_set1_ps(top);
    a = _mm512_maskz_mov_ps((__mmask16)mask, exp2_ps(_mm512_sub_ps(a, shift)));
    b = _mm512_maskz_mov_ps((__mmask16)(mask >> 16), exp2_ps(_mm512_sub_ps(b, shift)));
    _mm512_storeu_ps(p, a);
    _mm512_storeu_ps(p + 16, b);
    if (top != s->top[m]) {
        float shrink = exp2f(s->top[m] - top);
        float *acc = s->acc + (size_t)m * (size_t)s->d;
        s->sum[m] *= shrink;
        for (int32_t i = 0; i < s->d; i += 16)
            _mm512_storeu_ps(acc + i,
                             _mm512_mul_ps(_mm512_loadu_ps(acc + i), _mm512_set1_ps(shrink)));
        s->top[m] = top;
    }
    s->sum[m] += _mm512_reduce_add_ps(_mm512_add_ps(a, b));
}

/* Adds the tile's values to the sums. Four lines with one range (heads of one row) go together. */
static void add_values(struct scratch *s, int32_t first, int32_t d_v)
{
    for (int32_t x = 0; x < d_v; x += columns)
        for (int32_t m = 0; m < s->padded; m += 4) {
            int32_t lo, hi, same = 1;
            line_range(s, m, first, &lo, &hi);
            for (int32_t i = 1; i < 4; i++)
                same &= s->begin[m + i] == s->begin[m] && s->end[m + i] == s->end[m];
            float *acc = s->acc + (size_t)m * (size_t)s->d + x;
            if (same) {
                if (lo < hi)
                    value_block(4, acc, s->p + m * tile_keys, s->tile + x, lo, hi, s->d);
                continue;
            }
            for (int32_t i = 0; i < 4; i++) {
                line_range(s, m + i, first, &lo, &hi);
                if (lo < hi)
                    value_block(1, acc + (size_t)i * (size_t)s->d, s->p + (m + i) * tile_keys,
                                s->tile + x, lo, hi, s->d);
            }
        }
}

/* Converts keys [begin, end) into the tile at key `at`. Its other rows keep what they hold: their
   scores are masked and their values are never visited. */
static void load_tile(const plait_attn_args *args, int32_t seq, int32_t at, int32_t begin,
                      int32_t end, struct scratch *s)
{
    for (int32_t c = begin; c < end; c++)
        convert_row(s->tile + (size_t)(c - at) * (size_t)s->d, s->d, args->k, args->kv_dtype,
                    plait_attn_key_offset(args, seq, c, args->k_page_stride, args->k_token_stride),
                    args->d_qk, plait_attn_scale(args->k_scale, args->k_scale_n, 0));
}

/* Prepares lines [first, first + n) of an item; returns the union of their ranges. */
static void load_lines(const plait_attn_args *args, const plait_attn_work *item, int64_t first,
                       struct scratch *s, int32_t *begin, int32_t *end)
{
    const float log2e = 1.44269504f;
    int32_t heads = item->head_end - item->head_begin;
    *begin = INT32_MAX;
    *end = 0;
    s->padded = (s->n + 3) / 4 * 4;
    for (int32_t m = 0; m < s->padded; m++) {
        s->top[m] = -INFINITY;
        s->sum[m] = 0;
        s->begin[m] = s->end[m] = 0;
        memset(s->acc + (size_t)m * (size_t)s->d, 0, sizeof(float) * (size_t)s->d);
        if (m >= s->n)
            continue;
        int32_t row = item->row_begin + (int32_t)((first + m) / heads);
        int32_t head = item->head_begin + (int32_t)((first + m) % heads);
        plait_attn_row_range(args, item, row, &s->begin[m], &s->end[m]);
        if (s->begin[m] >= s->end[m]) {
            s->begin[m] = s->end[m] = 0;
            continue;
        }
        *begin = s->begin[m] < *begin ? s->begin[m] : *begin;
        *end = s->end[m] > *end ? s->end[m] : *end;
        convert_row(s->q + (size_t)m * (size_t)s->d, s->d, args->q, args->q_dtype,
                    row * args->q_row_stride + head * args->q_head_stride, args->d_qk,
                    args->softmax_scale * log2e *
                        plait_attn_scale(args->q_scale, args->q_scale_n, head));
    }
}

static void write_lines(const plait_attn_args *args, const plait_attn_work *item, int64_t first,
                        struct scratch *s)
{
    const float ln2 = 0.693147181f;
    int32_t heads = item->head_end - item->head_begin;
    for (int32_t m = 0; m < s->n; m++) {
        float *acc = s->acc + (size_t)m * (size_t)s->d;
        float scale = args->out_scale / s->sum[m];
        int empty = s->begin[m] >= s->end[m];
        for (int32_t i = 0; i < args->d_v && !empty; i++)
            acc[i] *= scale;
        plait_attn_write(args, item, item->row_begin + (int32_t)((first + m) / heads),
                         item->head_begin + (int32_t)((first + m) % heads), empty ? NULL : acc,
                         (s->top[m] + log2f(s->sum[m])) * ln2);
    }
}

static void attend(const plait_attn_args *args, const plait_attn_work *item, int64_t first,
                   struct scratch *s)
{
    int32_t begin, end;
    load_lines(args, item, first, s, &begin, &end);
    /* Tiles lie at multiples of 32 keys, whatever the ranges, so that a row's bits do not depend
       on the rows beside it. */
    for (int32_t at = begin / tile_keys * tile_keys; begin < end && at < end; at += tile_keys) {
        int32_t stop = end - at < tile_keys ? end : at + tile_keys;
        load_tile(args, item->seq, at, begin > at ? begin : at, stop, s);
        for (int32_t m = 0; m < s->padded; m += 4)
            for (int32_t c = 0; c < stop - at; c += 4)
                score_block(s->q + (size_t)m * (size_t)s->d, s->tile + (size_t)c * (size_t)s->d,
                            s->p + m * tile_keys + c, s->d);
        for (int32_t m = 0; m < s->n; m++)
            softmax_line(s, m, at);
        add_values(s, at, args->d_v);
    }
    write_lines(args, item, first, s);
}

static plait_status run(const plait_attn_args *args, int32_t worker, int32_t n_workers)
{
    struct scratch s = {.d = padded_d(args)};
    s.q = (float *)((char *)args->workspace + plait_attn_partial_bytes(args)) +
          (size_t)worker * scratch_floats(args);
    s.acc = s.q + (size_t)max_lines * (size_t)s.d;
    s.tile = s.acc + (size_t)max_lines * (size_t)s.d;
    s.p = s.tile + (size_t)tile_keys * (size_t)s.d;
    for (int32_t i = worker; i < plait_attn_items(args); i += n_workers) {
        plait_attn_work item = plait_attn_item(args, i);
        int64_t lines =
            (int64_t)(item.row_end - item.row_begin) * (item.head_end - item.head_begin);
        for (int64_t first = 0; first < lines; first += max_lines) {
            s.n = lines - first < max_lines ? (int32_t)(lines - first) : max_lines;
            attend(args, &item, first, &s);
        }
    }
    plait_attn_write_padding(args, worker, n_workers);
    return PLAIT_OK;
}

static size_t workspace(const plait_attn_args *args, int32_t n_workers)
{
    return plait_attn_partial_bytes(args) +
           (size_t)n_workers * scratch_floats(args) * sizeof(float);
}

/* Multiply-adds in a microsecond on one core: see Measured. */
static double cost(const plait_attn_args *args, int32_t n_workers)
{
    return 1.0 + plait_attn_macs(args) / (45000.0 * n_workers);
}

#define DTYPES                                                                                     \
    (PLAIT_DTYPE_BIT(PLAIT_F32) | PLAIT_DTYPE_BIT(PLAIT_BF16) | PLAIT_DTYPE_BIT(PLAIT_F16))

static const plait_caps rows[] = {{
    .op = PLAIT_OP_MLA,
    .phases = PLAIT_PHASE_DECODE | PLAIT_PHASE_PREFILL,
    .device = PLAIT_DEVICE_CPU,
    .q_dtypes = DTYPES,
    .kv_dtypes = DTYPES,
    .out_dtypes = DTYPES | PLAIT_DTYPE_BIT(PLAIT_FP8_E4M3),
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

const plait_kernel plait_kernel_mla_avx512 = {
    .name = "mla_avx512",
    .op = PLAIT_OP_MLA,
    .needs = PLAIT_CPU_AVX512,
    .device = PLAIT_DEVICE_CPU,
    .rows = rows,
    .n_rows = 1,
    .cost = cost,
    .workspace = workspace,
    .run = run,
    .reduce = plait_attn_reduce_partials,
};
