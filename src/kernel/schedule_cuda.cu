/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What: cuts the work of a GPU call into one share for each multiprocessor, on the device, in one
 * block. Threads list the tiles together, then each tries one limit for the shares; the cheapest
 * limit that serves all tiles is carried out.
 * Plan: a limit of total / workers + 2 * start always suffices, since every worker but the last
 * fills its share to within one start, and each cut costs one more.
 */
#include "kernel/schedule_cuda.h"

#define PLAIT_DEVICE static __device__ __forceinline__

/* In blocks of keys: what starting a tile costs; in 64ths of a block: what any merge costs, and
   each partial tile of 64 cells. Fitted to measurements on an H200. */
enum { start = 2, merge_any = 96, merge_tile = 2, threads = 256 };

struct cut_space {
    int32_t sum[threads];
    unsigned long long best;
    int32_t tiles, total;
};

PLAIT_DEVICE int32_t ceil_div(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

PLAIT_DEVICE int32_t tiles_of(const plait_schedule_args &s, int32_t seq)
{
    return ceil_div(s.row_start[seq + 1] - s.row_start[seq], s.shape.rows) * s.shape.head_parts;
}

PLAIT_DEVICE plait_tile tile_at(const plait_schedule_args &s, int32_t seq, int32_t i)
{
    plait_tile t;
    int32_t part = i % s.shape.head_parts;
    t.seq = seq;
    t.row_begin = s.row_start[seq] + i / s.shape.head_parts * s.shape.rows;
    t.row_end = min(t.row_begin + s.shape.rows, s.row_start[seq + 1]);
    t.head_begin = part * s.shape.heads;
    t.head_end = min(t.head_begin + s.shape.heads, s.h_q);
    int32_t low = INT32_MAX, high = 0;
    for (int32_t row = t.row_begin; row < t.row_end; row++) {
        int32_t begin = s.kv_begin ? s.kv_begin[row] : 0, end = s.kv_end[row];
        if (begin < end) {
            low = min(low, begin);
            high = max(high, end);
        }
    }
    t.first = low < high ? low / PLAIT_TILE_KEYS : 0;
    t.blocks = low < high ? ceil_div(high, PLAIT_TILE_KEYS) - t.first : 0;
    return t;
}

/* Lists all tiles in order; 256 sequences at a time. */
PLAIT_DEVICE void list_tiles(const plait_schedule_args &s, cut_space &m)
{
    int32_t thread = (int32_t)threadIdx.x, base = 0, cost = 0;
    for (int32_t first = 0; first < s.num_seqs; first += threads) {
        int32_t seq = first + thread, own = seq < s.num_seqs ? tiles_of(s, seq) : 0;
        __syncthreads();
        m.sum[thread] = own;
        __syncthreads();
        for (int32_t d = 1; d < threads; d *= 2) {
            int32_t x = thread >= d ? m.sum[thread - d] : 0;
            __syncthreads();
            m.sum[thread] += x;
            __syncthreads();
        }
        for (int32_t i = 0; i < own; i++) {
            plait_tile t = tile_at(s, seq, i);
            s.tiles[base + m.sum[thread] - own + i] = t;
            cost += t.blocks + start;
        }
        base += m.sum[threads - 1];
    }
    if (thread == 0) {
        m.tiles = base;
        m.total = 0;
        m.best = ~0ull;
    }
    __syncthreads();
    atomicAdd(&m.total, cost);
    __syncthreads();
}

/* Walks all tiles with shares of `limit`; returns the cost in 64ths of a block, or -1 if there are
   too few workers. WRITE: writes the schedule down. */
template <bool WRITE>
PLAIT_DEVICE int64_t cut(const plait_schedule_args &s, int32_t tiles, int32_t limit)
{
    int32_t worker = 0, left = limit, items = 0, merges = 0, partials = 0;
    if (WRITE)
        s.worker_start[0] = 0;
    for (int32_t i = 0; i < tiles; i++) {
        int32_t blocks = s.tiles[i].blocks, done = 0, parts = 0, first_partial = partials;
        int32_t cells = (s.tiles[i].row_end - s.tiles[i].row_begin) *
                        (s.tiles[i].head_end - s.tiles[i].head_begin);
        do {
            if (left < start + min(blocks - done, 1)) {
                worker++;
                left = limit;
                if (worker >= s.n_workers)
                    return -1;
                if (WRITE)
                    s.worker_start[worker] = items;
            }
            int32_t take = min(blocks - done, left - start);
            bool whole = take == blocks;
            if (WRITE) {
                plait_tile t = s.tiles[i];
                int32_t begin = (t.first + done) * PLAIT_TILE_KEYS;
                s.work[items] = {t.seq,        t.row_begin, t.row_end,
                                 t.head_begin, t.head_end,  begin,
                                 begin + take * PLAIT_TILE_KEYS, whole ? -1 : partials};
            }
            items++;
            parts++;
            partials += whole ? 0 : cells;
            left -= take + start;
            done += take;
        } while (done < blocks);
        if (parts == 1)
            continue;
        if (WRITE)
            s.reduce[merges] = {s.tiles[i].row_begin,  s.tiles[i].row_end, s.tiles[i].head_begin,
                                s.tiles[i].head_end, first_partial,      parts};
        merges++;
    }
    if (WRITE) {
        for (worker++; worker <= s.n_workers; worker++)
            s.worker_start[worker] = items;
        for (; merges < s.n_workers; merges++)
            s.reduce[merges] = {0, 0, 0, 0, 0, 0};
    }
    return (int64_t)limit * 64 + (merges ? merge_any : 0) +
           (int64_t)partials * merge_tile / PLAIT_TILE_CELLS;
}

extern "C" __global__ void __launch_bounds__(threads)
    plait_schedule_cuda(const __grid_constant__ struct plait_schedule_args s)
{
    __shared__ cut_space m;
    int32_t thread = (int32_t)threadIdx.x;
    list_tiles(s, m);
    int32_t low = max(ceil_div(m.total, s.n_workers), start + 1), high = low + 2 * start;
    /* Beyond what suffices, limits grow by a 64th: fewer cuts may pay for longer shares. */
    int32_t limit = low + thread;
    if (limit > high)
        limit = (int32_t)min((int64_t)high + (int64_t)(limit - high) * (high / 64 + 1),
                             (int64_t)m.total + start);
    int64_t cost = cut<false>(s, m.tiles, limit);
    if (cost >= 0)
        atomicMin(&m.best, (unsigned long long)cost << 32 | (uint32_t)limit);
    __syncthreads();
    if (thread == 0)
        cut<true>(s, m.tiles, (int32_t)(m.best & 0xffffffffu));
}
