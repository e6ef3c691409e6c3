/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariant mode: a row's bits depend on its own query, range and keys only.
 *
 * A kernel's bits do, beside those, depend on where its items cut the keys, so items are run here
 * one split at a time, and the states are merged one by one in order, within an item (in a buffer
 * that a second-level cache holds) or by the reduction where splits of a row are dealt to several
 * workers. An empty state changes no bit of what it is merged with, so that splits that only other
 * rows see do not matter.
 */
#include "kernel/kernel.h"

#include <math.h>

#include <plait/merge.h>

/* Rows x heads that are taken at once: a block of the MLA kernels, so that no key is read more
   often than without this mode. */
enum { block_lines = 128 };

struct job {
    const plait_kernel *kernel;
    const plait_attn_args *args;
    plait_attn_args one; /* args with one item and a workspace of two states of a block */
};

static plait_attn_args inner(const plait_attn_args *args)
{
    plait_attn_args one = *args;
    one.invariant = 0;
    one.num_work = 1;
    one.reduce = NULL;
    one.num_reduce = 0;
    one.num_partials = 2 * block_lines;
    return one;
}

static size_t worker_bytes(const plait_kernel *kernel, const plait_attn_args *args)
{
    const plait_attn_args one = inner(args);
    return (kernel->workspace(&one, 1) + 63) / 64 * 64;
}

size_t plait_invariant_workspace(const plait_kernel *kernel, const plait_attn_args *args,
                                 int32_t n_workers)
{
    return plait_attn_partial_bytes(args) + (size_t)n_workers * worker_bytes(kernel, args);
}

static plait_status attend(struct job *j, const plait_attn_work *item)
{
    j->one.work = item;
    return j->kernel->run(&j->one, 0, 1);
}

/* State `which` of the block's n lines. */
static plait_merged state(const struct job *j, int32_t which)
{
    float *outs = j->one.workspace, *lses = outs + (int64_t)2 * block_lines * j->args->d_v;
    return (plait_merged){.out = outs + (int64_t)which * block_lines * j->args->d_v,
                          .head_stride = j->args->d_v,
                          .lse = lses + which * block_lines,
                          .lse_head_stride = 1};
}

/* Writes a state of the block where `to`, the item that it is of, says. */
static void write_state(const struct job *j, const plait_attn_work *to,
                        const plait_attn_work *block, int32_t which)
{
    const plait_merged s = state(j, which);
    const float *out = s.out, *lse = s.lse;
    for (int32_t row = block->row_begin; row < block->row_end; row++)
        for (int32_t head = block->head_begin; head < block->head_end; head++, lse++) {
            plait_attn_write(j->args, to, row, head, *lse == -INFINITY ? NULL : out, *lse);
            out += j->args->d_v;
        }
}

/* Attends split s of the block into state `which`. */
static plait_status attend_split(struct job *j, const plait_attn_work *item, plait_attn_work block,
                                 int64_t s, int32_t keys, int32_t which)
{
    const int64_t begin = s * keys, end = begin + keys;
    block.kv_begin = begin > item->kv_begin ? (int32_t)begin : item->kv_begin;
    block.kv_end = end < item->kv_end ? (int32_t)end : item->kv_end;
    block.partial = which * block_lines;
    return attend(j, &block);
}

/* A block of an item whose splits go to partials. */
static plait_status split_block(struct job *j, const plait_attn_work *item,
                                const plait_attn_work *block, int32_t keys)
{
    const int32_t cells = (item->row_end - item->row_begin) * (item->head_end - item->head_begin);
    plait_attn_work to = *item;
    for (int32_t s = item->kv_begin / keys; s < item->kv_end / keys; s++, to.partial += cells) {
        plait_status status = attend_split(j, item, *block, s, keys, 0);
        if (status != PLAIT_OK)
            return status;
        write_state(j, &to, block, 0);
    }
    return PLAIT_OK;
}

/* A block of an item that holds all keys of its rows. */
static plait_status whole_block(struct job *j, const plait_attn_work *item,
                                const plait_attn_work *block, int32_t keys)
{
    const plait_attn_args *args = j->args;
    const int32_t n = (block->row_end - block->row_begin) * (block->head_end - block->head_begin);
    int32_t begin, end, last;
    plait_attn_row_range(args, item, block->row_begin, &begin, &last);
    plait_attn_row_range(args, item, block->row_end - 1, &last, &end);
    if (end <= begin || (end - 1) / keys == begin / keys)
        return attend(j, block);
    for (int32_t s = begin / keys; s <= (end - 1) / keys; s++) {
        const int32_t which = s > begin / keys;
        plait_status status = attend_split(j, item, *block, s, keys, which);
        if (status == PLAIT_OK && which) {
            const plait_merged sum = state(j, 0), more = state(j, 1);
            const plait_partial part = {
                .out = more.out, .head_stride = args->d_v, .lse = more.lse, .lse_head_stride = 1};
            status = plait_merge_into(&sum, &part, 1, n, args->d_v, 0);
        }
        if (status != PLAIT_OK)
            return status;
    }
    write_state(j, item, block, 0);
    return PLAIT_OK;
}

/* Heads of a block: for GQA with many lines those of one KV head. */
static int32_t heads_of_block(const plait_attn_args *args, int32_t rows, int32_t heads)
{
    if (args->op == PLAIT_OP_GQA && (int64_t)rows * heads > block_lines) {
        const int32_t group = args->q_per_kv > 0 ? args->q_per_kv : args->h_q / args->h_kv;
        heads = group < heads ? group : heads;
    }
    return heads < block_lines ? heads : block_lines;
}

/* Rows [begin, end) of an item, whose splits have `keys` keys, in blocks. */
static plait_status run_rows(struct job *j, const plait_attn_work *item, int32_t begin, int32_t end,
                             int32_t keys)
{
    const int32_t heads = heads_of_block(j->args, end - begin, item->head_end - item->head_begin);
    const int32_t rows = heads > 0 ? block_lines / heads : 0;
    plait_attn_work block = *item;
    plait_status status = PLAIT_OK;
    for (int32_t row = begin; rows && row < end; row += rows)
        for (int32_t h = item->head_begin; h < item->head_end && status == PLAIT_OK; h += heads) {
            block.row_begin = row;
            block.row_end = end - row < rows ? end : row + rows;
            block.head_begin = h;
            block.head_end = item->head_end - h < heads ? item->head_end : h + heads;
            status = item->partial >= 0 ? split_block(j, item, &block, keys)
                                        : whole_block(j, item, &block, keys);
        }
    return status;
}

static plait_status run_item(struct job *j, const plait_attn_work *item)
{
    const int32_t *kv_end = j->args->kv_end;
    plait_status status = PLAIT_OK;
    for (int32_t row = item->row_begin, end; row < item->row_end && status == PLAIT_OK; row = end) {
        const int32_t keys = plait_attn_split_keys(kv_end[row]);
        for (end = row + 1; end < item->row_end; end++)
            if (plait_attn_split_keys(kv_end[end]) != keys)
                break;
        status = run_rows(j, item, row, end, keys);
    }
    return status;
}

plait_status plait_invariant_run(const plait_kernel *kernel, const plait_attn_args *args,
                                 int32_t worker, int32_t n_workers)
{
    struct job j = {kernel, args, inner(args)};
    j.one.num_rows = args->row_start[args->num_seqs]; /* padding is written below */
    j.one.workspace_bytes = worker_bytes(kernel, args);
    j.one.workspace = (char *)args->workspace + plait_attn_partial_bytes(args) +
                      (size_t)worker * j.one.workspace_bytes;
    for (int32_t i = worker; i < plait_attn_items(args); i += n_workers) {
        const plait_attn_work item = plait_attn_item(args, i);
        plait_status status = run_item(&j, &item);
        if (status != PLAIT_OK)
            return status;
    }
    plait_attn_write_padding(args, worker, n_workers);
    return PLAIT_OK;
}
