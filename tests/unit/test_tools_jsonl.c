/* SPDX-License-Identifier: Apache-2.0 */
/* Requests from JSON Lines: what they hold, and what is wrong with a line. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/jsonl.h"

static const char *const default_stops[] = {"END"};
static const plait_line defaults = {.max_new_tokens = 7,
                                    .stops = (const char **)(uintptr_t)default_stops,
                                    .num_stops = 1,
                                    .top_p = 1,
                                    .seed = 5};

/* What reading says on its error stream, which the caller frees. */
static char *read_lines(const char *text, size_t bytes, int want, plait_lines *lines)
{
    char *said = NULL;
    size_t size = 0;
    FILE *errors = open_memstream(&said, &size);
    /* A copy without a NUL behind it: a sanitizer sees reads past the end. */
    char *copy = malloc(bytes ? bytes : 1);
    assert_non_null(errors);
    memcpy(copy, text, bytes);
    const int got = plait_lines_read(copy, bytes, "F", &defaults, errors, lines);
    free(copy);
    fclose(errors);
    if (got != want)
        fail_msg("\"%.*s\": %d, not %d: %s", (int)bytes, text, got, want, said);
    return said;
}

static void accept(const char *text, plait_lines *lines)
{
    char *said = read_lines(text, strlen(text), 0, lines);
    assert_string_equal(said, "");
    free(said);
}

static void lines_hold_their_requests(void **state)
{
    (void)state;
    plait_lines l;
    accept(
        "{\"prompt\": \"a\"}\r\n\n \t\n"
        " {\"seed\":9007199254740992 , \"top_p\":0.25,\"top_k\":1e2,\"temperature\":1.5,"
        "\"stop\":[\"x\", \"\\u00e9\\n\"],\"max_new_tokens\":3,\"prompt\":\"\\\"b\\u0000\\ud83d"
        "\\ude42/\\/\xc3\xa9\"}\n{\"prompt\":\"c\",\"stop\":\"y\"}\n{\"prompt\":\"d\",\"stop\":[]}",
        &l);
    assert_int_equal(l.n, 4);
    assert_int_equal(l.lines[0].number, 1);
    assert_string_equal(l.lines[0].prompt, "a");
    assert_int_equal(l.lines[0].max_new_tokens, 7);
    assert_int_equal(l.lines[0].num_stops, 1);
    assert_string_equal(l.lines[0].stops[0], "END");
    assert_int_equal(l.lines[0].seed, 5);
    const plait_line *b = &l.lines[1];
    assert_int_equal(b->number, 4);
    assert_int_equal(b->prompt_bytes, 11);
    assert_memory_equal(b->prompt, "\"b\0\xf0\x9f\x99\x82//\xc3\xa9", 12);
    assert_int_equal(b->max_new_tokens, 3);
    assert_int_equal(b->num_stops, 2);
    assert_string_equal(b->stops[1], "\xc3\xa9\n");
    assert_int_equal(b->top_k, 100);
    assert_true(b->temperature == 1.5 && b->top_p == 0.25);
    assert_true(b->seed == (uint64_t)1 << 53);
    assert_string_equal(l.lines[2].stops[0], "y");
    assert_int_equal(l.lines[3].num_stops, 0);
    plait_lines_free(&l);
}

static void bad_lines_are_named_and_nothing_is_kept(void **state)
{
    (void)state;
    static const struct {
        const char *line, *why;
    } bad[] = {
        {"[1]", "an object was wanted"},
        {"{\"prompt\":\"a\"} x", "more text"},
        {"{\"prompt\":\"a\"", "',' or '}'"},
        {"{\"prompt\":\"a\",}", "in quotes"},
        {"{\"prompt\" \"a\"}", "':'"},
        {"{\"prompt\":\"a", "has no end"},
        {"{\"prompt\":\"a\tb\"}", "control character"},
        {"{\"prompt\":\"\\x\"}", "wrong escape"},
        {"{\"prompt\":\"\\u12g4\"}", "wrong escape"},
        {"{\"prompt\":\"\\ud800\"}", "wrong escape"},
        {"{\"prompt\":\"\\ud800\\u0041\"}", "wrong escape"},
        {"{\"prompt\":\"\\udc00\"}", "wrong escape"},
        {"{\"prompt\":\"\xc3\"}", "no UTF-8"},
        {"{\"prompt\":\"\"}", "prompt: it is empty"},
        {"{\"prompt\":3}", "prompt: a text"},
        {"{\"prompt\":\"a\",\"prompt\":\"b\"}", "\"prompt\" is given twice"},
        {"{\"prompt\":\"a\",\"model\":\"b\"}", "no key \"model\""},
        {"{\"prompt\":\"a\",\"seed\\u0000\":1}", "no key \"seed\""},
        {"{\"seed\":1}", "\"prompt\" is missing"},
        {"{}", "\"prompt\" is missing"},
        {"{\"prompt\":\"a\",\"max_new_tokens\":0}", "max_new_tokens: it is 0"},
        {"{\"prompt\":\"a\",\"max_new_tokens\":1.5}", "it is 1.5"},
        {"{\"prompt\":\"a\",\"max_new_tokens\":\"1\"}", "a number was wanted"},
        {"{\"prompt\":\"a\",\"max_new_tokens\":1e400}", "a whole number"},
        {"{\"prompt\":\"a\",\"seed\":-1}", "seed: it is -1"},
        {"{\"prompt\":\"a\",\"seed\":01}", "seed: a number"},
        {"{\"prompt\":\"a\",\"seed\":+1}", "seed: a number"},
        {"{\"prompt\":\"a\",\"temperature\":-0.1}", "temperature: 0 to"},
        {"{\"prompt\":\"a\",\"temperature\":1.}", "temperature: a number"},
        {"{\"prompt\":\"a\",\"temperature\":NaN}", "temperature: a number"},
        {"{\"prompt\":\"a\",\"top_p\":0}", "top_p: a number above 0"},
        {"{\"prompt\":\"a\",\"top_k\":2147483648}", "top_k: it is 2147483648"},
        {"{\"prompt\":\"a\",\"stop\":\"\"}", "stop: a stop text is empty"},
        {"{\"prompt\":\"a\",\"stop\":[\"b\",1]}", "stop: a text in quotes"},
        {"{\"prompt\":\"a\",\"stop\":[\"b\"}", "a list of texts has no end"},
        {"{\"prompt\":\"a\",\"stop\":\"\\u0000\"}", "NUL"},
        {"{\"prompt\":\"a\",\"stop\":null}", "a text or a list"},
    };
    plait_lines l;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"prompt\":\"good\"}\n%s\n{\"prompt\":\"good\"}",
                 bad[i].line);
        char *said = read_lines(text, strlen(text), -1, &l);
        if (!strstr(said, bad[i].why) || !strstr(said, "F line 2: "))
            fail_msg("%s: %s", bad[i].line, said);
        assert_int_equal(l.n, 0);
        assert_null(l.lines);
        free(said);
    }
    free(read_lines("", 0, -1, &l));
    free(read_lines("\n\n", 2, -1, &l));
    free(read_lines("{\"prompt\":\"a\0b\"}", 16, -1, &l));
}

/* Every cut of a line and every change of one byte is accepted or refused; nothing is read beyond.
 */
static void damaged_lines_do_no_harm(void **state)
{
    (void)state;
    static const char line[] =
        "{\"prompt\":\"\\ud83d\\ude42\xc3\xa9\",\"stop\":[\"x\",\"y\"],\"top_p\":1e-2,\"seed\":7}";
    const size_t n = sizeof line - 1;
    plait_lines l;
    for (size_t cut = 0; cut < n; cut++)
        free(read_lines(line, cut, -1, &l));
    for (size_t at = 0; at < n; at++) {
        for (int32_t byte = 0; byte < 256; byte += 3) {
            char text[sizeof line], *said = NULL;
            size_t size = 0;
            FILE *errors = open_memstream(&said, &size);
            memcpy(text, line, sizeof line);
            text[at] = (char)byte;
            if (plait_lines_read(text, n, "F", &defaults, errors, &l) == 0)
                plait_lines_free(&l);
            fclose(errors);
            free(said);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_hold_their_requests),
        cmocka_unit_test(bad_lines_are_named_and_nothing_is_kept),
        cmocka_unit_test(damaged_lines_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
