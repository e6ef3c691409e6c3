/* SPDX-License-Identifier: Apache-2.0 */
/* Times merge and append for `plait bench`: rows are dealt to the threads in ranges. */
#include <math.h>
#include <stdlib.h>

#include "core/status.h"
#include "tools/bench.h"

enum { page = 64 };

struct bench {
    const plait_bench_shape *shape;
    const plait_routine *routine;
    int32_t rows, copies, now;             /* now: the copy that the call works on */
    size_t in_bytes, out_bytes, lse_bytes; /* of one copy */
    char *in, *out;                        /* merge: [copies][states][rows][heads][d_v] */
    float *lse;                            /* merge: of the states, then of the result */
    int64_t *slot;
    float scale;
};

static plait_status merge_rows(const struct bench *b, int32_t first, int32_t rows)
{
    const plait_bench_shape *s = b->shape;
    const int64_t row = (int64_t)s->heads * s->d_v;
    const float *in = (const float *)(const void *)(b->in + (size_t)b->now * b->in_bytes);
    const float *lse = b->lse + (size_t)b->now * b->lse_bytes / sizeof(float);
    plait_partial parts[PLAIT_MERGE_MAX];
    for (int32_t i = 0; i < s->dcp; i++)
        parts[i] =
            (plait_partial){in + ((int64_t)i * b->rows + first) * row,       PLAIT_F32, row, s->d_v,
                            lse + ((int64_t)i * b->rows + first) * s->heads, s->heads,  1};
    const plait_merged to = {
        b->out + (size_t)b->now * b->out_bytes + (size_t)(first * row) * sizeof(float),
        PLAIT_F32,
        row,
        s->d_v,
        (float *)(uintptr_t)lse + ((int64_t)s->dcp * b->rows + first) * s->heads,
        s->heads,
        1};
    return plait_merge_with(b->routine, parts, s->dcp, rows, s->heads, s->d_v, 0, &to);
}

static plait_status append_rows(const struct bench *b, int32_t first, int32_t rows)
{
    const plait_bench_shape *s = b->shape;
    plait_kv_append_args a = PLAIT_KV_APPEND_ARGS_INIT;
    a.num_rows = rows;
    a.d_qk = s->d_qk;
    a.page_size = page;
    a.slot = b->slot + first;
    a.k = b->in + (size_t)b->now * b->in_bytes + (size_t)first * (size_t)s->d_qk * 2;
    a.dtype = PLAIT_BF16;
    a.k_row_stride = s->d_qk;
    a.k_cache = b->out + (size_t)b->now * b->out_bytes;
    a.kv_dtype = s->kv_dtype;
    a.k_token_stride = s->d_qk;
    a.k_page_stride = page * (int64_t)s->d_qk;
    a.k_scale = &b->scale;
    a.k_scale_n = s->kv_dtype == PLAIT_FP8_E4M3;
    return plait_kv_append_with(b->routine, &a);
}

static plait_status run_share(void *arg, int32_t worker, int32_t n_workers)
{
    const struct bench *b = arg;
    const int32_t first = (int32_t)((int64_t)b->rows * worker / n_workers);
    const int32_t rows = (int32_t)((int64_t)b->rows * (worker + 1) / n_workers) - first;
    if (b->routine->op == PLAIT_ROUTINE_MERGE)
        return merge_rows(b, first, rows);
    return append_rows(b, first, rows);
}

/* Rows go to slots in any order. */
static int open_slots(struct bench *b, plait_bench_source *source)
{
    b->slot = malloc((size_t)b->rows * sizeof *b->slot);
    for (int32_t i = 0; b->slot && i < b->rows; i++) {
        const size_t j = plait_bench_random(source) % ((size_t)i + 1);
        b->slot[i] = b->slot[j];
        b->slot[j] = i;
    }
    return b->slot != NULL;
}

static int open_buffers(struct bench *b, plait_bench_source *source)
{
    const plait_bench_shape *s = b->shape;
    const int merge = b->routine->op == PLAIT_ROUTINE_MERGE;
    const size_t rows = (size_t)b->rows, states = (size_t)s->dcp;
    const size_t row = (size_t)s->heads * (size_t)s->d_v * sizeof(float);
    b->in_bytes = merge ? states * rows * row : rows * (size_t)s->d_qk * 2;
    b->out_bytes =
        merge ? rows * row : (rows + page) * (size_t)s->d_qk * plait_dtype_bytes(s->kv_dtype);
    b->lse_bytes = merge ? (states + 1) * rows * (size_t)s->heads * sizeof(float) : 0;
    const size_t set = b->in_bytes + b->out_bytes;
    b->copies = (int32_t)((plait_bench_cold_bytes() + set - 1) / set);
    const size_t n = (size_t)b->copies;
    b->in = plait_bench_reserve(n * b->in_bytes);
    b->out = plait_bench_reserve(n * b->out_bytes);
    b->lse = plait_bench_reserve(n * b->lse_bytes);
    if (!b->in || !b->out || !b->lse || !open_slots(b, source))
        return 0;
    const plait_dtype dtype = merge ? PLAIT_F32 : PLAIT_BF16;
    plait_bench_fill(source, b->in, dtype, n * b->in_bytes / plait_dtype_bytes(dtype));
    plait_bench_fill(source, b->lse, PLAIT_F32, n * b->lse_bytes / sizeof(float));
    plait_bench_fill(source, b->out, PLAIT_F32, n * b->out_bytes / sizeof(float));
    return 1;
}

static plait_status time_calls(struct bench *b, const plait_executor *executor, int32_t copies,
                               double *us, int32_t *n)
{
    const double begin = plait_bench_now();
    for (*n = 0; *n < 5 || (*n < PLAIT_BENCH_CALLS && plait_bench_now() - begin < 0.5); ++*n) {
        b->now = *n % copies;
        const double from = plait_bench_now();
        PLAIT_TRY(executor->parallel_for(executor->user, run_share, b));
        us[*n] = 1e6 * (plait_bench_now() - from);
    }
    return PLAIT_OK;
}

static void judge(const struct bench *b, const plait_bench_machine *m, plait_bench_result *out)
{
    const plait_bench_shape *s = b->shape;
    const double rows = b->rows, heads = (double)s->heads;
    out->kernel = b->routine->name;
    if (b->routine->op == PLAIT_ROUTINE_MERGE) {
        out->bytes = (s->dcp + 1) * rows * heads * 4.0 * (s->d_v + 1);
        out->flops = 2.0 * s->dcp * rows * heads * s->d_v;
    } else {
        out->bytes = rows * s->d_qk * (2.0 + (double)plait_dtype_bytes(s->kv_dtype));
        out->flops = 0;
    }
    const double memory = out->bytes / m->read_gbps;
    const double arithmetic = out->flops / plait_bench_peak(m, b->routine->needs);
    out->arithmetic = arithmetic > memory;
    out->fraction_of_limit = 1e-3 * fmax(arithmetic, memory) / out->us;
}

static plait_status run(struct bench *b, const plait_executor *executor,
                        plait_cpu_features features, plait_bench_machine *m,
                        plait_bench_result *out)
{
    static double us[PLAIT_BENCH_CALLS];
    const size_t all = (size_t)b->copies * b->in_bytes;
    int32_t n;
    plait_bench_measure(m, executor, features, b->in, all);
    PLAIT_TRY(time_calls(b, executor, b->copies, us, &n));
    out->us = plait_bench_quantile(us, n, 0.5);
    out->us_low = plait_bench_quantile(us, n, 0.1);
    out->us_high = plait_bench_quantile(us, n, 0.9);
    PLAIT_TRY(time_calls(b, executor, 1, us, &n));
    out->warm_us = plait_bench_quantile(us, n, 0.5);
    plait_bench_measure(m, executor, features, b->in, all);
    judge(b, m, out);
    return PLAIT_OK;
}

static const plait_routine *pick(plait_routine_op op, plait_cpu_features features,
                                 const char *pattern)
{
    for (int32_t i = 0; plait_routine_get(i); i++) {
        const plait_routine *r = plait_routine_get(i);
        if (r->op == op && !(r->needs & ~features) && plait_kernel_match(r->name, pattern))
            return r;
    }
    return NULL;
}

plait_status plait_bench_rows(plait_routine_op op, const plait_bench_shape *shape,
                              const plait_executor *executor, plait_cpu_features features,
                              const char *pattern, plait_bench_machine *m, plait_bench_result *out)
{
    struct bench b = {.shape = shape,
                      .routine = pick(op, features, pattern),
                      .rows = shape->batch * shape->q_len,
                      .scale = 0.01f};
    plait_bench_source source;
    if (!b.routine)
        return plait_fail(PLAIT_E_UNSUPPORTED, "bench: no %s kernel matches that this machine runs",
                          plait_routine_op_name(op));
    plait_status status = PLAIT_E_NOMEM;
    if (plait_bench_source_open(&source) && open_buffers(&b, &source))
        status = run(&b, executor, features, m, out);
    else
        plait_fail(status, "bench: no memory for the rows");
    free(b.in);
    free(b.out);
    free(b.lse);
    free(b.slot);
    plait_bench_source_close(&source);
    return status;
}
