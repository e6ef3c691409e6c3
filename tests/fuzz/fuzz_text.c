/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes through the bundled tokenizer: text comes back as it was, in one piece and token by
   token; the first byte chooses between a text and token ids. */
#include <plait/status.h>

#include "engine/tokenizer.h"
#include "fuzz.h"

static plait_tokenizer *tokenizer;

static void close_tokenizer(void)
{
    plait_tokenizer_close(&tokenizer);
}

/* Length of the well-formed character at s, 0 if there is none (Unicode 15, table 3-7). */
static size_t character(const uint8_t *s, size_t n)
{
    const uint8_t a = s[0], low = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80;
    const uint8_t high = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
    const size_t length = a < 0x80                ? 1
                          : a >= 0xc2 && a < 0xe0 ? 2
                          : a >= 0xe0 && a < 0xf0 ? 3
                          : a >= 0xf0 && a < 0xf5 ? 4
                                                  : 0;
    if (length > n || (length > 1 && (s[1] < low || s[1] > high)))
        return 0;
    for (size_t i = 2; i < length; i++)
        if (s[i] < 0x80 || s[i] > 0xbf)
            return 0;
    return length;
}

static bool is_utf8(const uint8_t *s, size_t n)
{
    for (size_t i = 0, length; i < n; i += length)
        if ((length = character(s + i, n - i)) == 0)
            return false;
    return true;
}

/* Decoding token by token gives the text that decoding all gives, which is UTF-8. */
static void check_decoding(const int32_t *ids, size_t n, bool skip_special, const uint8_t *want,
                           size_t want_bytes)
{
    plait_text_stream stream = {0};
    const size_t most = plait_tokenizer_max_push(tokenizer);
    char *text, *out = malloc(most);
    size_t bytes, at = 0, pushed;
    CHECK(out);
    CHECK(plait_tokenizer_decode(tokenizer, ids, n, skip_special, &text, &bytes) == PLAIT_OK);
    CHECK(text[bytes] == 0 && is_utf8((const uint8_t *)text, bytes));
    CHECK(!want || (bytes == want_bytes && memcmp(text, want, bytes) == 0));
    for (size_t i = 0; i < n; i++) {
        CHECK(plait_text_stream_push(&stream, tokenizer, ids[i], skip_special, out, most,
                                     &pushed) == PLAIT_OK);
        CHECK(pushed <= bytes - at && memcmp(text + at, out, pushed) == 0);
        at += pushed;
    }
    char tail[3];
    pushed = plait_text_stream_finish(&stream, tail);
    CHECK(pushed == bytes - at && memcmp(text + at, tail, pushed) == 0);
    free(text);
    free(out);
}

int fuzz_one(const uint8_t *data, size_t size)
{
    if (!tokenizer) {
        CHECK(plait_tokenizer_open(PLAIT_SOURCE_DIR "/models/tiny", &tokenizer) == PLAIT_OK);
        atexit(close_tokenizer);
    }
    if (size == 0)
        return 0;
    const uint8_t *rest = data + 1;
    const size_t n = size - 1;
    if (data[0] % 2) { /* two bytes an id, some of them outside the vocabulary */
        int32_t *ids = malloc((n / 2 + 1) * sizeof *ids);
        CHECK(ids);
        for (size_t i = 0; i < n / 2; i++)
            ids[i] = (int32_t)(rest[2 * i] | rest[2 * i + 1] << 8) % 2100 - 10;
        check_decoding(ids, n / 2, data[0] & 2, NULL, 0);
        free(ids);
        return 0;
    }
    int32_t *ids;
    size_t count;
    CHECK(plait_tokenizer_encode(tokenizer, (const char *)rest, n, false, &ids, &count) ==
          PLAIT_OK);
    CHECK(count <= n);
    check_decoding(ids, count, false, is_utf8(rest, n) ? rest : NULL, n);
    free(ids);
    return 0;
}
