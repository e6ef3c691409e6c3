/* SPDX-License-Identifier: Apache-2.0 */
/* The host half of the GPU schedule: the layout of its buffer and the launch. */
#include "kernel/schedule_cuda.h"

#include <plait/cuda.h>

#include "core/memory.h"
#include "core/status.h"
#include "device/cuda.h"

static plait_tile_shape shape_of(int32_t h_q)
{
    plait_tile_shape s;
    s.head_parts = (h_q + PLAIT_TILE_CELLS - 1) / PLAIT_TILE_CELLS;
    s.heads = (h_q + s.head_parts - 1) / s.head_parts;
    s.rows = PLAIT_TILE_CELLS / s.heads;
    return s;
}

/* The sum of ceil(rows / shape.rows) over sequences, at most. */
static size_t max_tiles(int32_t seqs, int32_t rows, plait_tile_shape s)
{
    int64_t of_rows = s.rows == 1 ? rows : (int64_t)seqs + rows / s.rows;
    return (size_t)(of_rows < rows ? of_rows : rows) * (size_t)s.head_parts;
}

static void lay_out(plait_arena *arena, plait_schedule_args *s, size_t tiles)
{
    size_t n = (size_t)s->n_workers;
    s->worker_start = plait_arena_take(arena, n + 1, sizeof *s->worker_start);
    s->reduce = plait_arena_take(arena, n, sizeof *s->reduce);
    s->work = plait_arena_take(arena, 2 * tiles + n, sizeof *s->work);
    s->tiles = plait_arena_take(arena, 2 * tiles + 1, sizeof *s->tiles);
}

size_t plait_cuda_schedule_bytes(const plait_cuda *cuda, int32_t max_seqs, int32_t max_rows,
                                 int32_t h_q)
{
    plait_schedule_args s = {.n_workers = plait_cuda_sms(cuda)};
    plait_arena arena = {0};
    lay_out(&arena, &s, max_tiles(max_seqs, max_rows, shape_of(h_q)));
    return arena.used;
}

plait_status plait_cuda_schedule(plait_attn_args *args, void *buffer, size_t bytes)
{
    plait_cuda *cuda = plait_cuda_find(args->device);
    if (!cuda)
        return plait_fail(PLAIT_E_STATE, "cuda: device %d is not open", args->device);
    plait_schedule_args s = {.row_start = args->row_start,
                             .kv_begin = args->kv_begin,
                             .kv_end = args->kv_end,
                             .num_seqs = args->num_seqs,
                             .h_q = args->h_q,
                             .n_workers = plait_cuda_sms(cuda),
                             .shape = shape_of(args->h_q)};
    size_t need = plait_cuda_schedule_bytes(cuda, args->num_seqs, args->num_rows, args->h_q);
    if (bytes < need || !buffer)
        return plait_fail(PLAIT_E_NOMEM,
                          "cuda: the schedule's buffer has %zu bytes, %zu are needed",
                          buffer ? bytes : 0, need);
    size_t tiles = max_tiles(args->num_seqs, args->num_rows, s.shape);
    plait_arena arena = plait_arena_over(buffer, bytes);
    lay_out(&arena, &s, tiles);
    void *params[] = {&s};
    PLAIT_TRY(plait_cuda_launch(cuda, PLAIT_CUDA_plait_schedule_cuda, 1, 0, args->stream, params));
    args->work = s.work;
    args->num_work = 2 * (int32_t)tiles + s.n_workers;
    args->worker_start = s.worker_start;
    args->num_workers = s.n_workers;
    args->reduce = s.reduce;
    args->num_reduce = s.n_workers;
    /* Only the first and the last item of a worker can be part of a tile. */
    args->num_partials = 2 * s.n_workers * PLAIT_TILE_CELLS;
    return PLAIT_OK;
}
