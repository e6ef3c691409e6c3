/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What: MLA over a paged cache of bf16 or f16, d_qk 576 and d_v 512, on Hopper.
 * Layout: a tile is 64 cells, rows x heads of one sequence, against 64 keys at a time. Shared
 * memory holds q [9 chunks][64][64] and two tiles of keys alike; the ninth chunk, rope, takes the
 * probabilities once its scores are done.
 * Plan: warpgroup 2 copies keys, one tile ahead. Warpgroups 0 and 1 each compute the scores of
 * every other tile and hold half of the output columns in registers, 64 x 256; both multiply every
 * tile's probabilities with their half of its values. While one is in its softmax, the products of
 * the other run. The running maximum passes from one to the other with the probabilities, so that
 * both scale alike. Tile j lives in buffer j % 2, whose half w is freed by warpgroup w.
 * Masks: a tile that some row sees only in part is an edge. There, keys that no row sees are
 * zeroed, and so are keys that some row does not see and that hold an infinity or NaN: 0 * NaN
 * would reach rows that must not see it. Rows that see such a key get NaN.
 * Precision: products in bf16 or f16 with float32 sums, probabilities rounded to the cache's type,
 * exponents in base 2, LSE in base e.
 */
#include "kernel/mla_sm90.h"
#include "kernel/sm90.cuh"

enum { d_qk = 576, d_v = 512, tile_cells = 64, tile_keys = 64, chunk_bytes = 8192 };
enum { tile_bytes = 9 * chunk_bytes, rope_at = 8 * chunk_bytes };
/* Shared memory after q and two tiles of keys. */
enum { full_at = 3 * tile_bytes, empty_at = full_at + 80, bad_at = empty_at + 32 };
enum { max_at = bad_at + 32, sum_at = max_at + 512, smem_end = sum_at + 512 };
/* Named barriers: both consumers, each consumer alone, probabilities of each. */
enum { both = 1, alone = 2, ready = 4 };

typedef plait_mla_sm90 args_t;

/* ---- items and tiles ------------------------------------------------------------------------ */

struct walk {
    int32_t next, end, step;
};

PLAIT_DEVICE walk walk_items(const args_t &a)
{
    int32_t b = (int32_t)blockIdx.x;
    if (a.work && a.worker_start)
        return {a.worker_start[b], a.worker_start[b + 1], 1};
    return {b, a.work ? a.num_work : a.num_seqs, (int32_t)gridDim.x};
}

PLAIT_DEVICE plait_attn_work item_at(const args_t &a, int32_t i)
{
    if (a.work)
        return a.work[i];
    return {i, a.row_start[i], a.row_start[i + 1], 0, a.h_q, 0, INT32_MAX, -1};
}

PLAIT_DEVICE int32_t cells_of(const plait_attn_work &w)
{
    return (w.row_end - w.row_begin) * (w.head_end - w.head_begin);
}

PLAIT_DEVICE int32_t head_of(const plait_attn_work &w, int32_t cell)
{
    return w.head_begin + cell % (w.head_end - w.head_begin);
}

PLAIT_DEVICE int32_t row_of(const plait_attn_work &w, int32_t cell)
{
    return w.row_begin + cell / (w.head_end - w.head_begin);
}

/* One tile of an item, as a warp sees it: lane l holds the keys of the tile's rows l and l + 32. */
struct tile {
    int32_t row, rows; /* rows that its cells belong to */
    int32_t begin[2], end[2];
    int32_t some_begin, some_end; /* keys from the first to the last that some row sees */
    int32_t all_begin, all_end;   /* keys that all rows with keys see */
    int32_t first, n;             /* the first key and the number of key tiles */
};

PLAIT_DEVICE tile tile_open(const args_t &a, const plait_attn_work &w, int32_t cell, int32_t lane)
{
    tile t;
    int32_t last = min(cell + tile_cells, cells_of(w)) - 1;
    t.row = row_of(w, cell);
    t.rows = row_of(w, last) - t.row + 1;
    int32_t low = INT32_MAX, high = 0, low_end = INT32_MAX, high_begin = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        t.begin[i] = t.end[i] = 0;
        if (lane + 32 * i >= t.rows)
            continue;
        int32_t row = t.row + lane + 32 * i;
        int32_t begin = max(a.kv_begin ? a.kv_begin[row] : 0, w.kv_begin);
        int32_t end = min(a.kv_end[row], w.kv_end);
        if (begin >= end)
            continue;
        t.begin[i] = begin;
        t.end[i] = end;
        low = min(low, begin);
        high = max(high, end);
        high_begin = max(high_begin, begin);
        low_end = min(low_end, end);
    }
    t.some_begin = __reduce_min_sync(~0u, low);
    t.some_end = __reduce_max_sync(~0u, high);
    t.all_begin = __reduce_max_sync(~0u, high_begin);
    t.all_end = __reduce_min_sync(~0u, low_end);
    t.first = t.n = 0;
    if (t.some_begin < t.some_end) {
        t.first = t.some_begin / tile_keys * tile_keys;
        t.n = (t.some_end - t.first + tile_keys - 1) / tile_keys;
    }
    return t;
}

/* Whether some row of the tile sees a key in [begin, end); each lane asks for keys of its own. */
PLAIT_DEVICE bool some_row_sees(const tile &t, int32_t begin, int32_t end)
{
    bool seen = false;
#pragma unroll 1
    for (int32_t r = 0; r < t.rows; r++) {
        int32_t b = __shfl_sync(~0u, r < 32 ? t.begin[0] : t.begin[1], r & 31);
        int32_t e = __shfl_sync(~0u, r < 32 ? t.end[0] : t.end[1], r & 31);
        seen |= b < e && begin < e && end > b;
    }
    return seen;
}

/* ---- the producer --------------------------------------------------------------------------- */

/*
 * A buffer fills in five parts, two chunks each and rope, so that scores can start with the first.
 * It empties in two groups: the columns of warpgroup g, and rope with the group of the warpgroup
 * that does not own the buffer.
 */
enum { parts = 5 };

PLAIT_DEVICE int32_t parts_of(int32_t buffer, int32_t group)
{
    return buffer == group ? 2 : 3;
}

PLAIT_DEVICE int32_t part_of(int32_t group, int32_t i)
{
    return i == 2 ? 4 : 2 * group + i;
}

PLAIT_DEVICE int32_t chunks_of(int32_t part)
{
    return part == 4 ? 1 : 2;
}

struct ring {
    uint32_t base;  /* shared memory */
    uint32_t phase; /* bit b: parity of buffer b */
};

PLAIT_DEVICE uint32_t full_bar(uint32_t base, int32_t buffer, int32_t part)
{
    return base + full_at + 8 * (parts * buffer + part);
}

PLAIT_DEVICE uint32_t empty_bar(uint32_t base, int32_t buffer, int32_t group)
{
    return base + empty_at + 8 * (2 * buffer + group);
}

PLAIT_DEVICE uint32_t keys_of(uint32_t base, int32_t buffer)
{
    return base + tile_bytes * (1 + buffer);
}

/* One warp copies by boxes of a.box tokens; lanes look pages up, 32 boxes at a time. */
PLAIT_DEVICE void produce_boxes(const args_t &a, const tile &t, int32_t seq, const void *map,
                                ring &r, int32_t lane)
{
    int32_t per_tile = tile_keys / a.box;
    const int32_t *table = a.page_table + seq * a.page_table_stride;
    int32_t page = 0, token = 0;
    uint32_t seen = 0;
#pragma unroll 1
    for (int32_t j = 0; j < t.n; j++) {
        int32_t at = j * per_tile % 32;
        if (at == 0) {
            int32_t key = t.first + (j * per_tile + lane) * a.box;
            int32_t last = t.first + (j * per_tile + 32) * a.box;
            bool mine = key >= t.all_begin && key + a.box <= t.all_end;
            if (key - lane * a.box < t.all_begin || last > t.all_end)
                mine = some_row_sees(t, key, key + a.box);
            seen = __ballot_sync(~0u, mine);
            page = mine ? table[key / a.page_size] : 0;
            token = key % a.page_size;
        }
        int32_t buffer = j & 1;
        uint32_t mask = seen >> at & ((1u << per_tile) - 1);
#pragma unroll 1
        for (int32_t g = 0; g < 2; g++) {
            barrier_wait(empty_bar(r.base, buffer, g), (r.phase >> buffer & 1) ^ 1);
#pragma unroll 1
            for (int32_t i = 0; i < parts_of(buffer, g); i++) {
                int32_t part = part_of(g, i), chunks = chunks_of(part);
                uint32_t bar = full_bar(r.base, buffer, part);
                uint32_t to = keys_of(r.base, buffer) + 2 * part * chunk_bytes;
                if (lane == 0)
                    barrier_expect(bar, (uint32_t)(__popc(mask) * a.box * 128 * chunks));
                __syncwarp();
#pragma unroll 1
                for (int32_t x = 0; x < per_tile; x++) {
                    int32_t box_page = __shfl_sync(~0u, page, at + x);
                    int32_t box_token = __shfl_sync(~0u, token, at + x);
                    if (lane != 0 || !(mask >> x & 1))
                        continue;
#pragma unroll 1
                    for (int32_t chunk = 0; chunk < chunks; chunk++)
                        copy_box(to + chunk * chunk_bytes + x * a.box * 128, map, bar,
                                 (2 * part + chunk) * 64, box_token, box_page);
                }
            }
        }
        r.phase ^= 1u << buffer;
    }
}

/* Four warps copy key by key, for pages that no box fits. */
PLAIT_DEVICE void produce_keys(const args_t &a, const tile &t, int32_t seq, ring &r, int32_t warp,
                               int32_t lane)
{
    const int32_t *table = a.page_table + seq * a.page_table_stride;
#pragma unroll 1
    for (int32_t j = 0; j < t.n; j++) {
        int32_t buffer = j & 1, key = t.first + j * tile_keys + 16 * warp + (lane & 15);
        bool mine = some_row_sees(t, key, key + 1);
        uint32_t seen = __ballot_sync(~0u, mine);
        int64_t at = 0;
        if (mine)
            at = table[key / a.page_size] * a.k_page_stride + key % a.page_size * a.k_token_stride;
#pragma unroll 1
        for (int32_t g = 0; g < 2; g++)
            barrier_wait(empty_bar(r.base, buffer, g), (r.phase >> buffer & 1) ^ 1);
#pragma unroll 1
        for (int32_t i = 0; i < 16; i++) {
            const char *from = (const char *)a.k + 2 * __shfl_sync(~0u, at, i);
            int32_t row = 16 * warp + i;
            uint32_t to = keys_of(r.base, buffer) + row * 128;
            if (seen >> i & 1)
#pragma unroll 1
                for (int32_t u = lane; u < d_qk / 8; u += 32)
                    copy_16(to + (u >> 3) * chunk_bytes + (((u ^ row) & 7) << 4), from + u * 16);
        }
        copy_16_wait();
        fence_async();
#pragma unroll 1
        for (int32_t i = 0; i < parts; i++)
            barrier_arrive(full_bar(r.base, buffer, i));
        r.phase ^= 1u << buffer;
    }
}

/* ---- the consumers -------------------------------------------------------------------------- */

/* What a thread of a consumer holds of a tile: accumulator rows g and g + 8 of its warp's 16. */
struct rows {
    int32_t begin[2], end[2];
    float factor[2]; /* score * factor is in base 2 */
    float top[2], sum[2];
};

template <typename T> struct consumer {
    uint32_t base;
    int32_t wg, warp, lane; /* warp: within the warpgroup */
    uint32_t phase;
    float o[128];
    rows r;
};

template <typename T>
PLAIT_DEVICE void load_q(const args_t &a, const plait_attn_work &w, int32_t first, uint32_t base,
                         int32_t warp, int32_t lane)
{
    int32_t cells = cells_of(w);
#pragma unroll 1
    for (int32_t part = 0; part < 2; part++) {
        uint4 x[4][3];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int32_t cell = first + 8 * warp + 4 * part + i;
            bool real = cell < cells;
            const uint4 *from = (const uint4 *)((const T *)a.q +
                                                (real ? row_of(w, cell) * a.q_row_stride +
                                                            head_of(w, cell) * a.q_head_stride
                                                      : 0));
#pragma unroll
            for (int u = 0; u < 3; u++)
                x[i][u] = real && lane + 32 * u < 72 ? from[lane + 32 * u] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int u = 0; u < 3; u++) {
                int32_t row = 8 * warp + 4 * part + i, unit = lane + 32 * u;
                if (unit < 72)
                    store_16(base + (unit >> 3) * chunk_bytes + row * 128 +
                                 (((unit ^ row) & 7) << 4),
                             x[i][u]);
            }
    }
    fence_async();
}

template <typename T>
PLAIT_DEVICE tile open_rows(const args_t &a, const plait_attn_work &w, int32_t first,
                            consumer<T> &c)
{
    tile t = tile_open(a, w, first, c.lane);
    float scale = a.softmax_scale * 1.4426950408889634f * (a.k_scale_n ? a.k_scale[0] : 1.0f);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int32_t cell = first + 16 * c.warp + c.lane / 4 + 8 * i;
        bool real = cell < cells_of(w);
        int32_t row = real ? row_of(w, cell) - t.row : 0;
        int32_t b0 = __shfl_sync(~0u, t.begin[0], row & 31);
        int32_t b1 = __shfl_sync(~0u, t.begin[1], row & 31);
        int32_t e0 = __shfl_sync(~0u, t.end[0], row & 31);
        int32_t e1 = __shfl_sync(~0u, t.end[1], row & 31);
        c.r.begin[i] = real ? (row < 32 ? b0 : b1) : 0;
        c.r.end[i] = real ? (row < 32 ? e0 : e1) : 0;
        c.r.factor[i] = scale;
        if (real && a.q_scale_n)
            c.r.factor[i] *= a.q_scale[a.q_scale_n == 1 ? 0 : head_of(w, cell)];
        c.r.top[i] = -INFINITY;
        c.r.sum[i] = 0;
    }
    if (t.n > 0)
        load_q<T>(a, w, first, c.base, 4 * c.wg + c.warp, c.lane);
    return t;
}

/* Zeroes the keys of an edge tile that must not reach a product, and returns the keys that hold
   no finite value as bits. Called by one warpgroup. */
template <typename T>
PLAIT_DEVICE uint64_t clean(const tile &t, const consumer<T> &c, int32_t key0)
{
    int32_t key = key0 + 16 * c.warp + (c.lane & 15);
    uint32_t seen = __ballot_sync(~0u, some_row_sees(t, key, key + 1));
    uint32_t safe = __ballot_sync(~0u, key >= t.all_begin && key < t.all_end), bad = 0;
    for (int32_t i = 0; i < 16; i++) {
        if (safe >> i & 1)
            continue;
        int32_t row = 16 * c.warp + i;
        uint32_t at = keys_of(c.base, c.wg) + row * 128;
        bool zero = true;
        if (seen >> i & 1) {
            bool odd = false;
            for (int32_t u = c.lane; u < d_qk / 8; u += 32) {
                uint4 x = load_16(at + (u >> 3) * chunk_bytes + (u & 7) * 16);
                odd |= not_finite(T(), x.x) || not_finite(T(), x.y) || not_finite(T(), x.z) ||
                       not_finite(T(), x.w);
            }
            zero = __any_sync(~0u, odd);
            bad |= (uint32_t)zero << i;
        }
        if (zero)
            for (int32_t u = c.lane; u < d_qk / 8; u += 32)
                store_16(at + (u >> 3) * chunk_bytes + (u & 7) * 16, make_uint4(0, 0, 0, 0));
    }
    if (c.lane == 0)
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(c.base + bad_at + 8 * c.wg + 2 * c.warp),
                     "h"((uint16_t)bad)
                     : "memory");
    fence_async();
    group_sync(alone + c.wg, 128);
    uint64_t all;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(all) : "r"(c.base + bad_at + 8 * c.wg));
    return all;
}

/* Scores in base 2; keys outside a row's range -inf, keys without a finite value NaN. */
template <typename T>
PLAIT_DEVICE void scale_scores(const consumer<T> &c, float (&s)[32], bool edge, int32_t key0,
                               uint64_t bad)
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] *= c.r.factor[i >> 1 & 1];
    if (!edge)
        return;
    bad >>= 2 * (c.lane & 3);
    key0 += 2 * (c.lane & 3);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int column = 8 * (i >> 2) + (i & 1), half = i >> 1 & 1;
        int32_t key = key0 + column;
        if (bad >> column & 1)
            s[i] = NAN;
        if (key < c.r.begin[half] || key >= c.r.end[half])
            s[i] = -INFINITY;
    }
}

/* Moves the running maximum to `top` and returns by how much what was summed shrinks. */
PLAIT_DEVICE float raise(rows &r, int half, float top)
{
    float shrink = top == -INFINITY ? 1.0f : exp2_fast(r.top[half] - top);
    r.top[half] = top;
    r.sum[half] *= shrink;
    return shrink;
}

template <typename T> PLAIT_DEVICE void shrink_output(consumer<T> &c, const float (&shrink)[2])
{
    if (!__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f))
        return;
#pragma unroll
    for (int i = 0; i < 128; i++)
        c.o[i] *= shrink[i >> 1 & 1];
}

/* Turns scores into probabilities, p as the A operand of a product; returns the shrinks. */
template <typename T>
PLAIT_DEVICE void softmax(consumer<T> &c, float (&s)[32], uint32_t (&p)[16], float (&shrink)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = c.r.top[half];
#pragma unroll
        for (int i = 0; i < 16; i++)
            top = fmaxf(top, s[4 * (i >> 1) + 2 * half + (i & 1)]);
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        shrink[half] = raise(c.r, half, top);
        float zero = top == -INFINITY ? 0.0f : top, sum = 0;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float &x = s[4 * (i >> 1) + 2 * half + (i & 1)];
            x = exp2_fast(x - zero);
            sum += x;
        }
        c.r.sum[half] += sum;
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        p[i] = pack(T(), s[2 * i], s[2 * i + 1]);
}

PLAIT_DEVICE void store_float(uint32_t at, float x)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}

PLAIT_DEVICE float load_float(uint32_t at)
{
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    return x;
}

/* Hands probabilities and maxima to the other warpgroup; p goes where the rope of the tile was. */
template <typename T> PLAIT_DEVICE void publish(const consumer<T> &c, const uint32_t (&p)[16])
{
    int32_t row = 16 * c.warp + (c.lane & 15);
    uint32_t at = keys_of(c.base, c.wg) + rope_at + row * 128;
#pragma unroll
    for (int i = 0; i < 4; i++)
        store_matrices(at + (((2 * i + (c.lane >> 4)) ^ (row & 7)) << 4), &p[4 * i]);
    if ((c.lane & 3) == 0)
#pragma unroll
        for (int half = 0; half < 2; half++)
            store_float(c.base + max_at + 4 * (64 * c.wg + 16 * c.warp + c.lane / 4 + 8 * half),
                        c.r.top[half]);
    fence_async();
    group_arrive(ready + c.wg, 256);
}

template <typename T> PLAIT_DEVICE void release(const consumer<T> &c, int32_t buffer)
{
    if (c.lane == 0)
        barrier_arrive(empty_bar(c.base, buffer, c.wg));
}

/* A part may be waited for by the warpgroup that frees it and by the buffer's owner only: for
   others it may be two tiles ahead. */
template <typename T>
PLAIT_DEVICE void wait_part(const consumer<T> &c, int32_t buffer, int32_t part)
{
    barrier_wait(full_bar(c.base, buffer, part), c.phase >> buffer & 1);
}

/* Whether the warpgroup's next own tile has arrived; all its threads get the same answer. */
template <typename T> PLAIT_DEVICE bool has_arrived(const consumer<T> &c)
{
    bool all = true;
    for (int32_t i = 0; i < parts; i++)
        all = all && barrier_test(full_bar(c.base, c.wg, i), c.phase >> c.wg & 1);
    return group_all(alone + c.wg, 128, all);
}

/* Starts the scores of the warpgroup's own tile; an edge is cleaned first. */
template <typename T>
PLAIT_DEVICE uint64_t start_scores(const tile &t, consumer<T> &c, float (&s)[32], bool edge,
                                   int32_t key0)
{
    uint64_t q = matrix(c.base, 16), k = matrix(keys_of(c.base, c.wg), 16), bad = 0;
    if (edge) {
        for (int32_t i = 0; i < parts; i++)
            wait_part(c, c.wg, i);
        bad = clean(t, c, key0);
    }
#pragma unroll
    for (int i = 0; i < 36; i++) {
        if (i % 8 == 0) {
            wait_part(c, c.wg, i / 8);
            products_fence();
        }
        uint64_t at = ((i >> 2) * chunk_bytes + (i & 3) * 32) >> 4;
        product_64x64(T(), s, q + at, k + at, i > 0);
    }
    products_commit();
    return bad;
}

/* Starts the output of the other warpgroup's tile j. */
template <typename T> PLAIT_DEVICE void start_other(consumer<T> &c, int32_t j)
{
    const int32_t other = c.wg ^ 1;
    float shrink[2];
    group_sync(ready + other, 256);
    wait_part(c, other, 2 * c.wg);
    wait_part(c, other, 2 * c.wg + 1);
#pragma unroll
    for (int i = 0; i < 2; i++)
        shrink[i] = raise(c.r, i,
                          load_float(c.base + max_at +
                                     4 * (64 * other + 16 * c.warp + c.lane / 4 + 8 * i)));
    shrink_output(c, shrink);
    uint64_t a = matrix(keys_of(c.base, other) + rope_at, 16);
    uint64_t v = matrix(keys_of(c.base, other) + c.wg * 4 * chunk_bytes, chunk_bytes);
    products_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        product_64x256(T(), c.o, a + (i * 32 >> 4), v + (i * 2048 >> 4), i > 0 || j > 0);
    products_commit();
}

/*
 * One step of a warpgroup: the scores and probabilities of tile j, its own (OWN), and the output
 * of tile j - 1, the other's (PREV), and of tile j. EARLY: tile j has arrived, so that its scores
 * go first and overlap the other's softmax; else the output of tile j - 1 does, to free its buffer.
 */
template <typename T, bool OWN, bool PREV, bool EARLY>
PLAIT_DEVICE void step(const tile &t, consumer<T> &c, int32_t j)
{
    const int32_t mine = c.wg, other = c.wg ^ 1;
    const int32_t key0 = t.first + j * tile_keys;
    const bool edge = OWN && (key0 < t.all_begin || key0 + tile_keys > t.all_end);
    uint64_t bad = 0;
    float s[32], shrink[2];
    uint32_t p[16];
    if (OWN && EARLY)
        bad = start_scores(t, c, s, edge, key0);
    if (PREV)
        start_other(c, j - 1);
    if (OWN && !EARLY) {
        bad = start_scores(t, c, s, edge, key0);
        products_wait<1>();
        pin(c.o);
        release(c, other);
    }
    if (OWN) {
        products_wait<PREV && EARLY ? 1 : 0>();
        pin(s);
        scale_scores(c, s, edge, key0, bad);
        softmax(c, s, p, shrink);
        group_sync(alone + c.wg, 128); /* all warps are done with the rope of this tile */
        publish(c, p);
    }
    if (PREV) {
        if (EARLY || !OWN) {
            products_wait<0>();
            pin(c.o);
            release(c, other);
        }
        c.phase ^= 1u << other;
    }
    if (OWN) {
        uint64_t v = matrix(keys_of(c.base, mine) + c.wg * 4 * chunk_bytes, chunk_bytes);
        shrink_output(c, shrink);
        products_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            product_64x256(T(), c.o, &p[4 * i], v + (i * 2048 >> 4), i > 0 || PREV);
        products_commit();
        products_wait<0>();
        pin(c.o);
        release(c, mine);
        c.phase ^= 1u << mine;
    }
}

/* ---- results -------------------------------------------------------------------------------- */

struct target {
    void *out;
    float *lse; /* of this cell; NULL: not wanted */
    int64_t at;
};

PLAIT_DEVICE target target_of(const args_t &a, int32_t row, int32_t head)
{
    void *out = a.out;
    float *lse = a.lse;
    if (a.out_bases) {
        out = a.out_bases[head / a.heads_per_base];
        lse = a.lse_bases ? a.lse_bases[head / a.heads_per_base] : NULL;
        head %= a.heads_per_base;
    }
    return {out, lse ? lse + row * a.lse_row_stride + head * a.lse_head_stride : NULL,
            row * a.out_row_stride + head * a.out_head_stride};
}

/* Two neighbouring columns. */
PLAIT_DEVICE void store_pair(void *out, int32_t dtype, int64_t at, float x, float y)
{
    if (dtype == PLAIT_F32)
        *(float2 *)((float *)out + at) = make_float2(x, y);
    else
        *(uint32_t *)((uint16_t *)out + at) =
            dtype == PLAIT_BF16 ? pack(__nv_bfloat16(), x, y) : pack(__half(), x, y);
}

/* Writes row `half` of the thread: 256 columns of its warpgroup. */
template <typename T>
PLAIT_DEVICE void write_row(const args_t &a, const plait_attn_work &w, int32_t first,
                            const consumer<T> &c, int half)
{
    int32_t local = 16 * c.warp + c.lane / 4 + 8 * half, cell = first + local;
    if (cell >= cells_of(w))
        return;
    bool empty = c.r.begin[half] >= c.r.end[half];
    float sum =
        load_float(c.base + sum_at + 4 * local) + load_float(c.base + sum_at + 4 * (64 + local));
    float value = a.out_scale * (a.k_scale_n ? a.k_scale[0] : 1.0f);
    float scale = empty ? 0.0f : __fdividef(value, sum);
    float lse = empty ? -INFINITY : c.r.top[half] * 0.6931471805599453f + logf(sum);
    int32_t dtype = PLAIT_F32;
    target to = {a.partial, a.partial_lse + w.partial + cell, ((int64_t)w.partial + cell) * d_v};
    if (w.partial < 0) {
        to = target_of(a, row_of(w, cell), head_of(w, cell));
        dtype = a.out_dtype;
    }
    if (c.wg == 0 && (c.lane & 3) == 0 && to.lse)
        *to.lse = lse;
    to.at += 256 * c.wg + 2 * (c.lane & 3);
    /* An empty row may have met NaN: 0 * NaN must not be written. */
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float x = c.o[4 * i + (half ? 2 : 0)], y = c.o[4 * i + (half ? 3 : 1)];
        store_pair(to.out, dtype, to.at + 8 * i, empty ? 0.0f : x * scale,
                   empty ? 0.0f : y * scale);
    }
}

/* Tile `cell` of item i. The item is read again for the results, so that it takes no registers
   while the products run. */
template <typename T>
PLAIT_DEVICE void consume(const args_t &a, int32_t i, int32_t cell, consumer<T> &c)
{
    tile t = open_rows(a, item_at(a, i), cell, c);
    if (t.n > 0) {
        group_sync(both, 256);
#pragma unroll
        for (int x = 0; x < 128; x++)
            c.o[x] = 0; /* so that the registers are free until here */
        int32_t j = c.wg;
        if (j == 0) {
            step<T, true, false, true>(t, c, 0);
            j = 2;
        }
        for (; j < t.n; j += 2)
            if (has_arrived(c))
                step<T, true, true, true>(t, c, j);
            else
                step<T, true, true, false>(t, c, j);
        if (j == t.n)
            step<T, false, true, true>(t, c, j);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = c.r.sum[half];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if ((c.lane & 3) == 0)
            store_float(c.base + sum_at +
                            4 * (64 * c.wg + 16 * c.warp + c.lane / 4 + 8 * half),
                        sum);
    }
    group_sync(both, 256);
    plait_attn_work w = item_at(a, i);
    write_row(a, w, cell, c, 0);
    write_row(a, w, cell, c, 1);
    group_sync(both, 256); /* the sums are read */
}

/* Rows that belong to no sequence are empty. */
PLAIT_DEVICE void write_padding(const args_t &a, int32_t thread)
{
    for (int32_t row = a.row_start[a.num_seqs] + (int32_t)blockIdx.x; row < a.num_rows;
         row += (int32_t)gridDim.x)
        for (int32_t head = 0; head < a.h_q; head++) {
            target to = target_of(a, row, head);
            if (thread == 0 && to.lse)
                *to.lse = -INFINITY;
            store_pair(to.out, a.out_dtype, to.at + 2 * thread, 0.0f, 0.0f);
        }
}

template <typename T> PLAIT_DEVICE void attend(const args_t &a, const void *map)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    const int32_t thread = (int32_t)threadIdx.x, lane = thread & 31;
    const int32_t wg = __shfl_sync(~0u, thread >> 7, 0);
    const int32_t warp = __shfl_sync(~0u, thread >> 5 & 3, 0);
    const uint32_t base = smem_address(smem);
    dependents_may_start();
    if (thread == 0) {
        if (a.box)
            prefetch_map(map);
        for (int32_t b = 0; b < 2 * parts; b++)
            barrier_init(base + full_at + 8 * b, a.box ? 1 : 128);
        for (int32_t b = 0; b < 4; b++)
            barrier_init(base + empty_at + 8 * b, 4);
        barrier_init_done();
    }
    __syncthreads();
    if (wg == 2) {
        registers_shrink<56>();
        ring r = {base, 0};
        if (warp == 0 || !a.box)
            for (walk i = walk_items(a); i.next < i.end; i.next += i.step) {
                int32_t cells = cells_of(item_at(a, i.next));
#pragma unroll 1
                for (int32_t cell = 0; cell < cells; cell += tile_cells) {
                    tile t = tile_open(a, item_at(a, i.next), cell, lane);
                    int32_t seq = item_at(a, i.next).seq;
                    if (a.box)
                        produce_boxes(a, t, seq, map, r, lane);
                    else
                        produce_keys(a, t, seq, r, warp, lane);
                }
            }
    } else {
        registers_grow<224>();
        consumer<T> c;
        c.base = base;
        c.wg = wg;
        c.warp = warp;
        c.lane = lane;
        c.phase = 0;
        for (walk i = walk_items(a); i.next < i.end; i.next += i.step) {
            int32_t cells = cells_of(item_at(a, i.next));
            for (int32_t cell = 0; cell < cells; cell += tile_cells)
                consume(a, i.next, cell, c);
        }
        write_padding(a, thread);
    }
}

/* CUtensorMap has 128 bytes and is read from the parameters. */
struct alignas(64) tensor_map {
    uint64_t word[16];
};

extern "C" __global__ void __launch_bounds__(PLAIT_MLA_SM90_THREADS, 1)
    plait_mla_sm90_bf16(const __grid_constant__ tensor_map map, const __grid_constant__ args_t a)
{
    attend<__nv_bfloat16>(a, &map);
}

extern "C" __global__ void __launch_bounds__(PLAIT_MLA_SM90_THREADS, 1)
    plait_mla_sm90_f16(const __grid_constant__ tensor_map map, const __grid_constant__ args_t a)
{
    attend<__half>(a, &map);
}

/* ---- merging splits ------------------------------------------------------------------------- */

enum { reduce_warps = PLAIT_MLA_SM90_REDUCE_THREADS / 32, columns = 128, batch = 8 };
enum { quarters = d_v / columns, few_splits = 16 };

struct alignas(16) merge_space {
    float weight[PLAIT_ATTN_MAX_SPLITS];
    float part[reduce_warps][columns];
    float top[reduce_warps], sum[reduce_warps];
    /* Cells of the entries in front of each, for entries with few splits and with many. */
    int32_t before[2][PLAIT_MLA_SM90_REDUCE_THREADS + 1], of_warp[2][reduce_warps];
};

PLAIT_DEVICE int32_t reduce_cells(const plait_attn_reduce &r)
{
    return (r.row_end - r.row_begin) * (r.head_end - r.head_begin);
}

/* Fills m.before for entries first .. first + 255. */
PLAIT_DEVICE void count_cells(const args_t &a, int32_t first, merge_space &m)
{
    int32_t thread = (int32_t)threadIdx.x, lane = thread & 31, warp = thread >> 5;
    int32_t sum[2] = {0, 0};
    if (first + thread < a.num_reduce) {
        const plait_attn_reduce &r = a.reduce[first + thread];
        sum[0] = r.n_splits > 0 && r.n_splits <= few_splits ? reduce_cells(r) : 0;
        sum[1] = r.n_splits > few_splits ? reduce_cells(r) : 0;
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        for (int32_t d = 1; d < 32; d *= 2) {
            int32_t x = __shfl_up_sync(~0u, sum[k], d);
            sum[k] += lane >= d ? x : 0;
        }
        if (lane == 31)
            m.of_warp[k][warp] = sum[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 2; k++) {
        for (int32_t i = 0; i < warp; i++)
            sum[k] += m.of_warp[k][i];
        m.before[k][thread + 1] = sum[k];
        if (thread == 0)
            m.before[k][0] = 0;
    }
    __syncthreads();
}

/* The entry that holds a cell: before[i] <= cell < before[i + 1]. */
PLAIT_DEVICE int32_t entry_of(int32_t cell, const int32_t *before)
{
    int32_t low = 0;
    for (int32_t d = PLAIT_MLA_SM90_REDUCE_THREADS / 2; d; d /= 2)
        low += before[low + d] <= cell ? d : 0;
    return low;
}

PLAIT_DEVICE float warp_max(float x)
{
    for (int32_t d = 16; d; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
    return x;
}

PLAIT_DEVICE float warp_sum(float x)
{
    for (int32_t d = 16; d; d /= 2)
        x += __shfl_xor_sync(~0u, x, d);
    return x;
}

/* What is not read counts as 0, and so does what has no weight, whatever it holds. */
PLAIT_DEVICE void add_weighted(float4 &sum, float weight, float4 x)
{
    if (weight == 0.0f)
        return;
    sum.x += weight * x.x;
    sum.y += weight * x.y;
    sum.z += weight * x.z;
    sum.w += weight * x.w;
}

PLAIT_DEVICE target merged_target(const args_t &a, const plait_attn_reduce &r, int32_t cell)
{
    int32_t heads = r.head_end - r.head_begin;
    return target_of(a, r.row_begin + cell / heads, r.head_begin + cell % heads);
}

/* One cell's columns [column, column + 128) by one warp: at most few_splits. */
PLAIT_DEVICE void merge_few(const args_t &a, const plait_attn_reduce &r, int32_t cell,
                            int32_t column, int32_t lane)
{
    int64_t cells = reduce_cells(r), first = (int64_t)r.first_partial + cell;
    const float *from = a.partial + first * d_v + column + 4 * lane;
    float lse = lane < r.n_splits ? __ldcg(a.partial_lse + first + lane * cells) : -INFINITY;
    float4 x[batch], sum = make_float4(0, 0, 0, 0);
    float weight = 0, total = 0, zero = 0;
    for (int32_t s = 0; s < r.n_splits; s += batch) {
#pragma unroll
        for (int i = 0; i < batch; i++)
            x[i] = s + i < r.n_splits ? __ldcg((const float4 *)(from + (s + i) * cells * d_v))
                                      : make_float4(0, 0, 0, 0);
        if (s == 0) {
            float top = warp_max(lse);
            zero = top == -INFINITY ? 0.0f : top;
            weight = lane < r.n_splits ? expf(lse - zero) : 0.0f;
            total = warp_sum(weight);
            weight = total == 0.0f ? 0.0f : weight / total;
        }
#pragma unroll
        for (int i = 0; i < batch; i++)
            add_weighted(sum, __shfl_sync(~0u, weight, (s + i) & 31), x[i]);
    }
    target to = merged_target(a, r, cell);
    store_pair(to.out, a.out_dtype, to.at + column + 4 * lane, sum.x, sum.y);
    store_pair(to.out, a.out_dtype, to.at + column + 4 * lane + 2, sum.z, sum.w);
    if (lane == 0 && column == 0 && to.lse)
        *to.lse = total == 0.0f ? -INFINITY : zero + logf(total);
}

/* Weights of the splits' LSE in m.weight, their sum 1; returns the merged LSE. */
PLAIT_DEVICE float merge_lse(const args_t &a, int64_t first, int32_t n, int64_t stride,
                             merge_space &m)
{
    int32_t thread = (int32_t)threadIdx.x, lane = thread & 31, warp = thread >> 5;
    float lse = thread < n ? __ldcg(a.partial_lse + first + thread * stride) : -INFINITY;
    float top = warp_max(lse);
    if (lane == 0)
        m.top[warp] = top;
    __syncthreads();
    for (int32_t i = 0; i < reduce_warps; i++)
        top = fmaxf(top, m.top[i]);
    float zero = top == -INFINITY ? 0.0f : top;
    float weight = thread < n ? expf(lse - zero) : 0.0f, sum = warp_sum(weight);
    if (lane == 0)
        m.sum[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int32_t i = 0; i < reduce_warps; i++)
        sum += m.sum[i];
    m.weight[thread] = sum == 0.0f ? 0.0f : weight / sum;
    __syncthreads();
    return sum == 0.0f ? -INFINITY : zero + logf(sum);
}

/* The same by one block, whose warps take splits in turn. */
PLAIT_DEVICE void merge_many(const args_t &a, const plait_attn_reduce &r, int32_t cell,
                             int32_t column, merge_space &m)
{
    int32_t thread = (int32_t)threadIdx.x, lane = thread & 31, warp = thread >> 5;
    int64_t cells = reduce_cells(r), first = (int64_t)r.first_partial + cell;
    const float *from = a.partial + first * d_v + column + 4 * lane;
    float4 x[batch], sum = make_float4(0, 0, 0, 0);
    float lse = 0;
    for (int32_t s = warp; s == warp || s < r.n_splits; s += batch * reduce_warps) {
#pragma unroll
        for (int i = 0; i < batch; i++) {
            int32_t split = s + i * reduce_warps;
            x[i] = split < r.n_splits ? __ldcg((const float4 *)(from + split * cells * d_v))
                                      : make_float4(0, 0, 0, 0);
        }
        if (s == warp)
            lse = merge_lse(a, first, r.n_splits, cells, m);
#pragma unroll
        for (int i = 0; i < batch; i++) {
            int32_t split = s + i * reduce_warps;
            add_weighted(sum, split < r.n_splits ? m.weight[split] : 0.0f, x[i]);
        }
    }
    *(float4 *)&m.part[warp][4 * lane] = sum;
    __syncthreads();
    target to = merged_target(a, r, cell);
    if (thread < columns / 2) {
        float y[2] = {0, 0};
        for (int32_t i = 0; i < reduce_warps; i++) {
            y[0] += m.part[i][2 * thread];
            y[1] += m.part[i][2 * thread + 1];
        }
        store_pair(to.out, a.out_dtype, to.at + column + 2 * thread, y[0], y[1]);
    }
    if (thread == 0 && column == 0 && to.lse)
        *to.lse = lse;
    __syncthreads();
}

/* Units are a quarter of a cell's columns: one for each warp where splits are few, one for each
   block where they are many. The list is read before the splits are there. */
extern "C" __global__ void __launch_bounds__(PLAIT_MLA_SM90_REDUCE_THREADS)
    plait_mla_sm90_reduce(const __grid_constant__ args_t a)
{
    __shared__ merge_space m;
    const int32_t lane = (int32_t)threadIdx.x & 31, warp = (int32_t)threadIdx.x >> 5;
    const int32_t block = (int32_t)blockIdx.x, blocks = (int32_t)gridDim.x;
    for (int32_t first = 0; first < a.num_reduce; first += PLAIT_MLA_SM90_REDUCE_THREADS) {
        const plait_attn_reduce *list = a.reduce + first;
        __syncthreads();
        count_cells(a, first, m);
        if (first == 0)
            wait_for_previous();
        int32_t units = m.before[0][PLAIT_MLA_SM90_REDUCE_THREADS] * quarters;
        for (int32_t u = warp * blocks + block; u < units; u += blocks * reduce_warps) {
            int32_t cell = u / quarters, entry = entry_of(cell, m.before[0]);
            merge_few(a, list[entry], cell - m.before[0][entry], u % quarters * columns, lane);
        }
        units = m.before[1][PLAIT_MLA_SM90_REDUCE_THREADS] * quarters;
        for (int32_t u = block; u < units; u += blocks) {
            int32_t cell = u / quarters, entry = entry_of(cell, m.before[1]);
            merge_many(a, list[entry], cell - m.before[1][entry], u % quarters * columns, m);
        }
    }
}
