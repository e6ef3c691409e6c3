/* SPDX-License-Identifier: Apache-2.0 */
/* The split-KV schedule: cell by cell, balance, and through the reference kernels. */
#include <math.h>
#include <stdlib.h>

#include "plan_check.h"

/* ---- the schedule ---------------------------------------------------------------------------- */

/* No item holds a part of the query heads of a KV head and a part of another's. */
static void check_kv_heads(const plait_plan_options *o, const plait_plan_view *v)
{
    for (int32_t i = 0; i < v->num_work; i++)
        if (o->op == PLAIT_OP_GQA && v->work[i].head_begin > 0)
            assert_int_equal((o->q_head0 + v->work[i].head_begin) % o->q_per_kv, 0);
}

static void schedules_cover_every_cell_once(void **state)
{
    (void)state;
    const int64_t committed[] = {1327, 13, 334, 0, 64, 0};
    const int32_t q_len[] = {1, 5, 70, 40, 3, 1};
    for (int32_t workers = 1; workers <= 17; workers += 4)
        for (int32_t gqa = 0; gqa < 2; gqa++)
            for (int32_t n = 1; n <= 6; n++)
                for (int32_t least = 1; least <= 64; least *= 8) {
                    plait_plan_options o = test_plan_options(2, 0, 1, 16);
                    test_batch t;
                    o.n_workers = workers;
                    o.min_split_keys = least;
                    o.window = n % 2 ? 0 : 100;
                    o.h_q = gqa ? 6 : 20;
                    if (gqa) { /* heads 2 .. 7 of four to a KV head */
                        o.op = PLAIT_OP_GQA;
                        o.h_kv = 2;
                        o.q_head0 = 2;
                        o.q_per_kv = 4;
                    }
                    test_batch_init(&t, n, committed, q_len);
                    t.is_prompt[3] = 1;
                    plait_plan *plan = test_plan_open(&o);
                    assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
                    test_plan_check(&o, &t, plan);
                    check_kv_heads(&o, plait_plan_get(plan));
                    plait_plan_close(&plan);
                }
}

/* The largest load of a worker over the mean, in cost of keys. */
static double imbalance(const plait_plan *plan, int32_t workers)
{
    const plait_plan_view *v = plait_plan_get(plan);
    double load[64] = {0}, sum = 0, most = 0;
    for (int32_t i = 0; i < v->num_work; i++) {
        const plait_attn_work *w = &v->work[i];
        for (int32_t row = w->row_begin; row < w->row_end; row++) {
            int32_t begin = w->kv_begin > v->kv_begin[row] ? w->kv_begin : v->kv_begin[row];
            int32_t end = w->kv_end < v->kv_end[row] ? w->kv_end : v->kv_end[row];
            double cost = (double)(end > begin ? end - begin : 0) * (w->head_end - w->head_begin);
            load[i % workers] += cost;
            sum += cost;
        }
    }
    for (int32_t i = 0; i < workers; i++)
        most = load[i] > most ? load[i] : most;
    return most * workers / sum;
}

static void work_is_split_until_the_workers_are_nearly_even(void **state)
{
    (void)state;
    const int64_t committed[] = {4000, 4000, 4000, 200, 90};
    const int32_t q_len[] = {4, 4, 4, 1, 1};
    for (int32_t workers = 1; workers <= 16; workers++)
        for (int32_t n = 1; n <= 5; n++) {
            plait_plan_options o = test_plan_options(1, 0, 1, 16);
            test_batch t;
            o.n_workers = workers;
            test_batch_init(&t, n, committed, q_len);
            plait_plan *plan = test_plan_open(&o);
            assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
            if (!(imbalance(plan, workers) <= 1.26))
                fail_msg("%d requests on %d workers: %g", n, workers, imbalance(plan, workers));
            if (workers == 1)
                assert_int_equal(plait_plan_get(plan)->num_partials, 0);
            plait_plan_close(&plan);
        }
}

static void splits_have_the_least_number_of_keys_and_gqa_is_cut_at_kv_heads(void **state)
{
    (void)state;
    const int64_t committed = 999;
    const int32_t one = 1;
    plait_plan_options o = test_plan_options(1, 0, 1, 16);
    test_batch t;
    o.n_workers = 32;
    o.min_split_keys = 100;
    test_batch_init(&t, 1, &committed, &one);
    plait_plan *plan = test_plan_open(&o);
    const plait_plan_view *v = plait_plan_get(plan);
    assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
    assert_int_equal(v->num_work, 7);
    for (int32_t i = 0; i < v->num_work; i++)
        assert_true(v->work[i].kv_end - v->work[i].kv_begin >= 100);
    plait_plan_close(&plan);
    o.op = PLAIT_OP_GQA;
    o.h_kv = 2;
    o.q_per_kv = 2;
    o.n_workers = 2;
    plan = test_plan_open(&o);
    v = plait_plan_get(plan);
    assert_int_equal(plait_plan_build(plan, &t.b), PLAIT_OK);
    assert_int_equal(v->num_work, 2);
    assert_int_equal(v->num_reduce, 0);
    assert_int_equal(v->work[0].head_end - v->work[0].head_begin, 2);
    plait_plan_close(&plan);
}

/* ---- through a kernel ------------------------------------------------------------------------ */

enum { qk = 16, dv = 8, pool = max_seqs * max_pages * 16 };

typedef struct tensors {
    float *q, *k, *v, *out, *lse;
} tensors;

static float *numbers(size_t n, uint32_t seed)
{
    float *x = malloc(n * sizeof(*x));
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
    }
    return x;
}

/* Runs the reference with the plan's schedule in the workspace that the plan asks for. */
static void attend(const plait_plan_options *o, test_batch *t, const tensors *x)
{
    plait_plan *plan = test_plan_open(o);
    plait_attn_args a = PLAIT_ATTN_ARGS_INIT;
    const plait_kernel *kernel = plait_kernel_find(o->op == PLAIT_OP_MLA ? "mla_ref" : "gqa_ref");
    assert_non_null(kernel);
    size_t most = plait_plan_workspace_max(plan, kernel);
    assert_int_equal(plait_plan_build(plan, &t->b), PLAIT_OK);
    assert_int_equal(plait_plan_bind(plan, &t->b, &a), PLAIT_OK);
    assert_int_equal(plait_plan_workspace_max(plan, kernel), most);
    if (o->n_workers >= 16)
        assert_true(plait_plan_get(plan)->num_reduce > 0);
    a.q = x->q;
    a.q_head_stride = qk;
    a.q_row_stride = n_heads * qk;
    a.k = x->k;
    a.k_head_stride = qk;
    a.k_token_stride = o->h_kv * qk;
    a.k_page_stride = 16 * a.k_token_stride;
    if (o->op == PLAIT_OP_GQA) {
        a.v = x->v;
        a.v_head_stride = dv;
        a.v_token_stride = o->h_kv * dv;
        a.v_page_stride = 16 * a.v_token_stride;
    }
    a.num_pages = max_seqs * max_pages;
    a.out = x->out;
    a.out_head_stride = dv;
    a.out_row_stride = n_heads * dv;
    a.lse = x->lse;
    a.lse_head_stride = 1;
    a.lse_row_stride = n_heads;
    a.workspace_bytes = plait_plan_workspace(plan, kernel);
    assert_int_equal(a.workspace_bytes, plait_attn_workspace(kernel, &a, o->n_workers));
    assert_true(a.workspace_bytes <= most);
    a.workspace = aligned_alloc(64, (a.workspace_bytes + 63) / 64 * 64);
    assert_int_equal(plait_attn_check(&a), PLAIT_OK);
    for (int32_t w = 0; w < o->n_workers; w++)
        assert_int_equal(kernel->run(&a, w, o->n_workers), PLAIT_OK);
    for (int32_t w = 0; w < o->n_workers && a.num_reduce > 0; w++)
        assert_int_equal(kernel->reduce(&a, w, o->n_workers), PLAIT_OK);
    free(a.workspace);
    plait_plan_close(&plan);
}

static void assert_near(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= 2e-6f * (1.0f + fabsf(b[i]))))
            fail_msg("value %zu: %g, wanted %g", i, (double)a[i], (double)b[i]);
}

static void all_splits_agree(plait_op op, const int64_t *committed, const int32_t *q_len)
{
    const int32_t workers[] = {1, 2, 3, 16, 64};
    plait_plan_options o = test_plan_options(1, 0, 1, 16);
    test_batch t;
    tensors x = {numbers((size_t)max_rows * n_heads * qk, 1), numbers((size_t)pool * 2 * qk, 2),
                 numbers((size_t)pool * 2 * dv, 3), NULL, NULL};
    tensors one = x;
    size_t outs = (size_t)max_rows * n_heads * dv, lses = (size_t)max_rows * n_heads;
    o.op = op;
    o.h_kv = op == PLAIT_OP_GQA ? 2 : 1;
    o.min_split_keys = 1;
    test_batch_init(&t, 3, committed, q_len);
    t.b.padded_rows = max_rows;
    one.out = numbers(outs, 4);
    one.lse = numbers(lses, 5);
    for (size_t i = 0; i < 5; i++) {
        x.out = i ? numbers(outs, 6) : one.out;
        x.lse = i ? numbers(lses, 7) : one.lse;
        o.n_workers = workers[i];
        attend(&o, &t, &x);
        assert_near(x.out, one.out, outs);
        for (size_t j = 0; j < lses; j++)
            if (isinf(one.lse[j])) /* padding: -inf on both sides */
                assert_true(x.lse[j] == one.lse[j]);
            else
                assert_near(&x.lse[j], &one.lse[j], 1);
        if (i) {
            free(x.out);
            free(x.lse);
        }
    }
    free(one.out);
    free(one.lse);
    free(x.q);
    free(x.k);
    free(x.v);
}

static void case_16_all_splits_agree_for_ragged_and_uniform_rows(void **state)
{
    (void)state;
    const int32_t ragged[] = {1, 5, 129}, uniform[] = {4, 4, 4};
    const int64_t before_ragged[] = {1327, 13, 334}, before_uniform[] = {1324, 14, 459};
    for (int32_t op = PLAIT_OP_MLA; op <= PLAIT_OP_GQA; op++) {
        all_splits_agree((plait_op)op, before_ragged, ragged);
        all_splits_agree((plait_op)op, before_uniform, uniform);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_cover_every_cell_once),
        cmocka_unit_test(work_is_split_until_the_workers_are_nearly_even),
        cmocka_unit_test(splits_have_the_least_number_of_keys_and_gqa_is_cut_at_kv_heads),
        cmocka_unit_test(case_16_all_splits_agree_for_ragged_and_uniform_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
