/* SPDX-License-Identifier: Apache-2.0 */
/* Stop texts: text, ids and counts end at one place, wherever tokens begin and end. */
#include "unit.h"

#include <stdlib.h>
#include <string.h>

#include <plait/engine.h>

#include "engine/stop.h"

enum { NEW = 40, TEXT = 4096 };

static plait_tokenizer *tokenizer;

/* ---- the reader ------------------------------------------------------------------------------ */

/* Where the text ends by definition: the first prefix of it that ends with a stop text, without the
   longest one that does so; -1: nowhere. */
static int64_t find_cut(const char *text, size_t n, const char *const *stops, int32_t num)
{
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (int32_t t = 0; t < num; t++) {
            const size_t len = strlen(stops[t]);
            if (len <= end && !memcmp(text + end - len, stops[t], len) && len > longest)
                longest = len;
        }
        if (longest)
            return (int64_t)(end - longest);
    }
    return -1;
}

/* Bytes of text before each of n tokens. */
static void find_begins(const int32_t *ids, size_t n, int64_t *begins)
{
    plait_text_stream stream = {{0}, 0};
    char out[TEXT];
    int64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t more;
        begins[i] = at;
        assert_int_equal(
            plait_text_stream_push(&stream, tokenizer, ids[i], true, out, sizeof out, &more),
            PLAIT_OK);
        at += (int64_t)more;
    }
}

/* Reads ids and compares, after every token, what is final with the definition. */
static void check_reading(const int32_t *ids, size_t n, const char *const *texts, int32_t num)
{
    char *all, out[TEXT], scratch[TEXT];
    size_t all_bytes;
    int64_t begins[256];
    plait_stops stops;
    plait_reader r;
    plait_text_buffer buffer = {out, scratch, 0};
    int32_t cut = 0;
    memset(&r, 0, sizeof r);
    assert_true(n < 256);
    assert_int_equal(plait_tokenizer_decode(tokenizer, ids, n, true, &all, &all_bytes), PLAIT_OK);
    find_begins(ids, n, begins);
    const int64_t want = find_cut(all, all_bytes, texts, num);
    assert_int_equal(plait_stops_open(texts, num, 0, &stops), PLAIT_OK);
    for (size_t i = 0; i < n && !cut; i++) {
        assert_int_equal(plait_reader_push(&r, &stops, tokenizer, ids, &buffer, &cut), PLAIT_OK);
        assert_true(want < 0 || (int64_t)buffer.bytes <= want);
        for (int64_t k = 0; num && k < r.num_final; k++)
            assert_true(begins[k] < (int64_t)buffer.bytes);
    }
    if (!cut)
        assert_int_equal(plait_reader_finish(&r, &stops, tokenizer, ids, &buffer, &cut), PLAIT_OK);
    assert_int_equal(cut, want >= 0);
    const size_t bytes = cut ? (size_t)want : all_bytes;
    assert_int_equal(buffer.bytes, bytes);
    assert_int_equal(r.text_bytes, bytes);
    assert_memory_equal(out, all, bytes);
    int64_t kept = 0;
    while (kept < (int64_t)n && (!cut || begins[kept] < want))
        kept++;
    assert_int_equal(r.num_final, kept);
    plait_stops_close(&stops);
    free(all);
}

static void check_text(const char *text, const char *const *stops, int32_t num)
{
    int32_t *ids;
    size_t n;
    assert_int_equal(plait_tokenizer_encode(tokenizer, text, strlen(text), false, &ids, &n),
                     PLAIT_OK);
    for (size_t i = 0; i <= n; i++)
        check_reading(ids, i, stops, num);
    free(ids);
}

static void text_is_held_back_and_cut_by_definition(void **state)
{
    (void)state;
    static const char *const overlap[] = {"abab", "bc", "ababaca"};
    static const char *const inside[] = {"unction", "\n\n"};
    static const char *const wide[] = {"\xf0\x9f\x99\x82", "\xe4\xb8\xad\xe6\x96\x87x",
                                       "\xef\xbf\xbd"};
    static const char *const spaces[] = {" ", "  x"};
    check_text("ababababaca and abab", overlap, 3);
    check_text("aabababc", overlap, 2);
    check_text("aababacababaca", &overlap[2], 1);
    check_text("The read() function returns\n\nthe number of bytes", inside, 2);
    check_text("The read() function returns\n\nthe number of bytes", &inside[1], 1);
    check_text("smile \xf0\x9f\x99\x81\xf0\x9f\x99\x82 done", wide, 3);
    check_text("\xe4\xb8\xad\xe6\x96\x87y \xe4\xb8\xad\xe6\x96\x87x", wide, 2);
    check_text("one   xtwo", &spaces[1], 1);
    check_text(" begins", spaces, 2);
    check_text("nothing to stop at", NULL, 0);
}

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

/* Few letters, so that stop texts overlap themselves and each other; any ids, so that characters
   are cut and special tokens come between. */
static void random_texts_are_cut_by_definition(void **state)
{
    (void)state;
    uint32_t seed = 7;
    for (int32_t round = 0; round < 400; round++) {
        char text[48], stops[3][8];
        const char *const list[3] = {stops[0], stops[1], stops[2]};
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = i + 1 < sizeof text ? (char)('a' + next(&seed) % 2) : 0;
        for (int32_t t = 0; t < 3; t++) {
            const uint32_t n = 2 + next(&seed) % 6;
            for (uint32_t i = 0; i < n; i++)
                stops[t][i] = (char)('a' + next(&seed) % 2);
            stops[t][n] = 0;
        }
        check_text(text, list, 1 + round % 3);
    }
    const int32_t vocab = plait_tokenizer_vocab_size(tokenizer);
    for (int32_t round = 0; round < 400; round++) {
        static const char *const marks[] = {"\xef\xbf\xbd", "e", "\xef\xbf\xbd\xef\xbf\xbd", "t "};
        int32_t ids[12];
        for (int32_t i = 0; i < 12; i++)
            ids[i] = (int32_t)(next(&seed) % (uint32_t)(round % 2 ? vocab : 300));
        check_reading(ids, 12, marks + round % 4, 1);
    }
}

static void bad_stop_texts_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "\x80", "a\xe4\xb8"};
    plait_stops stops;
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(plait_stops_open(&bad[i], 1, 5, &stops), PLAIT_E_ARG);
        assert_non_null(strstr(plait_last_error(), "request 5: stop text 0"));
    }
    assert_int_equal(plait_stops_open(bad, PLAIT_STOP_TEXTS + 1, 0, &stops), PLAIT_E_ARG);
}

/* ---- generation ------------------------------------------------------------------------------ */

typedef struct told {
    char text[TEXT];
    size_t bytes;
    int32_t ids[NEW], num;
} told;

static int32_t take(void *user, const plait_stream_event *event)
{
    told *t = user;
    memcpy(t->text + t->bytes, event->text, event->text_bytes);
    memcpy(t->ids + t->num, event->ids, (size_t)event->num_ids * sizeof *t->ids);
    t->bytes += event->text_bytes;
    t->num += event->num_ids;
    return 0;
}

static plait_generation *generate(plait_engine *e, const plait_request *q, told *t)
{
    plait_generation *g;
    memset(t, 0, sizeof *t);
    if (plait_engine_generate(e, q, 1, take, t, &g) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    assert_int_equal(t->num, g->results[0].num_new);
    assert_memory_equal(t->ids, g->results[0].ids, (size_t)t->num * sizeof *t->ids);
    assert_int_equal(t->bytes, g->results[0].text_bytes);
    assert_memory_equal(t->text, g->results[0].text, t->bytes);
    assert_int_equal(strlen(g->results[0].text), t->bytes);
    return g;
}

/* Every substring of three bytes of the output as a stop text, and the limit one token on. */
static void outputs_end_at_stop_texts_case34(void **state)
{
    (void)state;
    const char *sanitizer = getenv("PLAIT_SANITIZED");
    const size_t stride = sanitizer && *sanitizer ? 31 : 7;
    for (int32_t d = 1; d <= 2; d++) {
        plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
        plait_engine *e;
        o.model_dir = PLAIT_SOURCE_DIR "/models/tiny";
        o.dtype = PLAIT_F32;
        o.dcp = d;
        o.draft = d == 1 ? PLAIT_DRAFT_ORACLE : PLAIT_DRAFT_MTP;
        o.spec_tokens = 4;
        assert_int_equal(plait_engine_open(&o, &e), PLAIT_OK);
        plait_request q = PLAIT_REQUEST_INIT;
        told t;
        q.text = "The read() function";
        q.text_bytes = strlen(q.text);
        q.max_new_tokens = NEW;
        q.ignore_eos = 1;
        plait_generation *full = generate(e, &q, &t);
        const plait_result *all = &full->results[0];
        int64_t begins[NEW];
        find_begins(all->ids, NEW, begins);
        for (size_t at = 0; at + 3 <= all->text_bytes; at += stride) {
            char stop[4] = {0};
            const char *stops[] = {stop, "never \xf0\x9f\x99\x82"};
            memcpy(stop, all->text + at, 3);
            const int64_t cut = find_cut(all->text, all->text_bytes, stops, 2);
            q.stop_texts = stops;
            q.num_stop_texts = 2;
            plait_generation *g = generate(e, &q, &t);
            assert_int_equal(g->results[0].finish, PLAIT_FINISH_STOP);
            assert_int_equal(t.bytes, cut);
            assert_memory_equal(t.text, all->text, t.bytes);
            assert_memory_equal(t.ids, all->ids, (size_t)t.num * sizeof *t.ids);
            assert_true(t.num == NEW || begins[t.num] >= cut);
            assert_true(t.num == 0 || begins[t.num - 1] < cut);
            plait_generation_close(&g);
            /* The limit comes first: what was held back is text after all. */
            if (t.num == 0 || begins[t.num] != cut || cut + 3 <= begins[t.num])
                continue;
            q.max_new_tokens = t.num;
            g = generate(e, &q, &t);
            assert_int_equal(g->results[0].finish, PLAIT_FINISH_LENGTH);
            assert_int_equal(t.bytes, cut);
            plait_generation_close(&g);
            q.max_new_tokens = NEW;
        }
        plait_generation_close(&full);
        plait_engine_close(&e);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_held_back_and_cut_by_definition),
        cmocka_unit_test(random_texts_are_cut_by_definition),
        cmocka_unit_test(bad_stop_texts_are_refused),
        cmocka_unit_test(outputs_end_at_stop_texts_case34),
    };
    if (plait_tokenizer_open(PLAIT_SOURCE_DIR "/models/tiny", &tokenizer) != PLAIT_OK)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    plait_tokenizer_close(&tokenizer);
    return failed;
}
