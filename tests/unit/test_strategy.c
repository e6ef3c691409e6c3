/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strategies on kernels that keep only a part of the contract. A batch is spread over D ranks,
 * each rank is computed by itself, the partial states are merged and compared with a softmax in
 * double over all keys.
 */
#include <plait/log.h>
#include <plait/merge.h>
#include <plait/shard.h>
#include <plait/strategy.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulators.h"
#include "unit.h"

enum { max_seqs = 3, max_rows = 16, max_d = 4, max_keys = 48, max_heads = 4, d_qk = 12, d_v = 8 };
enum { page = 4, stride = max_keys / page, max_kv = 2, canary = 0x5a };

static uint64_t state_of = 1;

static int32_t pick(int32_t least, int32_t most)
{
    state_of = state_of * 6364136223846793005u + 1442695040888963407u;
    return least + (int32_t)((state_of >> 33) % (uint64_t)(most - least + 1));
}

/* A batch: global lengths, of which the last rows of each sequence are queries. */
struct batch {
    plait_op op;
    int32_t ranks, interleave, seqs, h_q, h_kv, ragged;
    int32_t rows[max_seqs], length[max_seqs];
    int32_t row_start[max_seqs + 1], num_rows; /* with padding */
    float q[max_rows * max_heads * d_qk];
    float k[max_seqs][max_keys][max_kv][d_qk], v[max_seqs][max_keys][max_kv][d_v];
};

/* A rank's cache and what it gave. */
struct rank {
    int32_t end[max_rows], table[max_seqs * stride];
    float k[max_seqs * max_keys * max_kv * d_qk], v[max_seqs * max_keys * max_kv * d_v];
    float out[max_rows * max_heads * d_v], lse[max_rows * max_heads];
};

static struct batch b;
static struct rank ranks[max_d];
static float out[max_rows * max_heads * d_v], lse[max_rows * max_heads];

static float noise(void)
{
    return (float)pick(-1000, 1000) / 500;
}

static void fill(void)
{
    b.num_rows = 0;
    for (int32_t s = 0; s < b.seqs; s++) {
        b.row_start[s] = b.num_rows;
        b.num_rows += b.rows[s];
        for (int32_t p = 0; p < b.length[s]; p++)
            for (int32_t h = 0; h < b.h_kv; h++) {
                for (int32_t d = 0; d < d_qk; d++)
                    b.k[s][p][h][d] = noise();
                for (int32_t d = 0; d < d_v; d++)
                    b.v[s][p][h][d] = noise();
            }
    }
    b.row_start[b.seqs] = b.num_rows;
    for (int32_t i = 0; i < b.num_rows * b.h_q * d_qk; i++)
        b.q[i] = noise();
}

static void random_batch(void)
{
    const int32_t most = pick(0, 2) ? 4 : 1, uniform = pick(1, 4);
    memset(&b, 0, sizeof b);
    b.op = pick(0, 1) ? PLAIT_OP_GQA : PLAIT_OP_MLA;
    b.ranks = pick(1, max_d);
    b.interleave = pick(1, 5);
    b.seqs = pick(1, max_seqs);
    b.h_kv = b.op == PLAIT_OP_MLA ? 1 : pick(1, max_kv);
    b.h_q = b.h_kv * pick(1, 2);
    b.ragged = pick(0, 1);
    for (int32_t s = 0; s < b.seqs; s++) {
        b.rows[s] = b.ragged ? pick(0, most) : most == 1 ? 1 : uniform;
        b.length[s] = b.rows[s] + pick(0, pick(0, 1) ? 3 : max_keys - 4);
    }
    fill();
    b.ragged = 0;
    for (int32_t s = 1; s < b.seqs; s++)
        b.ragged |= b.rows[s] != b.rows[0];
    b.num_rows += pick(0, 2);
}

/* The rank's shard, in pages that are not in order; everything else is NaN. */
static void open_rank(plait_attn_args *a, int32_t r)
{
    static const plait_attn_args init = PLAIT_ATTN_ARGS_INIT;
    struct rank *k = &ranks[r];
    plait_shard shard = {.d = b.ranks, .r = r, .i = b.interleave};
    memset(k, 0xff, sizeof *k);
    for (int32_t s = 0; s < b.seqs; s++) {
        for (int32_t i = 0; i < stride; i++)
            k->table[s * stride + i] = b.seqs * stride - 1 - (s * stride + i);
        for (int32_t i = 0; i < b.rows[s]; i++)
            k->end[b.row_start[s] + i] =
                (int32_t)plait_shard_len(shard, b.length[s] - b.rows[s] + i + 1);
        for (int32_t p = 0; p < b.length[s]; p++) {
            if (p / b.interleave % b.ranks != r)
                continue;
            int32_t c = (int32_t)plait_shard_len(shard, p);
            int32_t at = (k->table[s * stride + c / page] * page + c % page) * b.h_kv;
            memcpy(k->k + at * d_qk, b.k[s][p], (size_t)b.h_kv * d_qk * sizeof(float));
            memcpy(k->v + at * d_v, b.v[s][p], (size_t)b.h_kv * d_v * sizeof(float));
        }
    }
    *a = init;
    a->op = b.op;
    a->num_seqs = b.seqs;
    a->num_rows = b.num_rows;
    a->h_q = b.h_q;
    a->h_kv = b.h_kv;
    a->d_qk = d_qk;
    a->d_v = d_v;
    a->page_size = page;
    a->row_start = b.row_start;
    a->kv_end = k->end;
    a->page_table = k->table;
    a->page_table_stride = stride;
    a->num_pages = b.seqs * stride;
    a->q = b.q;
    a->q_head_stride = d_qk;
    a->q_row_stride = b.h_q * d_qk;
    a->k = k->k;
    a->k_head_stride = d_qk;
    a->k_token_stride = b.h_kv * d_qk;
    a->k_page_stride = page * a->k_token_stride;
    a->v = b.op == PLAIT_OP_GQA ? k->v : NULL;
    a->v_head_stride = d_v;
    a->v_token_stride = b.h_kv * d_v;
    a->v_page_stride = page * a->v_token_stride;
    a->out = k->out;
    a->out_head_stride = d_v;
    a->out_row_stride = b.h_q * d_v;
    a->lse = k->lse;
    a->lse_head_stride = 1;
    a->lse_row_stride = b.h_q;
    a->softmax_scale = 0.25f;
}

static void merge_ranks(void)
{
    plait_partial parts[max_d];
    plait_merged to = {out, PLAIT_F32, b.h_q * d_v, d_v, lse, b.h_q, 1};
    for (int32_t r = 0; r < b.ranks; r++)
        parts[r] =
            (plait_partial){ranks[r].out, PLAIT_F32, b.h_q * d_v, d_v, ranks[r].lse, b.h_q, 1};
    assert_int_equal(plait_merge(parts, b.ranks, b.num_rows, b.h_q, d_v, 0, &to), PLAIT_OK);
}

/* The largest error of row i of sequence s, head h. */
static double row_error(int32_t s, int32_t i, int32_t h)
{
    const int32_t row = b.row_start[s] + i, n = b.length[s] - b.rows[s] + i + 1;
    const int32_t kv = b.op == PLAIT_OP_MLA ? 0 : h / (b.h_q / b.h_kv);
    const float *q = b.q + (row * b.h_q + h) * d_qk;
    double sum = 0, want[d_v] = {0}, worst;
    for (int32_t p = 0; p < n; p++) {
        const float *value = b.op == PLAIT_OP_MLA ? b.k[s][p][0] : b.v[s][p][kv];
        double score = 0;
        for (int32_t d = 0; d < d_qk; d++)
            score += (double)q[d] * b.k[s][p][kv][d];
        sum += exp(score * 0.25);
        for (int32_t d = 0; d < d_v; d++)
            want[d] += exp(score * 0.25) * value[d];
    }
    worst = fabs(lse[row * b.h_q + h] - log(sum)) / (1 + fabs(log(sum)));
    for (int32_t d = 0; d < d_v; d++) {
        double e = fabs(out[(row * b.h_q + h) * d_v + d] - want[d] / sum);
        if (!(e <= worst)) /* a NaN is the worst */
            worst = e;
    }
    return isnan(worst) ? INFINITY : worst;
}

static double error(void)
{
    double worst = 0;
    for (int32_t s = 0; s < b.seqs; s++)
        for (int32_t i = 0; i < b.rows[s]; i++)
            for (int32_t h = 0; h < b.h_q; h++)
                worst = fmax(worst, row_error(s, i, h));
    for (int32_t r = b.row_start[b.seqs]; r < b.num_rows; r++)
        for (int32_t i = 0; i < b.h_q; i++)
            if (lse[r * b.h_q + i] != -INFINITY || out[(r * b.h_q + i) * d_v] != 0)
                worst = INFINITY;
    return worst;
}

/* Every rank by the strategy, in a workspace of exactly the bytes asked for. 0: refused. */
static int carry_out(const plait_strategy_call *call)
{
    char text[128];
    for (int32_t r = 0; r < b.ranks; r++) {
        plait_attn_args a;
        open_rank(&a, r);
        if (plait_strategy_refusal(call, &a, text, sizeof text)) {
            assert_int_equal(plait_strategy_run(call, &a, NULL, NULL), PLAIT_E_UNSUPPORTED);
            return 0;
        }
    }
    for (int32_t r = 0; r < b.ranks; r++) {
        static _Alignas(64) unsigned char workspace[1 << 20];
        int64_t bad = -1;
        plait_attn_args a;
        open_rank(&a, r);
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
    merge_ranks();
    return 1;
}

static const plait_kernel *reference(void)
{
    return plait_kernel_find(b.op == PLAIT_OP_MLA ? "mla_ref" : "gqa_ref");
}

/* The emulators, then the reference. */
static plait_strategy_call call_of(int32_t backend, plait_strategy strategy)
{
    plait_strategy_call call = PLAIT_STRATEGY_CALL_INIT;
    call.strategy = strategy;
    call.newest = call.kernel = reference();
    if (backend < n_emulators) {
        const emulator *e = emulator_get(b.op, backend);
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
        random_batch();
        for (int32_t i = 0; i <= n_emulators; i++)
            for (int32_t how = 0; how < 3; how++) {
                plait_strategy_call call = call_of(i, (plait_strategy)how);
                if (!carry_out(&call))
                    continue;
                double e = error();
                if (!(e < 1e-5))
                    fail_msg("batch %d, %s, %s, D %d: error %g", n, call.kernel->name,
                             plait_strategy_name(call.strategy), b.ranks, e);
                count[i][how][b.ranks > 1][b.ragged]++;
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
    memset(&b, 0, sizeof b);
    state_of = 7;
    b.op = PLAIT_OP_GQA;
    b.ranks = 3;
    b.interleave = 4;
    b.seqs = 3;
    b.h_kv = 2;
    b.h_q = 4;
    for (int32_t s = 0; s < 3; s++) {
        b.rows[s] = 4;
        b.length[s] = 4 + 15 * s;
    }
    fill();
}

static void test_each_contract_fails_alone_and_holds_by_flatten(void **state)
{
    (void)state;
    fixed_batch();
    for (int32_t i = 0; i < n_emulators; i++) {
        plait_strategy_call call = call_of(i, PLAIT_STRATEGY_FLATTEN);
        for (int32_t r = 0; r < b.ranks; r++) {
            plait_attn_args a;
            open_rank(&a, r);
            memset(ranks[r].lse, 0, sizeof ranks[r].lse);
            assert_int_equal(plait_attn_run(call.kernel, &a, NULL), PLAIT_OK);
        }
        merge_ranks();
        double alone = error();
        print_message("# %s alone: error %.3g\n", call.kernel->name, alone);
        assert_true(alone > 0.05);
        assert_int_equal(carry_out(&call), i != 0); /* without an LSE there is no right answer */
        if (i != 0)
            assert_true(error() < 1e-5);
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
    b.ranks = 1;
    plait_strategy_call want = call_of(n_emulators, PLAIT_STRATEGY_DIRECT);
    assert_int_equal(carry_out(&want), 1);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        plait_strategy_call call = call_of(calls[i].backend, calls[i].strategy);
        plait_attn_args a;
        open_rank(&a, 0);
        a.lse = NULL;
        a.workspace = workspace;
        a.workspace_bytes = plait_strategy_workspace(&call, &a, 1);
        assert_int_equal(plait_strategy_run(&call, &a, NULL, NULL), PLAIT_OK);
        for (int32_t j = 0; j < b.num_rows * b.h_q * d_v; j++)
            assert_true(fabs((double)ranks[0].out[j] - out[j]) < 1e-5);
    }
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
        open_rank(&a, 0);
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
    open_rank(&a, 0);
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
        cmocka_unit_test(test_bad_lse_is_counted_and_noticed_once),
        cmocka_unit_test(test_refusals_name_what_was_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
