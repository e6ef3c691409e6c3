/* SPDX-License-Identifier: Apache-2.0 */
/* Times attention for `plait bench`. */
#include <math.h>
#include <stdlib.h>

#include <plait/plan.h>

#include "core/status.h"
#include "tools/bench.h"

enum { max_calls = PLAIT_BENCH_CALLS };

struct bench {
    const plait_bench_shape *shape;
    const plait_executor *executor;
    plait_plan *plan;
    plait_attn_args args;
    const plait_kernel *kernel;
    int32_t pages, copies; /* of a sequence, of the whole cache */
    size_t k_bytes;        /* of all copies */
    void *k, *v, *q, *out, *workspace;
    float *lse;
    int32_t *tables; /* [copies][batch][pages] */
    plait_bench_source source;
};

static plait_status no_memory(void)
{
    return plait_fail(PLAIT_E_NOMEM, "bench: no memory for the cache");
}

static plait_status open_cache(struct bench *b)
{
    const plait_bench_shape *s = b->shape;
    plait_attn_args *a = &b->args;
    const size_t bytes = plait_dtype_bytes(s->kv_dtype);
    const plait_shard shard = {s->dcp, s->rank, s->interleave};
    b->pages = (int32_t)plait_shard_pages(shard, s->context, s->page_size);
    a->k_token_stride = s->d_qk;
    a->k_head_stride = (int64_t)s->page_size * s->d_qk; /* [page][head][token][d] */
    a->k_page_stride = a->k_head_stride * s->kv_heads;
    a->v_token_stride = s->d_v;
    a->v_head_stride = (int64_t)s->page_size * s->d_v;
    a->v_page_stride = a->v_head_stride * s->kv_heads;
    const size_t pages = (size_t)s->batch * (size_t)b->pages;
    const size_t set = pages * (size_t)a->k_page_stride * bytes;
    b->copies = (int32_t)((plait_bench_cold_bytes() + set - 1) / set);
    const size_t all = pages * (size_t)b->copies;
    b->k_bytes = set * (size_t)b->copies;
    b->k = plait_bench_reserve(b->k_bytes);
    b->tables = malloc(all * sizeof(int32_t));
    if (!b->k || !b->tables)
        return no_memory();
    plait_bench_fill(&b->source, b->k, s->kv_dtype, all * (size_t)a->k_page_stride);
    if (s->op == PLAIT_OP_GQA) {
        b->v = plait_bench_reserve(all * (size_t)a->v_page_stride * bytes);
        if (!b->v)
            return no_memory();
        plait_bench_fill(&b->source, b->v, s->kv_dtype, all * (size_t)a->v_page_stride);
    }
    for (size_t i = 0; i < all; i++) {
        size_t j = plait_bench_random(&b->source) % (i + 1);
        b->tables[i] = b->tables[j];
        b->tables[j] = (int32_t)i;
    }
    a->k = b->k;
    a->v = b->v;
    a->kv_dtype = s->kv_dtype;
    return PLAIT_OK;
}

static plait_status open_plan(struct bench *b, int64_t *committed, int32_t *q_len)
{
    const plait_bench_shape *s = b->shape;
    plait_plan_options o = PLAIT_PLAN_OPTIONS_INIT;
    o.shard = (plait_shard){s->dcp, s->rank, s->interleave};
    o.op = s->op;
    o.h_q = s->heads;
    o.h_kv = s->kv_heads;
    o.d_qk = s->d_qk;
    o.d_v = s->d_v;
    o.page_size = s->page_size;
    o.max_seqs = s->batch;
    o.max_rows = s->batch * s->q_len;
    o.max_pages_per_seq = b->pages;
    o.n_workers = b->executor->n_workers;
    o.invariant = s->invariant;
    plait_status status = plait_plan_open(&o, &b->plan);
    if (status != PLAIT_OK)
        return status;
    for (int32_t i = 0; i < s->batch; i++) {
        committed[i] = s->context - s->q_len;
        q_len[i] = s->q_len;
    }
    plait_plan_batch batch = PLAIT_PLAN_BATCH_INIT;
    batch.num_seqs = s->batch;
    batch.committed = committed;
    batch.q_len = q_len;
    batch.page_table = b->tables;
    batch.page_table_stride = b->pages;
    status = plait_plan_build(b->plan, &batch);
    return status == PLAIT_OK ? plait_plan_bind(b->plan, &batch, &b->args) : status;
}

static plait_status open_rows(struct bench *b)
{
    const plait_bench_shape *s = b->shape;
    plait_attn_args *a = &b->args;
    const size_t heads = (size_t)s->batch * (size_t)s->q_len * (size_t)s->heads;
    b->q = plait_bench_reserve(heads * (size_t)s->d_qk * 4);
    b->out = plait_bench_reserve(heads * (size_t)s->d_v * 4);
    b->lse = malloc(heads * sizeof(float));
    if (!b->q || !b->out || !b->lse)
        return no_memory();
    plait_bench_fill(&b->source, b->q, s->q_dtype, heads * (size_t)s->d_qk);
    a->q = b->q;
    a->q_dtype = s->q_dtype;
    a->q_head_stride = s->d_qk;
    a->q_row_stride = (int64_t)s->heads * s->d_qk;
    a->out = b->out;
    a->out_dtype = PLAIT_F32;
    a->out_head_stride = s->d_v;
    a->out_row_stride = (int64_t)s->heads * s->d_v;
    a->lse = b->lse;
    a->lse_head_stride = 1;
    a->lse_row_stride = s->heads;
    a->softmax_scale = 1 / sqrtf((float)s->d_qk);
    return PLAIT_OK;
}

/* Times calls on `copies` of the cache in turn, for half a second. */
static plait_status time_calls(struct bench *b, int32_t copies, double *us, int32_t *n)
{
    const size_t table = (size_t)b->shape->batch * (size_t)b->pages;
    double begin = plait_bench_now();
    for (*n = 0; *n < 5 || (*n < max_calls && plait_bench_now() - begin < 0.5); ++*n) {
        b->args.page_table = b->tables + table * (size_t)(*n % copies);
        b->args.page_table_stride = b->pages;
        double from = plait_bench_now();
        plait_status status = plait_attn_run(b->kernel, &b->args, b->executor);
        if (status != PLAIT_OK)
            return status;
        us[*n] = 1e6 * (plait_bench_now() - from);
    }
    return PLAIT_OK;
}

/* Keys that all rows of the call see, and those that its sequences hold here. */
static void count_keys(const struct bench *b, double *seen, double *held)
{
    const plait_attn_args *a = &b->args;
    *seen = *held = 0;
    for (int32_t s = 0; s < a->num_seqs; s++) {
        for (int32_t row = a->row_start[s]; row < a->row_start[s + 1]; row++)
            *seen += a->kv_end[row];
        *held += a->kv_end[a->row_start[s + 1] - 1];
    }
}

static void judge(const struct bench *b, const plait_bench_machine *m, plait_bench_result *out)
{
    const plait_bench_shape *s = b->shape;
    const double d = (double)s->d_qk + s->d_v, rows = (double)s->batch * s->q_len * s->heads;
    double seen, held;
    count_keys(b, &seen, &held);
    out->kernel = b->kernel->name;
    out->flops = 2 * seen * s->heads * d;
    out->bytes = held * s->kv_heads * (s->op == PLAIT_OP_MLA ? s->d_qk : d) *
                     (double)plait_dtype_bytes(s->kv_dtype) +
                 rows * (s->d_qk * (double)plait_dtype_bytes(s->q_dtype) + 4.0 * s->d_v);
    double memory = out->bytes / m->read_gbps;
    double arithmetic = out->flops / plait_bench_peak(m, b->kernel->needs);
    out->arithmetic = arithmetic > memory;
    out->fraction_of_limit = 1e-3 * fmax(arithmetic, memory) / out->us;
}

static plait_status run(struct bench *b, plait_cpu_features features, const char *pattern,
                        plait_bench_machine *m, plait_bench_result *out)
{
    static double us[max_calls];
    const int32_t workers = b->executor->n_workers;
    int32_t n;
    plait_status status = plait_attn_pick(&b->args, features, workers, pattern, &b->kernel);
    if (status != PLAIT_OK)
        return status;
    b->args.workspace_bytes = plait_attn_workspace(b->kernel, &b->args, workers);
    b->workspace = b->args.workspace = plait_bench_reserve(b->args.workspace_bytes);
    if (!b->workspace)
        return no_memory();
    plait_bench_measure(m, b->executor, features, b->k, b->k_bytes);
    status = time_calls(b, b->copies, us, &n);
    if (status != PLAIT_OK)
        return status;
    out->us = plait_bench_quantile(us, n, 0.5);
    out->us_low = plait_bench_quantile(us, n, 0.1);
    out->us_high = plait_bench_quantile(us, n, 0.9);
    status = time_calls(b, 1, us, &n);
    out->warm_us = plait_bench_quantile(us, n, 0.5);
    plait_bench_measure(m, b->executor, features, b->k, b->k_bytes);
    judge(b, m, out);
    return status;
}

plait_status plait_bench_attn(const plait_bench_shape *shape, const plait_executor *executor,
                              plait_cpu_features features, const char *pattern,
                              plait_bench_machine *m, plait_bench_result *out)
{
    static const plait_attn_args init = PLAIT_ATTN_ARGS_INIT;
    struct bench b = {.shape = shape, .executor = executor, .args = init};
    int64_t *committed = malloc((size_t)shape->batch * sizeof *committed);
    int32_t *q_len = malloc((size_t)shape->batch * sizeof *q_len);
    const int good = committed && q_len && plait_bench_source_open(&b.source);
    plait_status status = good ? open_cache(&b) : no_memory();
    if (status == PLAIT_OK)
        status = open_plan(&b, committed, q_len);
    if (status == PLAIT_OK)
        status = open_rows(&b);
    if (status == PLAIT_OK)
        status = run(&b, features, pattern, m, out);
    plait_plan_close(&b.plan);
    void *const owned[] = {b.k, b.v, b.q, b.out, b.workspace, b.lse, b.tables, committed, q_len};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    plait_bench_source_close(&b.source);
    return status;
}
