/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context of a prefill under DCP: each rank packs the rows of the chunk that it holds, all
 * ranks gather them, and each puts them in their global order. Counts come from global lengths
 * alone, so every rank knows every other's.
 */
#include "cp/dcp.h"

#include <inttypes.h>
#include <string.h>

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

static plait_status check_context(const struct plait_dcp *c, const plait_dcp_context *x)
{
    if (x->size < sizeof *x)
        return plait_fail(PLAIT_E_ARG, "dcp: context of size %zu, wanted at least %zu", x->size,
                          sizeof *x);
    PLAIT_TRY(plait_shard_check(x->shard));
    if (x->shard.d != c->n || x->shard.r != c->rank)
        return plait_fail(PLAIT_E_ARG, "dcp: geometry of rank %d of %d, but this is rank %d of %d",
                          x->shard.r, x->shard.d, c->rank, c->n);
    if (x->num_seqs < 0 || x->page_size < 1 || x->row_bytes < 1)
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

static void pack(const plait_dcp_context *x, unsigned char *to)
{
    for (int32_t s = 0; s < x->num_seqs; s++) {
        const int32_t *table = x->page_table + s * x->page_table_stride;
        const int64_t end = plait_shard_len(x->shard, x->end[s]);
        for (int64_t k = plait_shard_len(x->shard, x->begin[s]); k < end; k++) {
            memcpy(to,
                   (const unsigned char *)x->cache +
                       table[k / x->page_size] * x->page_stride_bytes +
                       k % x->page_size * x->token_stride_bytes,
                   (size_t)x->row_bytes);
            to += x->row_bytes;
        }
    }
}

/* Puts the rows of one rank to their places. */
static void restore_order(const plait_dcp_context *x, int32_t rank, const unsigned char *from,
                          unsigned char *out)
{
    const plait_shard shard = {x->shard.d, rank, x->shard.i};
    for (int32_t s = 0; s < x->num_seqs; s++) {
        const int64_t end = plait_shard_len(shard, x->end[s]);
        for (int64_t k = plait_shard_len(shard, x->begin[s]); k < end; k++) {
            memcpy(out + (plait_shard_global(shard, k) - x->begin[s]) * x->row_bytes, from,
                   (size_t)x->row_bytes);
            from += x->row_bytes;
        }
        out += (x->end[s] - x->begin[s]) * x->row_bytes;
    }
}

plait_status plait_dcp_gather_context(plait_dcp *dcp, const plait_dcp_context *context, void *out)
{
    PLAIT_TRY(check_context(dcp, context));
    if (dcp->n == 1) {
        pack(context, out);
        return PLAIT_OK;
    }
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
    pack(context, dcp->context_send);
    PLAIT_TRY(plait_comm_all_gather(dcp->comm, "gather context", -1, NULL, dcp->context_send,
                                    dcp->sizes, dcp->context_recv));
    const unsigned char *from = dcp->context_recv;
    for (int32_t i = 0; i < dcp->n; i++) {
        restore_order(context, i, from, out);
        from += dcp->sizes[i];
    }
    return PLAIT_OK;
}
