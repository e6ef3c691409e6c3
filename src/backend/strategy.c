/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies carried out: the calls that a kernel gets in place of the caller's. */
#include <stdio.h>
#include <string.h>

#include <plait/merge.h>
#include <plait/strategy.h>

#include "backend/edge.h"
#include "core/status.h"

/* The workspace before the kernel's own part. Pointers are NULL where a strategy has no use. */
struct scratch {
    float *raw;          /* [h_q][num_rows]: the LSE of a kernel that lays it out so */
    int32_t *row_start;  /* flatten: [num_rows + 1] */
    int32_t *page_table; /* flatten: [num_rows][page_table_stride] */
    int32_t *limit;      /* window: [num_rows] end of the history, begin of the newest keys */
    int32_t *begin;      /* window: [num_rows] begin of the history */
    float *out, *lse;    /* window: the newest keys' partial state, dense */
    float *own_lse;      /* window: of the history where the caller wants none */
    unsigned char *rest;
};

/* Where the next `bytes` are; base NULL only counts them. */
static void *take(unsigned char *base, size_t *used, size_t bytes)
{
    void *p = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return p;
}

static size_t lay_out(const plait_strategy_call *call, const plait_attn_args *args,
                      struct scratch *s)
{
    const size_t rows = (size_t)args->num_rows, lses = rows * (size_t)args->h_q * sizeof(float);
    unsigned char *base = args->workspace;
    size_t used = 0;
    memset(s, 0, sizeof *s);
    if (call->lse_heads_first)
        s->raw = take(base, &used, lses);
    if (call->strategy == PLAIT_STRATEGY_FLATTEN) {
        s->row_start = take(base, &used, (rows + 1) * sizeof(int32_t));
        s->page_table = take(base, &used, rows * (size_t)args->page_table_stride * sizeof(int32_t));
    }
    if (call->strategy == PLAIT_STRATEGY_WINDOW) {
        s->limit = take(base, &used, rows * sizeof(int32_t));
        s->begin = take(base, &used, rows * sizeof(int32_t));
        s->out = take(base, &used, lses * (size_t)args->d_v);
        s->lse = take(base, &used, lses);
        if (!args->lse)
            s->own_lse = take(base, &used, lses);
    }
    s->rest = base ? base + used : NULL;
    return used;
}

/* The caller's arguments without a schedule, which fits no other call. */
static plait_attn_args unscheduled(const plait_attn_args *args)
{
    plait_attn_args a = *args;
    a.work = NULL;
    a.reduce = NULL;
    a.num_work = a.num_reduce = a.num_partials = 0;
    return a;
}

/* ---- refusals ------------------------------------------------------------------------------- */

static int32_t begin_of(const plait_attn_args *args, int32_t row)
{
    return args->kv_begin ? args->kv_begin[row] : 0;
}

/* What a kernel without ranges for each row takes row `row` to see, of a sequence that ends in
   `last`. */
static int32_t implied_end(plait_ranges_mode mode, const plait_attn_args *args, int32_t row,
                           int32_t last)
{
    int32_t end = args->kv_end[last] - (mode == PLAIT_RANGES_END_ALIGNED ? last - row : 0);
    return end > 0 ? end : 0;
}

static const char *ranges_lack(const plait_strategy_call *call, const plait_caps *caps,
                               const plait_attn_args *args, char *text, size_t n)
{
    const plait_strategy how = call->strategy;
    if (caps->ranges == PLAIT_RANGES_PER_ROW)
        return NULL;
    if (how == PLAIT_STRATEGY_WINDOW && caps->ranges == PLAIT_RANGES_END_ALIGNED)
        return "window: it aligns ranges to the end, the history is one range for all rows";
    for (int32_t s = 0; s < args->num_seqs; s++) {
        for (int32_t r = args->row_start[s]; r < args->row_start[s + 1]; r++) {
            if (begin_of(args, r) != 0) {
                snprintf(text, n, "row %d begins at key %d, it has no range for each row", r,
                         begin_of(args, r));
                return text;
            }
            int32_t end = implied_end(caps->ranges, args, r, args->row_start[s + 1] - 1);
            if (how == PLAIT_STRATEGY_DIRECT && args->kv_end[r] != end) {
                snprintf(text, n, "row %d ends at key %d, it would see keys up to %d", r,
                         args->kv_end[r], end);
                return text;
            }
        }
    }
    return NULL;
}

static const char *rows_lack(const plait_caps *caps, const plait_attn_args *args, char *text,
                             size_t n)
{
    int32_t least = INT32_MAX, most = 0;
    for (int32_t s = 0; s < args->num_seqs; s++) {
        int32_t q = args->row_start[s + 1] - args->row_start[s];
        least = q < least ? q : least;
        most = q > most ? q : most;
    }
    if (args->num_seqs == 0 || (caps->rows == PLAIT_ROWS_RAGGED && caps->rows_max == 0))
        return NULL;
    const char *want = NULL;
    if (caps->rows == PLAIT_ROWS_SINGLE && (least != 1 || most != 1))
        want = "one";
    if (caps->rows == PLAIT_ROWS_UNIFORM && least != most)
        want = "equal numbers";
    if (want)
        snprintf(text, n, "sequences have %d to %d rows, it takes %s", least, most, want);
    else if (caps->rows_max && most > caps->rows_max)
        snprintf(text, n, "a sequence has %d rows, it takes %d", most, caps->rows_max);
    else
        return NULL;
    return text;
}

static const char *caps_lack(const plait_strategy_call *call, const plait_caps *caps,
                             const plait_attn_args *args, char *text, size_t n)
{
    int window = call->strategy == PLAIT_STRATEGY_WINDOW;
    if (caps->lse == PLAIT_LSE_NONE && (args->lse || window))
        return window ? "window merges by the LSE, it gives none" : "it gives no LSE";
    if (call->strategy != PLAIT_STRATEGY_FLATTEN) {
        const char *why = rows_lack(caps, args, text, n);
        if (why)
            return why;
    }
    return ranges_lack(call, caps, args, text, n);
}

/* The first capability row that takes the call, or NULL and the reason of the last one. */
static const plait_caps *fitting(const plait_strategy_call *call, const plait_attn_args *args,
                                 char *text, size_t n, const char **why)
{
    *why = "it has no capabilities";
    for (int32_t i = 0; i < call->kernel->n_rows; i++) {
        *why = caps_lack(call, &call->kernel->rows[i], args, text, n);
        if (!*why)
            return &call->kernel->rows[i];
    }
    return NULL;
}

/* What no kernel changes. */
static const char *call_lack(const plait_strategy_call *call, const plait_attn_args *args)
{
    const plait_kernel *newest = call->newest;
    if (call->size != sizeof *call || !call->kernel)
        return "the call has no kernel or another size";
    if ((unsigned)call->strategy > PLAIT_STRATEGY_FLATTEN)
        return "the strategy is not direct, window or flatten";
    if (args->device >= 0)
        return "strategies are for CPU memory";
    if (args->out_bases || args->lse_bases)
        return "a table of outputs is not bridged";
    if (call->strategy != PLAIT_STRATEGY_WINDOW)
        return NULL;
    if (args->out_dtype == PLAIT_FP8_E4M3)
        return "window merges f32, bf16 and f16, out is fp8";
    if (!newest || newest->n_rows < 1 || newest->rows[0].ranges != PLAIT_RANGES_PER_ROW ||
        newest->rows[0].lse != PLAIT_LSE_BASE_E || newest->rows[0].empty != PLAIT_EMPTY_EXACT)
        return "window needs a kernel with ranges for each row for the newest keys";
    return NULL;
}

const char *plait_strategy_refusal(const plait_strategy_call *call, const plait_attn_args *args,
                                   char *text, size_t n)
{
    const char *why = call_lack(call, args);
    if (!why)
        fitting(call, args, text, n, &why);
    return why;
}

/* ---- running -------------------------------------------------------------------------------- */

size_t plait_strategy_workspace(const plait_strategy_call *call, const plait_attn_args *args,
                                int32_t n_workers)
{
    struct scratch s;
    plait_attn_args bare = unscheduled(args);
    size_t used = lay_out(call, args, &s), most, newest = 0;
    int flat = call->strategy == PLAIT_STRATEGY_FLATTEN;
    most = call->kernel->workspace(flat ? &bare : args, n_workers);
    if (call->strategy == PLAIT_STRATEGY_WINDOW) {
        bare.out_dtype = PLAIT_F32;
        newest = call->newest->workspace(&bare, n_workers);
    }
    return used + (most > newest ? most : newest);
}

/* The kernel's call and the edge behind it. */
static plait_status run_kernel(const plait_strategy_call *call, const plait_caps *caps,
                               const plait_attn_args *args, const struct scratch *s,
                               const plait_executor *executor, int64_t *bad)
{
    plait_attn_args a = *args;
    if (s->raw && a.lse) {
        a.lse = s->raw;
        a.lse_row_stride = 1;
        a.lse_head_stride = a.num_rows;
    }
    PLAIT_TRY(plait_attn_run(call->kernel, &a, executor));
    *bad += plait_edge_convert(args, caps->lse, s->raw, a.num_rows, call->kernel->name);
    return PLAIT_OK;
}

/* Each row a sequence of its own. Padding stays behind the last row. */
static void flatten(plait_attn_args *a, const plait_attn_args *args, const struct scratch *s)
{
    const size_t stride = (size_t)args->page_table_stride;
    *a = unscheduled(a);
    for (int32_t q = 0; q < args->num_seqs; q++)
        for (int32_t r = args->row_start[q]; r < args->row_start[q + 1]; r++) {
            s->row_start[r] = r;
            memcpy(s->page_table + (size_t)r * stride, args->page_table + (size_t)q * stride,
                   stride * sizeof(int32_t));
        }
    a->num_seqs = args->row_start[args->num_seqs];
    s->row_start[a->num_seqs] = a->num_seqs;
    a->row_start = s->row_start;
    a->page_table = s->page_table;
}

/* The history of a sequence ends where its first row does, since ends do not decrease. */
static void split(const plait_attn_args *args, const struct scratch *s)
{
    for (int32_t q = 0; q < args->num_seqs; q++)
        for (int32_t r = args->row_start[q]; r < args->row_start[q + 1]; r++) {
            int32_t end = args->kv_end[args->row_start[q]], begin = begin_of(args, r);
            s->limit[r] = end > begin ? end : begin;
            s->begin[r] = begin;
        }
}

static plait_status window(const plait_strategy_call *call, const plait_caps *caps,
                           plait_attn_args *a, const plait_attn_args *args, const struct scratch *s,
                           const plait_executor *executor, int64_t *bad)
{
    const int64_t row = (int64_t)args->h_q * args->d_v;
    split(args, s);
    a->kv_begin = s->begin;
    a->kv_end = s->limit;
    if (!a->lse) {
        a->lse = s->own_lse;
        a->lse_row_stride = args->h_q;
        a->lse_head_stride = 1;
    }
    PLAIT_TRY(run_kernel(call, caps, a, s, executor, bad));
    plait_attn_args b = unscheduled(a);
    b.kv_begin = s->limit;
    b.kv_end = args->kv_end;
    b.out = s->out;
    b.out_dtype = PLAIT_F32;
    b.out_row_stride = row;
    b.out_head_stride = args->d_v;
    b.lse = s->lse;
    b.lse_row_stride = args->h_q;
    b.lse_head_stride = 1;
    PLAIT_TRY(plait_attn_run(call->newest, &b, executor));
    plait_merged to = {a->out, a->out_dtype,      a->out_row_stride, a->out_head_stride,
                       a->lse, a->lse_row_stride, a->lse_head_stride};
    plait_partial part = {s->out, PLAIT_F32, row, args->d_v, s->lse, args->h_q, 1};
    return plait_merge_into(&to, &part, args->num_rows, args->h_q, args->d_v, 0);
}

plait_status plait_strategy_run(const plait_strategy_call *call, const plait_attn_args *args,
                                const plait_executor *executor, int64_t *bad)
{
    char text[128];
    int64_t count = 0;
    struct scratch s;
    const plait_caps *caps = NULL;
    const char *why = call_lack(call, args);
    if (!why)
        caps = fitting(call, args, text, sizeof text, &why);
    if (!caps)
        return plait_fail(PLAIT_E_UNSUPPORTED, "strategy %s: %s",
                          plait_strategy_name(call->strategy), why);
    if (!executor)
        executor = plait_executor_inline();
    size_t need = plait_strategy_workspace(call, args, executor->n_workers);
    size_t have = args->workspace ? args->workspace_bytes : 0;
    if (have < need)
        return plait_fail(PLAIT_E_NOMEM, "%s: the workspace has %zu bytes, %s needs %zu",
                          call->kernel->name, have, plait_strategy_name(call->strategy), need);
    plait_attn_args a = *args;
    a.workspace_bytes = have - lay_out(call, args, &s);
    a.workspace = s.rest;
    if (call->strategy == PLAIT_STRATEGY_FLATTEN)
        flatten(&a, args, &s);
    plait_status status = call->strategy == PLAIT_STRATEGY_WINDOW
                              ? window(call, caps, &a, args, &s, executor, &count)
                              : run_kernel(call, caps, &a, &s, executor, &count);
    if (bad)
        *bad = count;
    return status;
}
