/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariant mode: a kernel that declares it runs a ragged batch, each sequence alone, and the batch
 * on other numbers of workers and with each sequence's splits dealt to several items: a row's bits
 * must be the same in all of them. Its buffers lie between guard pages, as in the cases.
 */
#include <math.h>
#include <string.h>

#include "core/convert.h"
#include "tests/check/check.h"

enum { Q, K, V, OUT, LSE, OUT2, LSE2, num_guards, fill = 0x99 };

enum { seqs = 4, most_rows = 24, page = 48, pages = 36, most_work = 64, most_heads = 40 };

struct batch {
    const plait_kernel *kernel;
    plait_attn_args args;
    int32_t row_start[seqs + 1], begin[most_rows], end[most_rows], table[seqs * pages];
    plait_attn_work work[most_work];
    plait_attn_reduce reduce[most_rows];
    float scale;
    plait_guard guard[num_guards]; /* OUT2 and LSE2: of what is compared with the batch */
};

static plait_dtype first_of(uint32_t mask, uint32_t turn)
{
    uint32_t d = turn % 32;
    while (!(mask >> d & 1u))
        d = (d + 1) % 32;
    return (plait_dtype)d;
}

/* n values in [-1, 1), some of them much larger, that nobody may write to. */
static int open_values(plait_guard *g, plait_random *r, plait_dtype dtype, size_t n)
{
    const size_t bytes = plait_dtype_bytes(dtype);
    if (!plait_guard_open(g, n * bytes, 64, 1, fill))
        return 0;
    for (size_t i = 0; i < n; i++) {
        const float x = (float)plait_random_real(r) * (plait_random_int(r, 0, 40) ? 1 : 8);
        const uint32_t code = plait_nearest_code(dtype, x);
        memcpy(g->data + i * bytes, &code, bytes);
    }
    plait_guard_read_only(g);
    return 1;
}

static int open_buffers(struct batch *b, plait_random *r)
{
    const plait_attn_args *a = &b->args;
    const size_t tokens = (size_t)seqs * pages * page * (size_t)a->h_kv;
    const size_t lines = (size_t)a->num_rows * (size_t)a->h_q;
    plait_guard *g = b->guard;
    int ok = open_values(&g[Q], r, a->q_dtype, lines * (size_t)a->d_qk) &&
             open_values(&g[K], r, a->kv_dtype, tokens * (size_t)a->d_qk) &&
             open_values(&g[V], r, a->kv_dtype, tokens * (size_t)a->d_v);
    for (int i = OUT; i < num_guards && ok; i++)
        ok = plait_guard_open(&g[i],
                              lines * sizeof(float) * (i == OUT || i == OUT2 ? (size_t)a->d_v : 1),
                              64, 1, fill);
    return ok;
}

static void choose_rows(struct batch *b, plait_random *r)
{
    static const int32_t lengths[] = {3, 300, 511, 514, 700, 1025, 1700};
    plait_attn_args *a = &b->args;
    a->num_seqs = seqs;
    for (int32_t s = 0; s < seqs; s++) {
        const int32_t rows = plait_random_int(r, 0, 5), window = plait_random_int(r, 0, 1) * 600;
        const int32_t last = lengths[plait_random_int(r, 0, 6)];
        b->row_start[s + 1] = b->row_start[s] + rows;
        for (int32_t i = 0; i < rows; i++) {
            const int32_t row = b->row_start[s] + i, end = last - rows + 1 + i;
            b->end[row] = end > 0 ? end : 0;
            b->begin[row] = window && end > window ? end - window : 0;
        }
    }
    a->num_rows = b->row_start[seqs];
    a->row_start = b->row_start;
    a->kv_begin = b->begin;
    a->kv_end = b->end;
    for (int32_t i = 0; i < seqs * pages; i++)
        b->table[i] = i * 5 % (seqs * pages);
    a->page_table = b->table;
    a->page_table_stride = pages;
    a->num_pages = seqs * pages;
}

static int open_batch(struct batch *b, const plait_kernel *kernel, plait_random *r, int32_t number)
{
    static const int32_t heads[] = {1, 3, 8, 16, 17, 40};
    const plait_caps *caps = &kernel->rows[number % kernel->n_rows];
    plait_attn_args *a = &b->args;
    memset(b, 0, sizeof *b);
    b->kernel = kernel;
    b->args = (plait_attn_args)PLAIT_ATTN_ARGS_INIT;
    a->op = kernel->op;
    a->invariant = 1;
    a->q_dtype = first_of(caps->q_dtypes, (uint32_t)number);
    a->kv_dtype =
        first_of(caps->kv_dtypes & ~PLAIT_DTYPE_BIT(PLAIT_FP8_DS656), (uint32_t)number / 2);
    a->h_kv = a->op == PLAIT_OP_GQA ? 1 + number % 2 : 1;
    a->h_q = heads[plait_random_int(r, 0, 5)];
    a->h_q = a->h_q / a->h_kv * a->h_kv + (a->h_q < a->h_kv) * a->h_kv;
    a->d_qk = number % 2 ? 128 : 64;
    a->d_v = 64;
    a->page_size = page;
    choose_rows(b, r);
    const int opened = open_buffers(b, r);
    a->q = b->guard[Q].data;
    a->q_head_stride = a->d_qk;
    a->q_row_stride = (int64_t)a->h_q * a->d_qk;
    a->k = b->guard[K].data;
    a->k_head_stride = a->d_qk;
    a->k_token_stride = (int64_t)a->h_kv * a->d_qk;
    a->k_page_stride = page * a->k_token_stride;
    if (a->op == PLAIT_OP_GQA)
        a->v = b->guard[V].data;
    a->v_head_stride = a->d_v;
    a->v_token_stride = (int64_t)a->h_kv * a->d_v;
    a->v_page_stride = page * a->v_token_stride;
    a->softmax_scale = 0.125f;
    if (a->kv_dtype == PLAIT_FP8_E4M3) {
        b->scale = 0.75f;
        a->k_scale = &b->scale;
        a->k_scale_n = 1;
    }
    a->out_head_stride = a->d_v;
    a->out_row_stride = (int64_t)a->h_q * a->d_v;
    a->lse_head_stride = 1;
    a->lse_row_stride = a->h_q;
    return opened;
}

static void close_batch(struct batch *b)
{
    for (int i = 0; i < num_guards; i++)
        plait_guard_close(&b->guard[i]);
}

/* One item for each split of each sequence, last first. */
static void deal_splits(struct batch *b)
{
    plait_attn_args *a = &b->args;
    int32_t n = 0;
    a->num_partials = a->num_reduce = 0;
    for (int32_t s = 0; s < seqs; s++) {
        const int32_t begin = b->row_start[s], end = b->row_start[s + 1];
        if (begin == end)
            continue;
        const int32_t keys = plait_attn_split_keys(b->end[end - 1]);
        const int32_t splits = (b->end[end - 1] + keys - 1) / keys;
        plait_attn_work w = {s, begin, end, 0, a->h_q, 0, INT32_MAX, -1};
        if (splits > 1)
            b->reduce[a->num_reduce++] =
                (plait_attn_reduce){begin, end, 0, a->h_q, a->num_partials, splits};
        for (int32_t i = 0; i < splits && splits > 1; i++, n++) {
            w.kv_begin = i * keys;
            w.kv_end = w.kv_begin + keys;
            w.partial = a->num_partials;
            a->num_partials += (end - begin) * a->h_q;
            b->work[n] = w;
        }
        if (splits <= 1)
            b->work[n++] = w;
    }
    for (int32_t i = 0; i < n / 2; i++) {
        const plait_attn_work w = b->work[i];
        b->work[i] = b->work[n - 1 - i];
        b->work[n - 1 - i] = w;
    }
    a->work = b->work;
    a->num_work = n;
    a->reduce = b->reduce;
}

static plait_status serial(void *user, plait_task_fn fn, void *task)
{
    const int32_t n = *(int32_t *)user;
    plait_status status = PLAIT_OK;
    for (int32_t w = 0; w < n && status == PLAIT_OK; w++)
        status = fn(task, w, n);
    return status;
}

struct call {
    const plait_kernel *kernel;
    const plait_attn_args *args;
    int32_t workers;
};

static int call_kernel(void *arg)
{
    struct call *call = arg;
    plait_executor executor = {sizeof executor, &call->workers, call->workers, serial};
    plait_status status = plait_attn_check(call->args);
    return status == PLAIT_OK ? plait_attn_run(call->kernel, call->args, &executor) : status;
}

/* NULL, or what is wrong. */
static const char *run(const struct batch *b, const plait_attn_args *args, int32_t workers)
{
    plait_attn_args a = *args;
    plait_guard workspace;
    struct call call = {b->kernel, &a, workers};
    const char *why = "no memory";
    a.workspace_bytes = plait_attn_workspace(b->kernel, &a, workers);
    if (plait_guard_open(&workspace, a.workspace_bytes, 64, 1, 0xff)) {
        a.workspace = workspace.data;
        why = plait_guard_reason(plait_guard_call(call_kernel, &call));
        if (!why && !plait_guard_clean(&workspace, 0xff))
            why = "it wrote beyond its workspace";
    }
    plait_guard_close(&workspace);
    return why;
}

static int same(const struct batch *b)
{
    const plait_guard *g = b->guard;
    return !memcmp(g[OUT].data, g[OUT2].data, g[OUT].bytes) &&
           !memcmp(g[LSE].data, g[LSE2].data, g[LSE].bytes);
}

/* Every row as a batch of its own. */
static const char *run_alone(const struct batch *b)
{
    const char *why = NULL;
    for (int32_t s = 0; s < seqs; s++)
        for (int32_t row = b->row_start[s]; row < b->row_start[s + 1] && !why; row++) {
            static const int32_t starts[] = {0, 1};
            plait_attn_args a = b->args;
            const size_t element = plait_dtype_bytes(a.q_dtype);
            a.num_seqs = a.num_rows = 1;
            a.row_start = starts;
            a.kv_begin += row;
            a.kv_end += row;
            a.page_table += s * pages;
            a.q = (const char *)a.q + (size_t)(row * a.q_row_stride) * element;
            a.out = (float *)(void *)b->guard[OUT2].data + row * a.out_row_stride;
            a.lse = (float *)(void *)b->guard[LSE2].data + row * a.lse_row_stride;
            why = run(b, &a, 1);
        }
    return why;
}

const char *plait_check_invariant(const plait_kernel *kernel, uint64_t seed, int32_t number)
{
    plait_random r = {seed * 1000003u + 77 + (uint64_t)number};
    struct batch b;
    const char *why = "no memory";
    if (open_batch(&b, kernel, &r, number)) {
        plait_attn_args *a = &b.args;
        a->out = b.guard[OUT].data;
        a->lse = (float *)(void *)b.guard[LSE].data;
        why = run(&b, a, 1 + number % 3);
        if (!why)
            why = run_alone(&b);
        if (!why && !same(&b))
            why = "invariant mode: a row's bits depend on the rows beside it";
        a->out = b.guard[OUT2].data;
        a->lse = (float *)(void *)b.guard[LSE2].data;
        if (!why) {
            deal_splits(&b);
            why = run(&b, a, 3);
        }
        if (!why && !same(&b))
            why = "invariant mode: a row's bits depend on the schedule";
        for (int i = OUT; i < num_guards && !why; i++)
            if (!plait_guard_clean(&b.guard[i], fill))
                why = "it wrote between or beyond its outputs";
    }
    close_batch(&b);
    return why;
}
