/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context of a prefill under DCP: each rank packs the rows of the chunk that it holds, all
 * ranks gather them, and each puts them in their global order. Counts come from global lengths
 * alone, so every rank knows every other's.
 */
#include "cp/dcp.h"

#include <inttypes.h>

#include <plait/kv.h>

#include "core/status.h"

static plait_status check_sequence(const plait_dcp_context *x, int32_t s)
{
    if (x->begin[s] < 0 || x->end[s] < x->begin[s] || x->end[s] > INT64_MAX / 4)
        return plait_fail(PLAIT_E_ARG,
                          "dcp: sequence %d gathers tokens %" PRId64 " to %" PRId64
                          ", wanted 0 <= begin <= end",
                          s, x->begin[s], x->end[s]);
    if (x->begin[s] == x->end[s])
        return PLAIT_OK;
    /* The entries of any rank: all ranks must come to the same verdict. */
    const int64_t pages = plait_shard_pages(x->shard, x->end[s], x->page_size);
    const int64_t first = x->begin[s] / ((int64_t)x->shard.d * x->shard.i) * x->shard.i;
    if (pages > x->page_table_stride)
        return plait_fail(PLAIT_E_ARG,
                          "dcp: sequence %d needs %" PRId64 " pages for %" PRId64
                          " tokens, but its table has %" PRId64 " entries",
                          s, pages, x->end[s], x->page_table_stride);
    const int32_t *table = x->page_table + s * x->page_table_stride;
    for (int64_t k = first / x->page_size; k < pages; k++)
        if (table[k] < 0)
            return plait_fail(PLAIT_E_ARG,
                              "dcp: page table of sequence %d has id %d at entry %" PRId64
                              ", wanted at least 0",
                              s, table[k], k);
    return PLAIT_OK;
}

/* The dims of a row that is to be decoded; plait_kv_gather checks the rest. */
static plait_status check_values(const plait_dcp_context *x)
{
    const int64_t bytes = (int64_t)plait_dtype_bytes(x->kv_dtype);
    const int64_t values = x->kv_dtype == PLAIT_FP8_DS656 ? 1 : (int64_t)x->h_kv * x->d;
    if (x->d == 0)
        return PLAIT_OK;
    if (x->d < 0 || x->h_kv < 1 || values * bytes != x->row_bytes)
        return plait_fail(PLAIT_E_ARG,
                          "dcp: %d heads of %d values in %s are no row of %" PRId64 " bytes",
                          x->h_kv, x->d, plait_dtype_name(x->kv_dtype), x->row_bytes);
    if (x->page_stride_bytes % bytes != 0 || x->token_stride_bytes % bytes != 0)
        return plait_fail(PLAIT_E_ARG,
                          "dcp: strides of %" PRId64 " and %" PRId64
                          " bytes, wanted multiples of the %" PRId64 " of a value",
                          x->page_stride_bytes, x->token_stride_bytes, bytes);
    return PLAIT_OK;
}

static plait_status check_context(const struct plait_dcp *c, const plait_dcp_context *x)
{
    if (x->size < sizeof *x)
        return plait_fail(PLAIT_E_ARG, "dcp: context of size %zu, wanted at least %zu", x->size,
                          sizeof *x);
    PLAIT_TRY(plait_shard_check(x->shard));
    if (x->shard.d != c->n || x->shard.r != c->rank)
        return plait_fail(PLAIT_E_ARG, "dcp: geometry of rank %d of %d, but this is rank %d of %d",
                          x->shard.r, x->shard.d, c->rank, c->n);
    PLAIT_TRY(check_values(x));
    if (x->num_seqs < 0 || x->page_size < 1 || x->row_bytes < 1 || x->row_bytes > INT32_MAX)
        return plait_fail(PLAIT_E_ARG,
                          "dcp: %d sequences, page size %d, rows of %" PRId64
                          " bytes; wanted at least 0, 1 and 1",
                          x->num_seqs, x->page_size, x->row_bytes);
    for (int32_t s = 0; s < x->num_seqs; s++)
        PLAIT_TRY(check_sequence(x, s));
    return PLAIT_OK;
}

/* Rows of the chunk that rank `rank` holds. */
static int64_t rows_of(const plait_dcp_context *x, int32_t rank)
{
    const plait_shard shard = {x->shard.d, rank, x->shard.i};
    int64_t rows = 0;
    for (int32_t s = 0; s < x->num_seqs; s++)
        rows += plait_shard_len(shard, x->end[s]) - plait_shard_len(shard, x->begin[s]);
    return rows;
}

/* Rows on their way from one buffer to another, some at a time. */
enum { most_rows = 256 };

struct rows {
    plait_kv_gather_args args;
    int64_t slot[most_rows], place[most_rows];
};

/* From `cache` to `out` as values if `decode`, else as bytes. */
static void rows_open(struct rows *r, const plait_dcp_context *x, int decode, const void *cache,
                      int32_t page_size, int64_t page_stride_bytes, int64_t token_stride_bytes,
                      void *out)
{
    const int64_t bytes = decode ? (int64_t)plait_dtype_bytes(x->kv_dtype) : 1;
    r->args = (plait_kv_gather_args)PLAIT_KV_GATHER_ARGS_INIT;
    r->args.h_kv = decode ? x->h_kv : 1;
    r->args.d = decode ? x->d : (int32_t)x->row_bytes;
    r->args.page_size = page_size;
    r->args.slot = r->slot;
    r->args.cache = cache;
    r->args.kv_dtype = decode ? x->kv_dtype : PLAIT_FP8_E4M3; /* a byte */
    r->args.page_stride = page_stride_bytes / bytes;
    r->args.token_stride = token_stride_bytes / bytes;
    r->args.head_stride = x->d;
    r->args.scale = x->scale;
    r->args.scale_n = decode ? x->scale_n : 0;
    r->args.out = out;
    r->args.out_dtype = decode ? x->out_dtype : PLAIT_FP8_E4M3;
    r->args.out_row_stride = r->args.d * (int64_t)r->args.h_kv;
    r->args.out_head_stride = r->args.d;
    r->args.out_row = r->place;
    if (decode && x->kv_dtype == PLAIT_FP8_DS656 && x->out_dtype == PLAIT_FP8_DS656)
        r->args.out_row_stride = 1;
}

static plait_status rows_flush(struct rows *r)
{
    const plait_status status = plait_kv_gather(&r->args);
    r->args.num_rows = 0;
    return status;
}

static plait_status rows_add(struct rows *r, int64_t slot, int64_t place)
{
    r->slot[r->args.num_rows] = slot;
    r->place[r->args.num_rows++] = place;
    return r->args.num_rows == most_rows ? rows_flush(r) : PLAIT_OK;
}

/* This rank's rows of the chunk, one after another. */
static plait_status pack(const plait_dcp_context *x, int decode, void *to)
{
    struct rows r;
    int64_t place = 0;
    rows_open(&r, x, decode, x->cache, x->page_size, x->page_stride_bytes, x->token_stride_bytes,
              to);
    for (int32_t s = 0; s < x->num_seqs; s++) {
        const int32_t *table = x->page_table + s * x->page_table_stride;
        const int64_t end = plait_shard_len(x->shard, x->end[s]);
        for (int64_t k = plait_shard_len(x->shard, x->begin[s]); k < end; k++)
            PLAIT_TRY(rows_add(
                &r, (int64_t)table[k / x->page_size] * x->page_size + k % x->page_size, place++));
    }
    return rows_flush(&r);
}

/* Puts the rows of one rank to their places. */
static plait_status restore_order(const plait_dcp_context *x, int32_t rank, const void *from,
                                  void *out)
{
    const plait_shard shard = {x->shard.d, rank, x->shard.i};
    struct rows r;
    int64_t slot = 0, first = 0;
    rows_open(&r, x, x->d > 0, from, 1, x->row_bytes, x->row_bytes, out);
    for (int32_t s = 0; s < x->num_seqs; s++) {
        const int64_t end = plait_shard_len(shard, x->end[s]);
        for (int64_t k = plait_shard_len(shard, x->begin[s]); k < end; k++)
            PLAIT_TRY(rows_add(&r, slot++, first + plait_shard_global(shard, k) - x->begin[s]));
        first += x->end[s] - x->begin[s];
    }
    return rows_flush(&r);
}

plait_status plait_dcp_gather_context(plait_dcp *dcp, const plait_dcp_context *context, void *out)
{
    PLAIT_TRY(check_context(dcp, context));
    if (dcp->n == 1)
        return pack(context, context->d > 0, out);
    int64_t total = 0;
    for (int32_t i = 0; i < dcp->n; i++) {
        const int64_t rows = rows_of(context, i);
        total += rows;
        if (total > dcp->max_context_rows || context->row_bytes > dcp->context_row_bytes)
            return plait_fail(PLAIT_E_NOMEM,
                              "dcp: context of at least %" PRId64 " rows of %" PRId64
                              " bytes, but it was opened for %" PRId64 " of %" PRId64,
                              total, context->row_bytes, dcp->max_context_rows,
                              dcp->context_row_bytes);
        dcp->sizes[i] = rows * context->row_bytes;
    }
    PLAIT_TRY(pack(context, 0, dcp->context_send));
    PLAIT_TRY(plait_comm_all_gather(dcp->comm, "gather context", -1, NULL, dcp->context_send,
                                    dcp->sizes, dcp->context_recv));
    const unsigned char *from = dcp->context_recv;
    for (int32_t i = 0; i < dcp->n; i++) {
        PLAIT_TRY(restore_order(context, i, from, out));
        from += dcp->sizes[i];
    }
    return PLAIT_OK;
}
