/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariant mode: a row's bits are those of the row alone, one worker, whatever else the batch
 * holds, whatever the workers, the chunks of rows and the window.
 */
#include <stdlib.h>
#include <string.h>

#include "unit.h"

#include <plait/plan.h>

enum { page = 16, pages = 516, requests = 5, most_rows = 64, dim = 64 };

/* Tokens of each request: at both sides of a split, and where splits get longer (8192). */
static const int64_t tokens[requests] = {8196, 1030, 514, 90, 2049};

typedef struct model {
    const plait_kernel *kernel;
    plait_plan_options o;
    uint16_t *q, *k, *v; /* q [request][token from the end, most_rows][h_q][dim] */
    int32_t table[requests][pages];
} model;

/* bf16 numbers in [-2, 2], rarely of the largest. */
static uint16_t *numbers(size_t n, uint32_t seed)
{
    uint16_t *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (uint16_t)((seed >> 31 << 15) | (0x3d00u + (seed >> 8) % 0x300u));
    }
    return x;
}

static void model_open(model *m, const plait_kernel *kernel, int32_t heads, int64_t window)
{
    m->kernel = kernel;
    m->o = (plait_plan_options)PLAIT_PLAN_OPTIONS_INIT;
    m->o.op = kernel->op;
    m->o.h_q = heads;
    m->o.h_kv = kernel->op == PLAIT_OP_GQA ? 2 : 1;
    m->o.d_qk = m->o.d_v = dim;
    m->o.page_size = page;
    m->o.window = window;
    m->o.max_seqs = requests;
    m->o.max_rows = most_rows;
    m->o.max_pages_per_seq = pages;
    m->o.invariant = 1;
    m->q = numbers((size_t)requests * most_rows * (size_t)heads * dim, 1);
    m->k = numbers((size_t)requests * pages * page * (size_t)m->o.h_kv * dim, 2);
    m->v = numbers((size_t)requests * pages * page * (size_t)m->o.h_kv * dim, 3);
    for (int32_t i = 0; i < requests * pages; i++)
        m->table[i / pages][i % pages] = i * 7 % (requests * pages);
}

static void model_close(model *m)
{
    free(m->q);
    free(m->k);
    free(m->v);
}

/* The last `rows` tokens but `behind` of each of n requests, into out and lse of one request after
   another. */
static void attend(const model *m, int32_t n, const int32_t *request, const int32_t *rows,
                   const int32_t *behind, int32_t workers, float *out, float *lse)
{
    const plait_plan_options *o = &m->o;
    const int32_t width = o->h_q * dim;
    plait_plan_options options = *o;
    plait_plan_batch b = PLAIT_PLAN_BATCH_INIT;
    plait_attn_args a = PLAIT_ATTN_ARGS_INIT;
    plait_pool_options pool_options = PLAIT_POOL_OPTIONS_INIT;
    plait_pool *pool;
    plait_plan *plan;
    int64_t committed[requests];
    int32_t table[requests * pages], first[requests], total = 0;
    options.n_workers = pool_options.n_threads = workers;
    assert_int_equal(plait_plan_open(&options, &plan), PLAIT_OK);
    for (int32_t i = 0; i < n; i++) {
        committed[i] = tokens[request[i]] - behind[i] - rows[i];
        memcpy(table + i * pages, m->table[request[i]], sizeof m->table[0]);
        first[i] = total;
        total += rows[i];
    }
    b.num_seqs = n;
    b.committed = committed;
    b.q_len = rows;
    b.page_table = table;
    b.page_table_stride = pages;
    assert_int_equal(plait_plan_build(plan, &b), PLAIT_OK);
    assert_int_equal(plait_plan_bind(plan, &b, &a), PLAIT_OK);
    assert_int_equal(a.invariant, 1);
    const plait_plan_view *v = plait_plan_get(plan);
    uint16_t *q = malloc((size_t)total * (size_t)width * sizeof *q);
    float *planned = malloc((size_t)total * (size_t)(width + o->h_q) * sizeof *planned);
    for (int32_t s = 0; s < n; s++) {
        const int32_t r = v->order[s];
        memcpy(q + v->row_start[s] * width,
               m->q + (request[r] * most_rows + most_rows - behind[r] - rows[r]) * width,
               (size_t)(rows[r] * width) * sizeof *q);
    }
    a.q = q;
    a.q_dtype = a.kv_dtype = PLAIT_BF16;
    a.q_head_stride = a.k_head_stride = a.v_head_stride = a.out_head_stride = dim;
    a.q_row_stride = a.out_row_stride = width;
    a.k = m->k;
    a.k_token_stride = o->h_kv * dim;
    a.k_page_stride = page * a.k_token_stride;
    if (o->op == PLAIT_OP_GQA) {
        a.v = m->v;
        a.v_token_stride = a.k_token_stride;
        a.v_page_stride = a.k_page_stride;
    }
    a.softmax_scale = 0.125f;
    a.out = planned;
    a.lse = planned + total * width;
    a.lse_head_stride = 1;
    a.lse_row_stride = o->h_q;
    a.workspace_bytes = plait_plan_workspace(plan, m->kernel);
    assert_true(a.workspace_bytes <= plait_plan_workspace_max(plan, m->kernel));
    a.workspace = aligned_alloc(64, (a.workspace_bytes + 63) / 64 * 64);
    memset(a.workspace, 0x7f, a.workspace_bytes);
    assert_int_equal(plait_attn_check(&a), PLAIT_OK);
    assert_int_equal(plait_pool_open(&pool_options, &pool), PLAIT_OK);
    assert_int_equal(plait_attn_run(m->kernel, &a, plait_pool_executor(pool)), PLAIT_OK);
    for (int32_t s = 0; s < n; s++) {
        const int32_t r = v->order[s];
        memcpy(out + first[r] * width, planned + v->row_start[s] * width,
               (size_t)(rows[r] * width) * sizeof *out);
        memcpy(lse + first[r] * o->h_q, a.lse + v->row_start[s] * o->h_q,
               (size_t)(rows[r] * o->h_q) * sizeof *lse);
    }
    plait_pool_close(&pool);
    plait_plan_close(&plan);
    free(a.workspace);
    free(planned);
    free(q);
}

static void same_bits(const model *m)
{
    static const struct {
        int32_t n, request[requests], rows[requests], behind[requests];
    } batches[] = {
        {5, {0, 1, 2, 3, 4}, {1, 1, 1, 1, 1}, {0}},
        {5, {4, 3, 2, 1, 0}, {2, 5, 4, 3, 6}, {1, 0, 0, 2, 0}},
        {1, {0}, {20}, {0}},
        {2, {2, 1}, {33, 8}, {0, 0}},
        {3, {1, 0, 4}, {17, 1, 2}, {3, 4, 0}},
    };
    static const int32_t workers[] = {1, 2, 3, 7};
    const int32_t width = m->o.h_q * dim, one = 1;
    float *out = malloc((size_t)most_rows * (size_t)width * sizeof *out);
    float *lse = malloc((size_t)most_rows * (size_t)m->o.h_q * sizeof *lse);
    float *alone = malloc((size_t)(width + m->o.h_q) * sizeof *alone);
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++)
        for (size_t w = 0; w < 4; w++) {
            attend(m, batches[b].n, batches[b].request, batches[b].rows, batches[b].behind,
                   workers[w], out, lse);
            const float *at = out, *at_lse = lse;
            for (int32_t i = 0; i < batches[b].n; i++)
                for (int32_t j = batches[b].rows[i]; j-- > 0; at += width, at_lse += m->o.h_q) {
                    const int32_t behind = batches[b].behind[i] + j;
                    attend(m, 1, &batches[b].request[i], &one, &behind, 1, alone, alone + width);
                    if (memcmp(at, alone, (size_t)width * sizeof *at) ||
                        memcmp(at_lse, alone + width, (size_t)m->o.h_q * sizeof *at))
                        fail_msg("%s, batch %zu, %d workers: request %d differs from itself alone",
                                 m->kernel->name, b, workers[w], batches[b].request[i]);
                }
        }
    free(out);
    free(lse);
    free(alone);
}

static void a_row_has_the_bits_of_itself_alone(void **state)
{
    (void)state;
    int32_t tried = 0;
    for (int32_t i = 0; i < plait_kernel_count(); i++) {
        const plait_kernel *k = plait_kernel_get(i);
        if (k->device != PLAIT_DEVICE_CPU || !k->rows[0].invariant ||
            (k->needs & ~plait_cpu_detect()))
            continue;
        const int ref = !k->needs;
        for (int32_t heads = 4; heads <= (ref ? 4 : 132); heads += 128)
            for (int64_t window = 0; window <= 700; window += 700) {
                model m;
                model_open(&m, k, heads, window);
                same_bits(&m);
                model_close(&m);
                tried++;
            }
    }
    assert_true(tried >= 4);
}

static void splits_follow_the_length_alone(void **state)
{
    (void)state;
    assert_int_equal(plait_attn_split_keys(0), 512);
    assert_int_equal(plait_attn_split_keys(8192), 512);
    assert_int_equal(plait_attn_split_keys(8193), 1024);
    assert_int_equal(plait_attn_split_keys(16384), 1024);
    for (int64_t n = 1; n < INT32_MAX; n = n * 5 / 4 + 1) {
        const int64_t keys = plait_attn_split_keys((int32_t)n);
        assert_true(16 * keys >= n && (keys == 512 || 8 * keys < n));
    }
}

static void the_work_is_dealt_to_all_workers(void **state)
{
    (void)state;
    const int32_t workers = 4;
    for (int32_t heads = 8; heads <= 128; heads *= 16) {
        plait_plan_options o = PLAIT_PLAN_OPTIONS_INIT;
        plait_plan_batch b = PLAIT_PLAN_BATCH_INIT;
        plait_plan *plan;
        int32_t table[pages] = {0}, rows = 1;
        const int64_t committed = 8000;
        o.h_q = heads;
        o.d_qk = 576;
        o.d_v = 512;
        o.page_size = page;
        o.max_seqs = 1;
        o.max_rows = 8;
        o.max_pages_per_seq = pages;
        o.n_workers = workers;
        o.invariant = 1;
        assert_int_equal(plait_plan_open(&o, &plan), PLAIT_OK);
        b.num_seqs = 1;
        b.committed = &committed;
        b.q_len = &rows;
        b.page_table = table;
        b.page_table_stride = pages;
        assert_int_equal(plait_plan_build(plan, &b), PLAIT_OK);
        const plait_plan_view *v = plait_plan_get(plan);
        int64_t most = 0, sum = 0, load[4] = {0};
        for (int32_t i = 0; i < v->num_work; i++) {
            const plait_attn_work *w = &v->work[i];
            const int32_t end = w->kv_end < 8001 ? w->kv_end : 8001;
            load[i % workers] += (int64_t)(end - w->kv_begin) * (w->head_end - w->head_begin);
        }
        for (int32_t i = 0; i < workers; i++) {
            most = load[i] > most ? load[i] : most;
            sum += load[i];
        }
        assert_int_equal(sum, 8001 * heads);
        assert_true(4 * most <= sum * 5 / 4);
        plait_plan_close(&plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_the_bits_of_itself_alone),
        cmocka_unit_test(splits_follow_the_length_alone),
        cmocka_unit_test(the_work_is_dealt_to_all_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
