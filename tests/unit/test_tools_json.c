/* SPDX-License-Identifier: Apache-2.0 */
/* The command's JSON writer: nesting, escaping, and bytes that are no UTF-8. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/json.h"
#include "unit.h"

/* Writes one text value and compares what came out. */
static void expect(const char *text, size_t n, const char *want)
{
    char *out = NULL;
    size_t size = 0;
    plait_emit j = {open_memstream(&out, &size), 0};
    assert_non_null(j.to);
    plait_emit_text_n(&j, text, n);
    fclose(j.to);
    assert_string_equal(out, want);
    free(out);
}

static void text_is_escaped(void **state)
{
    (void)state;
    expect("a\"b\\c/\b\f\n\r\t", 11, "\"a\\\"b\\\\c/\\b\\f\\n\\r\\t\"");
    expect("\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\\u007f\"");
    expect("", 0, "\"\"");
    expect("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
}

/* Each maximal part that is no character becomes one U+FFFD; what follows it is kept. */
static void invalid_utf8_is_replaced(void **state)
{
    (void)state;
    expect("\xff", 1, "\"\\ufffd\"");
    expect("\x80x", 2, "\"\\ufffdx\"");
    expect("\xe2\x82", 2, "\"\\ufffd\"");        /* cut at the end */
    expect("\xe2\x82\"", 3, "\"\\ufffd\\\"\"");  /* the quote is still escaped */
    expect("\xc0\xaf", 2, "\"\\ufffd\\ufffd\""); /* overlong */
    expect("\xe0\x80\x80", 3, "\"\\ufffd\\ufffd\\ufffd\"");
    expect("\xed\xa0\x80", 3, "\"\\ufffd\\ufffd\\ufffd\"");            /* a surrogate */
    expect("\xf4\x90\x80\x80", 4, "\"\\ufffd\\ufffd\\ufffd\\ufffd\""); /* above U+10FFFF */
    expect("\xf0\x9f\x98 \xc3\xa9", 6, "\"\\ufffd \xc3\xa9\"");
}

static void values_nest(void **state)
{
    (void)state;
    char *out = NULL;
    size_t size = 0;
    plait_emit j = {open_memstream(&out, &size), 0};
    assert_non_null(j.to);
    plait_emit_open(&j, '{');
    plait_emit_key(&j, "a");
    plait_emit_open(&j, '[');
    plait_emit_int(&j, INT64_MIN);
    plait_emit_number(&j, 0.5);
    plait_emit_open(&j, '[');
    plait_emit_close(&j, ']');
    plait_emit_bool(&j, 2);
    plait_emit_close(&j, ']');
    plait_emit_key(&j, "b");
    plait_emit_number(&j, NAN);
    plait_emit_key(&j, "c");
    plait_emit_number(&j, INFINITY);
    plait_emit_close(&j, '}');
    fclose(j.to);
    assert_string_equal(out, "{\"a\": [-9223372036854775808, 0.5, [], true], \"b\": null, "
                             "\"c\": null}");
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_escaped),
        cmocka_unit_test(invalid_utf8_is_replaced),
        cmocka_unit_test(values_nest),
    };
    return cmocka_run_group_tests_name("tools_json", tests, NULL, NULL);
}
