/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What: the products of mla_bf16_tmpl.h with VDPBF16PS, which multiplies pairs of bf16 values and
 *   adds them to floats.
 * Plan: scores in blocks of 8 keys x 32 lines or 16 keys x 16 lines, acc in blocks of 4 lines x 64
 *   columns: 16 sums in registers hide the latency of the dot, and at most 10 loads (17 in the
 * block of one group, where they limit) feed 16 dots.
 */
#ifndef PLAIT_KERNEL_DOT_AVX512BF16_H
#define PLAIT_KERNEL_DOT_AVX512BF16_H

#include "kernel/mla_bf16_tmpl.h"

static inline __m512bh broadcast_pair(const char *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* Scores of `keys` keys for `groups` groups, 16 sums in all, into s[group][key][16]. `ahead`: keys
   of which a chunk each is prefetched with each chunk that is computed. */
static inline __attribute__((always_inline)) void score_block(const int groups, const int keys,
                                                              const char *q, const char *k,
                                                              int32_t chunks, float *s,
                                                              const char *const *ahead)
{
    const size_t group_bytes = (size_t)line_bytes * lanes * (size_t)chunks;
    __m512 a[2][16];
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++)
#pragma GCC unroll 16
        for (int j = 0; j < keys; j++)
            a[g][j] = _mm512_setzero_ps();
    for (int32_t c = 0; c < chunks; c++, k += line_bytes * 16, q += line_bytes * lanes) {
        if (ahead)
            for (int j = 0; j < keys; j++)
                _mm_prefetch(ahead[j] + line_bytes * c, _MM_HINT_T1);
        for (int pair = 0; pair < 16; pair++) {
            __m512bh q0 = (__m512bh)_mm512_load_si512(q + line_bytes * pair), q1 = q0;
            if (groups == 2)
                q1 = (__m512bh)_mm512_load_si512(q + group_bytes + line_bytes * pair);
#pragma GCC unroll 16
            for (int j = 0; j < keys; j++) {
                const __m512bh w = broadcast_pair(k + line_bytes * j + 4 * pair);
                a[0][j] = _mm512_dpbf16_ps(a[0][j], q0, w);
                if (groups == 2)
                    a[1][j] = _mm512_dpbf16_ps(a[1][j], q1, w);
            }
        }
    }
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++)
#pragma GCC unroll 16
        for (int j = 0; j < keys; j++)
            _mm512_store_ps(s + (g * tile + j) * lanes, a[g][j]);
}

static void score(const struct scratch *x, int32_t group, int32_t groups, const char *const *ahead)
{
    const char *q = x->q + (size_t)line_bytes * lanes * (size_t)(group * x->chunks);
    for (int32_t c = 0; c < x->keys; c += 16) {
        const char *k = x->k + (size_t)line_bytes * (size_t)(c * x->chunks);
        float *s = x->s + c * lanes;
        const char *const *next = ahead ? ahead + c : NULL;
        if (groups == 1) {
            score_block(1, 16, q, k, x->chunks, s, next);
            continue;
        }
        score_block(2, 8, q, k, x->chunks, s, next);
        score_block(2, 8, q, k + line_bytes * 8, x->chunks, s + 8 * lanes, next ? next + 8 : NULL);
    }
}

/* acc[0..4)[0..64) += p[pair][0..4) times v. */
static void value_block(float *acc, int64_t stride, const char *p, const char *v, int32_t pairs)
{
    __m512 a[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            a[i][j] = _mm512_load_ps(acc + i * stride + 16 * j);
    for (int32_t c = 0; c < pairs; c++, v += line_bytes * 4, p += line_bytes) {
        const __m512bh v0 = (__m512bh)_mm512_load_si512(v);
        const __m512bh v1 = (__m512bh)_mm512_load_si512(v + line_bytes);
        const __m512bh v2 = (__m512bh)_mm512_load_si512(v + line_bytes * 2);
        const __m512bh v3 = (__m512bh)_mm512_load_si512(v + line_bytes * 3);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m512bh w = broadcast_pair(p + 4 * i);
            a[i][0] = _mm512_dpbf16_ps(a[i][0], v0, w);
            a[i][1] = _mm512_dpbf16_ps(a[i][1], v1, w);
            a[i][2] = _mm512_dpbf16_ps(a[i][2], v2, w);
            a[i][3] = _mm512_dpbf16_ps(a[i][3], v3, w);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            _mm512_store_ps(acc + i * stride + 16 * j, a[i][j]);
}

static void add_values(const struct scratch *x, int32_t at, int not_finite)
{
    const plait_mla_lines *l = x->lines;
    for (int32_t b = 0; b < x->blocks; b++) {
        const char *v = x->v + (size_t)line_bytes * (size_t)(b * (tile / 2) * 4);
        for (int32_t i = 0; i < l->n; i += 4) {
            const plait_mla_view view = x->view[i / lanes];
            if (view == PLAIT_MLA_FULL || (view == PLAIT_MLA_EDGE && !not_finite))
                value_block(x->acc + i * x->acc_stride + b * columns, x->acc_stride,
                            x->p + line_bytes * (i / lanes) * (tile / 2) + i % lanes * 4, v,
                            x->keys / 2);
        }
    }
    for (int32_t i = 0; i < l->n && not_finite; i += lanes)
        if (x->view[i / lanes] == PLAIT_MLA_EDGE)
            value_lines(x, i, i + lanes, at);
}

#endif
