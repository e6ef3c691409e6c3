/* SPDX-License-Identifier: Apache-2.0 */
/* Generation: settings give the tokens of plain decoding; bad input gives one sentence. */
#include "engine_matrix.h"

#include "folder.h"

/* Pairwise over D {1,2,3,4} x I {1,3,16} x draft {none, mtp K 1..4, oracle}, some n-grams, some
   EAGLE-3 heads with a sharded or replicated cache. */
static const matrix_setting pairwise[] = {
    {1, 16, PLAIT_DRAFT_NONE, 0, 0, 0},   {1, 1, PLAIT_DRAFT_MTP, 1, 0, 0},
    {1, 3, PLAIT_DRAFT_MTP, 2, 0, 0},     {1, 16, PLAIT_DRAFT_MTP, 3, 0, 0},
    {1, 1, PLAIT_DRAFT_MTP, 4, 0, 0},     {1, 3, PLAIT_DRAFT_ORACLE, 3, 0, 0},
    {2, 1, PLAIT_DRAFT_NONE, 0, 0, 0},    {2, 16, PLAIT_DRAFT_MTP, 1, 0, 0},
    {2, 1, PLAIT_DRAFT_MTP, 2, 0, 0},     {2, 3, PLAIT_DRAFT_MTP, 3, 0, 1},
    {2, 3, PLAIT_DRAFT_MTP, 4, 0, 0},     {2, 16, PLAIT_DRAFT_ORACLE, 3, 0, 0},
    {3, 3, PLAIT_DRAFT_NONE, 0, 0, 0},    {3, 3, PLAIT_DRAFT_MTP, 1, 0, 0},
    {3, 16, PLAIT_DRAFT_MTP, 2, 0, 1},    {3, 3, PLAIT_DRAFT_MTP, 3, 1, 0},
    {3, 1, PLAIT_DRAFT_MTP, 4, 0, 0},     {3, 3, PLAIT_DRAFT_ORACLE, 4, 0, 0},
    {4, 3, PLAIT_DRAFT_NONE, 0, 0, 1},    {4, 1, PLAIT_DRAFT_MTP, 1, 0, 0},
    {4, 1, PLAIT_DRAFT_MTP, 2, 0, 0},     {4, 1, PLAIT_DRAFT_MTP, 3, 0, 0},
    {4, 16, PLAIT_DRAFT_MTP, 4, 1, 0},    {4, 1, PLAIT_DRAFT_ORACLE, 1, 0, 0},
    {1, 3, PLAIT_DRAFT_NGRAM, 4, 0, 0},   {2, 1, PLAIT_DRAFT_NGRAM, 3, 0, 0},
    {3, 16, PLAIT_DRAFT_NGRAM, 2, 0, 1},  {4, 3, PLAIT_DRAFT_NGRAM, 1, 0, 0},
    {1, 3, PLAIT_DRAFT_EAGLE3, 4, 0, 0},  {2, 1, PLAIT_DRAFT_EAGLE3, 3, 0, 0},
    {2, 16, PLAIT_DRAFT_EAGLE3, 1, 1, 0}, {3, 16, PLAIT_DRAFT_EAGLE3, 4, 0, 1},
    {3, 1, PLAIT_DRAFT_EAGLE3, 2, 1, 0},  {4, 3, PLAIT_DRAFT_EAGLE3, 2, 0, 0},
    {4, 16, PLAIT_DRAFT_EAGLE3, 3, 0, 0},
};

static void settings_give_the_tokens_of_plain_decoding_f32(void **state)
{
    (void)state;
    matrix m;
    matrix_open(&m, PLAIT_F32, 4, 48);
    for (size_t i = 0; i < sizeof pairwise / sizeof *pairwise; i++)
        matrix_check(&m, &pairwise[i]);
    print_message("# f32: %lld of %lld tokens taken otherwise\n", (long long)m.other,
                  (long long)m.tokens);
    matrix_close(&m);
}

/* EAGLE-3 in bf16 runs in the long test: its drafts change which tokens are verified together, not
   how a token is computed. */
static void settings_give_the_tokens_of_plain_decoding_bf16(void **state)
{
    (void)state;
    matrix m;
    matrix_open(&m, PLAIT_BF16, 4, 48);
    for (size_t i = 0; i < sizeof pairwise / sizeof *pairwise; i++)
        if (pairwise[i].draft != PLAIT_DRAFT_EAGLE3)
            matrix_check(&m, &pairwise[i]);
    print_message("# bf16: %lld of %lld tokens taken otherwise\n", (long long)m.other,
                  (long long)m.tokens);
    assert_true((double)m.other < 0.02 * (double)m.tokens);
    matrix_close(&m);
}

static plait_engine *open_tiny(const plait_engine_options *base)
{
    plait_engine_options o = *base;
    plait_engine *e;
    o.model_dir = PLAIT_SOURCE_DIR "/models/tiny";
    if (plait_engine_open(&o, &e) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    return e;
}

static plait_generation *generate(plait_engine *e, const plait_request *q, int32_t n)
{
    plait_generation *g;
    if (plait_engine_generate(e, q, n, NULL, NULL, &g) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    return g;
}

/* A stop token cuts ids, text and counts where plain decoding cuts them, wherever it lies in an
   accepted run. */
static void stop_in_an_accepted_run_cuts_everything_case34(void **state)
{
    (void)state;
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    o.dtype = PLAIT_F32;
    o.draft = PLAIT_DRAFT_ORACLE;
    o.spec_tokens = 5;
    plait_engine *e = open_tiny(&o);
    plait_request q = PLAIT_REQUEST_INIT;
    q.text = "The read() function";
    q.text_bytes = strlen(q.text);
    q.max_new_tokens = 24;
    q.ignore_eos = 1;
    plait_generation *full = generate(e, &q, 1);
    const plait_result *all = &full->results[0];
    for (int32_t at = 0; at < all->num_new; at++) {
        int32_t first = 0;
        q.stop_ids = &all->ids[at];
        q.num_stop_ids = 1;
        while (all->ids[first] != all->ids[at])
            first++;
        plait_generation *g = generate(e, &q, 1);
        const plait_result *r = &g->results[0];
        assert_int_equal(r->num_new, first + 1);
        assert_int_equal(r->finish, PLAIT_FINISH_STOP);
        assert_memory_equal(r->ids, all->ids, (size_t)r->num_new * sizeof *r->ids);
        assert_true(r->text_bytes <= all->text_bytes);
        assert_memory_equal(r->text, all->text, r->text_bytes);
        /* A draft that is the stop token ends its step without the target's own token. */
        assert_in_range(1 + r->steps + r->num_accepted - r->num_new, 0, 1);
        plait_generation_close(&g);
    }
    q.num_stop_ids = 0;
    for (int32_t cap = 1; cap < 9; cap++) {
        q.max_new_tokens = cap;
        plait_generation *g = generate(e, &q, 1);
        assert_int_equal(g->results[0].num_new, cap);
        assert_int_equal(g->results[0].finish, PLAIT_FINISH_LENGTH);
        assert_memory_equal(g->results[0].ids, all->ids, (size_t)cap * sizeof *all->ids);
        plait_generation_close(&g);
    }
    plait_generation_close(&full);
    plait_engine_close(&e);
}

struct gains {
    int32_t num, tokens[64]; /* of each step, the prefill's first */
};

static int32_t take_gains(void *user, const plait_stream_event *event)
{
    struct gains *g = user;
    if (g->num < 64)
        g->tokens[g->num++] = event->num_ids;
    return 0;
}

static plait_generation *generate_gains(plait_engine *e, const plait_request *q, struct gains *g)
{
    plait_generation *out;
    g->num = 0;
    if (plait_engine_generate(e, q, 1, take_gains, g, &out) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    return out;
}

/* After every step, whatever was rejected in it, drafts are those of a run that begins there: its
   draft KV holds nothing but what the target's states gave. */
static void check_rejected(plait_draft_kind draft)
{
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    o.dtype = PLAIT_F32;
    o.dcp = 2;
    o.draft = draft;
    o.draft_dir = PLAIT_SOURCE_DIR "/models/tiny/eagle3";
    o.spec_tokens = 4;
    plait_engine *e = open_tiny(&o);
    int32_t ids[8 + 48];
    for (int32_t i = 0; i < 8; i++)
        ids[i] = 100 + 37 * i;
    plait_request q = PLAIT_REQUEST_INIT;
    q.ids = ids;
    q.num_ids = 8;
    q.max_new_tokens = 48;
    q.ignore_eos = 1;
    struct gains all, rest;
    plait_generation *g = generate_gains(e, &q, &all);
    memcpy(ids + 8, g->results[0].ids, 48 * sizeof *ids);
    assert_true(g->results[0].num_accepted < g->results[0].num_drafted);
    plait_generation_close(&g);
    int32_t known = 8, compared = 0;
    for (int32_t step = 0; step + 1 < all.num; step++) {
        /* The prefill's token is the one that the step before ended with. */
        known += all.tokens[step];
        q.num_ids = known - 1;
        q.max_new_tokens = 8 + 48 - known + 1;
        g = generate_gains(e, &q, &rest);
        assert_int_equal(rest.num, all.num - step);
        for (int32_t i = 1; i < rest.num; i++, compared++)
            assert_int_equal(rest.tokens[i], all.tokens[step + i]);
        plait_generation_close(&g);
    }
    assert_true(compared > 20);
    plait_engine_close(&e);
}

static void drafts_do_not_depend_on_what_was_rejected_case33_case35(void **state)
{
    (void)state;
    check_rejected(PLAIT_DRAFT_MTP);
    check_rejected(PLAIT_DRAFT_EAGLE3);
}

/* More requests than one pass takes, with the most drafts. */
static void many_requests_are_served_in_turns(void **state)
{
    (void)state;
    int32_t prompts[40][5], want[40][6];
    for (int32_t draft = 0; draft < 2; draft++) {
        plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
        o.dtype = PLAIT_F32;
        o.draft = draft ? PLAIT_DRAFT_MTP : PLAIT_DRAFT_NONE;
        o.spec_tokens = 16;
        o.page_size = 4;
        plait_engine *e = open_tiny(&o);
        plait_request q[40];
        for (int32_t i = 0; i < 40; i++) {
            for (int32_t j = 0; j < 5; j++)
                prompts[i][j] = 3 + (i * 71 + j * 13) % 2000;
            q[i] = (plait_request)PLAIT_REQUEST_INIT;
            q[i].ids = prompts[i];
            q[i].num_ids = 1 + i % 5;
            q[i].max_new_tokens = 1 + i % 6;
            q[i].ignore_eos = 1;
        }
        plait_generation *g = generate(e, q, 40);
        for (int32_t i = 0; i < 40; i++) {
            const plait_result *r = &g->results[i];
            assert_int_equal(r->num_new, 1 + i % 6);
            if (draft == 0)
                memcpy(want[i], r->ids, (size_t)r->num_new * sizeof *r->ids);
            assert_memory_equal(want[i], r->ids, (size_t)r->num_new * sizeof *r->ids);
        }
        plait_generation_close(&g);
        plait_engine_close(&e);
    }
}

struct streamed {
    int32_t num[2];
    size_t bytes[2];
    char text[2][4096];
};

static int32_t take_stream(void *user, const plait_stream_event *event)
{
    struct streamed *s = user;
    const int32_t r = event->request;
    s->num[r] += event->num_ids;
    memcpy(s->text[r] + s->bytes[r], event->text, event->text_bytes);
    s->bytes[r] += event->text_bytes;
    return 0;
}

static void streamed_text_equals_the_result_and_kv_bytes_halve(void **state)
{
    (void)state;
    int64_t whole = 0;
    for (int32_t d = 1; d <= 2; d++) {
        plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
        o.dtype = PLAIT_F32;
        o.dcp = d;
        o.page_size = 8;
        o.draft = PLAIT_DRAFT_MTP;
        plait_engine *e = open_tiny(&o);
        plait_request q[2] = {PLAIT_REQUEST_INIT, PLAIT_REQUEST_INIT};
        q[0].text = "CREATE TABLE";
        q[1].text = "In Python, a list";
        for (int i = 0; i < 2; i++) {
            q[i].text_bytes = strlen(q[i].text);
            q[i].max_new_tokens = 60 + 17 * i;
            q[i].ignore_eos = 1;
        }
        struct streamed s = {{0}, {0}, {{0}}};
        plait_generation *g;
        assert_int_equal(plait_engine_generate(e, q, 2, take_stream, &s, &g), PLAIT_OK);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(s.num[i], g->results[i].num_new);
            assert_int_equal(s.bytes[i], g->results[i].text_bytes);
            assert_memory_equal(s.text[i], g->results[i].text, s.bytes[i]);
        }
        assert_int_equal(g->num_ranks, d);
        if (d == 1)
            whole = g->kv_bytes[0];
        for (int32_t r = 0; r < d; r++) {
            assert_true(g->kv_bytes[r] > 0 && g->draft_kv_bytes[r] > 0);
            /* Half, and at most half a page more for each request. */
            assert_true(g->kv_bytes[r] * d <= whole + 2 * (whole / 15));
        }
        plait_generation_close(&g);
        plait_engine_close(&e);
    }
}

/* Drafts never pass the model's length: the end of a full sequence is that of plain decoding. */
static void drafts_stop_at_the_model_length_case36(void **state)
{
    (void)state;
    int32_t plain[8];
    for (int32_t draft = 0; draft <= PLAIT_DRAFT_NGRAM; draft++) {
        plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
        o.dtype = PLAIT_F32;
        o.dcp = 2;
        o.draft = (plait_draft_kind)draft;
        o.spec_tokens = 4;
        plait_engine *e = open_tiny(&o);
        plait_engine_info info;
        assert_int_equal(plait_engine_get_info(e, &info), PLAIT_OK);
        const int32_t n = (int32_t)info.max_length - 8;
        int32_t *ids = malloc((size_t)(n + 8) * sizeof *ids);
        for (int32_t i = 0; i < n + 8; i++)
            ids[i] = 3 + i * 7 % 2000;
        plait_request q = PLAIT_REQUEST_INIT;
        q.ids = ids;
        q.num_ids = n;
        q.ignore_eos = 1;
        plait_generation *g = generate(e, &q, 1);
        assert_int_equal(g->results[0].num_new, 8);
        assert_int_equal(g->results[0].finish, PLAIT_FINISH_LENGTH);
        if (draft == 0)
            memcpy(plain, g->results[0].ids, sizeof plain);
        assert_memory_equal(plain, g->results[0].ids, sizeof plain);
        plait_generation_close(&g);
        q.num_ids = n + 8;
        assert_int_equal(plait_engine_generate(e, &q, 1, NULL, NULL, &g), PLAIT_E_UNSUPPORTED);
        assert_null(g);
        assert_non_null(strstr(plait_last_error(), "the model takes"));
        free(ids);
        plait_engine_close(&e);
    }
}

static void refuse_open(const plait_engine_options *o, plait_status status, const char *part)
{
    plait_engine *e;
    assert_int_equal(plait_engine_open(o, &e), status);
    assert_null(e);
    if (!strstr(plait_last_error(), part))
        fail_msg("\"%s\" does not say \"%s\"", plait_last_error(), part);
}

static void bad_options_are_refused_by_name(void **state)
{
    (void)state;
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    refuse_open(&o, PLAIT_E_ARG, "model_dir");
    o.model_dir = PLAIT_SOURCE_DIR "/models/none";
    refuse_open(&o, PLAIT_E_IO, "config.json");
    o.model_dir = PLAIT_SOURCE_DIR "/models/tiny";
    o.tp = 3;
    o.dcp = 2;
    refuse_open(&o, PLAIT_E_ARG, "dcp must divide tp");
    o.tp = o.dcp = 9;
    refuse_open(&o, PLAIT_E_UNSUPPORTED, "heads");
    o.tp = o.dcp = 1;
    o.dtype = PLAIT_F16;
    refuse_open(&o, PLAIT_E_UNSUPPORTED, "f16");
    o.dtype = PLAIT_F32;
    o.draft = PLAIT_DRAFT_MTP;
    o.spec_tokens = 17;
    refuse_open(&o, PLAIT_E_ARG, "spec_tokens");
}

static void refuse(plait_engine *e, const plait_request *q, plait_status status, const char *part)
{
    plait_generation *g;
    assert_int_equal(plait_engine_generate(e, q, 1, NULL, NULL, &g), status);
    assert_null(g);
    if (!strstr(plait_last_error(), part))
        fail_msg("\"%s\" does not say \"%s\"", plait_last_error(), part);
}

static void bad_requests_are_refused_and_leave_the_engine_usable(void **state)
{
    (void)state;
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    o.dtype = PLAIT_F32;
    o.page_size = 16;
    o.kv_cache_bytes = 3 * 16 * 6 * 576 * 4;
    plait_engine *e = open_tiny(&o);
    const int32_t ids[] = {1, 2, 999999};
    plait_request q = PLAIT_REQUEST_INIT;
    refuse(e, &q, PLAIT_E_ARG, "prompt is empty");
    q.ids = ids;
    q.num_ids = 3;
    refuse(e, &q, PLAIT_E_ARG, "999999");
    q.num_ids = 2;
    q.max_new_tokens = 0;
    refuse(e, &q, PLAIT_E_ARG, "max_new_tokens");
    q.max_new_tokens = 48;
    refuse(e, &q, PLAIT_E_NOMEM, "884736 bytes needed");
    refuse(e, &q, PLAIT_E_NOMEM, "663552 available; the longest sequence that fits has 49 tokens");
    refuse(e, &q, PLAIT_E_NOMEM, "(4 pages of 221184 bytes, 0 of drafts of 0;");
    q.max_new_tokens = 47;
    plait_generation *g = generate(e, &q, 1);
    assert_int_equal(g->results[0].num_prompt + 47, 49);
    plait_generation_close(&g);
    plait_engine_close(&e);
    o.kv_cache_bytes = 1;
    e = open_tiny(&o);
    refuse(e, &q, PLAIT_E_NOMEM,
           "663552 bytes needed for each rank, 1 available; no sequence fits");
    plait_engine_close(&e);
}

/* A copy of models/tiny in `root` whose final norm is the largest bf16 number. */
static void copy_with_huge_norm(const char *root)
{
    static const char *const files[] = {"config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/models/tiny/%s", PLAIT_SOURCE_DIR, files[i]);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        fseek(f, 0, SEEK_END);
        const size_t bytes = (size_t)ftell(f);
        rewind(f);
        char *data = calloc(bytes + 1, 1);
        assert_int_equal(fread(data, 1, bytes, f), bytes);
        fclose(f);
        const char *name = i < 4 ? NULL : strstr(data + 8, "\"model.norm.weight\"");
        if (name) {
            uint64_t header;
            memcpy(&header, data, sizeof header);
            const long begin = strtol(strstr(name, "\"data_offsets\":") + 16 +
                                          strspn(strstr(name, "\"data_offsets\":") + 16, " ["),
                                      NULL, 10);
            for (size_t j = 0; j < 256; j++)
                memcpy(data + 8 + header + (size_t)begin + 2 * j, "\x7f\x7f", 2);
        }
        plait_test_put(root, files[i], data, bytes);
        free(data);
    }
}

static void logits_that_are_not_finite_fail_on_all_ranks(void **state)
{
    (void)state;
    char root[PLAIT_TEST_PATH];
    plait_test_folder_make(root);
    copy_with_huge_norm(root);
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    plait_engine *e;
    o.model_dir = root;
    o.dtype = PLAIT_F32;
    o.dcp = 2;
    assert_int_equal(plait_engine_open(&o, &e), PLAIT_OK);
    plait_request q = PLAIT_REQUEST_INIT;
    q.text = "a";
    q.text_bytes = 1;
    refuse(e, &q, PLAIT_E_FORMAT, "not finite");
    /* Ranks stopped half way: the engine says so instead of going on. */
    refuse(e, &q, PLAIT_E_STATE, "earlier call");
    plait_engine_close(&e);
    plait_test_folder_remove(root);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_give_the_tokens_of_plain_decoding_f32),
        cmocka_unit_test(settings_give_the_tokens_of_plain_decoding_bf16),
        cmocka_unit_test(stop_in_an_accepted_run_cuts_everything_case34),
        cmocka_unit_test(drafts_do_not_depend_on_what_was_rejected_case33_case35),
        cmocka_unit_test(many_requests_are_served_in_turns),
        cmocka_unit_test(streamed_text_equals_the_result_and_kv_bytes_halve),
        cmocka_unit_test(drafts_stop_at_the_model_length_case36),
        cmocka_unit_test(bad_options_are_refused_by_name),
        cmocka_unit_test(bad_requests_are_refused_and_leave_the_engine_usable),
        cmocka_unit_test(logits_that_are_not_finite_fail_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
