/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel/schedule_cuda.h - the schedule of a GPU call, shared by host and device.
 *
 * A tile is at most 64 cells (rows x heads) of one sequence. A unit is one tile, or two of one
 * sequence; its cost is its blocks of 64 keys and a fixed share for starting. Teams, of as many
 * workers as a unit has tiles, take consecutive units up to one limit, the last of them in part; a
 * unit in several parts is merged.
 */
#ifndef PLAIT_KERNEL_SCHEDULE_CUDA_H
#define PLAIT_KERNEL_SCHEDULE_CUDA_H

#include <plait/attn.h>

enum { PLAIT_TILE_CELLS = 64, PLAIT_TILE_KEYS = 64 };

/* How heads and rows of a sequence are cut into tiles. */
typedef struct plait_tile_shape {
    int32_t head_parts, heads, rows; /* parts of the heads; heads and rows of a tile, at most */
} plait_tile_shape;

/* One tile, found on the device. */
typedef struct plait_tile {
    int32_t seq, row_begin, row_end, head_begin, head_end;
    int32_t first, end; /* blocks of keys */
} plait_tile;

typedef struct plait_schedule_args {
    const int32_t *row_start, *kv_begin, *kv_end;
    int32_t num_seqs, h_q, n_workers;
    plait_tile_shape shape;
    plait_tile *tiles; /* scratch */
    plait_attn_work *work;
    plait_attn_reduce *reduce; /* [n_workers] */
    int32_t *worker_start;     /* [n_workers + 1] */
} plait_schedule_args;

#endif
