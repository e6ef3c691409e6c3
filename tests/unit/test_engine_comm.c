/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that are one rank each of a caller's communicator: the tokens of an engine that holds all
   ranks, and refusals that are the same on every rank. */
#include <stdlib.h>
#include <string.h>

#include <plait/engine.h>

#include "ranks.h"
#include "unit.h"

enum { NEW_TOKENS = 20 };

static plait_engine_options options_of(int32_t dcp)
{
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    o.model_dir = PLAIT_SOURCE_DIR "/models/tiny";
    o.dtype = PLAIT_F32;
    o.dcp = dcp;
    o.draft = PLAIT_DRAFT_MTP;
    o.spec_tokens = 2;
    return o;
}

static plait_request request_of(const char *text)
{
    plait_request r = PLAIT_REQUEST_INIT;
    r.text = text;
    r.text_bytes = strlen(text);
    r.max_new_tokens = NEW_TOKENS;
    r.ignore_eos = 1;
    return r;
}

struct expected {
    int32_t tp, dcp;
    int32_t ids[NEW_TOKENS];
    int64_t kv_bytes[RANKS_MAX], draft_kv_bytes[RANKS_MAX];
};

static int32_t count_tokens(void *user, const plait_stream_event *event)
{
    *(int32_t *)user += event->num_ids;
    return 0;
}

static int same_as_threads(plait_comm *comm, void *user)
{
    const struct expected *x = user;
    plait_engine_options o = options_of(x->dcp);
    const plait_request r = request_of("The read() function");
    plait_engine *engine;
    plait_generation *g;
    int32_t streamed = 0;
    o.comm = comm;
    WANT(plait_engine_open(&o, &engine) == PLAIT_OK);
    WANT(plait_engine_generate(engine, &r, 1, count_tokens, &streamed, &g) == PLAIT_OK);
    WANT(streamed == (plait_comm_rank(comm) == 0 ? NEW_TOKENS : 0));
    WANT(g->num_ranks == x->tp && g->results[0].num_new == NEW_TOKENS);
    WANT(memcmp(g->results[0].ids, x->ids, sizeof x->ids) == 0);
    WANT(memcmp(g->kv_bytes, x->kv_bytes, (size_t)x->tp * sizeof *g->kv_bytes) == 0);
    WANT(memcmp(g->draft_kv_bytes, x->draft_kv_bytes, (size_t)x->tp * sizeof *g->kv_bytes) == 0);
    WANT(g->kv_bytes[x->tp - 1] > 0 && g->results[0].text_bytes > 0);
    plait_generation_close(&g);
    plait_engine_close(&engine);
    WANT(plait_comm_agree(comm, "the group is the caller's", PLAIT_OK) == PLAIT_OK);
    return 0;
}

static void one_rank_each_gives_the_tokens_of_all_in_one(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{1, 1}, {2, 2}, {4, 2}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct expected x = {.tp = shapes[i][0], .dcp = shapes[i][1]};
        plait_engine_options o = options_of(x.dcp);
        const plait_request r = request_of("The read() function");
        plait_engine *engine;
        plait_generation *g;
        o.tp = x.tp;
        assert_int_equal(plait_engine_open(&o, &engine), PLAIT_OK);
        assert_int_equal(plait_engine_generate(engine, &r, 1, NULL, NULL, &g), PLAIT_OK);
        memcpy(x.ids, g->results[0].ids, sizeof x.ids);
        memcpy(x.kv_bytes, g->kv_bytes, (size_t)x.tp * sizeof *x.kv_bytes);
        memcpy(x.draft_kv_bytes, g->draft_kv_bytes, (size_t)x.tp * sizeof *x.kv_bytes);
        plait_generation_close(&g);
        plait_engine_close(&engine);
        assert_int_equal(run_ranks(x.tp, 60, same_as_threads, &x), 0);
    }
}

/* What one rank, number 1, does otherwise than rank 0. */
struct odd {
    const char *want;
    void (*change)(plait_engine_options *o);
    plait_status status;
};

static void other_page_size(plait_engine_options *o)
{
    o->page_size = 32;
}

static void other_draft(plait_engine_options *o)
{
    o->draft = PLAIT_DRAFT_NONE;
}

static void other_tp(plait_engine_options *o)
{
    o->tp = 3;
}

static void no_model(plait_engine_options *o)
{
    o->model_dir = PLAIT_SOURCE_DIR "/models/none";
}

static void no_kernel(plait_engine_options *o)
{
    o->cpu_mask = 0;
    o->kernel = "no_such_kernel";
}

static int refused_on_all_ranks(plait_comm *comm, void *user)
{
    const struct odd *odd = user;
    plait_engine_options o = options_of(2);
    plait_engine *engine;
    o.comm = comm;
    if (plait_comm_rank(comm) == 1)
        odd->change(&o);
    WANT(plait_engine_open(&o, &engine) == odd->status && !engine);
    WANT(strstr(plait_last_error(), odd->want));
    WANT(plait_comm_agree(comm, "still usable", PLAIT_OK) == PLAIT_OK);
    return 0;
}

static void what_differs_is_refused_on_all_ranks_by_name(void **state)
{
    (void)state;
    const struct odd all[] = {
        {"rank 1 was given page_size 32, but rank 0 64", other_page_size, PLAIT_E_ARG},
        {"rank 1 was given draft 0, but rank 0 1", other_draft, PLAIT_E_ARG},
        {"tp 3, but the communicator has 2 ranks", other_tp, PLAIT_E_ARG},
        {"rank 1, open files: ", no_model, PLAIT_E_IO},
        {"rank 1 was given cpu_mask 0", no_kernel, PLAIT_E_ARG},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(run_ranks(2, 60, refused_on_all_ranks, (void *)&all[i]), 0);
}

static int no_kernel_anywhere(plait_comm *comm, void *user)
{
    (void)user;
    plait_engine_options o = options_of(2);
    plait_engine *engine;
    o.comm = comm;
    no_kernel(&o);
    WANT(plait_engine_open(&o, &engine) == PLAIT_OK);
    const plait_request r = request_of("x");
    plait_generation *g;
    WANT(plait_engine_generate(engine, &r, 1, NULL, NULL, &g) != PLAIT_OK && !g);
    WANT(strstr(plait_last_error(), "no name matches the pattern"));
    plait_engine_close(&engine);
    return 0;
}

static int other_requests(plait_comm *comm, void *user)
{
    (void)user;
    plait_engine_options o = options_of(2);
    const plait_request same = request_of("The"), odd = request_of("That");
    plait_request empty = request_of("");
    const int32_t me = plait_comm_rank(comm);
    plait_engine *engine;
    plait_generation *g;
    o.comm = comm;
    WANT(plait_engine_open(&o, &engine) == PLAIT_OK);
    WANT(plait_engine_generate(engine, me ? &odd : &same, 1, NULL, NULL, &g) == PLAIT_E_ARG && !g);
    WANT(strstr(plait_last_error(), "rank 1 was given other requests than rank 0"));
    WANT(plait_engine_generate(engine, me ? &empty : &same, 1, NULL, NULL, &g) == PLAIT_E_ARG);
    WANT(strstr(plait_last_error(), "rank 1, compare requests: request 0: the prompt is empty"));
    /* Neither ran, so the engine is as good as new. */
    WANT(plait_engine_generate(engine, &same, 1, NULL, NULL, &g) == PLAIT_OK);
    plait_generation_close(&g);
    plait_engine_close(&engine);
    return 0;
}

static void requests_are_the_same_on_all_ranks(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, 60, other_requests, NULL), 0);
    assert_int_equal(run_ranks(2, 60, no_kernel_anywhere, NULL), 0);
}

static void a_deadline_below_a_second_is_refused(void **state)
{
    (void)state;
    plait_engine_options o = options_of(1);
    plait_engine *engine;
    o.comm_timeout_s = 0.5;
    assert_int_equal(plait_engine_open(&o, &engine), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "comm_timeout_s is 0.5"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_each_gives_the_tokens_of_all_in_one),
        cmocka_unit_test(what_differs_is_refused_on_all_ranks_by_name),
        cmocka_unit_test(requests_are_the_same_on_all_ranks),
        cmocka_unit_test(a_deadline_below_a_second_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
