/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies carried out: the calls that a kernel gets in place of the caller's. */
#include <stdio.h>
#include <string.h>

#include <plait/merge.h>
#include <plait/strategy.h>

#include "backend/backend.h"
#include "backend/bridge.h"
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
    float *history;      /* window: of the history where the caller's out is not f32, dense */
    struct plait_group_buffers group;
    unsigned char *rest;
};

/* Where the next `bytes` are; base NULL only counts them. */
static void *take(unsigned char *base, size_t *used, size_t bytes)
{
    void *p = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return p;
}

static struct plait_bridge_rows rows_of(const plait_strategy_call *call,
                                        const plait_attn_args *args)
{
    struct plait_bridge_rows r = {
        .least = INT32_MAX, .heads = args->h_q, .heads_max = call->heads_max};
    for (int32_t s = 0; s < args->num_seqs; s++) {
        int32_t q = args->row_start[s + 1] - args->row_start[s];
        r.least = q < r.least ? q : r.least;
        r.most = q > r.most ? q : r.most;
    }
    if (args->num_seqs == 0)
        r.least = 0;
    return r;
}

/* 1 if some capability row of the kernel gets groups. */
static int groups(const plait_strategy_call *call, const struct plait_bridge_rows *rows)
{
    char text[128];
    int any = 0;
    for (int32_t i = 0; i < call->kernel->n_rows; i++)
        any |= plait_bridge_of(&call->kernel->rows[i], call->strategy, rows, text, sizeof text) >
               PLAIT_BRIDGE_WHOLE;
    return any;
}

static void lay_out_groups(unsigned char *base, size_t *used, const plait_attn_args *args,
                           int32_t most, struct plait_group_buffers *g)
{
    const size_t rows = (size_t)args->num_rows, seqs = (size_t)args->num_seqs;
    const size_t heads = (size_t)args->h_q, word = sizeof(int32_t);
    g->seqs = take(base, used, seqs * word);
    g->row_start = take(base, used, (seqs + 1) * word);
    g->kv_begin = take(base, used, rows * word);
    g->kv_end = take(base, used, rows * word);
    g->page_table = take(base, used, seqs * (size_t)args->page_table_stride * word);
    g->lse = take(base, used, rows * heads * sizeof(float));
    g->q_scale = take(base, used, args->q_scale_n > 1 ? heads * (size_t)most * sizeof(float) : 0);
    g->q = take(base, used, rows * heads * (size_t)args->d_qk * plait_dtype_bytes(args->q_dtype));
    g->out = take(base, used, rows * heads * (size_t)args->d_v * sizeof(float));
}

static size_t lay_out(const plait_strategy_call *call, const plait_attn_args *args,
                      struct scratch *s)
{
    const size_t rows = (size_t)args->num_rows, lses = rows * (size_t)args->h_q * sizeof(float);
    const struct plait_bridge_rows of = rows_of(call, args);
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
        if (args->out_dtype != PLAIT_F32)
            s->history = take(base, &used, lses * (size_t)args->d_v);
    }
    if (groups(call, &of))
        lay_out_groups(base, &used, args, of.most, &s->group);
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

static const char *caps_lack(const plait_strategy_call *call, const plait_caps *caps,
                             const plait_attn_args *args, char *text, size_t n)
{
    const struct plait_bridge_rows rows = rows_of(call, args);
    int window = call->strategy == PLAIT_STRATEGY_WINDOW;
    if (caps->lse == PLAIT_LSE_NONE && (args->lse || window))
        return window ? "window merges by the LSE, it gives none" : "it gives no LSE";
    if (plait_bridge_of(caps, call->strategy, &rows, text, n) == PLAIT_BRIDGE_NONE)
        return text;
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

plait_status plait_strategy_call_of(const plait_choice *choice, const plait_requirement *need,
                                    plait_strategy_call *out)
{
    const plait_backend *b = choice->backend;
    if (!b || !b->kernel)
        return plait_fail(PLAIT_E_UNSUPPORTED, "%s has no kernel here", b ? b->name : "no backend");
    if (choice->strategy > PLAIT_STRATEGY_FLATTEN)
        return plait_fail(PLAIT_E_UNSUPPORTED, "%s by %s is not one call of a kernel", b->name,
                          plait_strategy_name(choice->strategy));
    const plait_row_note *note = plait_backend_note(b, choice->row);
    *out = (plait_strategy_call)PLAIT_STRATEGY_CALL_INIT;
    out->strategy = choice->strategy;
    out->kernel = b->kernel;
    out->lse_heads_first = note->lse_heads_first;
    out->heads_max = note->heads_max;
    if (choice->strategy == PLAIT_STRATEGY_WINDOW)
        out->newest = plait_bridge_newest(need);
    return PLAIT_OK;
}

/* ---- running -------------------------------------------------------------------------------- */

size_t plait_strategy_workspace(const plait_strategy_call *call, const plait_attn_args *args,
                                int32_t n_workers)
{
    struct scratch s;
    plait_attn_args bare = unscheduled(args);
    const struct plait_bridge_rows rows = rows_of(call, args);
    size_t used = lay_out(call, args, &s), most, more = 0;
    int flat = call->strategy == PLAIT_STRATEGY_FLATTEN;
    most = call->kernel->workspace(flat ? &bare : args, n_workers);
    for (int32_t q = 0; groups(call, &rows) && (q = plait_group_next(args, q)) != 0;) {
        plait_attn_args folded = bare;
        more = call->kernel->workspace(&bare, n_workers);
        most = most > more ? most : more;
        folded.h_q *= q;
        folded.q_head0 *= q;
        folded.q_per_kv *= q;
        more = call->kernel->workspace(&folded, n_workers);
        most = most > more ? most : more;
    }
    if (call->strategy == PLAIT_STRATEGY_WINDOW) {
        bare.out_dtype = PLAIT_F32;
        more = call->newest->workspace(&bare, n_workers);
        most = most > more ? most : more;
    }
    return used + most;
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

/* All sequences in one call, or group by group. */
static plait_status run_rows(const plait_strategy_call *call, const plait_caps *caps,
                             const plait_attn_args *args, const struct scratch *s,
                             const plait_executor *executor, int64_t *bad)
{
    char text[128];
    const struct plait_bridge_rows rows = rows_of(call, args);
    enum plait_bridge how = plait_bridge_of(caps, call->strategy, &rows, text, sizeof text);
    const int fold = how == PLAIT_BRIDGE_FOLDED;
    if (how == PLAIT_BRIDGE_WHOLE || call->strategy == PLAIT_STRATEGY_FLATTEN)
        return run_kernel(call, caps, args, s, executor, bad);
    plait_attn_args bare = unscheduled(args);
    for (int32_t q = 0; (q = plait_group_next(args, q)) != 0;) {
        plait_attn_args group = plait_group_gather(&bare, q, fold, &s->group);
        PLAIT_TRY(run_kernel(call, caps, &group, s, executor, bad));
        plait_group_scatter(args, &group, q, fold, &s->group);
    }
    plait_edge_pad(args);
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
    /* Rounded once, by the merge, if the kernel can write f32. */
    const int exact = s->history && (caps->out_dtypes & PLAIT_DTYPE_BIT(PLAIT_F32));
    plait_merged to = {a->out, a->out_dtype,      a->out_row_stride, a->out_head_stride,
                       a->lse, a->lse_row_stride, a->lse_head_stride};
    if (exact) {
        a->out = s->history;
        a->out_dtype = PLAIT_F32;
        a->out_row_stride = row;
        a->out_head_stride = args->d_v;
    }
    PLAIT_TRY(run_rows(call, caps, a, s, executor, bad));
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
    plait_partial history = {a->out, a->out_dtype,      a->out_row_stride, a->out_head_stride,
                             a->lse, a->lse_row_stride, a->lse_head_stride};
    plait_partial newest = {s->out, PLAIT_F32, row, args->d_v, s->lse, args->h_q, 1};
    return plait_merge_pair(&history, &newest, args->num_rows, args->h_q, args->d_v, 0, &to);
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
                              : run_rows(call, caps, &a, &s, executor, &count);
    if (bad)
        *bad = count;
    return status;
}
