/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans and page tables: any batch is refused with a sentence, or planned so that attention reads
 * inside its buffers only. Arrays have exactly the size that the interface states, the pool is NaN
 * but for keys that some row sees, and so are outputs before the call.
 */
#include <math.h>

#include <plait/attn.h>
#include <plait/plan.h>

#include "core/convert.h"
#include "fuzz.h"

typedef struct batch {
    plait_plan_batch b;
    int64_t *committed;
    int32_t *q_len, *table, *table_len;
    uint8_t *is_prompt;
} batch;

static void *array(int64_t n, size_t bytes)
{
    void *p = malloc((size_t)n * bytes + (n == 0));
    CHECK(p);
    return p;
}

static plait_plan_options take_options(fuzz_bytes *in)
{
    plait_plan_options o = PLAIT_PLAN_OPTIONS_INIT;
    o.shard.d = fuzz_range(in, 1, 5);
    o.shard.r = fuzz_range(in, 0, 4);
    o.shard.i = fuzz_range(in, 1, 4);
    o.op = fuzz_byte(in) % 2 ? PLAIT_OP_GQA : PLAIT_OP_MLA;
    o.h_kv = o.op == PLAIT_OP_MLA ? 1 : fuzz_range(in, 1, 3);
    o.h_q = fuzz_range(in, 1, 6);
    o.q_per_kv = fuzz_range(in, 0, 3);
    o.q_head0 = fuzz_range(in, 0, 3);
    o.d_qk = fuzz_range(in, 1, 20);
    o.d_v = fuzz_range(in, 1, o.op == PLAIT_OP_MLA ? o.d_qk : 20);
    o.page_size = fuzz_range(in, 1, 9);
    o.window = fuzz_byte(in) % 2 ? fuzz_range(in, 0, 30) : 0;
    o.max_seqs = fuzz_range(in, 1, 4);
    o.max_rows = fuzz_range(in, 1, 24);
    o.max_pages_per_seq = fuzz_range(in, 1, 24);
    o.short_rows = fuzz_range(in, 1, 4);
    o.n_workers = fuzz_range(in, 1, 3);
    o.min_split_keys = fuzz_range(in, 1, 12);
    return o;
}

/* Mostly small numbers; a few that no batch may have. */
static int64_t take_length(fuzz_bytes *in)
{
    static const int64_t odd[] = {-1, INT32_MAX, INT64_MAX, INT64_MIN, (int64_t)1 << 31, 100000};
    const uint32_t x = fuzz_byte(in);
    return x < 0xf0 ? x % 80 : odd[x % 6];
}

static int32_t take_page(fuzz_bytes *in, int32_t pages)
{
    static const int32_t odd[] = {-1, INT32_MIN, INT32_MAX};
    const uint32_t x = fuzz_byte(in);
    return x < 0xfc ? (int32_t)(x % (uint32_t)pages) : x == 0xfc ? pages : odd[x - 0xfd];
}

static void take_batch(fuzz_bytes *in, int32_t seqs, int32_t pages, batch *t)
{
    const int64_t stride = fuzz_range(in, 0, 26);
    t->committed = array(seqs, sizeof *t->committed);
    t->q_len = array(seqs, sizeof *t->q_len);
    t->is_prompt = array(seqs, 1);
    t->table_len = array(seqs, sizeof *t->table_len);
    t->table = array(seqs * stride, sizeof *t->table);
    for (int32_t s = 0; s < seqs; s++) {
        t->committed[s] = take_length(in);
        t->q_len[s] = fuzz_byte(in) < 0xf8 ? fuzz_range(in, 0, 7) : (int32_t)take_length(in);
        t->is_prompt[s] = (uint8_t)fuzz_range(in, 0, 1);
        t->table_len[s] = (int32_t)stride + (fuzz_byte(in) < 0x60 ? fuzz_range(in, -2, 2) : 0);
    }
    for (int64_t i = 0; i < seqs * stride; i++)
        t->table[i] = take_page(in, pages);
    t->b = (plait_plan_batch)PLAIT_PLAN_BATCH_INIT;
    t->b.num_seqs = seqs;
    t->b.padded_rows = fuzz_byte(in) % 2 ? fuzz_range(in, 0, 26) : 0;
    t->b.committed = t->committed;
    t->b.q_len = t->q_len;
    t->b.is_prompt = fuzz_byte(in) % 4 ? t->is_prompt : NULL;
    t->b.page_table = t->table;
    t->b.page_table_stride = stride;
    t->b.table_len = fuzz_byte(in) % 4 ? t->table_len : NULL;
}

static void free_batch(batch *t)
{
    free(t->committed);
    free(t->q_len);
    free(t->is_prompt);
    free(t->table_len);
    free(t->table);
}

static float *filled(int64_t n, float value)
{
    float *x = array(n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
    return x;
}

/* The same n values in bf16, in an array of exactly that size; frees x. */
static void *halved(float *x, int64_t n)
{
    uint16_t *half = array(n, sizeof *half);
    for (int64_t i = 0; i < n; i++)
        half[i] = plait_bf16_from_f32(x[i]);
    free(x);
    return half;
}

/* Gives a value to the keys that some row of the plan sees; the rest of the pool stays NaN. */
static void fill_seen(const plait_plan_options *o, const plait_plan_view *v, float *pool,
                      int32_t width)
{
    for (int32_t s = 0; s < v->num_seqs; s++)
        for (int32_t row = v->row_start[s]; row < v->row_start[s + 1]; row++)
            for (int32_t c = v->kv_begin[row]; c < v->kv_end[row]; c++) {
                const int64_t page = v->page_table[s * v->page_table_stride + c / o->page_size];
                float *at = pool + (page * o->page_size + c % o->page_size) * width;
                for (int32_t i = 0; i < width; i++)
                    at[i] = (float)((c * 7 + i * 3) % 11) / 8 - 0.5f;
            }
}

static void check_outputs(const plait_plan_options *o, const plait_plan_view *v, const float *out,
                          const float *lse)
{
    for (int32_t row = 0; row < v->padded_rows; row++) {
        const int empty = v->kv_begin[row] == v->kv_end[row];
        for (int32_t h = 0; h < o->h_q; h++) {
            const float *x = out + ((int64_t)row * o->h_q + h) * o->d_v;
            const float l = lse[row * o->h_q + h];
            CHECK(empty ? l == -INFINITY : isfinite(l));
            for (int32_t i = 0; i < o->d_v; i++)
                CHECK(empty ? x[i] == 0 : fabsf(x[i]) <= 1);
        }
    }
}

static void attend(const plait_plan *plan, const plait_plan_options *o, const batch *t,
                   int32_t pages, const plait_kernel *kernel, plait_dtype dtype)
{
    const plait_plan_view *v = plait_plan_get(plan);
    const int32_t k_width = o->h_kv * o->d_qk, v_width = o->h_kv * o->d_v;
    const int64_t rows = v->padded_rows, tokens = (int64_t)pages * o->page_size;
    plait_attn_args a = PLAIT_ATTN_ARGS_INIT;
    CHECK(plait_plan_bind(plan, &t->b, &a) == PLAIT_OK);
    void *q = filled(rows * o->h_q * o->d_qk, 0.25f), *k = filled(tokens * k_width, NAN);
    void *value = filled(tokens * v_width, NAN);
    float *out = filled(rows * o->h_q * o->d_v, NAN);
    float *lse = filled(rows * o->h_q, NAN);
    a.num_pages = pages;
    a.k = k;
    a.v = o->op == PLAIT_OP_GQA ? value : NULL;
    a.q = q;
    a.out = out;
    const plait_status valid = plait_attn_check(&a);
    if (valid == PLAIT_OK) {
        fill_seen(o, v, k, k_width);
        fill_seen(o, v, value, v_width);
    } else {
        /* All that a plan does not know is how many pages the pool has. */
        CHECK(strstr(plait_last_error(), "the pool has"));
    }
    if (dtype == PLAIT_BF16) {
        q = halved(q, rows * o->h_q * o->d_qk);
        k = halved(k, tokens * k_width);
        value = halved(value, tokens * v_width);
    }
    a.q = q;
    a.q_dtype = a.kv_dtype = dtype;
    a.q_head_stride = o->d_qk;
    a.q_row_stride = o->h_q * o->d_qk;
    a.k = k;
    a.k_head_stride = o->d_qk;
    a.k_token_stride = k_width;
    a.k_page_stride = (int64_t)k_width * o->page_size;
    if (o->op == PLAIT_OP_GQA) {
        a.v = value;
        a.v_head_stride = o->d_v;
        a.v_token_stride = v_width;
        a.v_page_stride = (int64_t)v_width * o->page_size;
    }
    a.out = out;
    a.out_head_stride = o->d_v;
    a.out_row_stride = o->h_q * o->d_v;
    a.lse = lse;
    a.lse_head_stride = 1;
    a.lse_row_stride = o->h_q;
    a.workspace_bytes = plait_attn_workspace(kernel, &a, 1);
    CHECK(a.workspace_bytes <= plait_plan_workspace_max(plan, kernel));
    void *workspace; /* of exactly the size that was asked for */
    CHECK(posix_memalign(&workspace, 64, a.workspace_bytes + (a.workspace_bytes == 0)) == 0);
    a.workspace = workspace;
    if (valid == PLAIT_OK) {
        CHECK(plait_attn_run(kernel, &a, NULL) == PLAIT_OK);
        check_outputs(o, v, out, lse);
    }
    free(q);
    free(k);
    free(value);
    free(out);
    free(lse);
    free(workspace);
}

/* Tokens below n that this rank owns, counted. */
static int32_t owned(const plait_plan_options *o, int64_t n)
{
    int32_t count = 0;
    for (int64_t p = 0; p < n; p++)
        count += p / o->shard.i % o->shard.d == o->shard.r;
    return count;
}

/* Pages, slots and ranges of a plan against the definition. */
static void check_plan(const plait_plan_options *o, const plait_plan_view *v)
{
    for (int32_t s = 0; s < v->num_seqs; s++) {
        const int32_t *table = v->page_table + s * v->page_table_stride;
        CHECK(v->pages_needed[s] <= v->page_table_stride);
        for (int32_t i = 0; i < v->pages_needed[s]; i++)
            CHECK(table[i] >= 0);
        for (int32_t row = v->row_start[s]; row < v->row_start[s + 1]; row++) {
            const int64_t n = v->index[row] + 1;
            const int32_t last = owned(o, n), c = last - 1;
            CHECK(v->kv_end[row] == last && last <= v->pages_needed[s] * o->page_size);
            CHECK(v->kv_begin[row] == (o->window > 0 ? owned(o, n - o->window) : 0));
            const int64_t slot =
                owned(o, n - 1) == last
                    ? -1
                    : (int64_t)table[c / o->page_size] * o->page_size + c % o->page_size;
            CHECK(v->slot[row] == slot);
        }
    }
}

static void attend_all(const plait_plan *plan, const plait_plan_options *o, const batch *t,
                       int32_t pages)
{
    const plait_plan_view *v = plait_plan_get(plan);
    CHECK(v->num_seqs == t->b.num_seqs && v->num_rows <= v->padded_rows);
    CHECK(v->padded_rows <= o->max_rows);
    check_plan(o, v);
    for (int32_t i = 0; i < 2 * plait_kernel_count(); i++) {
        const plait_kernel *kernel = plait_kernel_get(i / 2);
        plait_attn_args a = PLAIT_ATTN_ARGS_INIT;
        char why[128];
        CHECK(plait_plan_bind(plan, &t->b, &a) == PLAIT_OK);
        a.q_dtype = a.kv_dtype = i % 2 ? PLAIT_BF16 : PLAIT_F32;
        if (kernel->op == o->op && kernel->device == PLAIT_DEVICE_CPU &&
            !plait_kernel_refusal(kernel, &a, plait_cpu_detect(), why, sizeof why))
            attend(plan, o, t, pages, kernel, a.q_dtype);
    }
}

int fuzz_one(const uint8_t *data, size_t size)
{
    fuzz_bytes in = {data, size};
    const plait_plan_options o = take_options(&in);
    plait_plan *plan;
    if (plait_plan_open(&o, &plan) != PLAIT_OK) {
        CHECK(!plan && *plait_last_error());
        return 0;
    }
    const int32_t pages = fuzz_range(&in, 1, 60), seqs = fuzz_range(&in, 0, 5);
    batch t, next;
    take_batch(&in, seqs, pages, &t);
    if (plait_plan_build(plan, &t.b) == PLAIT_OK) {
        attend_all(plan, &o, &t, pages);
        int32_t *accepted = array(seqs, sizeof *accepted);
        take_batch(&in, seqs, pages, &next);
        for (int32_t s = 0; s < seqs; s++)
            accepted[s] = fuzz_range(&in, -1, t.q_len[s] < 100 ? t.q_len[s] : 100);
        next.b.generation = fuzz_byte(&in) ? t.b.generation : 7;
        if (plait_plan_refresh(plan, accepted, &next.b) == PLAIT_OK)
            attend_all(plan, &o, &next, pages);
        else
            attend_all(plan, &o, &t, pages); /* the plan stays as it was */
        free_batch(&next);
        free(accepted);
    }
    free_batch(&t);
    plait_plan_close(&plan);
    return 0;
}
