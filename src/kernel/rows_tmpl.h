/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel/rows_tmpl.h - the inner loops of merge, append and gather on `lanes` values at a time.
 * Included once by <op>_<isa>.c, after lanes_<isa>.h. Rows have any length and alignment: the last
 * values pass through a buffer, so nothing beyond a row is read or written.
 */
#include <float.h>
#include <string.h>

#include "kernel/routine.h"

/* Bytes of n values; of the 656-byte layout, of its codes. Known to the compiler, unlike
   plait_dtype_bytes, which would be called for each vector. */
static inline size_t rows_bytes(plait_dtype dtype, int32_t n)
{
    return (size_t)n * (dtype == PLAIT_F32 ? 4 : dtype == PLAIT_BF16 || dtype == PLAIT_F16 ? 2 : 1);
}

/* The n <= n_lanes values at p, and zeros. */
static inline lanes rows_load(const void *p, plait_dtype dtype, int32_t n)
{
    char buffer[4 * n_lanes] = {0};
    if (n == n_lanes)
        return lanes_load(p, dtype);
    memcpy(buffer, p, rows_bytes(dtype, n));
    return lanes_load(buffer, dtype);
}

static inline void rows_store(void *p, plait_dtype dtype, int32_t n, lanes x)
{
    char buffer[4 * n_lanes];
    if (n == n_lanes) {
        lanes_store(p, dtype, x);
        return;
    }
    lanes_store(buffer, dtype, x);
    memcpy(p, buffer, rows_bytes(dtype, n));
}

static inline int32_t rows_take(int32_t left)
{
    return left < n_lanes ? left : n_lanes;
}

/* Loops are compiled for each type, so that no value asks for its own. */
#define ROWS_INLINE static inline __attribute__((always_inline))

#define ROWS_AT(base, dtype, i)       ((char *)(base) + rows_bytes(dtype, i))
#define ROWS_AT_CONST(base, dtype, i) ((const char *)(base) + rows_bytes(dtype, i))

#if defined(ROWS_MERGE)

/* Bytes between what is read and what is fetched: the heads of a state mostly lie one after
   another. */
enum { rows_ahead = 4096 };

/* Sums of several vectors at once, so that the chain of additions is not what is waited for. `any`:
   each state has a type of its own, else all have `from`. */
ROWS_INLINE void merge_from(const int any, const plait_dtype from, const plait_merge_terms *t,
                            int32_t d_v, void *to, plait_dtype dtype)
{
    enum { wide = 8, block = wide * n_lanes };
    int32_t d = 0;
    for (; t->n > 0 && d + block <= d_v; d += block) {
        lanes sum[wide];
        for (int32_t i = 0; i < t->n; i++) {
            const plait_dtype type = any ? t->dtype[i] : from;
            const lanes weight = lanes_set(t->weight[i]);
#pragma GCC unroll 8
            for (int j = 0; j < wide; j++) {
                const void *p = ROWS_AT_CONST(t->out[i], type, d + j * n_lanes);
                const lanes x = lanes_mul(weight, lanes_load(p, type));
                __builtin_prefetch((const char *)p + rows_ahead);
                sum[j] = i == 0 ? x : lanes_add(sum[j], x);
            }
        }
        for (int j = 0; j < wide; j++)
            lanes_store(ROWS_AT(to, dtype, d + j * n_lanes), dtype, sum[j]);
    }
    for (; d < d_v; d += n_lanes) {
        const int32_t n = rows_take(d_v - d);
        lanes sum = lanes_set(0);
        for (int32_t i = 0; i < t->n; i++) {
            const void *p = ROWS_AT_CONST(t->out[i], t->dtype[i], d);
            const lanes x = lanes_mul(lanes_set(t->weight[i]), rows_load(p, t->dtype[i], n));
            sum = i == 0 ? x : lanes_add(sum, x);
        }
        rows_store(ROWS_AT(to, dtype, d), dtype, n, sum);
    }
}

static void merge(const plait_merge_terms *t, int32_t d_v, void *to, plait_dtype dtype)
{
    int all_f32 = 1, all_bf16 = 1;
    for (int32_t i = 0; i < t->n; i++) {
        all_f32 &= t->dtype[i] == PLAIT_F32;
        all_bf16 &= t->dtype[i] == PLAIT_BF16;
    }
    if (all_f32)
        merge_from(0, PLAIT_F32, t, d_v, to, dtype);
    else if (all_bf16)
        merge_from(0, PLAIT_BF16, t, d_v, to, dtype);
    else
        merge_from(1, PLAIT_F32, t, d_v, to, dtype);
}

#elif defined(ROWS_APPEND)

ROWS_INLINE void convert_ds656(unsigned char *to, const void *from, const plait_dtype dtype,
                               int32_t n)
{
    for (int32_t group = 0; group < n / 128; group++) {
        const int32_t first = 128 * group;
        lanes largest = lanes_set(0);
        for (int32_t i = first; i < first + 128; i += n_lanes)
            largest = lanes_raise(largest, lanes_load(ROWS_AT_CONST(from, dtype, i), dtype),
                                  lanes_set(FLT_MAX));
        float scale = lanes_largest(largest) / 448;
        scale = scale > FLT_MIN ? scale : FLT_MIN;
        for (int32_t i = first; i < first + 128; i += n_lanes)
            lanes_store(
                to + i, PLAIT_FP8_E4M3,
                lanes_div(lanes_load(ROWS_AT_CONST(from, dtype, i), dtype), lanes_set(scale)));
        memcpy(to + n + 4 * group, &scale, sizeof scale);
    }
}

ROWS_INLINE void convert_pair(void *to, const plait_dtype to_dtype, const void *from,
                              const plait_dtype from_dtype, int32_t n, const float *scale)
{
    const lanes divisor = lanes_set(scale ? *scale : 1);
    int32_t i = 0;
    for (; i + n_lanes <= n; i += n_lanes) {
        lanes x = lanes_load(ROWS_AT_CONST(from, from_dtype, i), from_dtype);
        x = scale ? lanes_div(x, divisor) : x;
        lanes_store(ROWS_AT(to, to_dtype, i), to_dtype, x);
    }
    if (i < n) {
        lanes x = rows_load(ROWS_AT_CONST(from, from_dtype, i), from_dtype, n - i);
        x = scale ? lanes_div(x, divisor) : x;
        rows_store(ROWS_AT(to, to_dtype, i), to_dtype, n - i, x);
    }
}

ROWS_INLINE void convert_from(void *to, plait_dtype to_dtype, const void *from,
                              const plait_dtype from_dtype, int32_t n, const float *scale)
{
    switch (to_dtype) {
    case PLAIT_FP8_DS656:
        convert_ds656(to, from, from_dtype, n);
        break;
    case PLAIT_FP8_E4M3:
        convert_pair(to, PLAIT_FP8_E4M3, from, from_dtype, n, scale);
        break;
    case PLAIT_F16:
        convert_pair(to, PLAIT_F16, from, from_dtype, n, scale);
        break;
    case PLAIT_BF16:
        convert_pair(to, PLAIT_BF16, from, from_dtype, n, scale);
        break;
    default:
        convert_pair(to, PLAIT_F32, from, from_dtype, n, scale);
        break;
    }
}

static void convert(void *to, plait_dtype to_dtype, const void *from, plait_dtype from_dtype,
                    int32_t n, const float *scale)
{
    switch (from_dtype) {
    case PLAIT_F16:
        convert_from(to, to_dtype, from, PLAIT_F16, n, scale);
        break;
    case PLAIT_BF16:
        convert_from(to, to_dtype, from, PLAIT_BF16, n, scale);
        break;
    default:
        convert_from(to, to_dtype, from, PLAIT_F32, n, scale);
        break;
    }
}

#elif defined(ROWS_GATHER)

ROWS_INLINE void convert_from(void *to, plait_dtype to_dtype, const void *from,
                              const plait_dtype from_dtype, int32_t n, const float *scale)
{
    const int grouped = from_dtype == PLAIT_FP8_DS656;
    float factor = scale ? *scale : 1;
    for (int32_t i = 0; i < n; i += n_lanes) {
        const int32_t count = rows_take(n - i);
        lanes x = rows_load(ROWS_AT_CONST(from, from_dtype, i), from_dtype, count);
        if (grouped)
            memcpy(&factor, (const char *)from + n + i / 128 * 4, sizeof factor);
        if (grouped || scale)
            x = lanes_mul(x, lanes_set(factor));
        rows_store(ROWS_AT(to, to_dtype, i), to_dtype, count, x);
    }
}

static void convert(void *to, plait_dtype to_dtype, const void *from, plait_dtype from_dtype,
                    int32_t n, const float *scale)
{
    switch (from_dtype) {
    case PLAIT_FP8_DS656:
        convert_from(to, to_dtype, from, PLAIT_FP8_DS656, n, scale);
        break;
    case PLAIT_FP8_E4M3:
        convert_from(to, to_dtype, from, PLAIT_FP8_E4M3, n, scale);
        break;
    case PLAIT_F16:
        convert_from(to, to_dtype, from, PLAIT_F16, n, scale);
        break;
    case PLAIT_BF16:
        convert_from(to, to_dtype, from, PLAIT_BF16, n, scale);
        break;
    default:
        convert_from(to, to_dtype, from, PLAIT_F32, n, scale);
        break;
    }
}

#endif
