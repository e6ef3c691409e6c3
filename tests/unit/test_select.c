/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What selection accepts, execution carries out: random capability rows, each with a kernel that
 * has exactly that row's restrictions, and random configurations with batches that they describe.
 */
#include <plait/strategy.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "emulators.h"
#include "sharded.h"
#include "unit.h"

enum { n_backends = 3, canary = 0x5a };

static plait_caps rows[n_backends];
static plait_row_note notes[n_backends];
static plait_kernel kernels[n_backends];
static plait_backend backends[n_backends];
static plait_selection got;

static void random_backend(int32_t i)
{
    const int32_t single = batch_pick(0, 2) == 0;
    plait_caps *c = &rows[i];
    const uint32_t phases[] = {PLAIT_PHASE_DECODE, PLAIT_PHASE_PREFILL,
                               PLAIT_PHASE_DECODE | PLAIT_PHASE_PREFILL};
    emulator_open(i, c, &notes[i], batch.op, &kernels[i]);
    memset(c, 0, sizeof *c);
    c->op = batch.op;
    c->phases = phases[batch_pick(0, 2)];
    c->q_dtypes = c->kv_dtypes = c->out_dtypes = PLAIT_DTYPE_BIT(PLAIT_F32);
    c->d_qk_min = batch_pick(0, 9) ? 1 : d_qk + 1;
    c->d_v_min = c->d_multiple = 1;
    c->page_min = c->page_multiple = 1;
    c->page_max = batch_pick(0, 9) ? 0 : page - 1;
    c->rows = single ? PLAIT_ROWS_SINGLE : (plait_rows_mode)batch_pick(0, 2);
    c->rows_max = c->rows == PLAIT_ROWS_SINGLE || batch_pick(0, 1) ? 0 : batch_pick(1, 3);
    c->ranges = (plait_ranges_mode)batch_pick(0, 2);
    c->lse = (plait_lse_mode)(batch_pick(0, 4) ? batch_pick(1, 2) : 0);
    notes[i].heads_max = batch_pick(0, 2) ? 0 : batch_pick(1, 12);
    notes[i].lse_heads_first = batch_pick(0, 1);
    backends[i] = (plait_backend){.size = sizeof(plait_backend),
                                  .name = kernels[i].name,
                                  .from = PLAIT_FROM_PLUGINS,
                                  .rows = c,
                                  .note = &notes[i],
                                  .n_rows = 1,
                                  .cost = batch_pick(1, 4),
                                  .cost_source = "estimate",
                                  .kernel = &kernels[i]};
    assert_int_equal(plait_backend_register(&backends[i]), PLAIT_OK);
}

/* What a user would say of the batch. GQA over ranks: each DCP group holds one KV head. */
static plait_backend_config config_of(int32_t prefill)
{
    plait_backend_config c = PLAIT_BACKEND_CONFIG_INIT;
    int32_t seen = 0;
    c.op = batch.op;
    c.phase = prefill ? PLAIT_PHASE_PREFILL : PLAIT_PHASE_DECODE;
    c.dtype = c.kv_dtype = PLAIT_F32;
    c.d_qk = d_qk;
    c.d_v = d_v;
    c.page_size = page;
    c.dcp = batch.ranks;
    c.interleave = batch.interleave;
    c.ragged = batch.ragged;
    c.batch = batch.seqs;
    c.lengths = 0;
    c.q_len = c.context = 1;
    for (int32_t s = 0; s < batch.seqs; s++) {
        c.lengths += !(seen >> batch.rows[s] & 1);
        seen |= 1 << batch.rows[s];
        c.q_len = batch.rows[s] > c.q_len ? batch.rows[s] : c.q_len;
        c.context = batch.length[s] > c.context ? batch.length[s] : c.context;
    }
    const int32_t more = batch.op == PLAIT_OP_GQA && batch.ranks > 1 ? 2 : 1;
    c.tp = batch.ranks * more;
    c.heads = batch.h_q * more;
    c.kv_heads = batch.h_kv * more;
    return c;
}

/* The prefill kernel gets the gathered context: what one rank with all keys would hold. */
static void carry_out(const plait_choice *choice, const plait_requirement *need)
{
    static _Alignas(64) unsigned char workspace[1 << 20];
    plait_strategy_call call;
    plait_choice direct = *choice;
    plait_requirement one = *need;
    const int32_t ranks = batch.ranks;
    if (choice->strategy == PLAIT_STRATEGY_PREFILL) {
        assert_int_equal(plait_strategy_call_of(choice, need, &call), PLAIT_E_UNSUPPORTED);
        plait_backend_config config = need->config;
        config.dcp = 1;
        config.phase = PLAIT_PHASE_PREFILL;
        assert_int_equal(plait_requirement_derive(&config, &one), PLAIT_OK);
        plait_refusal why;
        direct.strategy = PLAIT_STRATEGY_DIRECT;
        if (plait_backend_missing(choice->backend, choice->row, &one, PLAIT_STRATEGY_DIRECT, &why))
            fail_msg("prefill on one rank: %s", why.reasons[0]);
        batch.ranks = 1;
    }
    if (plait_strategy_call_of(&direct, &one, &call) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    for (int32_t r = 0; r < batch.ranks; r++) {
        plait_attn_args a;
        batch_open_rank(&a, r);
        a.workspace = workspace;
        a.workspace_bytes = plait_strategy_workspace(&call, &a, 1);
        assert_true(a.workspace_bytes + 64 < sizeof workspace);
        memset(workspace, 0xff, a.workspace_bytes);
        memset(workspace + a.workspace_bytes, canary, 64);
        emulator_calls = 0;
        if (!need->needs_lse && call.strategy != PLAIT_STRATEGY_WINDOW && batch.ranks == 1)
            memset(batch_ranks[r].lse, 0, sizeof batch_ranks[r].lse);
        if (call.kernel->rows[0].lse == PLAIT_LSE_NONE)
            a.lse = NULL;
        if (plait_strategy_run(&call, &a, NULL, NULL) != PLAIT_OK)
            fail_msg("%s was chosen by %s: %s", call.kernel->name,
                     plait_strategy_name(choice->strategy), plait_last_error());
        if (choice->backend->from == PLAIT_FROM_PLUGINS)
            assert_true(emulator_calls > 0 && emulator_calls <= choice->calls);
        for (int32_t i = 0; i < 64; i++)
            assert_int_equal(workspace[a.workspace_bytes + (size_t)i], canary);
    }
    if (call.kernel->rows[0].lse == PLAIT_LSE_NONE) {
        assert_int_equal(batch.ranks, 1);
        batch_take_out();
    } else {
        batch_merge();
    }
    double e = batch_error();
    if (!(e < 1e-5))
        fail_msg("%s by %s, D %d: error %g", call.kernel->name,
                 plait_strategy_name(choice->strategy), ranks, e);
    batch.ranks = ranks;
}

static int32_t count[4][2][2], built_in[4][2][2];

/* Strategies that lose by their cost must be right too. */
static int32_t try_strategy(const plait_backend *b, plait_strategy strategy,
                            const plait_requirement *need)
{
    plait_refusal why;
    plait_choice choice = {.backend = b, .strategy = strategy, .calls = INT32_MAX};
    if (plait_backend_missing(b, 0, need, strategy, &why))
        return 0;
    carry_out(&choice, need);
    count[strategy][batch.ranks > 1][batch.ragged]++;
    return 1;
}

static void test_what_is_chosen_runs_and_is_right(void **state)
{
    (void)state;
    int32_t batches = 0, all = 0, refused = 0, no_choice = 0;
    while (batches < 3000) {
        batch_random();
        plait_backend_config c = config_of(batch_pick(0, 7) == 0);
        plait_requirement need;
        if (plait_requirement_derive(&c, &need) != PLAIT_OK || batch.num_rows == 0 ||
            batch.row_start[batch.seqs] == 0)
            continue;
        assert_int_equal(need.heads, batch.h_q);
        assert_int_equal(need.kv_heads, batch.h_kv);
        batches++;
        for (int32_t i = 0; i < n_backends; i++)
            random_backend(i);
        const uint32_t from = PLAIT_FROM_PLUGINS | (batch_pick(0, 3) ? 0 : PLAIT_FROM_BUILTIN);
        plait_status status = plait_select(&need, from, NULL, NULL, &got);
        assert_int_equal(status == PLAIT_OK, got.choice.backend != NULL);
        no_choice += status != PLAIT_OK;
        refused += got.n_refused;
        for (int32_t i = 0; i < got.n_refused; i++)
            assert_true(got.refused[i].n > 0);
        for (int32_t i = -1; i < got.n_alternatives && status == PLAIT_OK; i++) {
            const plait_choice *choice = i < 0 ? &got.choice : &got.alternatives[i];
            carry_out(choice, &need);
            int32_t(*to)[2][2] = choice->backend->from == PLAIT_FROM_PLUGINS ? count : built_in;
            to[choice->strategy][batch.ranks > 1][batch.ragged]++;
            all++;
        }
        for (int32_t i = 0; i < 4 * n_backends; i++)
            all += try_strategy(&backends[i / 4], (plait_strategy)(i % 4), &need);
        for (int32_t i = 0; i < n_backends; i++)
            plait_backend_unregister(&backends[i]);
    }
    for (int32_t i = 0; i < 4; i++)
        print_message("# %-7s D 1: %d uniform, %d ragged; D > 1: %d, %d; built-in kernels %d\n",
                      plait_strategy_name((plait_strategy)i), count[i][0][0], count[i][0][1],
                      count[i][1][0], count[i][1][1],
                      built_in[i][0][0] + built_in[i][0][1] + built_in[i][1][0] +
                          built_in[i][1][1]);
    print_message("# %d runs of %d batches, %d without a backend, %d refusals\n", all, batches,
                  no_choice, refused);
    assert_true(all > 2000 && refused > 2000);
    for (int32_t i = 0; i < 16; i++)
        assert_true(count[i / 4][i / 2 % 2][i % 2] >= 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_chosen_runs_and_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
