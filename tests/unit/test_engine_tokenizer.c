/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json: merges, splits, added tokens, refusals; text that arrives in parts (case 44). */
#include "engine/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "folder.h"
#include "unit.h"

static char root[PLAIT_TEST_PATH];

static int setup(void **state)
{
    (void)state;
    plait_test_folder_make(root);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    plait_test_folder_remove(root);
    return 0;
}

/* A tokenizer whose id of byte b is b, and a few more tokens. Members that are NULL have the
   value of `plain`. */
typedef struct parts {
    const char *model, *merges, *vocab, *added, *normalizer, *pre, *post, *decoder;
} parts;

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SPLIT(regex, behavior, invert)                                                             \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"        \
    "\"" regex "\"},\"behavior\":\"" behavior "\",\"invert\":" invert "}," BYTE_LEVEL "]}"
#define ADDED(id, text, more) "{\"id\":" #id ",\"content\":\"" text "\"" more "}"

static const parts plain = {
    .model = "\"type\":\"BPE\"",
    .merges = "[\"a\",\"b\"],[\"ab\",\"ab\"],[\"\\u0120\",\"a\"],[\"b\",\"c\"]",
    .vocab = ",\"ab\":256,\"abab\":257,\"\\u0120a\":258,\"bc\":259",
    .added = "",
    .normalizer = "null",
    .pre = BYTE_LEVEL,
    .post = "null",
    .decoder = "{\"type\":\"ByteLevel\"}",
};

/* The character that byte-level BPE writes for a byte: bytes that print stand for themselves. */
static unsigned byte_character(unsigned byte)
{
    unsigned others = 0;
    for (unsigned b = 0;; b++) {
        const int prints = (b > 32 && b < 127) || (b > 160 && b != 173);
        if (b == byte)
            return prints ? b : 256 + others;
        others += !prints;
    }
}

static size_t build(const parts *p, char *out, size_t room)
{
    size_t n = 0;
#define PART(name) (p->name ? p->name : plain.name)
    n += (size_t)snprintf(out + n, room - n,
                          "{\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,"
                          "\"post_processor\":%s,\"decoder\":%s,\"model\":{%s,\"vocab\":{",
                          PART(added), PART(normalizer), PART(pre), PART(post), PART(decoder),
                          PART(model));
    for (unsigned b = 0; b < 256; b++)
        n += (size_t)snprintf(out + n, room - n, "%s\"\\u%04x\":%u", b ? "," : "",
                              byte_character(b), b);
    n += (size_t)snprintf(out + n, room - n, "%s},\"merges\":[%s]}}", PART(vocab), PART(merges));
#undef PART
    assert_true(n < room);
    return n;
}

static plait_status open_parts(const parts *p, plait_tokenizer **t)
{
    static char text[1 << 15];
    plait_test_put(root, "tokenizer.json", text, build(p, text, sizeof text));
    return plait_tokenizer_open(root, t);
}

static plait_tokenizer *open_ok(const parts *p)
{
    plait_tokenizer *t;
    if (open_parts(p, &t) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    return t;
}

/* wanted ends with -1. */
static void encodes_n(const plait_tokenizer *t, const char *text, size_t bytes, bool special,
                      const int32_t *wanted)
{
    int32_t *ids;
    size_t n, want = 0;
    assert_int_equal(plait_tokenizer_encode(t, text, bytes, special, &ids, &n), PLAIT_OK);
    while (wanted[want] >= 0)
        want++;
    assert_int_equal(n, want);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], wanted[i]);
    free(ids);
}

#define ENCODES(t, text, ...)                                                                      \
    encodes_n(t, text, sizeof(text) - 1, false, (const int32_t[]){__VA_ARGS__, -1})
#define ENCODES_SPECIAL(t, text, ...)                                                              \
    encodes_n(t, text, sizeof(text) - 1, true, (const int32_t[]){__VA_ARGS__, -1})

static void test_merges_by_rank_then_from_the_left(void **state)
{
    (void)state;
    const parts spaced = {.merges = "\"a b\",\"ab ab\",\"\\u0120 a\",\"b c\""};
    const parts *const both[] = {&plain, &spaced};
    for (int i = 0; i < 2; i++) {
        plait_tokenizer *t = open_ok(both[i]);
        assert_int_equal(plait_tokenizer_vocab_size(t), 260);
        ENCODES(t, "abc", 256, 'c');
        ENCODES(t, "bcab", 259, 256);
        ENCODES(t, "abababa", 257, 256, 'a');
        ENCODES(t, " ab", ' ', 256);
        ENCODES(t, " ac", 258, 'c');
        ENCODES(t, "", -1);
        plait_tokenizer_close(&t);
        assert_null(t);
    }
}

/* An offer whose pair has been merged away must not merge the pair that took its place. */
static void test_stale_offers_are_dropped(void **state)
{
    (void)state;
    const parts p = {.vocab = ",\"ab\":256,\"bc\":257,\"bcd\":258,\"abc\":259",
                     .merges = "\"b c\",\"a b\",\"bc d\",\"a bc\""};
    plait_tokenizer *t = open_ok(&p);
    ENCODES(t, "abcd", 'a', 258);
    ENCODES(t, "abc", 259);
    plait_tokenizer_close(&t);
}

static void test_ignore_merges_takes_whole_pieces(void **state)
{
    (void)state;
    const parts whole = {.model = "\"type\":\"BPE\",\"ignore_merges\":true",
                         .vocab =
                             ",\"ab\":256,\"abab\":257,\"\\u0120a\":258,\"bc\":259,\"xyz\":260"};
    plait_tokenizer *t = open_ok(&whole);
    ENCODES(t, "xyz", 260);
    ENCODES(t, "xyza", 'x', 'y', 'z', 'a');
    plait_tokenizer_close(&t);
}

static void test_long_pieces_are_not_quadratic(void **state)
{
    (void)state;
    enum { N = 1 << 21 }; /* a quadratic loop would take hours */
    plait_tokenizer *t = open_ok(&plain);
    char *text = malloc(N);
    for (size_t i = 0; i < N; i++)
        text[i] = i % 2 ? 'b' : 'a';
    int32_t *ids;
    size_t n;
    assert_int_equal(plait_tokenizer_encode(t, text, N, false, &ids, &n), PLAIT_OK);
    assert_int_equal(n, N / 4);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], 257);
    free(ids);
    free(text);
    plait_tokenizer_close(&t);
}

static void test_splits(void **state)
{
    (void)state;
    const parts isolated = {.pre = SPLIT("a", "Isolated", "false")};
    const parts removed = {.pre = SPLIT("\\\\s+", "Removed", "false")};
    const parts kept = {.pre = SPLIT("[ab]+", "Removed", "true")};
    const parts empty = {.pre = SPLIT("x*", "Isolated", "false"),
                         .vocab = ",\"\\u00c3\\u00a9\":256",
                         .merges = "\"\\u00c3 \\u00a9\""};
    const parts gpt2 = {.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"};
    const parts literal = {
        .pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
               "{\"String\":\"b.\"},\"behavior\":\"Isolated\"}," BYTE_LEVEL "]}"};
    plait_tokenizer *t = open_ok(&isolated);
    ENCODES(t, "abc", 'a', 259);
    plait_tokenizer_close(&t);
    t = open_ok(&removed);
    ENCODES(t,
            " ab\xe2\x80\x83"
            "ab ",
            256, 256);
    plait_tokenizer_close(&t);
    t = open_ok(&kept);
    ENCODES(t, "xabyab", 256, 256);
    plait_tokenizer_close(&t);
    t = open_ok(&empty); /* an empty match separates, and ends */
    ENCODES(t, "abxxa", 'a', 'b', 'x', 'x', 'a');
    ENCODES(t, "\xc3\xa9", 256); /* but not inside a character */
    plait_tokenizer_close(&t);
    t = open_ok(&gpt2);
    ENCODES(t, "ab ab  1", 256, ' ', 256, ' ', ' ', '1');
    plait_tokenizer_close(&t);
    t = open_ok(&literal);
    ENCODES(t, "ab.bc", 'a', 'b', '.', 259);
    plait_tokenizer_close(&t);
}

static void test_added_tokens(void **state)
{
    (void)state;
    static const char added[] =
        ADDED(300, "<m>", ",\"lstrip\":true,\"special\":true") "," /* clang-format off */
        ADDED(301, "<r>", ",\"rstrip\":true") ","
        ADDED(302, "<n>", ",\"normalized\":true") ","
        ADDED(303, "<n><m>", ",\"normalized\":true") ","
        ADDED(304, "<r", "") ","
        ADDED(305, "\\u4e2d b", "") ","
        ADDED(97, "a", ""); /* clang-format on */
    const parts p = {.added = added};
    plait_tokenizer *t = open_ok(&p);
    assert_int_equal(plait_tokenizer_vocab_size(t), 306);
    ENCODES(t, "b \xe3\x80\x80 <m> b", 'b', 300, ' ', 'b');
    ENCODES(t, "b<r> \n b", 'b', 301, 'b');
    ENCODES(t, "<r> <m>", 301, 300);
    ENCODES(t, "<rb<r><r", 304, 'b', 301, 304);
    ENCODES(t, "<n><m>", 302, 300); /* the text as it is written comes first */
    ENCODES(t, "\xe4\xb8\xad bc", 305, 'c');
    ENCODES(t, "ab", 'a', 'b'); /* never merged across */
    assert_true(plait_tokenizer_is_special(t, 300));
    assert_false(plait_tokenizer_is_special(t, 301));
    assert_int_equal(plait_tokenizer_find(t, "<n>", 3), 302);
    assert_int_equal(plait_tokenizer_find(t, "abab", 4), 257);
    assert_int_equal(plait_tokenizer_find(t, "<x>", 3), -1);
    char *text;
    size_t bytes;
    const int32_t ids[] = {300, 'b', 305, 302, 299, -7, 100000};
    assert_int_equal(plait_tokenizer_decode(t, ids, 7, true, &text, &bytes), PLAIT_OK);
    assert_string_equal(text, "b\xe4\xb8\xad b<n>"); /* ids that are no token give no text */
    free(text);
    assert_int_equal(plait_tokenizer_decode(t, ids, 7, false, &text, &bytes), PLAIT_OK);
    assert_string_equal(text, "<m>b\xe4\xb8\xad b<n>");
    free(text);
    plait_tokenizer_close(&t);
}

#define TEMPLATE(before, after)                                                                    \
    "{\"type\":\"TemplateProcessing\",\"single\":[" before "{\"Sequence\":{\"id\":\"A\"}}" after   \
    "],\"special_tokens\":{\"B\":{\"id\":\"B\",\"ids\":[257]},\"Z\":{\"id\":\"Z\",\"ids\":[1,2]}}" \
    "}"
#define SPECIAL(name) "{\"SpecialToken\":{\"id\":\"" name "\"}}"

static void test_what_is_put_around_a_text(void **state)
{
    (void)state;
    const parts p = {.post = TEMPLATE(SPECIAL("B") ",", "," SPECIAL("Z"))};
    plait_tokenizer *t = open_ok(&p);
    ENCODES_SPECIAL(t, "ab", 257, 256, 1, 2);
    ENCODES(t, "ab", 256);
    plait_tokenizer_close(&t);
    plait_test_put_text(root, "tokenizer_config.json",
                        "{\"add_bos_token\":true,\"bos_token\":{\"content\":\"abab\"}}");
    t = open_ok(&plain); /* no template: the configuration beside it tells */
    ENCODES_SPECIAL(t, "ab", 257, 256);
    plait_tokenizer_close(&t);
    plait_test_put_text(root, "tokenizer_config.json",
                        "{\"add_bos_token\":true,\"bos_token\":\"nothing\"}");
    assert_int_equal(open_parts(&plain, &t), PLAIT_E_FORMAT);
    assert_non_null(strstr(plait_last_error(), "nothing"));
    assert_null(t);
}

/* Case 44, encoding: NUL, bytes that are no UTF-8 and characters outside the vocabulary become
   byte tokens, and come back. */
static void test_case44_any_bytes_encode(void **state)
{
    (void)state;
    plait_tokenizer *t = open_ok(&plain);
    ENCODES(t, "\0", 0);
    ENCODES(t, "a\0b", 'a', 0, 'b');
    ENCODES(t, "\xff", 0xff);
    ENCODES(t,
            "ab\xff"
            "ab",
            256, 0xff, 256);
    ENCODES(t, "\xf0\x9f\x99\x82", 0xf0, 0x9f, 0x99, 0x82);
    ENCODES(t, "ab\xf0\x9f\x99", 256, 0xf0, 0x9f, 0x99);
    ENCODES(t, "\xed\xa0\x80", 0xed, 0xa0, 0x80);
    const int32_t ids[] = {'x', 0xf0, 0x9f, 0x99, 'y', 0xed, 0xa0, 0x80, 0xff, 0xc3};
    char *text;
    size_t bytes;
    assert_int_equal(plait_tokenizer_decode(t, ids, 10, true, &text, &bytes), PLAIT_OK);
    /* one replacement for each maximal ill-formed part: f0 9f 99 | ed | a0 | 80 | ff | c3 */
#define R "\xef\xbf\xbd"
    assert_string_equal(text, "x" R "y" R R R R R);
    assert_int_equal(bytes, strlen(text));
    free(text);
    plait_tokenizer_close(&t);
}

static uint32_t random_state = 1;

static uint32_t draw(uint32_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)random_state * n >> 32);
}

static bool well_formed(const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        const unsigned char c = (unsigned char)text[i++];
        int more = c < 0x80 ? 0 : c < 0xc2 ? -1 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : c < 0xf5 ? 3 : -1;
        for (; more > 0 && i < n && ((unsigned char)text[i] & 0xc0) == 0x80; more--)
            i++;
        if (more != 0)
            return false;
    }
    return true;
}

/* Delivers ids 1 to 3 at a time and compares with the decoder that sees them all. */
static void stream_equals_decode(const plait_tokenizer *t, const int32_t *ids, size_t n)
{
    plait_text_stream stream = {{0}, 0};
    const size_t room = plait_tokenizer_max_push(t);
    char *all = malloc((n + 1) * room + 3), *text;
    size_t used = 0, bytes, given, delivered = 0;
    for (size_t i = 0; i < n;) {
        for (uint32_t chunk = 1 + draw(3); chunk > 0 && i < n; chunk--, i++) {
            assert_int_equal(
                plait_text_stream_push(&stream, t, ids[i], false, all + used, room, &given), 0);
            used += given;
        }
        assert_true(well_formed(all + delivered, used - delivered));
        delivered = used;
    }
    used += plait_text_stream_finish(&stream, all + used);
    assert_int_equal(plait_text_stream_finish(&stream, all + used), 0); /* once */
    assert_int_equal(plait_tokenizer_decode(t, ids, n, false, &text, &bytes), PLAIT_OK);
    assert_int_equal(used, bytes);
    assert_memory_equal(all, text, bytes);
    free(text);
    free(all);
}

static void test_case44_stream_equals_decode(void **state)
{
    (void)state;
    static const char *const pieces[] = {"\xf0\x9f\x99\x82",
                                         "\xe6\x97\xa5\xe6\x9c\xac",
                                         "\xc3\xa9",
                                         "ab",
                                         " a",
                                         "read()",
                                         "\n",
                                         "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7",
                                         "\xff",
                                         "\xe6\x97",
                                         "\xf0\x9f",
                                         "\xed\xa0\x80"};
    plait_tokenizer *tiny, *t = open_ok(&plain);
    assert_int_equal(plait_tokenizer_open(PLAIT_SOURCE_DIR "/models/tiny", &tiny), PLAIT_OK);
    for (int i = 0; i < 300; i++) {
        char text[512] = "";
        for (uint32_t k = 1 + draw(12); k > 0; k--)
            strcat(text, pieces[draw(sizeof pieces / sizeof *pieces)]);
        int32_t *ids;
        size_t n;
        const plait_tokenizer *which = i % 2 ? t : tiny;
        assert_int_equal(plait_tokenizer_encode(which, text, strlen(text), true, &ids, &n), 0);
        stream_equals_decode(which, ids, n - draw(n < 3 ? 1 : 3)); /* may end in mid-character */
        free(ids);
    }
    plait_tokenizer_close(&t);
    plait_tokenizer_close(&tiny);
}

static void test_stream_refuses_too_little_room(void **state)
{
    (void)state;
    plait_tokenizer *t = open_ok(&plain);
    plait_text_stream stream = {{0}, 0};
    char out[4];
    size_t n;
    assert_int_equal(plait_text_stream_push(&stream, t, 'a', true, out, sizeof out, &n),
                     PLAIT_E_ARG);
    plait_tokenizer_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
#define BPE "\"type\":\"BPE\""
    static const struct {
        parts p;
        plait_status status;
        const char *says;
    } table[] = {
        {{.normalizer = "{\"type\":\"NFC\"}"}, PLAIT_E_UNSUPPORTED, "NFC"},
        {{.pre = "{\"type\":\"Metaspace\"}"}, PLAIT_E_UNSUPPORTED, "Metaspace"},
        {{.pre = "null"}, PLAIT_E_UNSUPPORTED, "pre_tokenizer"},
        {{.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[]}"}, PLAIT_E_UNSUPPORTED, "ByteLevel"},
        {{.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}"},
         PLAIT_E_UNSUPPORTED,
         "add_prefix_space"},
        {{.pre = SPLIT("a", "MergedWithNext", "false")}, PLAIT_E_UNSUPPORTED, "MergedWithNext"},
        {{.pre = SPLIT("(a", "Isolated", "false")}, PLAIT_E_FORMAT, "(a"},
        {{.pre = SPLIT("\\\\C", "Isolated", "false")}, PLAIT_E_FORMAT, "\\C"},
        {{.post = "{\"type\":\"BertProcessing\"}"}, PLAIT_E_UNSUPPORTED, "BertProcessing"},
        {{.post = TEMPLATE(SPECIAL("Q") ",", "")}, PLAIT_E_FORMAT, "Q"},
        {{.decoder = "{\"type\":\"Metaspace\"}"}, PLAIT_E_UNSUPPORTED, "Metaspace"},
        {{.decoder = "null"}, PLAIT_E_UNSUPPORTED, "decoder"},
        {{.model = "\"type\":\"Unigram\""}, PLAIT_E_UNSUPPORTED, "Unigram"},
        {{.model = BPE ",\"byte_fallback\":true"}, PLAIT_E_UNSUPPORTED, "byte_fallback"},
        {{.model = BPE ",\"dropout\":0.1"}, PLAIT_E_UNSUPPORTED, "dropout"},
        {{.model = BPE ",\"end_of_word_suffix\":\"</w>\""}, PLAIT_E_UNSUPPORTED, "suffix"},
        {{.merges = "[\"a\",\"z\"]"}, PLAIT_E_FORMAT, "merge 0"},
        {{.merges = "\"ab\""}, PLAIT_E_FORMAT, "merge 0"},
        {{.merges = "[\"a\",\"b\"],[\"a\",\"b\",\"c\"]"}, PLAIT_E_FORMAT, "merge 1"},
        {{.merges = "[\"\\u4e2d\",\"b\"]"}, PLAIT_E_FORMAT, "byte-level"},
        {{.vocab = ",\"ab\":-1"}, PLAIT_E_FORMAT, "id -1"},
        {{.vocab = ",\"ab\":4194305"}, PLAIT_E_FORMAT, "4194305"},
        {{.vocab = ",\"ab\":2.5"}, PLAIT_E_FORMAT, "2.5"},
        {{.vocab = ",\"ab\":97"}, PLAIT_E_FORMAT, "id 97"},
        {{.vocab = ",\"a\":256"}, PLAIT_E_FORMAT, "the same"},
        {{.added = ADDED(97, "x", "")}, PLAIT_E_FORMAT, "contradicts"},
        {{.added = ADDED(300, "a", "")}, PLAIT_E_FORMAT, "contradicts"},
        {{.added = ADDED(300, "", "")}, PLAIT_E_FORMAT, "content"},
        {{.added = ADDED(1e9, "x", "")}, PLAIT_E_FORMAT, "1000000000"},
        {{.added = ADDED(300, "x", ",\"single_word\":true")}, PLAIT_E_UNSUPPORTED, "single_word"},
        {{.added = "7"}, PLAIT_E_FORMAT, "added token"},
    };
    plait_tokenizer *t;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_int_equal(open_parts(&table[i].p, &t), table[i].status);
        assert_null(t);
        if (!strstr(plait_last_error(), table[i].says))
            fail_msg("\"%s\" lacks \"%s\"", plait_last_error(), table[i].says);
    }
    plait_test_put_text(root, "tokenizer.json", "{\"model\":{\"vocab\":{},\"merges\":[]},");
    assert_int_equal(plait_tokenizer_open(root, &t), PLAIT_E_FORMAT);
    plait_test_put_text(root, "tokenizer.json", "{\"model\":{\"vocab\":{},\"merges\":[]}}");
    assert_int_equal(plait_tokenizer_open(root, &t), PLAIT_E_UNSUPPORTED);
    assert_non_null(strstr(plait_last_error(), "byte 0x00"));
    plait_test_put_text(root, "tokenizer.json",
                        "{\"added_tokens\":{},\"model\":{\"vocab\":{},\"merges\":[]}}");
    assert_int_equal(plait_tokenizer_open(root, &t), PLAIT_E_FORMAT);
    assert_non_null(strstr(plait_last_error(), "added_tokens is not a list"));
    teardown(NULL);
    setup(NULL);
    assert_int_equal(plait_tokenizer_open(root, &t), PLAIT_E_IO);
}

/* Whatever a file holds, it is refused or it encodes and decodes. */
static void test_mutated_files(void **state)
{
    (void)state;
    static char good[1 << 15], bad[1 << 15];
    static const char text[] = "ab <m> abc\xf0\x9f\x99\x82 \xff 123 \n\n x";
    const parts p = {.added = ADDED(300, "<m>", ",\"lstrip\":true"),
                     .pre = SPLIT(" ?\\\\p{L}+|\\\\s+(?!\\\\S)|.", "Isolated", "false"),
                     .post = TEMPLATE(SPECIAL("B") ",", "")};
    const size_t size = build(&p, good, sizeof good);
    int opened = 0;
    for (int i = 0; i < 1000; i++) {
        memcpy(bad, good, size);
        for (int k = i % 3; k >= 0; k--) { /* half of them outside the byte tokens */
            const uint32_t at = draw(2) ? draw(700) : draw((uint32_t)size);
            bad[at] = draw(3) ? "0123456789[]{},:\"\\ae+*?|("[draw(25)] : (char)draw(256);
        }
        plait_test_put(root, "tokenizer.json", bad, size);
        plait_tokenizer *t;
        if (plait_tokenizer_open(root, &t) != PLAIT_OK) {
            assert_null(t);
            continue;
        }
        opened++;
        int32_t *ids;
        size_t n;
        if (plait_tokenizer_encode(t, text, sizeof text - 1, true, &ids, &n) == PLAIT_OK) {
            for (size_t k = 0; k < n; k++)
                assert_true(ids[k] >= 0 && ids[k] < plait_tokenizer_vocab_size(t));
            stream_equals_decode(t, ids, n);
            free(ids);
        }
        plait_tokenizer_close(&t);
    }
    assert_true(opened > 10 && opened < 950); /* both happen */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_merges_by_rank_then_from_the_left),
        TEST(test_stale_offers_are_dropped),
        TEST(test_ignore_merges_takes_whole_pieces),
        TEST(test_long_pieces_are_not_quadratic),
        TEST(test_splits),
        TEST(test_added_tokens),
        TEST(test_what_is_put_around_a_text),
        TEST(test_case44_any_bytes_encode),
        TEST(test_case44_stream_equals_decode),
        TEST(test_stream_refuses_too_little_room),
        TEST(test_refusals),
        TEST(test_mutated_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
