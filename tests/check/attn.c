/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a kernel on each case and compares out and lse with what oracle.c expects. A kernel runs
 * twice, on outputs and workspaces filled with different bytes: both runs must agree bit for bit.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <plait/strategy.h>

#include "tests/check/check.h"

/* Error beyond `round` as a share of the tolerance; equal infinities and NaN for NaN are no error.
 */
static double share(double got, double want, double tolerance, double round)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (fabs(got - want) <= round || got == want)
        return 0;
    double ratio = (fabs(got - want) - round) / tolerance;
    return isnan(ratio) ? INFINITY : ratio;
}

/* The result as out's type holds it: fp8 has a largest number. */
static double clamp(plait_dtype dtype, double x)
{
    return dtype == PLAIT_FP8_E4M3 && !isnan(x) ? fmax(-448, fmin(448, x)) : x;
}

/* Where a row's head must be; it is overwritten with the fill once read, so that what the kernel
   wrote elsewhere remains. */
static double compare_head(plait_attn_case *c, int32_t row, int32_t head, const plait_expected *e,
                           int fill)
{
    plait_attn_args *a = &c->args;
    int which = a->out_bases ? head / a->heads_per_base : 0;
    int32_t local = a->out_bases ? head % a->heads_per_base : head;
    unsigned char *out = c->buf[PLAIT_BUF_OUT + which].data;
    unsigned char *lse = c->buf[PLAIT_BUF_LSE + which].data;
    int64_t at = row * a->out_row_stride + local * a->out_head_stride;
    int64_t at_lse = row * a->lse_row_stride + local * a->lse_head_stride;
    size_t bytes = plait_dtype_bytes(a->out_dtype);
    double worst = 0;
    int empty = e->lse == -INFINITY;
    if (a->lse || a->lse_bases) {
        worst = share(plait_value_at(lse, PLAIT_F32, at_lse), e->lse, e->lse_slack, 0);
        memset(lse + at_lse * 4, fill, 4);
    }
    for (int32_t d = 0; d < a->d_v; d++) {
        double got = plait_value_at(out, a->out_dtype, at + d);
        double ratio =
            empty ? (got == 0 && !signbit(got) ? 0 : INFINITY)
                  : share(got, clamp(a->out_dtype, e->out[d]), e->out_slack[d], e->out_round[d]);
        worst = fmax(worst, ratio);
    }
    memset(out + at * (int64_t)bytes, fill, bytes * (size_t)a->d_v);
    return worst;
}

static double compare(plait_attn_case *c, int fill)
{
    plait_attn_args *a = &c->args;
    plait_expected e;
    double worst = 0;
    int32_t seq = 0;
    for (int32_t row = 0; row < a->num_rows; row++) {
        while (seq < a->num_seqs && row >= a->row_start[seq + 1])
            seq++;
        for (int32_t head = 0; head < a->h_q; head++) {
            plait_expect(c, seq < a->num_seqs ? seq : -1, row, head, &e);
            worst = fmax(worst, compare_head(c, row, head, &e, fill));
        }
    }
    return worst;
}

/* 1 if every byte of the outputs is `fill` again. */
static int nothing_else_written(const plait_attn_case *c, int fill)
{
    for (int i = PLAIT_BUF_OUT; i <= PLAIT_BUF_LSE2; i++) {
        for (size_t j = 0; j < c->buf[i].bytes; j++)
            if (c->buf[i].data[j] != fill)
                return 0;
        if (!plait_guard_clean(&c->buf[i], 0x99))
            return 0;
    }
    return plait_guard_clean(&c->buf[PLAIT_BUF_WORKSPACE], 0xff);
}

/* An executor of n workers, one after the other, last first: no worker may wait for another. */
static plait_status backwards(void *user, plait_task_fn fn, void *task)
{
    int32_t n = *(int32_t *)user;
    plait_status status = PLAIT_OK;
    for (int32_t worker = n - 1; worker >= 0; worker--) {
        plait_status one = fn(task, worker, n);
        status = status == PLAIT_OK ? one : status;
    }
    return status;
}

struct call {
    const plait_kernel *kernel;
    const plait_strategy_call *by; /* or NULL: the kernel alone */
    plait_attn_case *c;
};

static int run(void *arg)
{
    struct call *call = arg;
    plait_executor executor = {sizeof executor, &call->c->n_workers, call->c->n_workers, backwards};
    if (call->by)
        return plait_strategy_run(call->by, &call->c->args, &executor, NULL);
    return plait_attn_run(call->kernel, &call->c->args, &executor);
}

/* Copies of the outputs of the first run, for the second. */
static unsigned char *snapshot(const plait_attn_case *c, size_t *bytes)
{
    *bytes = 0;
    for (int i = PLAIT_BUF_OUT; i <= PLAIT_BUF_LSE2; i++)
        *bytes += c->buf[i].bytes;
    unsigned char *copy = malloc(*bytes + 1), *to = copy;
    for (int i = PLAIT_BUF_OUT; copy && i <= PLAIT_BUF_LSE2; i++) {
        if (c->buf[i].bytes)
            memcpy(to, c->buf[i].data, c->buf[i].bytes);
        to += c->buf[i].bytes;
    }
    return copy;
}

static void fill_buffers(plait_attn_case *c, int outputs, int workspace)
{
    for (int i = PLAIT_BUF_OUT; i < PLAIT_BUFS; i++)
        if (c->buf[i].bytes)
            memset(c->buf[i].data, i == PLAIT_BUF_WORKSPACE ? workspace : outputs, c->buf[i].bytes);
}

/* NULL, or what is wrong. */
static const char *check_case(const plait_kernel *kernel, const plait_strategy_call *by,
                              plait_cuda *cuda, plait_attn_case *c, double *worst)
{
    struct call call = {kernel, by, c};
    plait_attn_args host = c->args;
    size_t bytes, need = by ? plait_strategy_workspace(by, &c->args, c->n_workers)
                            : plait_attn_workspace(kernel, &c->args, c->n_workers);
    if (!plait_guard_open(&c->buf[PLAIT_BUF_WORKSPACE], need, 64, 1, 0xff))
        return "no memory";
    c->args.workspace = c->buf[PLAIT_BUF_WORKSPACE].data;
    c->args.workspace_bytes = need;
    host.device = -1;
    if (plait_attn_check(&host) != PLAIT_OK)
        return plait_last_error();
    const char *why = NULL;
    unsigned char *first = NULL;
    for (int round = 0; round < 2 && !why; round++) {
        int workspace = round ? 0x41 : 0xff;
        fill_buffers(c, 0x99, workspace);
        if (cuda)
            why = plait_check_cuda(cuda, kernel, c, 0x99, workspace);
        else
            why = plait_guard_reason(plait_guard_call(run, &call));
        if (why)
            break;
        unsigned char *now = snapshot(c, &bytes);
        if (round == 0)
            first = now;
        else if (!first || !now || memcmp(first, now, bytes) != 0)
            why = "two runs differ: the result depends on the workspace's content";
        if (round == 1)
            free(now);
    }
    free(first);
    if (why)
        return why;
    *worst = compare(c, 0x99);
    if (!(*worst <= 1))
        return "the result is wrong";
    if (!nothing_else_written(c, 0x99))
        return "it wrote between or beyond its outputs";
    return NULL;
}

plait_check_counts plait_check_kernel(const plait_kernel *kernel, plait_cpu_features features,
                                      uint64_t seed, int32_t cases, FILE *to)
{
    plait_check_counts n = {0, 0, 0, 0};
    char text[128];
    plait_cuda *cuda = NULL;
    if (kernel->device == PLAIT_DEVICE_CUDA && plait_cuda_open(0, &cuda) != PLAIT_OK) {
        n.skipped = cases;
        return n;
    }
    for (int32_t i = 0; i < cases; i++) {
        plait_attn_case c;
        double worst = 0;
        const char *why = NULL, *refusal = NULL;
        if (!plait_attn_case_open(&c, &kernel->rows[i % kernel->n_rows], seed, i))
            why = "no memory";
        if (!why)
            refusal = plait_kernel_refusal(kernel, &c.args, features, text, sizeof text);
        if (!why && !refusal)
            why = check_case(kernel, NULL, cuda, &c, &worst);
        n.skipped += refusal != NULL;
        n.failed += why != NULL;
        n.passed += !why && !refusal;
        n.worst = fmax(n.worst, worst);
        if (why && n.failed <= 10)
            fprintf(to, "FAILED %s %s: %s (error %.3g of the tolerance)\n", kernel->name, c.text,
                    why, worst);
        plait_attn_case_close(&c);
    }
    /* A batch for each ten cases. */
    for (int32_t i = 0; i < (cases + 9) / 10 && kernel->rows[0].invariant; i++) {
        const int skip = (kernel->needs & ~features) != 0;
        const char *why = skip ? NULL : plait_check_invariant(kernel, seed, i);
        n.skipped += skip;
        n.failed += why != NULL;
        n.passed += !why && !skip;
        if (why && n.failed <= 10)
            fprintf(to, "FAILED %s batch %d seed %llu: %s\n", kernel->name, i,
                    (unsigned long long)seed, why);
    }
    plait_cuda_close(&cuda);
    return n;
}

/* ---- backends of a plug-in --------------------------------------------------------------------
 */

/* The kernel with other rows, by the first strategy that takes the case: 1 if it is right then;
   0: wrong; -1: none takes it. */
static int right_as(const plait_backend *b, int32_t row, const plait_caps *caps, int heads_first,
                    plait_attn_case *c, const char **why, double *worst)
{
    char text[128];
    plait_kernel kernel = *b->kernel;
    plait_strategy_call call = PLAIT_STRATEGY_CALL_INIT;
    kernel.rows = caps;
    kernel.n_rows = 1;
    call.kernel = &kernel;
    call.newest = plait_kernel_find(caps->op == PLAIT_OP_MLA ? "mla_ref" : "gqa_ref");
    call.lse_heads_first = heads_first;
    call.heads_max = b->note ? b->note[row].heads_max : 0;
    for (int how = 0; how < 3; how++) {
        static const plait_strategy order[] = {PLAIT_STRATEGY_DIRECT, PLAIT_STRATEGY_WINDOW,
                                               PLAIT_STRATEGY_FLATTEN};
        call.strategy = order[how];
        *why = plait_strategy_refusal(&call, &c->args, text, sizeof text);
        if (*why)
            continue;
        plait_guard_close(&c->buf[PLAIT_BUF_WORKSPACE]);
        *why = check_case(&kernel, &call, NULL, c, worst);
        return *why == NULL;
    }
    return -1;
}

/* What the row declares falsely, if one other declaration explains the case. */
static const char *explain(const plait_backend *b, int32_t row, plait_attn_case *c)
{
    static const char *const names[] = {
        "empty rows are not exact",      "the LSE is in the other base",
        "the LSE is laid out otherwise", "sequences need equal numbers of rows",
        "ranges are aligned to the end", "ranges are the same for all rows",
    };
    const int heads_first = b->note && b->note[row].lse_heads_first;
    const char *why;
    double worst;
    for (int i = 0; i < 6; i++) {
        plait_caps caps = b->rows[row];
        if (i == 1)
            caps.lse = caps.lse == PLAIT_LSE_BASE_E ? PLAIT_LSE_BASE_2 : PLAIT_LSE_BASE_E;
        if (i == 3)
            caps.rows = PLAIT_ROWS_UNIFORM;
        if (i > 3)
            caps.ranges = i == 4 ? PLAIT_RANGES_END_ALIGNED : PLAIT_RANGES_NONE;
        if (right_as(b, row, &caps, i == 2 ? !heads_first : heads_first, c, &why, &worst) == 1)
            return names[i];
    }
    return "no single declaration explains it";
}

plait_check_counts plait_check_backend(const plait_backend *b, plait_cpu_features features,
                                       uint64_t seed, int32_t cases, FILE *to)
{
    plait_check_counts n = {0, 0, 0, 0};
    for (int32_t i = 0; i < cases; i++) {
        const int32_t row = i % b->n_rows;
        const plait_caps *caps = &b->rows[row];
        const int heads_first = b->note && b->note[row].lse_heads_first;
        const int whole = caps->ranges == PLAIT_RANGES_PER_ROW && !caps->rows_max &&
                          caps->rows == PLAIT_ROWS_RAGGED && caps->lse == PLAIT_LSE_BASE_E &&
                          caps->empty == PLAIT_EMPTY_EXACT && !heads_first;
        plait_caps any = *caps;
        plait_kernel kernel = *b->kernel;
        plait_attn_case c;
        char text[128];
        double worst = 0;
        const char *why = NULL;
        int right = -1;
        any.ranges = PLAIT_RANGES_PER_ROW;
        any.rows = PLAIT_ROWS_RAGGED;
        any.rows_max = 0;
        any.lse = PLAIT_LSE_BASE_E;
        kernel.rows = &any;
        kernel.n_rows = 1;
        if (!plait_attn_case_open(&c, caps, seed, i)) {
            right = 0;
            why = "no memory";
        } else if (caps->device == PLAIT_DEVICE_CPU &&
                   !plait_kernel_refusal(&kernel, &c.args, features, text, sizeof text)) {
            if (caps->lse == PLAIT_LSE_NONE)
                c.args.lse = NULL;
            if (whole)
                right = (why = check_case(b->kernel, NULL, NULL, &c, &worst)) == NULL;
            else
                right = right_as(b, row, caps, heads_first, &c, &why, &worst);
        }
        n.skipped += right < 0;
        n.failed += right == 0;
        n.passed += right > 0;
        n.worst = fmax(n.worst, worst);
        if (right == 0 && n.failed <= 10)
            fprintf(to, "FAILED %s row %d %s: %s; %s\n", b->name, row, c.text, why,
                    explain(b, row, &c));
        plait_attn_case_close(&c);
    }
    return n;
}
