/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel/gqa_few_avx512bf16.h - GQA of up to 16 lines (heads of one KV head x rows), where the time
 *   is that of reading the cache.
 *
 * Layout: nothing of the cache is copied. q [line][chunk of 32 values]; per tile of 64 keys, scores
 *   s [line][64] and weights p [line][64] in bf16; acc as in mla_bf16_tmpl.h.
 * Plan: scores of 4 lines x 4 keys along d, 16 sums that a tree of shuffles reduces to one vector;
 *   acc in blocks of 4 lines x 64 columns, pairs of keys interleaved in registers. Both prefetch
 *   the next tile, across pages.
 * Precision: as in mla_bf16_tmpl.h. A line's bits depend on its own range and the number of lines
 *   alone, tiles lie at multiples of 64 keys.
 * Limits: in a tile that is not inside every range and holds values that are not finite, each line
 *   visits its own keys only.
 */
#ifndef PLAIT_KERNEL_GQA_FEW_AVX512BF16_H
#define PLAIT_KERNEL_GQA_FEW_AVX512BF16_H

#include "kernel/dot_avx512bf16.h"

enum { few = 16, few_tile = 64 };

/* a[4 * i + j], 16 lanes each, to the sums of a[4 * i + 0..4) in lanes 4 * i + 0..4. */
static inline __m512 few_sums(const __m512 a[16])
{
    __m512 t[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512 *b = a + 4 * i;
        const __m512d x = _mm512_castps_pd(
            _mm512_add_ps(_mm512_unpacklo_ps(b[0], b[1]), _mm512_unpackhi_ps(b[0], b[1])));
        const __m512d y = _mm512_castps_pd(
            _mm512_add_ps(_mm512_unpacklo_ps(b[2], b[3]), _mm512_unpackhi_ps(b[2], b[3])));
        t[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    const __m512 u = _mm512_add_ps(_mm512_shuffle_f32x4(t[0], t[1], 0x88),
                                   _mm512_shuffle_f32x4(t[0], t[1], 0xdd));
    const __m512 w = _mm512_add_ps(_mm512_shuffle_f32x4(t[2], t[3], 0x88),
                                   _mm512_shuffle_f32x4(t[2], t[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(u, w, 0x88), _mm512_shuffle_f32x4(u, w, 0xdd));
}

/* Scores of 4 lines and `keys` keys; with `whole`, d is a multiple of 32. */
static inline __attribute__((always_inline)) void few_scores(const int whole,
                                                             const struct scratch *x, int32_t line,
                                                             const char *const *row, int32_t d,
                                                             int32_t keys, const char *const *ahead)
{
    const int32_t chunks = (d + 31) / 32, stride = line_bytes * x->chunks;
    const char *q = x->q + line * stride;
    for (int32_t j = 0; j < keys; j += 4) {
        __m512 a[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            a[i] = _mm512_setzero_ps();
        for (int32_t c = 0; c < chunks; c++) {
            __m512bh k[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                k[i] = (__m512bh)(whole ? _mm512_loadu_si512(row[j + i] + line_bytes * c)
                                        : load_chunk(row[j + i], c, d));
                if (ahead)
                    _mm_prefetch(ahead[j + i] + line_bytes * c, _MM_HINT_T1);
            }
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                const __m512bh v = (__m512bh)_mm512_load_si512(q + i * stride + line_bytes * c);
                a[4 * i] = _mm512_dpbf16_ps(a[4 * i], v, k[0]);
                a[4 * i + 1] = _mm512_dpbf16_ps(a[4 * i + 1], v, k[1]);
                a[4 * i + 2] = _mm512_dpbf16_ps(a[4 * i + 2], v, k[2]);
                a[4 * i + 3] = _mm512_dpbf16_ps(a[4 * i + 3], v, k[3]);
            }
        }
        const __m512 sums = few_sums(a);
        float *s = x->s + line * few_tile + j;
        _mm_storeu_ps(s, _mm512_castps512_ps128(sums));
        _mm_storeu_ps(s + few_tile, _mm512_extractf32x4_ps(sums, 1));
        _mm_storeu_ps(s + 2 * few_tile, _mm512_extractf32x4_ps(sums, 2));
        _mm_storeu_ps(s + 3 * few_tile, _mm512_extractf32x4_ps(sums, 3));
    }
}

/* Turns a line's scores into weights. */
static void few_weigh(const struct scratch *x, int32_t line, int32_t at, int32_t keys)
{
    plait_mla_lines *l = x->lines;
    const float *s = x->s + line * few_tile;
    char *p = x->p + line * few_tile * 2;
    const __m512 scale = _mm512_set1_ps(l->scale[line]);
    int32_t lo, hi;
    plait_mla_line_keys(l, line, at, few_tile, &lo, &hi);
    __mmask16 in[4];
    __m512 y[4], peak = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    for (int32_t j = 0; 16 * j < keys; j++) {
        in[j] = (__mmask16)(plait_first16(hi - 16 * j) & ~plait_first16(lo - 16 * j));
        y[j] = _mm512_mul_ps(_mm512_load_ps(s + 16 * j), scale);
        peak = _mm512_mask_max_ps(peak, in[j], y[j], peak); /* NaN is left out */
    }
    const float high = _mm512_reduce_max_ps(peak);
    if (high > l->top[line] + 8) {
        const float shrink = exp2f(l->top[line] - high);
        float *acc = x->acc + line * x->acc_stride;
        l->top[line] = high;
        for (int64_t c = 0; c < x->acc_stride && l->sum[line] != 0; c += 16)
            _mm512_store_ps(acc + c,
                            _mm512_mul_ps(_mm512_load_ps(acc + c), _mm512_set1_ps(shrink)));
        l->sum[line] = l->sum[line] != 0 ? l->sum[line] * shrink : 0;
    }
    const __m512 top = _mm512_set1_ps(l->top[line] == -INFINITY ? 0 : l->top[line]);
    for (int32_t j = 0; 16 * j < keys; j += 2) {
        const __m512 w0 = _mm512_maskz_mov_ps(in[j], plait_exp2_16(_mm512_sub_ps(y[j], top)));
        const __m512 w1 =
            _mm512_maskz_mov_ps(in[j + 1], plait_exp2_16(_mm512_sub_ps(y[j + 1], top)));
        sum = _mm512_add_ps(sum, _mm512_add_ps(w0, w1));
        _mm512_store_si512(p + line_bytes * (j / 2), (__m512i)_mm512_cvtne2ps_pbh(w1, w0));
    }
    l->sum[line] += _mm512_reduce_add_ps(sum);
}

/* acc of 4 lines += weights times values; with `whole`, d is a multiple of 64. */
static inline __attribute__((always_inline)) void few_values(const int whole,
                                                             const struct scratch *x, int32_t line,
                                                             const char *const *row, int32_t d,
                                                             int32_t keys, const char *const *ahead)
{
    const char *p = x->p + line * few_tile * 2;
    for (int32_t b = 0; b < x->blocks; b++) {
        float *acc = x->acc + line * x->acc_stride + b * columns;
        __m512 a[4][4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                a[i][j] = _mm512_load_ps(acc + i * x->acc_stride + 16 * j);
        for (int32_t c = 0; c < keys; c += 2) {
            const char *r0 = row[c] + 2 * line_bytes * b, *r1 = row[c + 1] + 2 * line_bytes * b;
            __m512bh v[4];
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++) {
                const __m512i e = whole ? _mm512_loadu_si512(r0 + line_bytes * j)
                                        : load_chunk(row[c], 2 * b + j, d);
                const __m512i o = whole ? _mm512_loadu_si512(r1 + line_bytes * j)
                                        : load_chunk(row[c + 1], 2 * b + j, d);
                v[2 * j] = (__m512bh)_mm512_unpacklo_epi16(e, o);
                v[2 * j + 1] = (__m512bh)_mm512_unpackhi_epi16(e, o);
                if (ahead) {
                    _mm_prefetch(ahead[c] + line_bytes * (2 * b + j), _MM_HINT_T1);
                    _mm_prefetch(ahead[c + 1] + line_bytes * (2 * b + j), _MM_HINT_T1);
                }
            }
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                const __m512bh w = broadcast_pair(p + i * few_tile * 2 + 2 * c);
                a[i][0] = _mm512_dpbf16_ps(a[i][0], v[0], w);
                a[i][1] = _mm512_dpbf16_ps(a[i][1], v[1], w);
                a[i][2] = _mm512_dpbf16_ps(a[i][2], v[2], w);
                a[i][3] = _mm512_dpbf16_ps(a[i][3], v[3], w);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                _mm512_store_ps(acc + i * x->acc_stride + 16 * j, a[i][j]);
    }
}

/* The same for one line's own keys, one at a time. */
static void few_line_values(const struct scratch *x, int32_t line, const char *const *row,
                            int32_t d, int32_t at)
{
    const __m512i zero = _mm512_setzero_si512();
    int32_t lo, hi;
    plait_mla_line_keys(x->lines, line, at, few_tile, &lo, &hi);
    for (int32_t c = lo; c < hi; c++) {
        uint16_t weight;
        memcpy(&weight, x->p + line * few_tile * 2 + 2 * c, sizeof weight);
        const __m512bh w = (__m512bh)_mm512_set1_epi32(weight);
        float *acc = x->acc + line * x->acc_stride;
        for (int32_t j = 0; j < 2 * x->blocks; j++, acc += 32) {
            const __m512i v = load_chunk(row[c], j, d);
            const __m512bh low = (__m512bh)_mm512_unpacklo_epi16(v, zero);
            const __m512bh high = (__m512bh)_mm512_unpackhi_epi16(v, zero);
            _mm512_store_ps(acc, _mm512_dpbf16_ps(_mm512_load_ps(acc), low, w));
            _mm512_store_ps(acc + 16, _mm512_dpbf16_ps(_mm512_load_ps(acc + 16), high, w));
        }
    }
}

/* Whether the tile's values hold infinities or NaN. */
static int few_not_finite(const struct scratch *x, const char *const *row, int32_t d, int32_t keys)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 found = 0;
    for (int32_t c = 0; c < keys; c++)
        for (int32_t j = 0; j < 2 * x->blocks; j++) {
            const __m512i v = _mm512_and_si512(load_chunk(row[c], j, d), exponent);
            found |= _mm512_cmpeq_epi16_mask(v, exponent);
        }
    return found != 0;
}

static void few_tile_attend(const struct scratch *x, const plait_attn_args *args, int32_t at,
                            int now, int more)
{
    const plait_mla_lines *l = x->lines;
    const char *const *k = x->row[now], *const *v = x->value[now];
    const int edge = plait_mla_lines_view(l, 0, l->n, at, few_tile) != PLAIT_MLA_FULL;
    for (int32_t i = 0; i < l->n; i += 4) {
        const char *const *ahead = more && i == 0 ? x->row[!now] : NULL;
        if (args->d_qk % 32 == 0)
            few_scores(1, x, i, k, args->d_qk, x->keys, ahead);
        else
            few_scores(0, x, i, k, args->d_qk, x->keys, ahead);
    }
    for (int32_t i = 0; i < l->n; i++)
        few_weigh(x, i, at, x->keys);
    if (edge && few_not_finite(x, v, args->d_v, x->keys)) {
        for (int32_t i = 0; i < l->n; i++)
            few_line_values(x, i, v, args->d_v, at);
        return;
    }
    for (int32_t i = 0; i < l->n; i += 4) {
        const char *const *ahead = more && i == 0 ? x->value[!now] : NULL;
        if (args->d_v % columns == 0)
            few_values(1, x, i, v, args->d_v, x->keys, ahead);
        else
            few_values(0, x, i, v, args->d_v, x->keys, NULL);
    }
}

/* q as it lies, zeros past d_qk and for lines that are empty or none. */
static void few_load_q(const struct scratch *x, const plait_attn_args *args,
                       const plait_attn_work *item, int64_t first)
{
    const plait_mla_lines *l = x->lines;
    for (int32_t i = 0; i < few; i++) {
        const int some = i < l->n && l->begin[i] < l->end[i];
        const uint16_t *q = args->q;
        if (some)
            q += plait_mla_row(item, first + i) * args->q_row_stride +
                 plait_mla_head(item, first + i) * args->q_head_stride;
        for (int32_t c = 0; c < x->chunks; c++)
            _mm512_store_si512(x->q + (size_t)line_bytes * (size_t)(i * x->chunks + c),
                               some ? load_chunk((const char *)q, c, args->d_qk)
                                    : _mm512_setzero_si512());
    }
}

static void few_rows(struct scratch *x, const plait_attn_args *args, const plait_attn_work *item,
                     int32_t kv_head, int32_t at, int slot)
{
    const int32_t begin = x->lines->kv_begin, end = x->lines->kv_end;
    plait_mla_key_rows(args, item->seq, kv_head, at, few_tile, begin, end, x->row[slot]);
    plait_mla_value_rows(args, item->seq, kv_head, at, few_tile, begin, end, x->value[slot]);
}

static void attend_few(const plait_attn_args *args, const plait_attn_work *item, int64_t first,
                       void *scratch)
{
    struct scratch *x = scratch;
    plait_mla_lines *l = x->lines;
    if (plait_mla_count(item) > few) {
        attend(args, item, first, scratch);
        return;
    }
    const int32_t kv_head = plait_attn_kv_head(args, item->head_begin);
    plait_mla_lines_open(l, args, item, first, lanes);
    const int32_t begin = l->kv_begin, end = l->kv_end, start = begin / few_tile * few_tile;
    if (begin < end) {
        few_load_q(x, args, item, first);
        memset(x->acc, 0, sizeof(float) * (size_t)(few * x->acc_stride));
        memset(x->p, 0, few * few_tile * 2);
        few_rows(x, args, item, kv_head, start, 0);
    }
    int now = 0;
    for (int32_t at = start; begin < end && at < end; at += few_tile, now = !now) {
        const int more = end - at > few_tile;
        if (more)
            few_rows(x, args, item, kv_head, at + few_tile, !now);
        x->keys = more ? few_tile : (end - at + 31) / 32 * 32;
        few_tile_attend(x, args, at, now, more);
    }
    write_lines(x, args, item, first, kv_head);
}

#endif
