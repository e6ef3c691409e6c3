/* SPDX-License-Identifier: Apache-2.0 */
/* models/tiny's tokenizer against the ids that the `tokenizers` library gives (case 44);
   tests/vectors/README.md states the format. */
#include "engine/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

enum { MAX_LINE = 1 << 14, LEAST = 200 };

static int nibble(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Hexadecimal up to the tab; returns what follows it. */
static char *read_text(char *line, char *text, size_t *bytes)
{
    *bytes = 0;
    if (*line == '-')
        line++;
    for (; *line != '\t'; line += 2) {
        assert_true(nibble(line[0]) >= 0 && nibble(line[1]) >= 0);
        text[(*bytes)++] = (char)(nibble(line[0]) << 4 | nibble(line[1]));
    }
    return line + 1;
}

static size_t read_ids(char *at, int32_t *ids)
{
    size_t n = 0;
    for (char *end;; at = end) {
        const long id = strtol(at, &end, 10);
        if (end == at)
            return n;
        ids[n++] = (int32_t)id;
    }
}

static void compare(const plait_tokenizer *t, const char *text, size_t bytes, const int32_t *wanted,
                    size_t n_wanted, int line)
{
    int32_t *ids;
    size_t n, n_back;
    char *back;
    assert_int_equal(plait_tokenizer_encode(t, text, bytes, false, &ids, &n), PLAIT_OK);
    if (n != n_wanted || (n > 0 && memcmp(ids, wanted, n * sizeof *ids) != 0))
        fail_msg("line %d: other ids than in tokenizer.txt", line);
    assert_int_equal(plait_tokenizer_decode(t, ids, n, false, &back, &n_back), PLAIT_OK);
    if (n_back != bytes || memcmp(back, text, bytes) != 0)
        fail_msg("line %d: decodes to \"%s\"", line, back);
    free(back);
    free(ids);
}

static void test_case44_ids_equal_those_of_tokenizers(void **state)
{
    (void)state;
    static char line[MAX_LINE], text[MAX_LINE];
    static int32_t wanted[MAX_LINE];
    plait_tokenizer *t;
    int lines = 0;
    FILE *file = fopen(PLAIT_SOURCE_DIR "/tests/vectors/tokenizer.txt", "r");
    assert_non_null(file);
    assert_int_equal(plait_tokenizer_open(PLAIT_SOURCE_DIR "/models/tiny", &t), PLAIT_OK);
    while (fgets(line, sizeof line, file)) {
        size_t bytes;
        assert_non_null(strchr(line, '\t'));
        char *rest = read_text(line, text, &bytes);
        compare(t, text, bytes, wanted, read_ids(rest, wanted), ++lines);
    }
    fclose(file);
    plait_tokenizer_close(&t);
    assert_true(lines >= LEAST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_case44_ids_equal_those_of_tokenizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
