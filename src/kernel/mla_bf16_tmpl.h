/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel/mla_bf16_tmpl.h - MLA and GQA for bf16 queries and caches, but for their two products. For
 *   GQA a block holds rows x heads of one KV head, and v comes from rows of its own.
 *
 * Layout: lines (rows x heads) go in groups of 16, one to a lane. Per block of up to 128 lines, and
 *   per tile of 128 keys (a chunk is 32 values, 64 bytes):
 *
 *       q [group][pair of d][16 lines]          packed once for a block
 *       k [block of 16 keys][chunk][16][32]     a copy of the tile
 *       v [64 columns][pair of keys][4][16]     pairs of keys interleaved; columns in the order
 * that the unpack instructions leave within a chunk p [group][pair of keys][16 lines]       weights
 * as bf16 pairs acc [line][d_v]                         float, columns ordered as in v
 *
 * Plan: scores are transposed, keys x lines, so that the softmax runs down the lanes without
 *   reductions. The copy of K costs one load and one store for each 16 x lines products; in
 * exchange every address in the inner loops is a constant offset, and pages of any size, odd
 * strides, tails and page boundaries are dealt with in one place. The next tile's rows are
 * prefetched while the scores of this one are computed. The top is raised, and acc scaled down,
 * only when a score exceeds it by 2^8: weights keep their relative precision, and later tiles scale
 * almost never. Precision: scores and sums in float; weights rounded to bf16 for the product with
 * V, summed before rounding; q_scale, k_scale and softmax_scale enter the float scores. Limits: NaN
 * outside a line's range never enters: its scores are masked, and in a tile that is not inside
 * every range and holds values that are not finite, each line visits its own keys only.
 *
 * The including file defines the functions declared under "products", its descriptor, and before
 * the inclusion `invariant`, which plait_caps has.
 */
#ifndef PLAIT_KERNEL_MLA_BF16_TMPL_H
#define PLAIT_KERNEL_MLA_BF16_TMPL_H

#include <math.h>
#include <string.h>

#include "kernel/mla_lines.h"
#include "kernel/vec_avx512.h"

enum {
    lanes = 16,
    tile = 128, /* keys */
    max_groups = PLAIT_MLA_LINES / lanes,
    columns = 64,
    line_bytes = 64
};

/* A worker's buffers; q .. p in units of 64 bytes. */
struct scratch {
    int32_t chunks, blocks; /* chunks of d_qk, even; blocks of 64 columns of d_v */
    char *q, *k, *v, *p;
    float *s; /* [2 groups][tile][16] */
    float *acc;
    int64_t acc_stride;
    plait_mla_lines *lines;
    const char *row[2][tile];     /* addresses of this tile's keys and of the next one's */
    const char *value[2][tile];   /* GQA: of their values */
    const plait_attn_work *whole; /* the item that the lines are of */
    int32_t keys;                 /* of this tile that are computed, a multiple of 32 */
    plait_mla_view view[max_groups];
};

static int32_t chunks_of(const plait_attn_args *args)
{
    return (args->d_qk + columns - 1) / columns * 2;
}

static int32_t blocks_of(const plait_attn_args *args)
{
    return (args->d_v + columns - 1) / columns;
}

static size_t lines_bytes(void)
{
    return (sizeof(plait_mla_lines) + 63) / 64 * 64;
}

static size_t scratch_bytes(const plait_attn_args *args)
{
    const size_t chunks = (size_t)chunks_of(args), blocks = (size_t)blocks_of(args);
    const size_t q = PLAIT_MLA_LINES * chunks, k = tile * chunks, v = tile / 2 * blocks * 4;
    const size_t p = max_groups * (tile / 2), s = 2 * tile, acc = PLAIT_MLA_LINES * blocks * 4;
    return line_bytes * (q + k + v + p + s + acc) + lines_bytes();
}

static void scratch_open(struct scratch *x, const plait_attn_args *args, int32_t worker)
{
    char *at = (char *)args->workspace + plait_attn_partial_bytes(args) +
               (size_t)worker * scratch_bytes(args);
    x->chunks = chunks_of(args);
    x->blocks = blocks_of(args);
    x->acc_stride = (int64_t)x->blocks * columns;
    x->q = at;
    x->k = x->q + (size_t)line_bytes * PLAIT_MLA_LINES * (size_t)x->chunks;
    x->v = x->k + (size_t)line_bytes * tile * (size_t)x->chunks;
    x->p = x->v + (size_t)line_bytes * (tile / 2) * 4 * (size_t)x->blocks;
    x->s = (float *)(void *)(x->p + (size_t)line_bytes * max_groups * (tile / 2));
    x->acc = x->s + (size_t)2 * tile * lanes;
    x->lines = (void *)(x->acc + (size_t)PLAIT_MLA_LINES * (size_t)x->acc_stride);
}

/* ---- packing -------------------------------------------------------------------------------- */

/* q of 16 lines as [pair of d][16 lines]. */
static void pack_q(const struct scratch *x, const plait_attn_args *args,
                   const plait_attn_work *item, int64_t first, int32_t group)
{
    const plait_mla_lines *l = x->lines;
    char *to = x->q + (size_t)line_bytes * lanes * (size_t)(group * x->chunks);
    const uint16_t *from[lanes];
    for (int32_t i = 0; i < lanes; i++) {
        const int32_t line = group * lanes + i;
        from[i] = NULL;
        if (line < l->n && l->begin[line] < l->end[line])
            from[i] = (const uint16_t *)args->q +
                      plait_mla_row(item, first + line) * args->q_row_stride +
                      plait_mla_head(item, first + line) * args->q_head_stride;
    }
    for (int32_t c = 0; c < x->chunks; c++, to += line_bytes * lanes) {
        const __mmask32 in = plait_first32(args->d_qk - 32 * c);
        __m512i r[lanes];
        for (int32_t i = 0; i < lanes; i++)
            r[i] = from[i] && in ? _mm512_maskz_loadu_epi16(in, from[i] + 32 * c)
                                 : _mm512_setzero_si512();
        plait_transpose16(r);
        for (int32_t i = 0; i < lanes; i++)
            _mm512_store_si512(to + line_bytes * i, r[i]);
    }
}

/* Chunk c of a key, zeros past d_qk. */
static inline __m512i load_chunk(const char *row, int32_t c, int32_t d)
{
    if (d >= 32 * (c + 1))
        return _mm512_loadu_si512(row + line_bytes * c);
    return d > 32 * c ? _mm512_maskz_loadu_epi16(plait_first32(d - 32 * c), row + line_bytes * c)
                      : _mm512_setzero_si512();
}

/* Copies keys [lo, hi) of the tile to k and v. Of those outside, k keeps what it holds, for their
   scores are masked; v gets zeros, for their weights are 0. */
static void pack_tile(const struct scratch *x, const char *const *row, int32_t d, int mla,
                      int32_t lo, int32_t hi)
{
    const __m512i zero = _mm512_setzero_si512();
    for (int32_t i = 0; i < x->keys; i += 2) {
        const int in0 = i >= lo && i < hi, in1 = i + 1 >= lo && i + 1 < hi;
        char *k = x->k + (size_t)line_bytes * (size_t)(i / 16 * 16 * x->chunks + i % 16);
        char *v = x->v + (size_t)line_bytes * (size_t)(i / 2 * 4);
        for (int32_t c = 0; c < x->chunks; c++, k += line_bytes * 16) {
            const __m512i a = in0 ? load_chunk(row[i], c, d) : zero;
            const __m512i b = in1 ? load_chunk(row[i + 1], c, d) : zero;
            _mm512_store_si512(k, a);
            _mm512_store_si512(k + line_bytes, b);
            if (!mla || c >= 2 * x->blocks)
                continue;
            char *to = v + (size_t)line_bytes * (size_t)(c / 2 * (tile / 2) * 4 + c % 2 * 2);
            _mm512_store_si512(to, _mm512_unpacklo_epi16(a, b));
            _mm512_store_si512(to + line_bytes, _mm512_unpackhi_epi16(a, b));
        }
    }
}

/* The same for v where it is no part of k. */
static void pack_values(const struct scratch *x, const char *const *row, int32_t d, int32_t lo,
                        int32_t hi)
{
    for (int32_t i = 0; i < x->keys; i += 2) {
        const int in0 = i >= lo && i < hi, in1 = i + 1 >= lo && i + 1 < hi;
        char *v = x->v + (size_t)line_bytes * (size_t)(i / 2 * 4);
        for (int32_t c = 0; c < 2 * x->blocks; c++) {
            char *to = v + (size_t)line_bytes * (size_t)(c / 2 * (tile / 2) * 4 + c % 2 * 2);
            const __m512i a = in0 ? load_chunk(row[i], c, d) : _mm512_setzero_si512();
            const __m512i b = in1 ? load_chunk(row[i + 1], c, d) : _mm512_setzero_si512();
            _mm512_store_si512(to, _mm512_unpacklo_epi16(a, b));
            _mm512_store_si512(to + line_bytes, _mm512_unpackhi_epi16(a, b));
        }
    }
}

/* Whether v holds infinities or NaN. */
static int tile_not_finite(const struct scratch *x)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 found = 0;
    for (int32_t b = 0; b < x->blocks; b++)
        for (int32_t i = 0; i < x->keys / 2 * 4; i++) {
            __m512i v = _mm512_load_si512(x->v + line_bytes * (b * (tile / 2) * 4 + i));
            found |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(v, exponent), exponent);
        }
    return found != 0;
}

/* ---- products ------------------------------------------------------------------------------- */

/* Scores of the tile for one or two groups from `group` on, into s[group][key][16]. `ahead`: NULL,
   or the next tile's rows, to be prefetched meanwhile. */
static void score(const struct scratch *x, int32_t group, int32_t groups, const char *const *ahead);

/* Adds the tile's values to acc: value_line for lines whose group has PLAIT_MLA_EDGE if the values
   are not all finite, nothing for groups with PLAIT_MLA_NONE. */
static void add_values(const struct scratch *x, int32_t at, int not_finite);

/* ---- softmax -------------------------------------------------------------------------------- */

/* Raises the tops of a group's lanes in `up` to `top`, and scales down what they summed before. */
static void raise_tops(const struct scratch *x, int32_t group, __mmask16 up, __m512 top)
{
    plait_mla_lines *l = x->lines;
    float *tops = l->top + group * lanes, *sums = l->sum + group * lanes, shrink[lanes];
    const __m512 by = plait_exp2_16(_mm512_sub_ps(_mm512_loadu_ps(tops), top));
    _mm512_storeu_ps(shrink, by);
    _mm512_mask_storeu_ps(tops, up, top);
    for (int32_t i = 0; i < lanes; i++) {
        if (!(up >> i & 1) || sums[i] == 0) /* 0: nothing was added so far */
            continue;
        float *acc = x->acc + (group * lanes + i) * x->acc_stride;
        sums[i] *= shrink[i];
        for (int64_t c = 0; c < x->acc_stride; c += 16)
            _mm512_store_ps(acc + c,
                            _mm512_mul_ps(_mm512_load_ps(acc + c), _mm512_set1_ps(shrink[i])));
    }
}

/* Weights of a pair of keys as bf16 pairs. */
static inline void store_pair(char *p, __m512 even, __m512 odd)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm512_store_si512(p, _mm512_permutexvar_epi16(order, both));
}

/* Turns a group's scores into weights. With `edge`, keys outside a line's range get weight 0. */
static inline __attribute__((always_inline)) void weigh(const int edge, const struct scratch *x,
                                                        int32_t group, const float *s, int32_t at)
{
    plait_mla_lines *l = x->lines;
    char *p = x->p + (size_t)line_bytes * (size_t)(group * (tile / 2));
    const __m512 scale = _mm512_loadu_ps(l->scale + group * lanes);
    const __m512i begin = _mm512_loadu_si512(l->begin + group * lanes);
    const __m512i end = _mm512_loadu_si512(l->end + group * lanes);
    __mmask16 in[tile];
    __m512 peak[2] = {_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)};
    for (int32_t j = 0; j < x->keys; j++) {
        const __m512 y = _mm512_mul_ps(_mm512_load_ps(s + j * lanes), scale);
        in[j] = 0xffff;
        if (edge) {
            const __m512i c = _mm512_set1_epi32(at + j);
            in[j] = _mm512_cmple_epi32_mask(begin, c) & _mm512_cmplt_epi32_mask(c, end);
        }
        peak[j % 2] = _mm512_mask_max_ps(peak[j % 2], in[j], y, peak[j % 2]); /* NaN is left out */
    }
    const __m512 high = _mm512_max_ps(peak[0], peak[1]);
    __m512 top = _mm512_loadu_ps(l->top + group * lanes);
    const __mmask16 up =
        _mm512_cmp_ps_mask(high, _mm512_add_ps(top, _mm512_set1_ps(8.0f)), _CMP_GT_OQ);
    if (up) {
        raise_tops(x, group, up, high);
        top = _mm512_loadu_ps(l->top + group * lanes);
    }
    /* A lane that saw no score yet keeps -inf; its weights are masked or NaN anyway. */
    top = _mm512_mask_mov_ps(top, _mm512_cmp_ps_mask(top, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ),
                             _mm512_setzero_ps());
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int32_t j = 0; j < x->keys; j += 2) {
        __m512 w0 = plait_exp2_16(_mm512_fmsub_ps(_mm512_load_ps(s + j * lanes), scale, top));
        __m512 w1 = plait_exp2_16(_mm512_fmsub_ps(_mm512_load_ps(s + (j + 1) * lanes), scale, top));
        if (edge) {
            w0 = _mm512_maskz_mov_ps(in[j], w0);
            w1 = _mm512_maskz_mov_ps(in[j + 1], w1);
        }
        sum[0] = _mm512_add_ps(sum[0], w0);
        sum[1] = _mm512_add_ps(sum[1], w1);
        store_pair(p + line_bytes * (j / 2), w0, w1);
    }
    float *sums = l->sum + group * lanes;
    _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), _mm512_add_ps(sum[0], sum[1])));
}

/* ---- values --------------------------------------------------------------------------------- */

/* acc[0..64) += the weights p[pair] of one line times v, for its keys [lo, hi) only; half a pair at
   either end. */
static void value_line(float *acc, const int32_t *p, const char *v, int32_t lo, int32_t hi)
{
    for (int32_t c = lo / 2; c < (hi + 1) / 2; c++) {
        uint32_t keep = 0xffffffffu;
        keep &= 2 * c < lo ? 0xffff0000u : 0xffffffffu;
        keep &= 2 * c + 1 >= hi ? 0x0000ffffu : 0xffffffffu;
        const __m512bh w = (__m512bh)_mm512_set1_epi32(p[c]);
        for (int j = 0; j < 4; j++) {
            __m512i pair = _mm512_load_si512(v + line_bytes * (4 * c + j));
            pair = _mm512_and_si512(pair, _mm512_set1_epi32((int32_t)keep));
            __m512 sum = _mm512_load_ps(acc + 16 * j);
            _mm512_store_ps(acc + 16 * j, _mm512_dpbf16_ps(sum, (__m512bh)pair, w));
        }
    }
}

/* value_line for lines [from, to) of a group and all columns. */
static void value_lines(const struct scratch *x, int32_t from, int32_t to, int32_t at)
{
    int32_t lo, hi, p[tile / 2];
    for (int32_t i = from; i < to && i < x->lines->n; i++) {
        const char *weights = x->p + line_bytes * (i / lanes) * (tile / 2) + i % lanes * 4;
        for (int32_t c = 0; c < x->keys / 2; c++)
            memcpy(&p[c], weights + line_bytes * c, sizeof *p);
        plait_mla_line_keys(x->lines, i, at, tile, &lo, &hi);
        for (int32_t b = 0; b < x->blocks && lo < hi; b++)
            value_line(x->acc + i * x->acc_stride + b * columns, p,
                       x->v + line_bytes * b * (tile / 2) * 4, lo, hi);
    }
}

/* Divides by the sum and puts the columns of each chunk into their order. */
static void finish_line(float *acc, int64_t n, float scale)
{
    const __m512i low = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t c = 0; c < n; c += 32) {
        const __m512 a = _mm512_mul_ps(_mm512_load_ps(acc + c), _mm512_set1_ps(scale));
        const __m512 b = _mm512_mul_ps(_mm512_load_ps(acc + c + 16), _mm512_set1_ps(scale));
        _mm512_store_ps(acc + c, _mm512_permutex2var_ps(a, low, b));
        _mm512_store_ps(acc + c + 16, _mm512_permutex2var_ps(a, high, b));
    }
}

/* ---- blocks --------------------------------------------------------------------------------- */

static void attend_tile(struct scratch *x, int32_t at, const char *const *ahead)
{
    const plait_mla_lines *l = x->lines;
    const int32_t groups = l->padded / lanes;
    int edge = 0;
    for (int32_t g = 0; g < groups; g++) {
        x->view[g] = plait_mla_lines_view(l, g * lanes, lanes, at, tile);
        edge |= x->view[g] != PLAIT_MLA_FULL;
    }
    for (int32_t g = 0; g < groups; g += 2) {
        const int32_t n = g + 1 < groups ? 2 : 1;
        if (x->view[g] == PLAIT_MLA_NONE && (n == 1 || x->view[g + 1] == PLAIT_MLA_NONE) && g > 0)
            continue; /* the first groups' scores are what the next tile is prefetched with */
        score(x, g, n, g == 0 ? ahead : NULL);
        for (int32_t i = 0; i < n; i++) {
            if (x->view[g + i] == PLAIT_MLA_FULL)
                weigh(0, x, g + i, x->s + i * tile * lanes, at);
            else if (x->view[g + i] == PLAIT_MLA_EDGE)
                weigh(1, x, g + i, x->s + i * tile * lanes, at);
        }
    }
    add_values(x, at, edge && tile_not_finite(x));
}

static void write_lines(const struct scratch *x, const plait_attn_args *args,
                        const plait_attn_work *item, int64_t first, int32_t kv_head)
{
    const plait_mla_lines *l = x->lines;
    for (int32_t i = 0; i < l->n; i++) {
        float *acc = x->acc + i * x->acc_stride;
        if (l->begin[i] < l->end[i])
            finish_line(acc, x->acc_stride,
                        args->out_scale / l->sum[i] * plait_mla_value_scale(args, kv_head));
        plait_mla_line_write(l, args, x->whole, item, first, i, acc);
    }
}

static void attend(const plait_attn_args *args, const plait_attn_work *item, int64_t first,
                   void *scratch)
{
    struct scratch *x = scratch;
    plait_mla_lines *l = x->lines;
    const int mla = args->op == PLAIT_OP_MLA;
    const int32_t kv_head = plait_attn_kv_head(args, item->head_begin);
    plait_mla_lines_open(l, args, item, first, lanes);
    const int32_t begin = l->kv_begin, end = l->kv_end;
    if (begin < end) {
        for (int32_t g = 0; g < l->padded / lanes; g++)
            pack_q(x, args, item, first, g);
        memset(x->acc, 0, sizeof(float) * (size_t)(l->padded * x->acc_stride));
        plait_mla_key_rows(args, item->seq, kv_head, begin / tile * tile, tile, begin, end,
                           x->row[0]);
    }
    int32_t now = 0;
    for (int32_t at = begin / tile * tile; begin < end && at < end; at += tile, now = !now) {
        const int more = at + tile < end;
        if (more)
            plait_mla_key_rows(args, item->seq, kv_head, at + tile, tile, begin, end, x->row[!now]);
        const int32_t stop = end - at < tile ? end - at : tile;
        x->keys = (stop + 31) / 32 * 32;
        const int32_t lo = begin > at ? begin - at : 0;
        pack_tile(x, x->row[now], args->d_qk, mla, lo, stop);
        if (!mla) {
            plait_mla_value_rows(args, item->seq, kv_head, at, tile, begin, end, x->value[now]);
            pack_values(x, x->value[now], args->d_v, lo, stop);
        }
        attend_tile(x, at, more ? x->row[!now] : NULL);
    }
    write_lines(x, args, item, first, kv_head);
}

static size_t workspace(const plait_attn_args *args, int32_t n_workers)
{
    return plait_attn_partial_bytes(args) + (size_t)n_workers * scratch_bytes(args);
}

/* The including file says which: PLAIT_OP_MLA or PLAIT_OP_GQA. */
#ifndef BF16_OP
#define BF16_OP PLAIT_OP_MLA
#endif

static void run_blocks(const plait_attn_args *args, int32_t worker, int32_t n_workers,
                       plait_mla_block block, struct scratch *x)
{
    scratch_open(x, args, worker);
    plait_mla_run(args, worker, n_workers, block, x, &x->whole);
}

static const plait_caps rows[] = {{
    .op = BF16_OP,
    .phases = PLAIT_PHASE_DECODE | PLAIT_PHASE_PREFILL,
    .device = PLAIT_DEVICE_CPU,
    .q_dtypes = PLAIT_DTYPE_BIT(PLAIT_BF16),
    .kv_dtypes = PLAIT_DTYPE_BIT(PLAIT_BF16),
    .out_dtypes = PLAIT_DTYPE_BIT(PLAIT_F32) | PLAIT_DTYPE_BIT(PLAIT_BF16) |
                  PLAIT_DTYPE_BIT(PLAIT_F16) | PLAIT_DTYPE_BIT(PLAIT_FP8_E4M3),
    .d_qk_min = 1,
    .d_v_min = 1,
    .d_multiple = 1,
    .page_min = 1,
    .page_multiple = 1,
    .rows = PLAIT_ROWS_RAGGED,
    .ranges = PLAIT_RANGES_PER_ROW,
    .lse = PLAIT_LSE_BASE_E,
    .empty = PLAIT_EMPTY_EXACT,
    .invariant = invariant,
}};

#endif
