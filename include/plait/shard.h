/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/shard.h - where each token of a sequence lives when its KV cache is split across ranks.
 *
 * D ranks hold a sequence's cache; blocks of I consecutive tokens go to the ranks in turn. Global
 * index p, global length n, local index c on rank r:
 *
 *     owner(p)     = floor(p / I) mod D
 *     local(p)     = floor(p / (D*I))*I + p mod I                (on its owner)
 *     global(r, c) = floor(c / I)*D*I + r*I + c mod I
 *     len(r, n)    = floor(n / (D*I))*I + clamp(n mod (D*I) - r*I, 0, I)
 *
 * Each satisfies f(n + D*I) = f(n) + I (global: f(c + I) = f(c) + D*I), so one period proves every
 * length. A local length is always derived from the global length: len(n - k) is in general not
 * len(n) - k.
 *
 * This is the only copy of that arithmetic; the functions are inline for host and device code,
 * take any d >= 1, i >= 1, 0 <= r < d, and do not overflow for n <= 2^62. They do not check: use
 * plait_shard_check once for each geometry.
 */
#ifndef PLAIT_SHARD_H
#define PLAIT_SHARD_H

#include <stddef.h>
#include <stdint.h>

#include <plait/status.h>

#ifdef __CUDACC__
#define PLAIT_INLINE static __host__ __device__ __forceinline__
#else
#define PLAIT_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One geometry belongs to each KV group (target layers, sharded draft layers, replicated draft
   layers with d = 1). */
typedef struct plait_shard {
    int32_t d; /* ranks in the DCP group, >= 1 */
    int32_t r; /* this rank, 0 <= r < d */
    int32_t i; /* interleave in tokens, >= 1 */
} plait_shard;

/* The rank that holds token p >= 0. */
PLAIT_INLINE int32_t plait_shard_owner(plait_shard s, int64_t p)
{
    return (int32_t)((p / s.i) % s.d);
}

/* The index of token p in its owner's local cache. */
PLAIT_INLINE int64_t plait_shard_local(plait_shard s, int64_t p)
{
    return p / ((int64_t)s.d * s.i) * s.i + p % s.i;
}

/* The token that rank s.r holds at local index c. */
PLAIT_INLINE int64_t plait_shard_global(plait_shard s, int64_t c)
{
    return c / s.i * ((int64_t)s.d * s.i) + (int64_t)s.r * s.i + c % s.i;
}

/* How many of the first n tokens rank s.r holds; 0 for n <= 0. */
PLAIT_INLINE int64_t plait_shard_len(plait_shard s, int64_t n)
{
    if (n <= 0)
        return 0;
    int64_t period = (int64_t)s.d * s.i;
    int64_t rest = n % period - (int64_t)s.r * s.i;
    return n / period * s.i + (rest < 0 ? 0 : rest > s.i ? s.i : rest);
}

/* The range of local keys that a row at `index` sees: [*begin, *end). window <= 0: no window. */
PLAIT_INLINE void plait_shard_range(plait_shard s, int64_t index, int64_t window, int32_t *begin,
                                    int32_t *end)
{
    *end = (int32_t)plait_shard_len(s, index + 1);
    *begin = window > 0 ? (int32_t)plait_shard_len(s, index + 1 - window) : 0;
}

/* Pages of `page_size` tokens that n global tokens need on every rank (rank 0 holds most). */
PLAIT_INLINE int64_t plait_shard_pages(plait_shard s, int64_t n, int32_t page_size)
{
    plait_shard first = s;
    first.r = 0;
    int64_t len = plait_shard_len(first, n);
    return len / page_size + (len % page_size != 0);
}

/*
 * The slot (page id * page_size + offset) of token p through `table` (table_len page ids of this
 * sequence), or -1 when another rank holds it, p < 0, the table ends before it, or its page id is
 * negative. Slot -1 means "its KV is not written here"; its query is still computed here.
 */
PLAIT_INLINE int64_t plait_shard_slot(plait_shard s, int64_t p, const int32_t *table,
                                      int64_t table_len, int32_t page_size)
{
    if (p < 0 || plait_shard_owner(s, p) != s.r)
        return -1;
    int64_t c = plait_shard_local(s, p);
    if (c / page_size >= table_len || table[c / page_size] < 0)
        return -1;
    return (int64_t)table[c / page_size] * page_size + c % page_size;
}

/* PLAIT_E_ARG, naming the field, unless d >= 1, 0 <= r < d and i >= 1. Thread-safe. */
PLAIT_API plait_status plait_shard_check(plait_shard s);

/* Tokens in the unit in which a prefix can be reused: lcm(page_size, i) * d. */
PLAIT_API int64_t plait_shard_prefix_unit(plait_shard s, int32_t page_size);

/* ---- heads ---------------------------------------------------------------------------------- */

/*
 * How heads are laid out over W ranks of tensor parallelism whose DCP groups are ranks
 * [g*D, (g+1)*D). MLA: kv_heads = 1 latent that every rank sees, any head count (uneven: the first
 * heads mod W ranks hold one more). GQA with D > 1 needs W mod kv_heads = 0 and D dividing
 * W / kv_heads, and heads mod W = 0.
 */
typedef struct plait_heads {
    int32_t mla; /* 1: MLA; 0: GQA */
    int32_t heads, kv_heads;
    int32_t w, d;
} plait_heads;

/* What one rank holds. Head numbers are global. */
typedef struct plait_heads_rank {
    int32_t head_begin, head_end;             /* query heads of this rank */
    int32_t group_head_begin, group_head_end; /* query heads of its DCP group, gathered */
    int32_t kv_begin, kv_end;                 /* KV heads in this rank's cache (MLA: 0, 1) */
    int32_t q_per_kv;                         /* heads / kv_heads (MLA: heads) */
    int32_t dcp_rank, dcp_group;
} plait_heads_rank;

/* PLAIT_E_ARG for a value out of domain, PLAIT_E_UNSUPPORTED for a layout that is refused, with
   the limit named. Thread-safe. */
PLAIT_API plait_status plait_heads_check(const plait_heads *h);

/* Fills *out for `rank` in [0, w). Checks as plait_heads_check does. */
PLAIT_API plait_status plait_heads_of_rank(const plait_heads *h, int32_t rank,
                                           plait_heads_rank *out);

#ifdef __cplusplus
}
#endif
#endif
