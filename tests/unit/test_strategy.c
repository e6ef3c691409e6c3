/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strategies on kernels that keep only a part of the contract. A batch is spread over D ranks,
 * each rank is computed by itself, the partial states are merged and compared with a softmax in
 * double over all keys.
 */
#include <plait/log.h>
#include <plait/strategy.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulators.h"
#include "sharded.h"
#include "unit.h"

enum { canary = 0x5a };

/* Every rank by the strategy, in a workspace of exactly the bytes asked for. 0: refused. */
static int carry_out(const plait_strategy_call *call)
{
    char text[128];
    for (int32_t r = 0; r < batch.ranks; r++) {
        plait_attn_args a;
        batch_open_rank(&a, r);
        if (plait_strategy_refusal(call, &a, text, sizeof text)) {
            assert_int_equal(plait_strategy_run(call, &a, NULL, NULL), PLAIT_E_UNSUPPORTED);
            return 0;
        }
    }
    for (int32_t r = 0; r < batch.ranks; r++) {
        static _Alignas(64) unsigned char workspace[1 << 20];
        int64_t bad = -1;
        plait_attn_args a;
        batch_open_rank(&a, r);
        a.workspace = workspace;
        a.workspace_bytes = plait_strategy_workspace(call, &a, 1);
        assert_true(a.workspace_bytes + 64 < sizeof workspace);
        memset(workspace, 0xff, a.workspace_bytes);
        memset(workspace + a.workspace_bytes, canary, 64);
        if (plait_strategy_run(call, &a, NULL, &bad) != PLAIT_OK)
            fail_msg("%s", plait_last_error());
        assert_int_equal(bad, 0);
        for (int32_t i = 0; i < 64; i++)
            assert_int_equal(workspace[a.workspace_bytes + (size_t)i], canary);
    }
    batch_merge();
    return 1;
}

static const plait_kernel *reference(void)
{
    return plait_kernel_find(batch.op == PLAIT_OP_MLA ? "mla_ref" : "gqa_ref");
}

/* The emulators, then the reference. */
static plait_strategy_call call_of(int32_t backend, plait_strategy strategy)
{
    plait_strategy_call call = PLAIT_STRATEGY_CALL_INIT;
    call.strategy = strategy;
    call.newest = call.kernel = reference();
    if (backend < n_emulators) {
        const emulator *e = emulator_get(batch.op, backend);
        call.kernel = &e->kernel;
        call.lse_heads_first = e->lse_heads_first;
    }
    return call;
}

static void test_random_batches_agree_with_the_reference(void **state)
{
    (void)state;
    static int32_t count[n_emulators + 1][3][2][2];
    int32_t agreed = 0;
    for (int32_t n = 0; n < 2500; n++) {
        batch_random();
        for (int32_t i = 0; i <= n_emulators; i++)
            for (int32_t how = 0; how < 3; how++) {
                plait_strategy_call call = call_of(i, (plait_strategy)how);
                if (!carry_out(&call))
                    continue;
                double e = batch_error();
                if (!(e < 1e-5))
                    fail_msg("batch %d, %s, %s, D %d: error %g", n, call.kernel->name,
                             plait_strategy_name(call.strategy), batch.ranks, e);
                count[i][how][batch.ranks > 1][batch.ragged]++;
                agreed++;
            }
    }
    for (int32_t i = 0; i <= n_emulators; i++)
        for (int32_t how = 0; how < 3; how++) {
            const int32_t(*c)[2] = count[i][how];
            print_message("# %-11s %-7s D 1: %d uniform, %d ragged; D > 1: %d, %d\n",
                          i < n_emulators ? emulator_get(PLAIT_OP_MLA, i)->kernel.name : "ref",
                          plait_strategy_name((plait_strategy)how), c[0][0], c[0][1], c[1][0],
                          c[1][1]);
            for (int32_t j = 0; j < 4; j++)
                assert_true(c[j / 2][j % 2] == 0 || c[j / 2][j % 2] >= 20);
            if (how == PLAIT_STRATEGY_FLATTEN && i != 0)
                assert_true(c[0][1] && c[1][0] && c[1][1]);
        }
    /* Without sharding, end-aligned ranges are those of any batch of equal row numbers. */
    assert_int_equal(count[1][PLAIT_STRATEGY_DIRECT][0][0],
                     count[n_emulators][PLAIT_STRATEGY_DIRECT][0][0]);
    assert_true(agreed > 20000);
}

/* Three sequences over three ranks, four rows each; the first leaves ranks without keys. */
static void fixed_batch(void)
{
    memset(&batch, 0, sizeof batch);
    batch_seed = 7;
    batch.op = PLAIT_OP_GQA;
    batch.ranks = 3;
    batch.interleave = 4;
    batch.seqs = 3;
    batch.h_kv = 2;
    batch.h_q = 4;
    for (int32_t s = 0; s < 3; s++) {
        batch.rows[s] = 4;
        batch.length[s] = 4 + 15 * s;
    }
    batch_fill();
}

static void test_each_contract_fails_alone_and_holds_by_flatten(void **state)
{
    (void)state;
    fixed_batch();
    for (int32_t i = 0; i < n_emulators; i++) {
        plait_strategy_call call = call_of(i, PLAIT_STRATEGY_FLATTEN);
        for (int32_t r = 0; r < batch.ranks; r++) {
            plait_attn_args a;
            batch_open_rank(&a, r);
            memset(batch_ranks[r].lse, 0, sizeof batch_ranks[r].lse);
            assert_int_equal(plait_attn_run(call.kernel, &a, NULL), PLAIT_OK);
        }
        batch_merge();
        double alone = batch_error();
        print_message("# %s alone: error %.3g\n", call.kernel->name, alone);
        assert_true(alone > 0.05);
        assert_int_equal(carry_out(&call), i != 0); /* without an LSE there is no right answer */
        if (i != 0)
            assert_true(batch_error() < 1e-5);
    }
}

static void test_out_without_an_lse(void **state)
{
    (void)state;
    static const struct {
        int32_t backend;
        plait_strategy strategy;
    } calls[] = {{0, PLAIT_STRATEGY_FLATTEN}, {3, PLAIT_STRATEGY_WINDOW}};
    static _Alignas(64) unsigned char workspace[1 << 16];
    fixed_batch();
    batch.ranks = 1;
    plait_strategy_call want = call_of(n_emulators, PLAIT_STRATEGY_DIRECT);
    assert_int_equal(carry_out(&want), 1);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        plait_strategy_call call = call_of(calls[i].backend, calls[i].strategy);
        plait_attn_args a;
        batch_open_rank(&a, 0);
        a.lse = NULL;
        a.workspace = workspace;
        a.workspace_bytes = plait_strategy_workspace(&call, &a, 1);
        assert_int_equal(plait_strategy_run(&call, &a, NULL, NULL), PLAIT_OK);
        for (int32_t j = 0; j < batch.num_rows * batch.h_q * d_v; j++)
            assert_true(fabs((double)batch_ranks[0].out[j] - batch_out[j]) < 1e-5);
    }
}

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* History and newest keys are merged in f32: within half a bf16 ulp of the f32 result. */
static void test_a_window_rounds_once(void **state)
{
    (void)state;
    static _Alignas(64) unsigned char workspace[1 << 16];
    static uint16_t half[max_rows * max_heads * d_v];
    fixed_batch();
    batch.ranks = 1;
    plait_strategy_call call = call_of(n_emulators, PLAIT_STRATEGY_WINDOW);
    assert_int_equal(carry_out(&call), 1);
    plait_attn_args a;
    batch_open_rank(&a, 0);
    a.out = half;
    a.out_dtype = PLAIT_BF16;
    a.workspace = workspace;
    a.workspace_bytes = plait_strategy_workspace(&call, &a, 1);
    assert_int_equal(plait_strategy_run(&call, &a, NULL, NULL), PLAIT_OK);
    for (int32_t i = 0; i < batch.num_rows * batch.h_q * d_v; i++)
        assert_true(fabs((double)from_bf16(half[i]) - batch_out[i]) <=
                    fabs((double)batch_out[i]) * 0.00390625 * 1.0001);
}

static plait_status run_bad(const plait_attn_args *a, int32_t worker, int32_t n_workers)
{
    plait_status status = reference()->run(a, worker, n_workers);
    a->lse[0] = INFINITY;
    a->lse[1] = NAN;
    return status;
}

static void test_bad_lse_is_counted_and_noticed_once(void **state)
{
    (void)state;
    fixed_batch();
    plait_strategy_call call = call_of(n_emulators, PLAIT_STRATEGY_DIRECT);
    plait_kernel kernel = *reference();
    static _Alignas(64) unsigned char workspace[1 << 16];
    plait_attn_args a;
    size_t notices = plait_notice_count();
    kernel.run = run_bad;
    call.kernel = &kernel;
    for (int32_t times = 0; times < 2; times++) {
        int64_t bad = 0;
        batch_open_rank(&a, 0);
        a.workspace = workspace;
        a.workspace_bytes = sizeof workspace;
        assert_int_equal(plait_strategy_run(&call, &a, NULL, &bad), PLAIT_OK);
        assert_int_equal(bad, 2);
        assert_true(isnan(a.lse[0]) && isnan(a.lse[1]) && isfinite(a.lse[2]));
    }
    assert_int_equal(plait_notice_count(), notices + 1);
}

static void test_refusals_name_what_was_found(void **state)
{
    (void)state;
    char text[128];
    plait_attn_args a;
    fixed_batch();
    batch_open_rank(&a, 0);
    plait_strategy_call call = call_of(1, PLAIT_STRATEGY_DIRECT);
    assert_non_null(strstr(plait_strategy_refusal(&call, &a, text, sizeof text), "would see"));
    call = call_of(0, PLAIT_STRATEGY_WINDOW);
    assert_non_null(
        strstr(plait_strategy_refusal(&call, &a, text, sizeof text), "window merges by the LSE"));
    call = call_of(3, PLAIT_STRATEGY_WINDOW);
    call.newest = NULL;
    assert_int_equal(plait_strategy_run(&call, &a, NULL, NULL), PLAIT_E_UNSUPPORTED);
    call = call_of(3, PLAIT_STRATEGY_WINDOW);
    assert_int_equal(plait_strategy_run(&call, &a, NULL, NULL), PLAIT_E_NOMEM);
    call.strategy = PLAIT_STRATEGY_PREFILL;
    assert_int_equal(plait_strategy_run(&call, &a, NULL, NULL), PLAIT_E_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_batches_agree_with_the_reference),
        cmocka_unit_test(test_each_contract_fails_alone_and_holds_by_flatten),
        cmocka_unit_test(test_out_without_an_lse),
        cmocka_unit_test(test_a_window_rounds_once),
        cmocka_unit_test(test_bad_lse_is_counted_and_noticed_once),
        cmocka_unit_test(test_refusals_name_what_was_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
