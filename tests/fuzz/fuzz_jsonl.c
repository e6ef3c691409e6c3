/* SPDX-License-Identifier: Apache-2.0 */
/* Requests as JSON Lines: a file is refused whole with sentences, or all its requests are in their
   bounds and go through the writer. */
#include "fuzz.h"
#include "tools/json.h"
#include "tools/jsonl.h"

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}

static void check_line(const plait_line *l, plait_emit *emit)
{
    CHECK(l->number > 0 && l->prompt && l->prompt_bytes > 0 && l->prompt[l->prompt_bytes] == 0);
    CHECK(l->max_new_tokens >= 1 && l->top_k >= 0);
    CHECK(l->temperature >= 0 && l->temperature <= 1e6 && l->top_p > 0 && l->top_p <= 1);
    CHECK(l->num_stops >= 0 && l->num_stops <= PLAIT_LINE_STOPS);
    plait_emit_text_n(emit, l->prompt, l->prompt_bytes);
    for (int32_t i = 0; i < l->num_stops; i++) {
        CHECK(*l->stops[i]);
        plait_emit_text(emit, l->stops[i]);
    }
    for (size_t i = 0; i < l->prompt_bytes;) {
        const int n = plait_json_character(l->prompt + i, l->prompt_bytes - i);
        CHECK(n > 0); /* texts are UTF-8 */
        i += (size_t)n;
    }
}

int fuzz_one(const uint8_t *data, size_t size)
{
    static const char *stops[] = {"END"};
    const plait_line defaults = {.max_new_tokens = 7, .stops = stops, .num_stops = 1, .top_p = 1};
    char *said = NULL, *written = NULL;
    size_t said_bytes = 0, written_bytes = 0;
    plait_lines lines;
    FILE *errors = open_memstream(&said, &said_bytes);
    plait_emit emit = {open_memstream(&written, &written_bytes), 0};
    CHECK(errors && emit.to);
    const int status = plait_lines_read((const char *)data, size, "F", &defaults, errors, &lines);
    CHECK(fclose(errors) == 0);
    CHECK(status == 0 ? said_bytes == 0 : status == -1 && said_bytes > 0);
    CHECK(status == 0 ? lines.n > 0 : lines.n == 0 && !lines.lines);
    for (int32_t i = 0; i < lines.n; i++)
        check_line(&lines.lines[i], &emit);
    CHECK(fclose(emit.to) == 0);
    plait_lines_free(&lines);
    free(said);
    free(written);
    return 0;
}
