/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan, reference kernel and DCP step together, as an engine uses them: D ranks, each with its
 * shard of the cache, ranges, slots and split-KV schedule from the plan, against one
 * double-precision pass over the whole sequence that is written from the definition. The step
 * alone, without a plan, is test_cp.c's.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

#include <plait/dcp.h>
#include <plait/plan.h>

#include "ranks.h"

enum {
    D_QK = 12,
    D_V = 8,
    PAGE = 16,
    MAX_SEQS = 24,
    MAX_ROWS = 64,
    MAX_PAGES = 64,
};

/* In a rank's thread, where cmocka's assertions may not be used. */
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            printf("# line %d: %s (%s)\n", __LINE__, #cond, plait_last_error());                   \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* A step that all ranks compute together; read only while they run. */
typedef struct problem {
    int32_t d, interleave;
    int32_t heads[RANKS_MAX];
    plait_exchange exchange;
    int32_t num_seqs;
    int64_t committed[MAX_SEQS];
    int32_t q_len[MAX_SEQS];
    int64_t window;
    int one_hot; /* equal scores, and the value of token t is one-hot at t */
} problem;

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t x = a * 2654435761u ^ (b + 1) * 2246822519u ^ (c + 1) * 3266489917u;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ x >> 13;
}

static float uniform(uint32_t a, uint32_t b, uint32_t c)
{
    return (float)(mix(a, b, c) >> 8) / 8388608.0f - 1.0f;
}

/* Value d of token t in the cache. Every second block of 16 tokens is 4 times as large, so that the
   shards are skewed. */
static float key_value(const problem *p, int32_t seq, int64_t t, int32_t d)
{
    if (p->one_hot)
        return d == t ? 1.0f : 0.0f;
    return uniform((uint32_t)seq * 8191u + 7u, (uint32_t)t, (uint32_t)d) *
           (t / 16 % 2 == 1 ? 4.0f : 1.0f);
}

static float query_value(const problem *p, int32_t seq, int64_t index, int32_t head, int32_t d)
{
    if (p->one_hot)
        return 0;
    return uniform((uint32_t)seq * 31u + 100003u, (uint32_t)index * 64u + (uint32_t)head,
                   (uint32_t)d);
}

static const float scale = 0.6f;

/* The definition: all keys that the row may see, in one pass. */
static double reference(const problem *p, int32_t seq, int64_t index, int32_t head, double *out)
{
    const int64_t first = p->window > 0 && index + 1 > p->window ? index + 1 - p->window : 0;
    double *score = malloc(sizeof(double) * (size_t)(index + 1)), top = -INFINITY, sum = 0;
    for (int64_t t = first; t <= index; t++) {
        double s = 0;
        for (int32_t d = 0; d < D_QK; d++)
            s += (double)query_value(p, seq, index, head, d) * (double)key_value(p, seq, t, d);
        score[t] = s * (double)scale;
        top = score[t] > top ? score[t] : top;
    }
    for (int32_t d = 0; d < D_V; d++)
        out[d] = 0;
    for (int64_t t = first; t <= index; t++) {
        const double w = exp(score[t] - top);
        sum += w;
        for (int32_t d = 0; d < D_V; d++)
            out[d] += w * (double)key_value(p, seq, t, d);
    }
    for (int32_t d = 0; d < D_V; d++)
        out[d] /= sum;
    free(score);
    return top + log(sum);
}

/* ---- one rank ------------------------------------------------------------------------------- */

typedef struct rank_state {
    const problem *p;
    plait_shard shard;
    int32_t own, first_head, all_heads;
    plait_plan *plan;
    plait_dcp *dcp;
    plait_plan_batch batch;
    const plait_kernel *kernel;
    int32_t tables[MAX_SEQS][MAX_PAGES];
    float *cache, *q, *out, *lse;
    void *workspace;
    size_t cache_floats, workspace_bytes;
} rank_state;

/* Ids are shuffled; every rank has the same. Unused entries are no valid ids. */
static void fill_tables(rank_state *s)
{
    for (int32_t i = 0; i < MAX_SEQS; i++)
        for (int32_t k = 0; k < MAX_PAGES; k++)
            s->tables[i][k] = (i * MAX_PAGES + k) * 5 % (MAX_SEQS * MAX_PAGES + 1);
}

static void write_token(rank_state *s, int32_t seq, int64_t t, int64_t slot, float factor)
{
    for (int32_t d = 0; d < D_QK && slot >= 0; d++)
        s->cache[slot * D_QK + d] = factor * key_value(s->p, seq, t, d);
}

static int open_rank(rank_state *s, plait_comm *comm, const problem *p)
{
    *s = (rank_state){.p = p};
    s->shard = (plait_shard){p->d, plait_comm_rank(comm), p->interleave};
    s->own = p->heads[s->shard.r];
    plait_dcp_options d = PLAIT_DCP_OPTIONS_INIT;
    d.comm = comm;
    d.heads = p->heads;
    d.d_qk = D_QK;
    d.d_v = D_V;
    d.max_rows = MAX_ROWS;
    d.exchange = p->exchange;
    CHECK(plait_dcp_open(&d, &s->dcp) == PLAIT_OK);
    s->all_heads = plait_dcp_heads(s->dcp);
    s->first_head = plait_dcp_first_head(s->dcp);
    plait_plan_options o = PLAIT_PLAN_OPTIONS_INIT;
    o.shard = s->shard;
    o.h_q = s->all_heads;
    o.d_qk = D_QK;
    o.d_v = D_V;
    o.page_size = PAGE;
    o.window = p->window;
    o.max_seqs = MAX_SEQS;
    o.max_rows = MAX_ROWS;
    o.max_pages_per_seq = MAX_PAGES;
    o.n_workers = 3;
    o.min_split_keys = 8;
    CHECK(plait_plan_open(&o, &s->plan) == PLAIT_OK);
    s->kernel = plait_kernel_find("mla_ref");
    CHECK(s->kernel);
    s->workspace_bytes = plait_plan_workspace_max(s->plan, s->kernel);
    s->cache_floats = (size_t)(MAX_SEQS * MAX_PAGES + 1) * PAGE * D_QK;
    s->cache = malloc(s->cache_floats * sizeof(float));
    s->q = malloc(sizeof(float) * MAX_ROWS * (size_t)s->own * D_QK);
    s->out = malloc(sizeof(float) * MAX_ROWS * (size_t)s->own * D_V);
    s->lse = malloc(sizeof(float) * MAX_ROWS * (size_t)s->own);
    s->workspace = aligned_alloc(64, (s->workspace_bytes + 127) / 64 * 64);
    CHECK(s->cache && s->q && s->out && s->lse && s->workspace);
    for (size_t i = 0; i < s->cache_floats; i++)
        s->cache[i] = NAN;
    fill_tables(s);
    s->batch = (plait_plan_batch)PLAIT_PLAN_BATCH_INIT;
    s->batch.num_seqs = p->num_seqs;
    s->batch.committed = p->committed;
    s->batch.q_len = p->q_len;
    s->batch.page_table = s->tables[0];
    s->batch.page_table_stride = MAX_PAGES;
    return 0;
}

static void close_rank(rank_state *s)
{
    plait_dcp_close(&s->dcp);
    plait_plan_close(&s->plan);
    free(s->cache);
    free(s->q);
    free(s->out);
    free(s->lse);
    free(s->workspace);
}

static void write_committed(rank_state *s)
{
    for (int32_t i = 0; i < s->p->num_seqs; i++)
        for (int64_t t = 0; t < s->p->committed[i]; t++)
            write_token(s, i, t, plait_shard_slot(s->shard, t, s->tables[i], MAX_PAGES, PAGE), 1);
}

/* Writes the rows' KV and queries, and fills args for this rank's heads. */
static int prepare(rank_state *s, plait_attn_args *args)
{
    const plait_plan_view *v = plait_plan_get(s->plan);
    for (int32_t i = 0; i < v->num_seqs; i++)
        for (int32_t row = v->row_start[i]; row < v->row_start[i + 1]; row++) {
            write_token(s, v->order[i], v->index[row], v->slot[row], 1);
            for (int32_t h = 0; h < s->own; h++)
                for (int32_t d = 0; d < D_QK; d++)
                    s->q[((size_t)row * (size_t)s->own + (size_t)h) * D_QK + (size_t)d] =
                        query_value(s->p, v->order[i], v->index[row], s->first_head + h, d);
        }
    CHECK(plait_plan_bind(s->plan, &s->batch, args) == PLAIT_OK);
    args->q = s->q;
    args->q_head_stride = D_QK;
    args->q_row_stride = (int64_t)s->own * D_QK;
    args->k = s->cache;
    args->k_head_stride = args->k_token_stride = D_QK;
    args->k_page_stride = (int64_t)PAGE * D_QK;
    args->out = s->out;
    args->out_head_stride = D_V;
    args->out_row_stride = (int64_t)s->own * D_V;
    args->lse = s->lse;
    args->lse_head_stride = 1;
    args->lse_row_stride = s->own;
    args->softmax_scale = scale;
    args->workspace = s->workspace;
    args->workspace_bytes = s->workspace_bytes;
    return 0;
}

static int compare(const rank_state *s)
{
    const plait_plan_view *v = plait_plan_get(s->plan);
    for (int32_t i = 0; i < v->num_seqs; i++)
        for (int32_t row = v->row_start[i]; row < v->row_start[i + 1]; row++)
            for (int32_t h = 0; h < s->own; h++) {
                double want[D_V];
                const double lse =
                    reference(s->p, v->order[i], v->index[row], s->first_head + h, want);
                const size_t at = (size_t)row * (size_t)s->own + (size_t)h;
                CHECK(fabs((double)s->lse[at] - lse) <= 2e-6 * (1 + fabs(lse)));
                for (int32_t d = 0; d < D_V; d++)
                    CHECK(fabs((double)s->out[at * D_V + (size_t)d] - want[d]) <= 5e-6);
            }
    return 0;
}

static int step_and_compare(rank_state *s)
{
    plait_attn_args args = PLAIT_ATTN_ARGS_INIT;
    if (prepare(s, &args))
        return 1;
    for (int32_t i = 0; i < MAX_ROWS * s->own; i++)
        s->lse[i] = NAN;
    for (int32_t i = 0; i < MAX_ROWS * s->own * D_V; i++)
        s->out[i] = NAN;
    CHECK(plait_dcp_step(s->dcp, s->kernel, &args, NULL) == PLAIT_OK);
    return compare(s);
}

static int whole_step(plait_comm *comm, void *user)
{
    rank_state s;
    int failed = open_rank(&s, comm, user);
    if (!failed) {
        write_committed(&s);
        failed = plait_plan_build(s.plan, &s.batch) != PLAIT_OK || step_and_compare(&s);
    }
    close_rank(&s);
    return failed;
}

static void run_problem(problem *p)
{
    for (int exchange = PLAIT_EXCHANGE_AG_RS; exchange <= PLAIT_EXCHANGE_A2A; exchange++) {
        p->exchange = (plait_exchange)exchange;
        assert_int_equal(run_ranks(p->d, 60, whole_step, p), 0);
    }
}

/* ---- the step ------------------------------------------------------------------------------- */

static void ragged_batches_equal_one_pass_case_1_skewed_shards(void **state)
{
    (void)state;
    static const int32_t ranks[] = {1, 2, 3, 4, 6}, interleaves[] = {1, 3, 16};
    for (size_t a = 0; a < 5; a++)
        for (size_t b = 0; b < 3; b++)
            for (int64_t window = 0; window <= 37; window += 37) {
                /* Decode, verification, no rows, a chunk of a prompt, first tokens. */
                problem p = {.d = ranks[a],
                             .interleave = interleaves[b],
                             .num_seqs = 6,
                             .committed = {203, 97, 5, 40, 0, 1},
                             .q_len = {1, 4, 0, 19, 3, 2},
                             .window = window};
                for (int32_t k = 0; k < p.d; k++)
                    p.heads[k] = 2 + (k + 1) % 2; /* 3, 2, 3, ...: uneven */
                run_problem(&p);
            }
}

static void lengths_about_one_period_leave_ranks_empty_cases_3_and_6(void **state)
{
    (void)state;
    static const int32_t table[][2] = {{8, 1}, {8, 16}, {3, 16}, {6, 3}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        problem p = {.d = table[i][0], .interleave = table[i][1]};
        const int64_t period = (int64_t)p.d * p.interleave;
        const int64_t lengths[] = {1,  2,  3,  4,  5,  6,          7,      8,         9,
                                   15, 16, 17, 31, 33, period - 1, period, period + 1};
        for (int32_t k = 0; k < p.d; k++)
            p.heads[k] = 1;
        for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++, p.num_seqs++) {
            p.committed[p.num_seqs] = lengths[k] - 1;
            p.q_len[p.num_seqs] = 1;
        }
        run_problem(&p);
    }
}

static int visible_keys(plait_comm *comm, void *user)
{
    static const int32_t want[2][4] = {{2, 2, 3, 3}, {1, 2, 2, 3}};
    rank_state s;
    int failed = open_rank(&s, comm, user);
    if (!failed) {
        write_committed(&s);
        failed = plait_plan_build(s.plan, &s.batch) != PLAIT_OK || step_and_compare(&s);
        const plait_plan_view *v = plait_plan_get(s.plan);
        for (int32_t j = 0; j < 4 && !failed; j++) {
            failed |= v->kv_end[j] != want[s.shard.r][j];
            /* Every key's value is one-hot: the output tells which keys had weight. */
            for (int32_t t = 0; t < D_V; t++) {
                const float got = s.out[(size_t)(j * s.own) * D_V + (size_t)t];
                const float share = t <= 2 + j ? 1.0f / (float)(3 + j) : 0.0f;
                failed |= !(fabsf(got - share) <= 1e-6f) || (share == 0 && got != 0);
            }
        }
    }
    close_rank(&s);
    return failed;
}

static void case_11_rows_of_a_verification_see_their_own_keys(void **state)
{
    (void)state;
    problem p = {.d = 2,
                 .interleave = 1,
                 .heads = {2, 1},
                 .num_seqs = 1,
                 .committed = {2},
                 .q_len = {4},
                 .one_hot = 1};
    for (int exchange = PLAIT_EXCHANGE_AG_RS; exchange <= PLAIT_EXCHANGE_A2A; exchange++) {
        p.exchange = (plait_exchange)exchange;
        assert_int_equal(run_ranks(2, 60, visible_keys, &p), 0);
    }
}

static int decode_one(plait_comm *comm, void *user)
{
    rank_state s;
    int failed = open_rank(&s, comm, user);
    if (!failed) {
        plait_attn_args args = PLAIT_ATTN_ARGS_INIT;
        float *before = malloc(s.cache_floats * sizeof(float));
        write_committed(&s);
        memcpy(before, s.cache, s.cache_floats * sizeof(float));
        failed = plait_plan_build(s.plan, &s.batch) != PLAIT_OK || prepare(&s, &args);
        const int owner = plait_shard_owner(s.shard, s.p->committed[0]) == s.shard.r;
        failed |= (plait_plan_get(s.plan)->slot[0] >= 0) != owner;
        failed |= (memcmp(before, s.cache, s.cache_floats * sizeof(float)) != 0) != owner;
        memcpy(before, s.cache, s.cache_floats * sizeof(float));
        failed |= plait_dcp_step(s.dcp, s.kernel, &args, NULL) != PLAIT_OK || compare(&s);
        failed |= memcmp(before, s.cache, s.cache_floats * sizeof(float)) != 0;
        free(before);
    }
    close_rank(&s);
    return failed;
}

static void case_14_a_rank_that_does_not_own_the_token_still_computes_its_query(void **state)
{
    (void)state;
    for (int64_t committed = 20; committed <= 21; committed++) {
        problem p = {.d = 2,
                     .interleave = 1,
                     .heads = {2, 2},
                     .num_seqs = 1,
                     .committed = {committed},
                     .q_len = {1},
                     .exchange = PLAIT_EXCHANGE_A2A};
        assert_int_equal(run_ranks(2, 60, decode_one, &p), 0);
    }
}

/* Rounds of 1 + 3 drafts of which some are rejected. A draft's KV is wrong until its token is
   known: it is written scaled by 100, and the next step writes over it. */
static int rejections(plait_comm *comm, void *user)
{
    static const int32_t accepted[][2] = {{1, 3}, {0, 2}, {3, 0}, {2, 1}, {0, 0}, {3, 3}};
    rank_state s;
    problem now = *(const problem *)user;
    int failed = open_rank(&s, comm, &now);
    if (!failed) {
        write_committed(&s);
        failed = plait_plan_build(s.plan, &s.batch) != PLAIT_OK || step_and_compare(&s);
    }
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0] && !failed; i++) {
        const plait_plan_view *v = plait_plan_get(s.plan);
        for (int32_t k = 0; k < v->num_seqs; k++)
            for (int32_t row = v->row_start[k]; row < v->row_start[k + 1]; row++)
                if (row - v->row_start[k] > accepted[i][v->order[k]])
                    write_token(&s, v->order[k], v->index[row], v->slot[row], 100);
        failed = plait_plan_refresh(s.plan, accepted[i], &s.batch) != PLAIT_OK;
        for (int32_t k = 0; k < 2; k++)
            now.committed[k] += accepted[i][k] + 1;
        v = plait_plan_get(s.plan);
        for (int32_t k = 0; k < 2; k++)
            failed |= v->committed[v->place[k]] != now.committed[k];
        failed = failed || step_and_compare(&s);
    }
    close_rank(&s);
    return failed;
}

static void case_35_steps_after_rejections_equal_a_run_that_never_drafted(void **state)
{
    (void)state;
    for (int32_t d = 1; d <= 3; d++) {
        problem p = {.d = d,
                     .interleave = 1,
                     .heads = {2, 1, 2},
                     .num_seqs = 2,
                     .committed = {100, 17},
                     .q_len = {4, 4},
                     .exchange = PLAIT_EXCHANGE_A2A};
        assert_int_equal(run_ranks(d, 60, rejections, &p), 0);
    }
}

/* With one rank nothing is copied: the bits are the kernel's. */
static void one_rank_is_the_kernel_itself(void **state)
{
    (void)state;
    problem p = {.d = 1,
                 .interleave = 16,
                 .heads = {3},
                 .num_seqs = 2,
                 .committed = {90, 3},
                 .q_len = {1, 4}};
    plait_comm *comm;
    rank_state s;
    plait_attn_args args = PLAIT_ATTN_ARGS_INIT;
    assert_int_equal(plait_comm_self_open(NULL, &comm), PLAIT_OK);
    assert_int_equal(open_rank(&s, comm, &p), 0);
    write_committed(&s);
    assert_int_equal(plait_plan_build(s.plan, &s.batch), PLAIT_OK);
    assert_int_equal(prepare(&s, &args), 0);
    assert_int_equal(plait_dcp_step(s.dcp, s.kernel, &args, NULL), PLAIT_OK);
    float plain[5 * 3 * D_V];
    args.out = plain;
    args.lse = NULL;
    assert_int_equal(plait_attn_run(s.kernel, &args, NULL), PLAIT_OK);
    assert_memory_equal(plain, s.out, sizeof plain);
    close_rank(&s);
    plait_comm_close(&comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ragged_batches_equal_one_pass_case_1_skewed_shards),
        cmocka_unit_test(lengths_about_one_period_leave_ranks_empty_cases_3_and_6),
        cmocka_unit_test(case_11_rows_of_a_verification_see_their_own_keys),
        cmocka_unit_test(case_14_a_rank_that_does_not_own_the_token_still_computes_its_query),
        cmocka_unit_test(case_35_steps_after_rejections_equal_a_run_that_never_drafted),
        cmocka_unit_test(one_rank_is_the_kernel_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
