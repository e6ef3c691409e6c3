/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json, and tokenizer_config.json after a NUL byte: a file that opens encodes any text to
 * ids of its own, and decodes all of them. */
#include <plait/status.h>

#include "engine/tokenizer.h"
#include "fuzz.h"

static void encode_and_decode(const plait_tokenizer *t, const char *text, size_t bytes)
{
    int32_t *ids;
    size_t n, back_bytes;
    char *back;
    if (plait_tokenizer_encode(t, text, bytes, true, &ids, &n) != PLAIT_OK) {
        CHECK(*plait_last_error()); /* a file may lack byte tokens */
        return;
    }
    for (size_t i = 0; i < n; i++)
        CHECK(ids[i] >= 0 && ids[i] < plait_tokenizer_vocab_size(t));
    CHECK(plait_tokenizer_decode(t, ids, n, false, &back, &back_bytes) == PLAIT_OK);
    CHECK(strlen(back) <= back_bytes);
    free(back);
    free(ids);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}

int fuzz_one(const uint8_t *data, size_t size)
{
    static const char *const texts[] = {
        "", "a", "Hello, world! 12345\r\n\n  x", "<s>\xc3\xa9\xe6\x97\xa5\xf0\x9f\x99\x82</s>",
        "\xff\xfe\x80 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"};
    plait_tokenizer *t;
    fuzz_put_two("tokenizer.json", "tokenizer_config.json", data, size);
    if (plait_tokenizer_open(fuzz_folder(), &t) != PLAIT_OK) {
        CHECK(!t && *plait_last_error());
        return 0;
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        encode_and_decode(t, texts[i], strlen(texts[i]));
    encode_and_decode(t, (const char *)data, size < 256 ? size : 256);
    const int32_t all = plait_tokenizer_vocab_size(t);
    const size_t most = plait_tokenizer_max_push(t);
    plait_text_stream stream = {0};
    char *out = malloc(most ? most : 1); /* of exactly the size that is asked for */
    CHECK(out);
    for (int32_t id = -1; id <= all && id < 4096; id++) {
        char *text;
        size_t bytes;
        CHECK(plait_text_stream_push(&stream, t, id, false, out, most, &bytes) == PLAIT_OK);
        CHECK(bytes <= most);
        CHECK(plait_tokenizer_decode(t, &id, 1, false, &text, &bytes) == PLAIT_OK);
        free(text);
        plait_tokenizer_is_special(t, id);
    }
    free(out);
    plait_tokenizer_close(&t);
    return 0;
}
