/* SPDX-License-Identifier: Apache-2.0 */
/* Sampled generation: seeds, batches, ranks, log-probabilities, drafts, and auto. */
#include "unit.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <plait/comm.h>
#include <plait/engine.h>

enum { NEW = 24 };

static plait_engine *open_engine(const plait_engine_options *base)
{
    plait_engine_options o = *base;
    plait_engine *e;
    o.model_dir = PLAIT_SOURCE_DIR "/models/tiny";
    o.dtype = PLAIT_F32;
    if (plait_engine_open(&o, &e) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    return e;
}

static plait_request sampled(const char *text, uint64_t seed)
{
    plait_request q = PLAIT_REQUEST_INIT;
    q.text = text;
    q.text_bytes = strlen(text);
    q.max_new_tokens = NEW;
    q.ignore_eos = 1;
    q.temperature = 1;
    q.seed = seed;
    return q;
}

static plait_generation *generate(plait_engine *e, const plait_request *q, int32_t n)
{
    plait_generation *g;
    if (plait_engine_generate(e, q, n, NULL, NULL, &g) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    return g;
}

static int same(const plait_result *a, const plait_result *b)
{
    return a->num_new == b->num_new && !memcmp(a->ids, b->ids, (size_t)a->num_new * sizeof *a->ids);
}

/* Tokens of a seed come again, alone or in a batch; other seeds give others. With drafts too. */
static void seeds_give_the_same_tokens_in_any_batch(void **state)
{
    (void)state;
    static const plait_draft_kind drafts[] = {PLAIT_DRAFT_NONE, PLAIT_DRAFT_MTP, PLAIT_DRAFT_NGRAM};
    for (size_t d = 0; d < sizeof drafts / sizeof *drafts; d++) {
        plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
        o.draft = drafts[d];
        plait_engine *e = open_engine(&o);
        const plait_request alone = sampled("The read() function", 5);
        plait_request batch[4];
        batch[0] = sampled("CREATE TABLE", 1);
        batch[1] = sampled("The read() function", 6);
        batch[2] = batch[3] = alone;
        batch[3].seed_request = 1;
        plait_generation *one = generate(e, &alone, 1), *all = generate(e, batch, 4);
        assert_true(same(&one->results[0], &all->results[2]));
        assert_false(same(&one->results[0], &all->results[1]));
        assert_false(same(&one->results[0], &all->results[3]));
        plait_generation_close(&one);
        plait_generation_close(&all);
        plait_engine_close(&e);
    }
}

/* The target as its own drafter: p is q, every sampled draft stands. */
static void sampled_drafts_of_the_target_itself_stand(void **state)
{
    (void)state;
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    o.draft = PLAIT_DRAFT_ORACLE;
    o.debug_ranks = 1;
    o.dcp = 2;
    plait_engine *e = open_engine(&o);
    plait_request q = sampled("The read() function", 3);
    q.top_k = 40;
    q.top_p = 0.95;
    plait_generation *g = generate(e, &q, 1);
    assert_int_equal(g->results[0].num_new, NEW);
    /* Verified rows come from another batch than drafted ones: a bit of p may differ. */
    assert_true(g->results[0].num_accepted + 1 >= g->results[0].num_drafted);
    plait_generation_close(&g);
    plait_engine_close(&e);
}

/* Top-k 1 and a tiny top-p are greedy; log-probabilities are those of the logits and end with the
   tokens. */
static void logprobs_follow_the_logits_and_the_cut_case34(void **state)
{
    (void)state;
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    o.draft = PLAIT_DRAFT_MTP;
    plait_engine *e = open_engine(&o);
    plait_engine_info info;
    assert_int_equal(plait_engine_get_info(e, &info), PLAIT_OK);
    int32_t ids[4 + NEW] = {3, 500, 900, 77};
    plait_request q[3] = {PLAIT_REQUEST_INIT, PLAIT_REQUEST_INIT, PLAIT_REQUEST_INIT};
    for (int32_t i = 0; i < 3; i++) {
        q[i].ids = ids;
        q[i].num_ids = 4;
        q[i].max_new_tokens = NEW;
        q[i].ignore_eos = 1;
        q[i].temperature = i;
        q[i].num_logprobs = 3;
    }
    q[1].top_k = 1;
    q[2].top_p = 1e-9;
    plait_generation *g = generate(e, q, 3);
    assert_true(same(&g->results[0], &g->results[1]));
    assert_true(same(&g->results[0], &g->results[2]));
    const plait_result *r = &g->results[0];
    memcpy(ids + 4, r->ids, NEW * sizeof *ids);
    float *logits = malloc((size_t)(4 + NEW) * (size_t)info.vocab_size * sizeof *logits);
    assert_int_equal(plait_engine_logits(e, ids, 4 + NEW, 0, logits, NULL, NULL, 0), PLAIT_OK);
    assert_int_equal(r->num_top, 3);
    for (int32_t i = 0; i < NEW; i++) {
        const float *x = logits + (int64_t)(3 + i) * info.vocab_size;
        double sum = 0;
        for (int32_t v = 0; v < info.vocab_size; v++)
            sum += exp((double)x[v]);
        assert_int_equal(r->top_ids[3 * i], r->ids[i]);
        assert_true(r->top_logprobs[3 * i] == r->logprobs[i]);
        for (int32_t t = 0; t < 3; t++) {
            const double want = (double)x[r->top_ids[3 * i + t]] - log(sum);
            if (!(fabs((double)r->top_logprobs[3 * i + t] - want) <= 1e-3))
                fail_msg("token %d, top %d: %g, not %g", i, t, (double)r->top_logprobs[3 * i + t],
                         want);
        }
    }
    free(logits);
    plait_generation_close(&g);
    plait_engine_close(&e);
}

/* ---- ranks that come apart ------------------------------------------------------------------- */

/* Rank `which` of two, whose gathers are wrong on rank 1 from some gather on: its logits have
   another highest one than rank 0's. */
struct faulty {
    plait_comm *inner;
    int32_t rank;
    int32_t fault;
};

static plait_status faulty_exchange(void *user, const plait_comm_call *call, const void *send,
                                    size_t bytes, void *recv)
{
    struct faulty *f = user;
    return plait_comm_exchange(f->inner, call->what, PLAIT_OK, send, bytes, recv);
}

static plait_status faulty_all_gather(void *user, const plait_comm_call *call, const void *send,
                                      const int64_t *bytes, void *recv)
{
    struct faulty *f = user;
    const plait_status status =
        plait_comm_all_gather(f->inner, call->what, -1, NULL, send, bytes, recv);
    if (status == PLAIT_OK && f->fault && f->rank == 1 && bytes[0] > 4000)
        ((float *)recv)[7] = 1e6f;
    return status;
}

static plait_status faulty_reduce_scatter(void *user, const plait_comm_call *call,
                                          const float *send, const int64_t *counts, float *recv)
{
    struct faulty *f = user;
    return plait_comm_reduce_scatter(f->inner, call->what, -1, NULL, send, counts, recv);
}

static plait_status faulty_all_to_all(void *user, const plait_comm_call *call, const void *send,
                                      const int64_t *send_bytes, void *recv,
                                      const int64_t *recv_bytes)
{
    struct faulty *f = user;
    return plait_comm_all_to_all(f->inner, call->what, -1, NULL, send, send_bytes, recv,
                                 recv_bytes);
}

static plait_status faulty_all_reduce(void *user, const plait_comm_call *call, const float *send,
                                      int64_t count, float *recv)
{
    struct faulty *f = user;
    return plait_comm_all_reduce(f->inner, call->what, -1, NULL, send, count, recv);
}

struct rank {
    struct faulty comm;
    plait_status status;
    char error[512];
};

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    plait_comm_ops ops = {.size = sizeof ops,
                          .user = &r->comm,
                          .rank = r->comm.rank,
                          .n_ranks = 2,
                          .exchange = faulty_exchange,
                          .all_gather = faulty_all_gather,
                          .reduce_scatter = faulty_reduce_scatter,
                          .all_to_all = faulty_all_to_all,
                          .all_reduce = faulty_all_reduce};
    plait_comm *comm = NULL;
    plait_engine *e = NULL;
    plait_generation *g = NULL;
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    o.model_dir = PLAIT_SOURCE_DIR "/models/tiny";
    o.dtype = PLAIT_F32;
    o.tp = 2;
    o.threads = 2;
    o.debug_ranks = 1;
    const plait_request q = sampled("The read() function", 3);
    r->status = plait_comm_from_ops(&ops, 30, 0, NULL, &comm);
    o.comm = comm;
    if (r->status == PLAIT_OK)
        r->status = plait_engine_open(&o, &e);
    if (r->status == PLAIT_OK)
        r->status = plait_engine_generate(e, &q, 1, NULL, NULL, &g);
    strncpy(r->error, plait_last_error(), sizeof r->error - 1);
    plait_generation_close(&g);
    plait_engine_close(&e);
    plait_comm_close(&comm);
    return NULL;
}

static void run_ranks(struct rank ranks[2], int32_t fault)
{
    plait_comm *inner[2];
    pthread_t thread;
    assert_int_equal(plait_comm_threads_open(2, 60, NULL, inner), PLAIT_OK);
    memset(ranks, 0, 2 * sizeof *ranks);
    for (int32_t i = 0; i < 2; i++)
        ranks[i].comm = (struct faulty){inner[i], i, fault};
    assert_int_equal(pthread_create(&thread, NULL, run_rank, &ranks[1]), 0);
    run_rank(&ranks[0]);
    pthread_join(thread, NULL);
    for (int32_t i = 0; i < 2; i++)
        plait_comm_close(&inner[i]);
}

static void ranks_with_other_tokens_are_named(void **state)
{
    (void)state;
    struct rank ranks[2];
    run_ranks(ranks, 0);
    for (int32_t i = 0; i < 2; i++) {
        if (ranks[i].status != PLAIT_OK)
            fail_msg("%s", ranks[i].error);
    }
    run_ranks(ranks, 1);
    for (int32_t i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].status, PLAIT_E_COMM);
        if (!strstr(ranks[i].error, "rank 1 has other tokens than rank 0"))
            fail_msg("%s", ranks[i].error);
    }
}

/* ---- auto ------------------------------------------------------------------------------------ */

/* Greedy tokens do not hang on how many drafts there are; on two ranks all decide alike. */
static void auto_gives_the_tokens_of_plain_decoding(void **state)
{
    (void)state;
    static const plait_draft_kind drafts[] = {PLAIT_DRAFT_NONE, PLAIT_DRAFT_MTP, PLAIT_DRAFT_NGRAM,
                                              PLAIT_DRAFT_ORACLE};
    plait_generation *plain = NULL;
    for (size_t d = 0; d < sizeof drafts / sizeof *drafts; d++) {
        plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
        o.draft = drafts[d];
        o.spec_tokens = PLAIT_SPEC_AUTO;
        o.debug_ranks = 1;
        o.dcp = 2;
        plait_engine *e = open_engine(&o);
        plait_request q[3];
        q[0] = sampled("The read() function", 0);
        q[1] = sampled("CREATE TABLE", 0);
        q[2] = sampled("In Python, a list", 0);
        for (int32_t i = 0; i < 3; i++) {
            q[i].temperature = 0;
            q[i].max_new_tokens = 2 * NEW - 7 * i;
        }
        plait_generation *g = generate(e, q, 3);
        if (!plain) {
            plain = g;
        } else {
            for (int32_t i = 0; i < 3; i++)
                assert_true(same(&plain->results[i], &g->results[i]));
            plait_generation_close(&g);
        }
        plait_engine_close(&e);
    }
    plait_generation_close(&plain);
}

static void bad_sampling_is_refused_by_name(void **state)
{
    (void)state;
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    plait_engine *e = open_engine(&o);
    static const struct {
        double temperature, top_p;
        int32_t top_k, num_logprobs;
        const char *part;
    } bad[] = {{-1, 1, 0, 0, "temperature -1"},
               {NAN, 1, 0, 0, "temperature"},
               {INFINITY, 1, 0, 0, "temperature inf"},
               {1, 0, 0, 0, "top_p 0"},
               {1, 1.5, 0, 0, "top_p 1.5"},
               {1, 1, -2, 0, "top_k -2"},
               {1, 1, 0, 21, "num_logprobs 21"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        plait_request q = sampled("a", 0);
        plait_generation *g;
        q.temperature = bad[i].temperature;
        q.top_p = bad[i].top_p;
        q.top_k = bad[i].top_k;
        q.num_logprobs = bad[i].num_logprobs;
        assert_int_equal(plait_engine_generate(e, &q, 1, NULL, NULL, &g), PLAIT_E_ARG);
        if (!strstr(plait_last_error(), bad[i].part))
            fail_msg("\"%s\" does not say \"%s\"", plait_last_error(), bad[i].part);
    }
    plait_engine_close(&e);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeds_give_the_same_tokens_in_any_batch),
        cmocka_unit_test(sampled_drafts_of_the_target_itself_stand),
        cmocka_unit_test(logprobs_follow_the_logits_and_the_cut_case34),
        cmocka_unit_test(ranks_with_other_tokens_are_named),
        cmocka_unit_test(auto_gives_the_tokens_of_plain_decoding),
        cmocka_unit_test(bad_sampling_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
