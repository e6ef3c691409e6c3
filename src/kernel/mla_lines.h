/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel/mla_lines.h - what the vector kernels for MLA and GQA share: the lines of a block and
 * their place in a tile of keys.
 *
 * A line is one head of one row of an item; GQA takes an item's heads by KV head. All lines of a
 * block see the same keys, each within its own range, so that a tile of keys is prepared once for
 * all of them. Lines are padded with empty ones to whole vectors ("groups" of as many lines as a
 * vector has lanes).
 */
#ifndef PLAIT_KERNEL_MLA_LINES_H
#define PLAIT_KERNEL_MLA_LINES_H

#include "kernel/kernel.h"

enum { PLAIT_MLA_LINES = 128 }; /* at most in a block: q and the sums of 128 x 512 fit a L2 cache */

typedef struct plait_mla_lines {
    int32_t n, padded;
    int32_t kv_begin, kv_end; /* the union of the ranges; empty if kv_begin >= kv_end */
    int32_t begin[PLAIT_MLA_LINES], end[PLAIT_MLA_LINES]; /* both 0: empty */
    float scale[PLAIT_MLA_LINES]; /* of a score, to base 2; includes q_scale and k_scale */
    float top[PLAIT_MLA_LINES];   /* the score that the weights are relative to */
    float sum[PLAIT_MLA_LINES];   /* of the weights */
} plait_mla_lines;

/* Lines of an item, and line i's row and head. */
static inline int64_t plait_mla_count(const plait_attn_work *item)
{
    return (int64_t)(item->row_end - item->row_begin) * (item->head_end - item->head_begin);
}

static inline int32_t plait_mla_row(const plait_attn_work *item, int64_t i)
{
    return item->row_begin + (int32_t)(i / (item->head_end - item->head_begin));
}

static inline int32_t plait_mla_head(const plait_attn_work *item, int64_t i)
{
    return item->head_begin + (int32_t)(i % (item->head_end - item->head_begin));
}

/* Prepares the block of lines from `first` on, padded to a multiple of `lanes`. */
void plait_mla_lines_open(plait_mla_lines *l, const plait_attn_args *args,
                          const plait_attn_work *item, int64_t first, int32_t lanes);

/* How lines [from, from + lanes) see the tile at key `at`. */
typedef enum plait_mla_view {
    PLAIT_MLA_NONE, /* no line sees a key of it */
    PLAIT_MLA_EDGE, /* some lines, or some keys */
    PLAIT_MLA_FULL  /* every line sees all of it */
} plait_mla_view;

plait_mla_view plait_mla_lines_view(const plait_mla_lines *l, int32_t from, int32_t lanes,
                                    int32_t at, int32_t tile);

/* The keys of line i within the tile at `at`, relative to it; empty if *lo >= *hi. */
static inline void plait_mla_line_keys(const plait_mla_lines *l, int32_t i, int32_t at,
                                       int32_t tile, int32_t *lo, int32_t *hi)
{
    *lo = l->begin[i] > at ? l->begin[i] - at : 0;
    *hi = l->end[i] < at + tile ? l->end[i] - at : tile;
}

/* Writes line i of the block, a part of `whole`: its sums, multiplied by 1 / sum and out_scale
 * already. */
void plait_mla_line_write(const plait_mla_lines *l, const plait_attn_args *args,
                          const plait_attn_work *whole, const plait_attn_work *item, int64_t first,
                          int32_t i, const float *out);

/* Addresses of the keys [at, at + tile) of a sequence and KV head; outside [begin, end) the nearest
   key inside. And of their values, for GQA. */
void plait_mla_key_rows(const plait_attn_args *args, int32_t seq, int32_t kv_head, int32_t at,
                        int32_t tile, int32_t begin, int32_t end, const char **rows);
void plait_mla_value_rows(const plait_attn_args *args, int32_t seq, int32_t kv_head, int32_t at,
                          int32_t tile, int32_t begin, int32_t end, const char **rows);

/* What stored values are to be multiplied by. */
float plait_mla_value_scale(const plait_attn_args *args, int32_t kv_head);

/* Calls block(args, item, first, scratch) for every block of this worker's items, with the heads of
   one KV head and *whole the item that they are of, then writes its share of the padding rows. */
typedef void (*plait_mla_block)(const plait_attn_args *args, const plait_attn_work *item,
                                int64_t first, void *scratch);
void plait_mla_run(const plait_attn_args *args, int32_t worker, int32_t n_workers,
                   plait_mla_block block, void *scratch, const plait_attn_work **whole);

#endif
