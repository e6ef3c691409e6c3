/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: a request's tokens are those it has alone, whatever runs beside it. */
#include "engine_matrix.h"

#include "engine/engine_ranks.h"

enum { REQUESTS = 12, TEXT = 64 * 1024 };

static char text[TEXT];

/* All held-out prompts, one after the other. */
static void read_text(void)
{
    char line[LINE_BYTES], *prompt;
    size_t used = 0;
    FILE *f = fopen(PLAIT_SOURCE_DIR "/tests/vectors/heldout_prompts.jsonl", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const size_t n = prompt_of_line(line, &prompt);
        assert_true(used + n < TEXT);
        memcpy(text + used, prompt, n);
        used += n;
    }
    fclose(f);
}

/* Mixed lengths: most prompts are short, some need several chunks. */
static const int32_t prompt_bytes[REQUESTS] = {40, 9, 1200, 200, 31, 90, 300, 12, 150, 60, 500, 5};
static const int32_t new_tokens[REQUESTS] = {20, 7, 9, 1, 24, 12, 16, 30, 2, 18, 5, 22};

static plait_request request(int32_t i)
{
    plait_request q = PLAIT_REQUEST_INIT;
    q.text = text + 131 * i;
    q.text_bytes = (size_t)prompt_bytes[i];
    q.max_new_tokens = new_tokens[i];
    q.ignore_eos = 1;
    return q;
}

static void make_references(matrix *m)
{
    const matrix_setting plain = {1, 1, PLAIT_DRAFT_NONE, 0, 0, 0};
    plait_engine *e = open_setting(PLAIT_F32, &plain);
    plait_tokenizer *t;
    memset(m, 0, sizeof *m);
    m->gap_limit = 1e-4;
    m->margin_limit = 1e-5;
    m->num_prompts = REQUESTS;
    m->references = calloc(REQUESTS, sizeof *m->references);
    assert_int_equal(plait_tokenizer_open(PLAIT_SOURCE_DIR "/models/tiny", &t), PLAIT_OK);
    for (int32_t i = 0; i < REQUESTS; i++) {
        const plait_request q = request(i);
        make_request_reference(m, e, t, &q, &m->references[i]);
    }
    plait_tokenizer_close(&t);
    plait_engine_close(&e);
}

typedef struct composition {
    matrix_setting setting;
    int32_t max_rows;     /* of a step */
    int32_t step, num;    /* requests 0, step, 2 * step, ... (mod REQUESTS), num of them */
    int32_t cache_tokens; /* 0: no limit */
} composition;

static plait_engine *open_composition(const composition *c)
{
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    plait_engine *e;
    o.model_dir = PLAIT_SOURCE_DIR "/models/tiny";
    o.dtype = PLAIT_F32;
    o.dcp = c->setting.dcp;
    o.interleave = c->setting.interleave;
    o.draft = c->setting.draft;
    o.draft_dir = PLAIT_SOURCE_DIR "/models/tiny/eagle3";
    o.spec_tokens = c->setting.spec_tokens ? c->setting.spec_tokens : 1;
    o.page_size = 16;
    const int32_t layers = 6 + (o.draft == PLAIT_DRAFT_MTP);
    o.kv_cache_bytes = (int64_t)c->cache_tokens * layers * 576 * 4 / c->setting.dcp;
    if (plait_engine_open(&o, &e) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    for (int32_t r = 0; r < c->setting.dcp; r++)
        e->ranks[r].session.max_rows = c->max_rows;
    return e;
}

static void check_composition(matrix *m, const composition *c)
{
    plait_engine *e = open_composition(c);
    plait_request q[REQUESTS];
    plait_generation *g;
    for (int32_t i = 0; i < c->num; i++)
        q[i] = request(i * c->step % REQUESTS);
    if (plait_engine_generate(e, q, c->num, NULL, NULL, &g) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    for (int32_t i = 0; i < c->num; i++) {
        const plait_result *r = &g->results[i];
        assert_int_equal(r->num_new, q[i].max_new_tokens);
        assert_int_equal(r->num_new, 1 + r->steps + r->num_accepted);
        compare(m, &m->references[i * c->step % REQUESTS], &c->setting, 0, r->ids, r->num_new);
    }
    assert_true(c->cache_tokens == 0 || g->kv_bytes[0] <= e->options.kv_cache_bytes);
    plait_generation_close(&g);
    plait_engine_close(&e);
}

static void tokens_in_a_batch_are_those_alone(void **state)
{
    (void)state;
    static const composition all[] = {
        {{1, 1, PLAIT_DRAFT_NONE, 0, 0, 0}, 256, 1, 12, 0},
        {{1, 1, PLAIT_DRAFT_NONE, 0, 0, 0}, 17, 5, 12, 0},
        {{1, 1, PLAIT_DRAFT_MTP, 3, 0, 0}, 256, 7, 12, 0},
        {{1, 1, PLAIT_DRAFT_MTP, 2, 0, 0}, 24, 11, 12, 800},
        {{2, 1, PLAIT_DRAFT_NONE, 0, 0, 0}, 64, 5, 12, 800},
        {{2, 16, PLAIT_DRAFT_MTP, 3, 0, 0}, 40, 1, 12, 0},
        {{2, 1, PLAIT_DRAFT_MTP, 4, 0, 0}, 256, 7, 5, 0},
        {{1, 1, PLAIT_DRAFT_MTP, 16, 0, 0}, 100, 1, 12, 0},
        {{2, 16, PLAIT_DRAFT_EAGLE3, 3, 0, 0}, 40, 5, 12, 800},
    };
    const char *sanitizer = getenv("PLAIT_SANITIZED");
    const size_t step = sanitizer && *sanitizer ? 3 : 1;
    matrix m;
    read_text();
    make_references(&m);
    for (size_t i = 0; i < sizeof all / sizeof *all; i += step)
        check_composition(&m, &all[i]);
    print_message("# %lld of %lld tokens taken otherwise\n", (long long)m.other,
                  (long long)m.tokens);
    assert_true(m.other * 100 < m.tokens);
    matrix_close(&m);
}

/* What a request saw, in the order of events. */
typedef struct watch {
    int32_t events, first[REQUESTS], last[REQUESTS], ids[REQUESTS], give_up, at;
} watch;

static int32_t watch_event(void *user, const plait_stream_event *event)
{
    watch *w = user;
    const int32_t r = event->request;
    w->events++;
    if (!w->first[r])
        w->first[r] = w->events;
    assert_int_equal(w->last[r], 0);
    w->ids[r] += event->num_ids;
    if (event->result) {
        w->last[r] = w->events;
        assert_int_equal(w->ids[r], event->result->num_new);
    }
    return r == w->give_up && w->ids[r] >= w->at;
}

static plait_generation *watched(const composition *c, int32_t give_up, int32_t at, watch *w,
                                 const plait_request *q, int32_t num)
{
    plait_engine *e = open_composition(c);
    plait_generation *g;
    memset(w, 0, sizeof *w);
    w->give_up = give_up;
    w->at = at;
    if (plait_engine_generate(e, q, num, watch_event, w, &g) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    plait_engine_close(&e);
    return g;
}

/* A long prompt and long outputs hold nobody up: short requests that came later end before. */
static void nobody_waits_for_ever(void **state)
{
    (void)state;
    const composition c = {{1, 1, PLAIT_DRAFT_NONE, 0, 0, 0}, 16, 1, 0, 0};
    plait_request q[REQUESTS];
    watch w;
    read_text();
    q[0] = request(2);
    for (int32_t i = 1; i < REQUESTS; i++) {
        q[i] = request(1);
        q[i].max_new_tokens = i < 9 ? 40 : 2;
    }
    plait_generation *g = watched(&c, -1, 0, &w, q, REQUESTS);
    /* Eight that decode leave a quarter of 16 rows to the long prompt, so that it ends first. */
    for (int32_t i = 0; i < REQUESTS; i++)
        assert_true(w.first[i] && w.last[i] && w.last[i] >= w.first[i]);
    assert_true(w.last[0] < w.last[8]);
    for (int32_t i = 9; i < REQUESTS; i++)
        assert_true(w.last[i] < w.last[1]);
    plait_generation_close(&g);
}

/* Only one request fits at a time: each runs when the one before has ended, and pages come back. */
static void a_small_cache_serves_all_in_order(void **state)
{
    (void)state;
    const composition c = {{1, 1, PLAIT_DRAFT_MTP, 2, 0, 0}, 256, 1, 0, 48};
    plait_request q[REQUESTS];
    watch w;
    read_text();
    for (int32_t i = 0; i < REQUESTS; i++) {
        q[i] = request(0);
        q[i].max_new_tokens = 15;
    }
    plait_generation *g = watched(&c, -1, 0, &w, q, REQUESTS);
    for (int32_t i = 1; i < REQUESTS; i++) {
        assert_true(w.first[i] > w.last[i - 1]);
        assert_memory_equal(g->results[i].ids, g->results[0].ids, 15 * sizeof(int32_t));
    }
    plait_generation_close(&g);
}

static void a_request_that_is_given_up_ends_alone(void **state)
{
    (void)state;
    for (int32_t d = 1; d <= 2; d++) {
        const composition c = {{d, 1, PLAIT_DRAFT_MTP, 2, 0, 0}, 256, 1, 0, 0};
        plait_request q[3];
        watch w;
        read_text();
        for (int32_t i = 0; i < 3; i++) {
            q[i] = request(4 * i);
            q[i].max_new_tokens = 40;
        }
        plait_generation *g = watched(&c, 1, 10, &w, q, 3);
        assert_int_equal(g->results[0].num_new, 40);
        assert_int_equal(g->results[2].num_new, 40);
        assert_int_equal(g->results[2].finish, PLAIT_FINISH_LENGTH);
        assert_int_equal(g->results[1].finish, PLAIT_FINISH_CANCELLED);
        assert_string_equal(plait_finish_name(g->results[1].finish), "cancelled");
        assert_in_range(g->results[1].num_new, 10, 12);
        assert_true(g->results[1].text_bytes > 0);
        plait_generation_close(&g);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_in_a_batch_are_those_alone),
        cmocka_unit_test(nobody_waits_for_ever),
        cmocka_unit_test(a_small_cache_serves_all_in_order),
        cmocka_unit_test(a_request_that_is_given_up_ends_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
