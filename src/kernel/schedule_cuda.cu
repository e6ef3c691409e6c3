/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What: cuts the work of a GPU call into one share for each multiprocessor, on the device, in one
 * block. Threads list the tiles together, then each tries one limit for the shares; the cheapest
 * limit that serves all tiles is carried out.
 * Plan: two tiles of a sequence read the same keys, so they form a unit that two workers carry out
 * side by side: the second finds the keys in the L2 cache. Where too many tiles would stay single,
 * a unit is one tile. A limit of total / teams + 2 * start always suffices, since every team but
 * the last fills its share to within one start, and each cut costs one more.
 */
#include "kernel/schedule_cuda.h"

#define PLAIT_DEVICE static __device__ __forceinline__

/* In blocks of keys: what starting a tile costs; in 64ths of a block: what any merge costs, and
   each partial tile of 64 cells. Fitted to an H200: a block takes 2 us, a merge 7 us. */
enum { start = 2, merge_any = 224, merge_tile = 3, threads = 256, max_teams = 512 };

struct cut_space {
    int32_t sum[threads];
    unsigned long long best;
    int32_t tiles, total, pair; /* pair: tiles of a unit, 1 or 2 */
    int32_t items[max_teams];          /* of each team, for one of its workers */
    int32_t parts[max_teams];          /* of each unit that is merged */
};

PLAIT_DEVICE int32_t ceil_div(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

PLAIT_DEVICE int32_t tiles_of(const plait_schedule_args &s, int32_t seq)
{
    return ceil_div(s.row_start[seq + 1] - s.row_start[seq], s.shape.rows) * s.shape.head_parts;
}

PLAIT_DEVICE int32_t cells_of(const plait_tile &t)
{
    return (t.row_end - t.row_begin) * (t.head_end - t.head_begin);
}

/* Tile i of a sequence, or one without rows past the last. */
PLAIT_DEVICE plait_tile tile_at(const plait_schedule_args &s, int32_t seq, int32_t i)
{
    plait_tile t;
    int32_t part = i % s.shape.head_parts;
    t.seq = seq;
    t.row_begin = s.row_start[seq] + i / s.shape.head_parts * s.shape.rows;
    t.row_end = max(min(t.row_begin + s.shape.rows, s.row_start[seq + 1]), t.row_begin);
    t.head_begin = part * s.shape.heads;
    t.head_end = min(t.head_begin + s.shape.heads, s.h_q);
    t.first = INT32_MAX;
    t.end = 0;
    for (int32_t row = t.row_begin; row < t.row_end; row++) {
        int32_t begin = s.kv_begin ? s.kv_begin[row] : 0, end = s.kv_end[row];
        if (begin < end) {
            t.first = min(t.first, begin / PLAIT_TILE_KEYS);
            t.end = max(t.end, ceil_div(end, PLAIT_TILE_KEYS));
        }
    }
    return t;
}

/* Numbers the sequences' tiles, 256 sequences at a time: WRITE lists the tiles of units, else only
   counts tiles and those that would be alone in a pair. */
template <bool WRITE>
PLAIT_DEVICE void list_tiles(const plait_schedule_args &s, cut_space &m)
{
    int32_t thread = (int32_t)threadIdx.x, base = 0, single = 0, cost = 0;
    int32_t pair = WRITE ? m.pair : 1;
    for (int32_t first = 0; first < s.num_seqs; first += threads) {
        int32_t seq = first + thread, tiles = seq < s.num_seqs ? tiles_of(s, seq) : 0;
        int32_t own = ceil_div(tiles, pair) * pair;
        single += tiles & 1;
        __syncthreads();
        m.sum[thread] = own;
        __syncthreads();
        for (int32_t d = 1; d < threads; d *= 2) {
            int32_t x = thread >= d ? m.sum[thread - d] : 0;
            __syncthreads();
            m.sum[thread] += x;
            __syncthreads();
        }
        for (int32_t i = 0; WRITE && i < own; i += pair) {
            plait_tile *to = s.tiles + base + m.sum[thread] - own + i;
            to[0] = tile_at(s, seq, i);
            int32_t low = to[0].first, high = to[0].end;
            if (pair == 2) {
                to[1] = tile_at(s, seq, i + 1);
                low = min(low, to[1].first);
                high = max(high, to[1].end);
            }
            to[0].first = low < high ? low : 0; /* of the unit */
            to[0].end = low < high ? high : 0;
            cost += to[0].end - to[0].first + start;
        }
        base += m.sum[threads - 1];
        __syncthreads();
    }
    if (thread == 0)
        m.total = m.tiles = 0;
    __syncthreads();
    atomicAdd(&m.total, WRITE ? cost : single);
    if (thread == 0)
        m.tiles = base;
    __syncthreads();
}

/*
 * Walks all units with shares of `limit`; returns the cost in 64ths of a block, or -1 if there are
 * too few teams. COUNT notes the items of teams and the parts of merged units; WRITE writes down
 * the items and merges of worker `side` of each team, after COUNT.
 */
template <bool COUNT, bool WRITE>
PLAIT_DEVICE int64_t cut(const plait_schedule_args &s, cut_space &m, int32_t limit, int32_t side)
{
    const int32_t teams = s.n_workers / m.pair;
    int32_t team = 0, left = limit, before = 0, items = 0, merges = 0, partials = 0;
    for (int32_t i = 0; i < m.tiles; i += m.pair) {
        const plait_tile &first = s.tiles[i], &own = s.tiles[i + side];
        int32_t blocks = first.end - first.first, done = 0, parts = 0;
        int32_t cells = cells_of(first);
        int32_t all = cells + (m.pair == 2 ? cells_of(s.tiles[i + 1]) : 0);
        int32_t at = partials;
        if (WRITE && side)
            at += m.parts[merges] * cells;
        int32_t from = at;
        do {
            if (left < start + min(blocks - done, 1)) {
                if (COUNT)
                    m.items[team] = items;
                if (WRITE)
                    before += m.items[team] * m.pair;
                team++;
                items = 0;
                left = limit;
                if (team >= teams)
                    return -1;
                if (WRITE)
                    s.worker_start[team * m.pair + side] = before + side * m.items[team];
            }
            int32_t take = min(blocks - done, left - start);
            if (WRITE) {
                int32_t key = (first.first + done) * PLAIT_TILE_KEYS;
                s.work[before + side * m.items[team] + items] = {
                    own.seq, own.row_begin, own.row_end, own.head_begin, own.head_end, key,
                    key + take * PLAIT_TILE_KEYS, take == blocks ? -1 : at};
                at += cells_of(own);
            }
            items++;
            parts++;
            left -= take + start;
            done += take;
        } while (done < blocks);
        if (parts == 1)
            continue;
        if (COUNT)
            m.parts[merges] = parts;
        if (WRITE)
            s.reduce[merges * m.pair + side] = {own.row_begin, own.row_end, own.head_begin,
                                                own.head_end,  from,        parts};
        partials += parts * all;
        merges++;
    }
    if (COUNT)
        for (m.items[team] = items; ++team < teams;)
            m.items[team] = 0;
    if (WRITE) {
        before += items * m.pair;
        while (++team < teams)
            s.worker_start[team * m.pair + side] = before;
        if (side == m.pair - 1)
            for (int32_t w = teams * m.pair; w <= s.n_workers; w++)
                s.worker_start[w] = before;
        for (int32_t e = merges * m.pair + side; e < s.n_workers; e += m.pair)
            s.reduce[e] = {0, 0, 0, 0, 0, 0};
    }
    return (int64_t)limit * 64 + (merges ? merge_any : 0) +
           (int64_t)partials * merge_tile / PLAIT_TILE_CELLS;
}

extern "C" __global__ void __launch_bounds__(threads)
    plait_schedule_cuda(const __grid_constant__ plait_schedule_args s)
{
    __shared__ cut_space m;
    int32_t thread = (int32_t)threadIdx.x;
    list_tiles<false>(s, m);
    if (thread == 0) {
        /* Singles cost a worker each: at most one tile in sixteen may be one. */
        m.pair = m.total * 16 <= m.tiles && s.n_workers > 1 ? 2 : 1;
        m.best = ~0ull;
    }
    __syncthreads();
    list_tiles<true>(s, m);
    int32_t low = max(ceil_div(m.total, s.n_workers / m.pair), start + 1), high = low + 2 * start;
    /* Beyond what suffices, limits grow by a 64th: fewer cuts may pay for longer shares. */
    int32_t limit = low + thread;
    if (limit > high)
        limit = (int32_t)min((int64_t)high + (int64_t)(limit - high) * (high / 64 + 1),
                             (int64_t)m.total + start);
    int64_t cost = cut<false, false>(s, m, limit, 0);
    if (cost >= 0)
        atomicMin(&m.best, (unsigned long long)cost << 32 | (uint32_t)limit);
    __syncthreads();
    limit = (int32_t)(m.best & 0xffffffffu);
    if (thread == 0)
        cut<true, false>(s, m, limit, 0);
    __syncthreads();
    /* Two sides in two warps, so that they do not take turns. */
    if (thread == 0 || (thread == 32 && m.pair == 2)) {
        int32_t side = thread / 32;
        s.worker_start[side] = side * m.items[0];
        cut<false, true>(s, m, limit, side);
    }
}
