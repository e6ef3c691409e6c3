/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the drafts of the bundled model gain on held-out prompts, and what DCP saves in cache.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include <plait/engine.h>

#include "engine/tokenizer.h"
#include "unit.h"

#define TEXT_MODEL   PLAIT_SOURCE_DIR "/models/tiny"
#define TEXT_PROMPTS PLAIT_SOURCE_DIR "/tests/vectors/heldout_prompts.jsonl"

/* Fails the running test with the library's sentence. */
static void text_ok(plait_status status, const char *what)
{
    if (status != PLAIT_OK)
        fail_msg("%s: %s: %s", what, plait_status_name(status), plait_last_error());
}

/* A sanitizer makes these tests slow; they do less under one. */
static int text_sanitized(void)
{
    const char *sanitizer = getenv("PLAIT_SANITIZED");
    return sanitizer && *sanitizer;
}

typedef struct text_ids {
    int32_t *ids;
    size_t n;
} text_ids;

/* The first `most` held-out prompts as token ids; returns how many there are. */
static int32_t text_prompts(text_ids *prompts, int32_t most)
{
    plait_tokenizer *tokenizer;
    text_ok(plait_tokenizer_open(TEXT_MODEL, &tokenizer), "tokenizer");
    FILE *file = fopen(TEXT_PROMPTS, "r");
    char line[1 << 16];
    int32_t n = 0;
    assert_non_null(file);
    while (n < most && fgets(line, sizeof line, file)) {
        cJSON *json = cJSON_Parse(line);
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(json, "prompt"));
        assert_non_null(text);
        text_ok(plait_tokenizer_encode(tokenizer, text, strlen(text), true, &prompts[n].ids,
                                       &prompts[n].n),
                "prompt");
        cJSON_Delete(json);
        n++;
    }
    fclose(file);
    plait_tokenizer_close(&tokenizer);
    return n;
}

static plait_request text_request(const int32_t *ids, size_t n, int32_t max_new)
{
    plait_request request = PLAIT_REQUEST_INIT;
    request.ids = ids;
    request.num_ids = (int64_t)n;
    request.max_new_tokens = max_new;
    request.ignore_eos = 1;
    return request;
}

static plait_engine *text_engine(const plait_engine_options *options)
{
    plait_engine *engine = NULL;
    text_ok(plait_engine_open(options, &engine), "open");
    return engine;
}

static plait_generation *text_generate(plait_engine *engine, const plait_request *requests,
                                       int32_t n)
{
    plait_generation *all = NULL;
    text_ok(plait_engine_generate(engine, requests, n, NULL, NULL, &all), "generate");
    return all;
}

#define PROMPTS 32
#define NEW     48

/* Share of the 4-grams of n tokens that occurred before: 1 - distinct / all. */
static double repeated(const int32_t *ids, int32_t n)
{
    int32_t all = n - 3, distinct = 0;
    for (int32_t i = 0; i < all; i++) {
        int32_t j = 0;
        while (j < i && memcmp(ids + j, ids + i, 4 * sizeof *ids))
            j++;
        distinct += j == i;
    }
    return 1 - (double)distinct / all;
}

/* Each step gains at least `least` tokens, on outputs that do not repeat themselves: drafting what
   loops is no merit. At most a third of the outputs may do so. */
static void check_gain(plait_draft_kind draft, double least)
{
    if (text_sanitized()) {
        print_message("too slow with a sanitizer\n");
        skip();
    }
    text_ids prompts[PROMPTS];
    int32_t n = text_prompts(prompts, PROMPTS), loops = 0;
    int64_t gained = 0, steps = 0;
    plait_engine_options options = PLAIT_ENGINE_OPTIONS_INIT;
    options.model_dir = TEXT_MODEL;
    options.dcp = 2;
    options.draft = draft;
    options.draft_dir = TEXT_MODEL "/eagle3";
    options.spec_tokens = 3;
    plait_engine *engine = text_engine(&options);
    assert_true(n >= 24);
    for (int32_t p = 0; p < n; p++) {
        plait_request request = text_request(prompts[p].ids, prompts[p].n, NEW);
        plait_generation *all = text_generate(engine, &request, 1);
        const plait_result *r = &all->results[0];
        assert_int_equal(r->num_new, NEW);
        if (repeated(r->ids, r->num_new) < 0.3) {
            gained += r->num_new - 1;
            steps += r->steps;
        } else {
            loops++;
        }
        plait_generation_close(&all);
        free(prompts[p].ids);
    }
    plait_engine_close(&engine);
    print_message("# %.3f tokens gained a step over %d outputs; %d of %d repeat themselves\n",
                  (double)gained / (double)steps, (int)(n - loops), (int)loops, (int)n);
    assert_true(loops * 3 <= n);
    assert_true((double)gained >= least * (double)steps);
}

static void mtp_gains_two_tokens_a_step(void **state)
{
    (void)state;
    check_gain(PLAIT_DRAFT_MTP, 2.0);
}

static void eagle3_gains_1_8_tokens_a_step(void **state)
{
    (void)state;
    check_gain(PLAIT_DRAFT_EAGLE3, 1.8);
}

/* At temperature 1 a draft stands as often as its distribution covers the target's. The seeds of
   the requests are their numbers. */
static void eagle3_gains_1_5_tokens_a_step_at_temperature_1(void **state)
{
    (void)state;
    if (text_sanitized()) {
        print_message("too slow with a sanitizer\n");
        skip();
    }
    text_ids prompts[PROMPTS];
    plait_request requests[PROMPTS];
    int32_t n = text_prompts(prompts, PROMPTS);
    int64_t gained = 0, steps = 0;
    plait_engine_options options = PLAIT_ENGINE_OPTIONS_INIT;
    options.model_dir = TEXT_MODEL;
    options.dcp = 2;
    options.draft = PLAIT_DRAFT_EAGLE3;
    options.draft_dir = TEXT_MODEL "/eagle3";
    options.spec_tokens = 3;
    plait_engine *engine = text_engine(&options);
    for (int32_t p = 0; p < n; p++) {
        requests[p] = text_request(prompts[p].ids, prompts[p].n, NEW);
        requests[p].temperature = 1;
        requests[p].seed = (uint64_t)p;
    }
    plait_generation *all = text_generate(engine, requests, n);
    for (int32_t p = 0; p < n; p++) {
        const plait_result *r = &all->results[p];
        assert_int_equal(r->num_new, NEW);
        if (repeated(r->ids, r->num_new) < 0.3) {
            gained += r->num_new - 1;
            steps += r->steps;
        }
        free(prompts[p].ids);
    }
    plait_generation_close(&all);
    plait_engine_close(&engine);
    print_message("# %.3f tokens gained a step at temperature 1\n", (double)gained / (double)steps);
    assert_true(steps > 0 && (double)gained >= 1.5 * (double)steps);
}

/* Bytes of cache of each rank after filling the model's whole context. */
static void fill_context(int32_t dcp, const int32_t *ids, size_t n, int64_t *target, int64_t *draft)
{
    plait_engine_options options = PLAIT_ENGINE_OPTIONS_INIT;
    options.model_dir = TEXT_MODEL;
    options.dcp = dcp;
    options.draft = PLAIT_DRAFT_MTP;
    plait_engine *engine = text_engine(&options);
    plait_request request = text_request(ids, n, 8);
    plait_generation *all = text_generate(engine, &request, 1);
    assert_int_equal(all->num_ranks, dcp);
    assert_int_equal(all->results[0].num_new, 8);
    memcpy(target, all->kv_bytes, (size_t)dcp * sizeof *target);
    memcpy(draft, all->draft_kv_bytes, (size_t)dcp * sizeof *draft);
    plait_generation_close(&all);
    plait_engine_close(&engine);
}

/* From 2048 tokens on, with pages of 64, a rank of two holds at most 0.52 of the cache. */
static void two_ranks_halve_the_cache(void **state)
{
    (void)state;
    if (text_sanitized()) {
        print_message("too slow with a sanitizer\n");
        skip();
    }
    enum { LENGTH = 2048 - 8 };
    text_ids prompts[PROMPTS];
    int32_t n = text_prompts(prompts, PROMPTS), ids[LENGTH];
    for (size_t i = 0, p = 0, at = 0; i < LENGTH; i++) {
        if (at == prompts[p].n) {
            p = (p + 1) % (size_t)n;
            at = 0;
        }
        ids[i] = prompts[p].ids[at++];
    }
    int64_t whole, whole_draft, half[2], half_draft[2];
    fill_context(1, ids, LENGTH, &whole, &whole_draft);
    fill_context(2, ids, LENGTH, half, half_draft);
    assert_true(whole > 0 && whole_draft > 0);
    for (int r = 0; r < 2; r++) {
        assert_true(half[r] > 0 && (double)half[r] <= 0.52 * (double)whole);
        assert_true(half_draft[r] > 0 && (double)half_draft[r] <= 0.52 * (double)whole_draft);
    }
    for (int32_t p = 0; p < n; p++)
        free(prompts[p].ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mtp_gains_two_tokens_a_step),
        cmocka_unit_test(eagle3_gains_1_8_tokens_a_step),
        cmocka_unit_test(eagle3_gains_1_5_tokens_a_step_at_temperature_1),
        cmocka_unit_test(two_ranks_halve_the_cache),
    };
    return cmocka_run_group_tests_name("engine_accept", tests, NULL, NULL);
}
