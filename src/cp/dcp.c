/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The DCP step. Both exchanges weigh in plait_merge, so that the rules for empty and broken rows
 * are in one place: a2a merges all ranks' states at their owner; ag_rs merges its own state with
 * the others' LSE and zeros for their outputs, which gives its weighted share of the result.
 */
#include "cp/dcp.h"

#include <inttypes.h>
#include <string.h>

#include "core/status.h"

enum { ROWS_LIMIT = 1 << 24, HEADS_LIMIT = 1 << 16, DIM_LIMIT = 1 << 16 };

/* ---- opening and closing ----------------------------------------------------------------------*/

static int carried(plait_dtype dtype)
{
    return dtype == PLAIT_F32 || dtype == PLAIT_BF16 || dtype == PLAIT_F16;
}

static plait_status check_heads(const plait_dcp_options *o)
{
    int64_t sum = 0;
    const int32_t n = plait_comm_size(o->comm);
    if (!o->heads)
        return plait_fail(PLAIT_E_ARG, "dcp: heads is NULL, wanted one count for each rank");
    for (int32_t i = 0; i < n; i++) {
        if (o->heads[i] < 0)
            return plait_fail(PLAIT_E_ARG, "dcp: rank %d has %d heads, wanted at least 0", i,
                              o->heads[i]);
        sum += o->heads[i];
    }
    if (sum < 1 || sum > HEADS_LIMIT)
        return plait_fail(PLAIT_E_ARG, "dcp: %" PRId64 " heads in the group, wanted 1 to %d", sum,
                          HEADS_LIMIT);
    return PLAIT_OK;
}

static plait_status check_options(const plait_dcp_options *o)
{
    PLAIT_TRY(check_heads(o));
    if (o->d_qk < 1 || o->d_qk > DIM_LIMIT || o->d_v < 1 || o->d_v > DIM_LIMIT)
        return plait_fail(PLAIT_E_ARG, "dcp: d_qk %d and d_v %d, wanted 1 to %d", o->d_qk, o->d_v,
                          DIM_LIMIT);
    if (o->max_rows < 1 || o->max_rows > ROWS_LIMIT)
        return plait_fail(PLAIT_E_ARG, "dcp: max_rows is %d, wanted 1 to %d", o->max_rows,
                          ROWS_LIMIT);
    if (!carried(o->q_dtype) || !carried(o->partial_dtype))
        return plait_fail(PLAIT_E_ARG, "dcp: q in %s and partials in %s, wanted f32, bf16 or f16",
                          plait_dtype_name(o->q_dtype), plait_dtype_name(o->partial_dtype));
    if (o->exchange < PLAIT_EXCHANGE_AUTO || o->exchange > PLAIT_EXCHANGE_A2A)
        return plait_fail(PLAIT_E_ARG, "dcp: exchange is %d, wanted 0 to %d", (int)o->exchange,
                          (int)PLAIT_EXCHANGE_A2A);
    if (o->max_context_rows < 0 || o->max_context_rows > INT32_MAX || o->context_row_bytes < 0 ||
        o->context_row_bytes > INT32_MAX)
        return plait_fail(PLAIT_E_ARG,
                          "dcp: context of %" PRId64 " rows of %" PRId64
                          " bytes, wanted 0 to 2^31 - 1 each",
                          o->max_context_rows, o->context_row_bytes);
    return PLAIT_OK;
}

static size_t round_up(size_t bytes)
{
    return (bytes + PLAIT_ALIGN - 1) / PLAIT_ALIGN * PLAIT_ALIGN;
}

/* An a2a block: lse [rows][heads], then out [rows][heads][d_v], each padded to PLAIT_ALIGN. */
static size_t block_lse_bytes(int32_t rows, int32_t heads)
{
    return round_up((size_t)rows * (size_t)heads * sizeof(float));
}

static size_t block_bytes(const struct plait_dcp *c, int32_t rows, int32_t heads)
{
    return block_lse_bytes(rows, heads) + round_up((size_t)rows * (size_t)heads * (size_t)c->d_v *
                                                   plait_dtype_bytes(c->partial_dtype));
}

static void lay_out(plait_arena *arena, struct plait_dcp *c)
{
    const size_t n = (size_t)c->n, rows = (size_t)c->max_rows, d_v = (size_t)c->d_v;
    const size_t all = rows * (size_t)c->all_heads, own = rows * (size_t)c->own_heads;
    const size_t q_row = (size_t)c->d_qk * plait_dtype_bytes(c->q_dtype);
    /* Padding of blocks is at most two alignments for each. */
    const size_t block = d_v * plait_dtype_bytes(c->partial_dtype) + sizeof(float);
    const size_t padding = 2 * n * PLAIT_ALIGN;
    const size_t a2a = c->n > 1 && c->exchange == PLAIT_EXCHANGE_A2A;
    const size_t ag_rs = c->n > 1 && c->exchange == PLAIT_EXCHANGE_AG_RS;
    const size_t many = c->n > 1;
    c->heads = plait_arena_take(arena, n, sizeof *c->heads);
    c->first = plait_arena_take(arena, n, sizeof *c->first);
    c->sizes = plait_arena_take(arena, n, sizeof *c->sizes);
    c->more = plait_arena_take(arena, n, sizeof *c->more);
    c->q_send = plait_arena_take(arena, own, q_row);
    c->q_blocks = plait_arena_take(arena, many * all, q_row);
    c->q = plait_arena_take(arena, many * all, q_row);
    c->partial_out = plait_arena_take(arena, many * all, d_v * plait_dtype_bytes(c->partial_dtype));
    c->partial_lse = plait_arena_take(arena, many * all, sizeof(float));
    c->a2a_send = plait_arena_take(arena, a2a * (all * block + padding), 1);
    c->a2a_recv = plait_arena_take(arena, a2a * (n * own * block + padding), 1);
    c->lse_send = plait_arena_take(arena, ag_rs * all, sizeof(float));
    c->lse_ranks = plait_arena_take(arena, ag_rs * n * all, sizeof(float));
    c->weighted = plait_arena_take(arena, ag_rs * all, d_v * sizeof(float));
    c->sum = plait_arena_take(arena, ag_rs * own, d_v * sizeof(float));
    c->own_lse = plait_arena_take(arena, ag_rs * own, sizeof(float));
    const size_t context = (size_t)c->max_context_rows, row = (size_t)c->context_row_bytes;
    c->context_send = plait_arena_take(arena, many * context, row);
    c->context_recv = plait_arena_take(arena, many * context, row);
}

static plait_status make(const plait_dcp_options *o, struct plait_dcp **out)
{
    PLAIT_TRY(check_options(o));
    struct plait_dcp *c;
    PLAIT_TRY(plait_mem_zalloc(o->allocator, sizeof *c, "DCP step", (void **)&c));
    c->comm = o->comm;
    c->allocator = o->allocator ? *o->allocator : *plait_allocator_default();
    c->n = plait_comm_size(o->comm);
    c->rank = plait_comm_rank(o->comm);
    c->own_heads = o->heads[c->rank];
    for (int32_t i = 0; i < c->n; i++)
        c->all_heads += o->heads[i];
    c->d_qk = o->d_qk;
    c->d_v = o->d_v;
    c->max_rows = o->max_rows;
    c->q_dtype = o->q_dtype;
    c->partial_dtype = o->partial_dtype;
    c->exchange = o->exchange == PLAIT_EXCHANGE_AUTO ? PLAIT_EXCHANGE_A2A : o->exchange;
    c->max_context_rows = o->max_context_rows;
    c->context_row_bytes = o->context_row_bytes;
    lay_out(&c->arena, c);
    const plait_status status = plait_arena_reserve(&c->arena, &c->allocator, "DCP buffers");
    if (status != PLAIT_OK) {
        plait_mem_free(&c->allocator, c, sizeof *c);
        return status;
    }
    lay_out(&c->arena, c);
    for (int32_t i = 0; i < c->n; i++) {
        c->heads[i] = o->heads[i];
        c->first[i] = i > 0 ? c->first[i - 1] + c->heads[i - 1] : 0;
    }
    *out = c;
    return PLAIT_OK;
}

/* What all ranks must have in common. */
struct terms {
    int32_t d_qk, d_v, max_rows, q_dtype, partial_dtype, exchange;
    int64_t context_rows, context_row_bytes;
    uint64_t heads; /* a hash of all counts */
};

static struct terms terms_of(const struct plait_dcp *c)
{
    struct terms t = {c->d_qk,
                      c->d_v,
                      c->max_rows,
                      (int32_t)c->q_dtype,
                      (int32_t)c->partial_dtype,
                      (int32_t)c->exchange,
                      c->max_context_rows,
                      c->context_row_bytes,
                      0};
    for (int32_t i = 0; i < c->n; i++)
        t.heads = t.heads * 1000003u + (uint64_t)c->heads[i] + 1;
    return t;
}

static plait_status agree(plait_comm *comm, plait_status status, const struct plait_dcp *c)
{
    struct terms mine = {0}, all[PLAIT_COMM_MAX_RANKS];
    if (status == PLAIT_OK)
        mine = terms_of(c);
    PLAIT_TRY(plait_comm_exchange(comm, "open DCP step", status, &mine, sizeof mine, all));
    for (int32_t i = 1; i < plait_comm_size(comm); i++)
        if (memcmp(&all[i], &all[0], sizeof all[0]) != 0)
            return plait_fail(PLAIT_E_COMM,
                              "dcp: rank %d and rank 0 open with different options: d_qk %d and "
                              "%d, d_v %d and %d, max_rows %d and %d, heads %s, exchange %d and %d",
                              i, all[i].d_qk, all[0].d_qk, all[i].d_v, all[0].d_v, all[i].max_rows,
                              all[0].max_rows, all[i].heads == all[0].heads ? "equal" : "unequal",
                              all[i].exchange, all[0].exchange);
    return PLAIT_OK;
}

plait_status plait_dcp_open(const plait_dcp_options *options, plait_dcp **out)
{
    *out = NULL;
    if (!options || options->size < sizeof *options || !options->comm)
        return plait_fail(PLAIT_E_ARG, "dcp: options of size %zu with a communicator are wanted",
                          sizeof *options);
    struct plait_dcp *c = NULL;
    plait_status status = make(options, &c);
    status = agree(options->comm, status, c);
    if (status != PLAIT_OK)
        plait_dcp_close(&c);
    *out = c;
    return status;
}

void plait_dcp_close(plait_dcp **dcp)
{
    if (!dcp || !*dcp)
        return;
    struct plait_dcp *c = *dcp;
    const plait_allocator allocator = c->allocator;
    plait_arena_free(&c->arena, &allocator);
    plait_mem_free(&allocator, c, sizeof *c);
    *dcp = NULL;
}

int32_t plait_dcp_heads(const plait_dcp *dcp)
{
    return dcp->all_heads;
}

int32_t plait_dcp_first_head(const plait_dcp *dcp)
{
    return dcp->first[dcp->rank];
}

plait_exchange plait_dcp_exchange(const plait_dcp *dcp)
{
    return dcp->exchange;
}

/* ---- work over rows ---------------------------------------------------------------------------*/

/* What a task needs; each uses its part. */
struct job {
    struct plait_dcp *c;
    int32_t rows;
    plait_status (*rows_fn)(const struct job *job, int32_t row, int32_t end);
    const unsigned char *q;
    int64_t q_row_stride, q_head_stride;
    plait_partial partial;
    plait_merged dst;
};

static plait_status job_task(void *task, int32_t worker, int32_t n_workers)
{
    const struct job *job = task;
    const int32_t begin = (int32_t)((int64_t)job->rows * worker / n_workers);
    const int32_t end = (int32_t)((int64_t)job->rows * (worker + 1) / n_workers);
    return begin < end ? job->rows_fn(job, begin, end) : PLAIT_OK;
}

/* A few rows are done sooner than other threads wake up. */
static plait_status run(const plait_executor *executor, struct job *job,
                        plait_status (*fn)(const struct job *, int32_t, int32_t))
{
    job->rows_fn = fn;
    if (!executor || executor->n_workers == 1 || job->rows < 2)
        return job_task(job, 0, 1);
    return executor->parallel_for(executor->user, job_task, job);
}

static plait_partial partial_at(const plait_partial *p, int64_t row, int64_t head)
{
    plait_partial at = *p;
    if (at.out)
        at.out = (const unsigned char *)at.out + (row * at.row_stride + head * at.head_stride) *
                                                     (int64_t)plait_dtype_bytes(at.dtype);
    at.lse += row * at.lse_row_stride + head * at.lse_head_stride;
    return at;
}

static plait_merged merged_at(const plait_merged *m, int64_t row)
{
    plait_merged at = *m;
    at.out = (unsigned char *)at.out + row * at.row_stride * (int64_t)plait_dtype_bytes(at.dtype);
    if (at.lse)
        at.lse += row * at.lse_row_stride;
    return at;
}

/* ---- queries ----------------------------------------------------------------------------------*/

static plait_status check_rows(const struct plait_dcp *c, int32_t rows)
{
    if (rows < 0)
        return plait_fail(PLAIT_E_ARG, "dcp: %d rows, wanted at least 0", rows);
    if (rows > c->max_rows)
        return plait_fail(PLAIT_E_NOMEM, "dcp: %d rows, but it was opened for %d", rows,
                          c->max_rows);
    return PLAIT_OK;
}

static plait_status copy_q(const struct job *job, int32_t row, int32_t end)
{
    struct plait_dcp *c = job->c;
    const size_t e = plait_dtype_bytes(c->q_dtype), bytes = (size_t)c->d_qk * e;
    for (int64_t i = row; i < end; i++)
        for (int64_t h = 0; h < c->own_heads; h++)
            memcpy((unsigned char *)c->q_send + (size_t)(i * c->own_heads + h) * bytes,
                   job->q + (i * job->q_row_stride + h * job->q_head_stride) * (int64_t)e, bytes);
    return PLAIT_OK;
}

/* From blocks of ranks to rows of all heads. */
static plait_status interleave_q(const struct job *job, int32_t row, int32_t end)
{
    struct plait_dcp *c = job->c;
    const int64_t bytes = c->d_qk * (int64_t)plait_dtype_bytes(c->q_dtype);
    for (int32_t j = 0; j < c->n; j++) {
        const unsigned char *block =
            (const unsigned char *)c->q_blocks + (int64_t)c->first[j] * job->rows * bytes;
        for (int64_t i = row; i < end; i++)
            memcpy((unsigned char *)c->q + (i * c->all_heads + c->first[j]) * bytes,
                   block + i * c->heads[j] * bytes, (size_t)(c->heads[j] * bytes));
    }
    return PLAIT_OK;
}

plait_status plait_dcp_gather_q(plait_dcp *dcp, int32_t rows, const void *q, int64_t row_stride,
                                int64_t head_stride, const plait_executor *executor,
                                const void **gathered)
{
    PLAIT_TRY(check_rows(dcp, rows));
    const int64_t dense = (int64_t)dcp->own_heads * dcp->d_qk;
    struct job job = {
        .c = dcp, .rows = rows, .q = q, .q_row_stride = row_stride, .q_head_stride = head_stride};
    if (head_stride != dcp->d_qk || row_stride != dense) {
        PLAIT_TRY(run(executor, &job, copy_q));
        q = dcp->q_send;
    }
    *gathered = q;
    if (dcp->n == 1)
        return PLAIT_OK;
    const int64_t bytes = rows * (int64_t)dcp->d_qk * (int64_t)plait_dtype_bytes(dcp->q_dtype);
    for (int32_t j = 0; j < dcp->n; j++)
        dcp->sizes[j] = dcp->heads[j] * bytes;
    PLAIT_TRY(plait_comm_all_gather(dcp->comm, "gather q", -1, NULL, q, dcp->sizes, dcp->q_blocks));
    PLAIT_TRY(run(executor, &job, interleave_q));
    *gathered = dcp->q;
    return PLAIT_OK;
}

/* ---- exchange: a2a ----------------------------------------------------------------------------*/

/* Copies this rank's state of the others' heads into their blocks, as it is: what an odd lse means
   is decided where it is merged. */
static plait_status pack_blocks(const struct job *job, int32_t row, int32_t end)
{
    struct plait_dcp *c = job->c;
    const size_t bytes = (size_t)c->d_v * plait_dtype_bytes(c->partial_dtype);
    unsigned char *block = c->a2a_send;
    for (int32_t j = 0; j < c->n; j++) {
        const int64_t heads = j == c->rank ? 0 : c->heads[j];
        float *lse = (float *)(void *)block;
        unsigned char *out = block + block_lse_bytes(job->rows, (int32_t)heads);
        for (int64_t i = row; i < end; i++)
            for (int64_t h = 0; h < heads; h++) {
                const plait_partial from = partial_at(&job->partial, i, c->first[j] + h);
                lse[i * heads + h] = *from.lse;
                memcpy(out + (size_t)(i * heads + h) * bytes, from.out, bytes);
            }
        block += block_bytes(c, job->rows, (int32_t)heads);
    }
    return PLAIT_OK;
}

/* The states of the own heads: those that came in blocks, and this rank's own where it is. */
static plait_status merge_blocks(const struct job *job, int32_t row, int32_t end)
{
    struct plait_dcp *c = job->c;
    const int32_t heads = c->own_heads;
    const unsigned char *block = c->a2a_recv;
    plait_partial parts[PLAIT_COMM_MAX_RANKS];
    for (int32_t i = 0; i < c->n; i++) {
        if (i == c->rank) {
            parts[i] = partial_at(&job->partial, row, c->first[i]);
            continue;
        }
        const plait_partial state = {.out = block + block_lse_bytes(job->rows, heads),
                                     .dtype = c->partial_dtype,
                                     .row_stride = (int64_t)heads * c->d_v,
                                     .head_stride = c->d_v,
                                     .lse = (const float *)(const void *)block,
                                     .lse_row_stride = heads,
                                     .lse_head_stride = 1};
        parts[i] = partial_at(&state, row, 0);
        block += block_bytes(c, job->rows, heads);
    }
    const plait_merged dst = merged_at(&job->dst, row);
    return plait_merge(parts, c->n, end - row, heads, c->d_v, 0, &dst);
}

static plait_status exchange_a2a(struct job *job, const plait_executor *executor)
{
    struct plait_dcp *c = job->c;
    PLAIT_TRY(run(executor, job, pack_blocks));
    for (int32_t j = 0; j < c->n; j++) {
        const int others = j != c->rank;
        c->sizes[j] = others ? (int64_t)block_bytes(c, job->rows, c->heads[j]) : 0;
        c->more[j] = others ? (int64_t)block_bytes(c, job->rows, c->own_heads) : 0;
    }
    PLAIT_TRY(plait_comm_all_to_all(c->comm, "exchange partials", -1, NULL, c->a2a_send, c->sizes,
                                    c->a2a_recv, c->more));
    return c->own_heads > 0 ? run(executor, job, merge_blocks) : PLAIT_OK;
}

/* ---- exchange: ag_rs --------------------------------------------------------------------------*/

static plait_status copy_lse(const struct job *job, int32_t row, int32_t end)
{
    const plait_partial *p = &job->partial;
    const int64_t all = job->c->all_heads;
    for (int64_t i = row; i < end; i++)
        for (int64_t h = 0; h < all; h++)
            job->c->lse_send[i * all + h] = p->lse[i * p->lse_row_stride + h * p->lse_head_stride];
    return PLAIT_OK;
}

static plait_status weigh_rows(const struct job *job, int32_t row, int32_t end)
{
    struct plait_dcp *c = job->c;
    const int64_t all = c->all_heads;
    plait_partial parts[PLAIT_COMM_MAX_RANKS];
    for (int32_t j = 0; j < c->n; j++) {
        const int64_t heads = c->heads[j];
        for (int32_t i = 0; i < c->n; i++)
            parts[i] = (plait_partial){.lse = c->lse_ranks + (i * (int64_t)job->rows + row) * all +
                                              c->first[j],
                                       .lse_row_stride = all,
                                       .lse_head_stride = 1};
        const plait_partial mine = partial_at(&job->partial, row, c->first[j]);
        parts[c->rank].out = mine.out;
        parts[c->rank].dtype = mine.dtype;
        parts[c->rank].row_stride = mine.row_stride;
        parts[c->rank].head_stride = mine.head_stride;
        const plait_merged share = {
            .out = c->weighted + (c->first[j] * (int64_t)job->rows + row * heads) * c->d_v,
            .dtype = PLAIT_F32,
            .row_stride = heads * c->d_v,
            .head_stride = c->d_v,
            .lse = j == c->rank && heads > 0 ? c->own_lse + row * heads : NULL,
            .lse_row_stride = heads,
            .lse_head_stride = 1};
        PLAIT_TRY(plait_merge(parts, c->n, end - row, c->heads[j], c->d_v, 0, &share));
    }
    return PLAIT_OK;
}

static plait_status finish_rows(const struct job *job, int32_t row, int32_t end)
{
    struct plait_dcp *c = job->c;
    const plait_partial sum = {.out = c->sum,
                               .dtype = PLAIT_F32,
                               .row_stride = (int64_t)c->own_heads * c->d_v,
                               .head_stride = c->d_v,
                               .lse = c->own_lse,
                               .lse_row_stride = c->own_heads,
                               .lse_head_stride = 1};
    const plait_partial from = partial_at(&sum, row, 0);
    const plait_merged dst = merged_at(&job->dst, row);
    return plait_merge(&from, 1, end - row, c->own_heads, c->d_v, 0, &dst);
}

static plait_status exchange_ag_rs(struct job *job, const plait_executor *executor)
{
    struct plait_dcp *c = job->c;
    PLAIT_TRY(run(NULL, job, copy_lse));
    for (int32_t j = 0; j < c->n; j++) {
        c->sizes[j] = (int64_t)job->rows * c->all_heads * (int64_t)sizeof(float);
        c->more[j] = (int64_t)job->rows * c->heads[j] * c->d_v;
    }
    PLAIT_TRY(plait_comm_all_gather(c->comm, "gather LSE", -1, NULL, c->lse_send, c->sizes,
                                    c->lse_ranks));
    PLAIT_TRY(run(executor, job, weigh_rows));
    PLAIT_TRY(plait_comm_reduce_scatter(c->comm, "sum weighted out", -1, NULL, c->weighted, c->more,
                                        c->sum));
    return c->own_heads > 0 ? run(executor, job, finish_rows) : PLAIT_OK;
}

static plait_status merge_one_rank(const struct job *job, int32_t row, int32_t end)
{
    const plait_partial from = partial_at(&job->partial, row, 0);
    const plait_merged dst = merged_at(&job->dst, row);
    return plait_merge(&from, 1, end - row, job->c->own_heads, job->c->d_v, 0, &dst);
}

plait_status plait_dcp_merge(plait_dcp *dcp, int32_t rows, const plait_partial *partial,
                             const plait_executor *executor, const plait_merged *dst)
{
    PLAIT_TRY(check_rows(dcp, rows));
    if (!partial->out || !partial->lse || partial->dtype != dcp->partial_dtype)
        return plait_fail(PLAIT_E_ARG, "dcp: the partial state needs out in %s and lse",
                          plait_dtype_name(dcp->partial_dtype));
    if (dcp->own_heads > 0 && (!dst->out || !carried(dst->dtype)))
        return plait_fail(PLAIT_E_ARG, "dcp: the result needs an out in f32, bf16 or f16");
    struct job job = {.c = dcp, .rows = rows, .partial = *partial, .dst = *dst};
    if (dcp->n == 1)
        return run(executor, &job, merge_one_rank);
    return dcp->exchange == PLAIT_EXCHANGE_A2A ? exchange_a2a(&job, executor)
                                               : exchange_ag_rs(&job, executor);
}

/* ---- the step ---------------------------------------------------------------------------------*/

static plait_status check_step(const struct plait_dcp *c, const plait_attn_args *args)
{
    if (args->size < sizeof *args)
        return plait_fail(PLAIT_E_ARG, "dcp: args of size %zu, wanted at least %zu", args->size,
                          sizeof *args);
    if (args->h_q != c->all_heads || args->d_qk != c->d_qk || args->d_v != c->d_v)
        return plait_fail(PLAIT_E_ARG,
                          "dcp: args with h_q %d, d_qk %d, d_v %d; it was opened for %d heads in "
                          "the group, d_qk %d, d_v %d",
                          args->h_q, args->d_qk, args->d_v, c->all_heads, c->d_qk, c->d_v);
    if (args->q_dtype != c->q_dtype)
        return plait_fail(PLAIT_E_ARG, "dcp: q in %s, but it was opened for %s",
                          plait_dtype_name(args->q_dtype), plait_dtype_name(c->q_dtype));
    if (args->out_bases || args->device >= 0)
        return plait_fail(PLAIT_E_ARG, "dcp: out_bases must be NULL and the device -1 (host)");
    if (args->invariant && c->n > 1 && c->exchange == PLAIT_EXCHANGE_AG_RS)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "dcp: invariant mode with exchange ag_rs, whose order of sums is the "
                          "communicator's; wanted a2a");
    return check_rows(c, args->num_rows);
}

static plait_status attend(struct plait_dcp *c, const plait_kernel *kernel,
                           const plait_attn_args *args, const void *q,
                           const plait_executor *executor)
{
    plait_attn_args a = *args;
    a.q = q;
    a.q_row_stride = (int64_t)c->all_heads * c->d_qk;
    a.q_head_stride = c->d_qk;
    a.out = c->partial_out;
    a.out_dtype = c->partial_dtype;
    a.out_row_stride = (int64_t)c->all_heads * c->d_v;
    a.out_head_stride = c->d_v;
    a.lse = c->partial_lse;
    a.lse_row_stride = c->all_heads;
    a.lse_head_stride = 1;
    return plait_attn_run(kernel, &a, executor);
}

static plait_status step(struct plait_dcp *dcp, const plait_kernel *kernel,
                         const plait_attn_args *args, const plait_executor *executor)
{
    PLAIT_TRY(check_step(dcp, args));
    if (dcp->n == 1)
        return plait_attn_run(kernel, args, executor);
    const void *q;
    int64_t begin = plait_trace_begin(dcp->trace);
    PLAIT_TRY(plait_dcp_gather_q(dcp, args->num_rows, args->q, args->q_row_stride,
                                 args->q_head_stride, executor, &q));
    plait_trace_end(dcp->trace, "gather queries", begin, args->num_rows);
    begin = plait_trace_begin(dcp->trace);
    PLAIT_TRY(attend(dcp, kernel, args, q, executor));
    plait_trace_end(dcp->trace, "attend shard", begin, args->num_rows);
    begin = plait_trace_begin(dcp->trace);
    const plait_partial partial = {.out = dcp->partial_out,
                                   .dtype = dcp->partial_dtype,
                                   .row_stride = (int64_t)dcp->all_heads * dcp->d_v,
                                   .head_stride = dcp->d_v,
                                   .lse = dcp->partial_lse,
                                   .lse_row_stride = dcp->all_heads,
                                   .lse_head_stride = 1};
    const plait_merged dst = {
        args->out, args->out_dtype,      args->out_row_stride, args->out_head_stride,
        args->lse, args->lse_row_stride, args->lse_head_stride};
    PLAIT_TRY(plait_dcp_merge(dcp, args->num_rows, &partial, executor, &dst));
    plait_trace_end(dcp->trace, "exchange", begin, args->num_rows);
    return PLAIT_OK;
}

void plait_dcp_set_trace(plait_dcp *dcp, plait_trace *trace)
{
    dcp->trace = trace;
}

plait_status plait_dcp_step(plait_dcp *dcp, const plait_kernel *kernel, const plait_attn_args *args,
                            const plait_executor *executor)
{
    const plait_status status = step(dcp, kernel, args, executor);
    /* The others wait for this rank, whatever it failed at: they are told at once. */
    if (status != PLAIT_OK && dcp->n > 1)
        plait_comm_abort(dcp->comm, plait_last_error());
    return status;
}
