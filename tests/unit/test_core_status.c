/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes, the last-error sentence of each thread, versions and element types. */
#include "core/status.h"

#include <plait/dtype.h>
#include <plait/version.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "unit.h"

static void test_values_are_pinned(void **state)
{
    (void)state;
    assert_int_equal(PLAIT_OK, 0);
    assert_int_equal(PLAIT_E_ARG, -1);
    assert_int_equal(PLAIT_E_UNSUPPORTED, -2);
    assert_int_equal(PLAIT_E_NOMEM, -3);
    assert_int_equal(PLAIT_E_DEVICE, -4);
    assert_int_equal(PLAIT_E_COMM, -5);
    assert_int_equal(PLAIT_E_IO, -6);
    assert_int_equal(PLAIT_E_FORMAT, -7);
    assert_int_equal(PLAIT_E_STATE, -8);
}

static void test_every_status_has_a_name(void **state)
{
    (void)state;
    assert_string_equal(plait_status_name(PLAIT_OK), "PLAIT_OK");
    assert_string_equal(plait_status_name(PLAIT_E_ARG), "PLAIT_E_ARG");
    assert_string_equal(plait_status_name(PLAIT_E_STATE), "PLAIT_E_STATE");
    for (int value = -8; value <= 0; value++)
        assert_null(strchr(plait_status_name((plait_status)value), '?'));
    assert_string_equal(plait_status_name((plait_status)-9), "PLAIT_E_?");
    assert_string_equal(plait_status_name((plait_status)1), "PLAIT_E_?");
}

static plait_status forward(plait_status status, int *reached)
{
    PLAIT_TRY(status);
    *reached = 1;
    return PLAIT_OK;
}

static void test_failure_writes_a_sentence_and_try_forwards(void **state)
{
    (void)state;
    int reached = 0;
    assert_int_equal(forward(plait_fail(PLAIT_E_IO, "%s: %d bytes", "a.bin", 7), &reached),
                     PLAIT_E_IO);
    assert_int_equal(reached, 0);
    assert_string_equal(plait_last_error(), "a.bin: 7 bytes");
    assert_int_equal(forward(PLAIT_OK, &reached), PLAIT_OK);
    assert_int_equal(reached, 1);
    assert_string_equal(plait_last_error(), "a.bin: 7 bytes"); /* success clears nothing */
}

static void test_control_characters_are_replaced(void **state)
{
    (void)state;
    plait_fail(PLAIT_E_FORMAT, "dtype \"%s\"", "\33[2J\n\177\303\244");
    assert_string_equal(plait_last_error(), "dtype \"?[2J??\303\244\"");
}

static void test_sentence_may_quote_the_one_before(void **state)
{
    (void)state;
    plait_fail(PLAIT_E_ARG, "inner");
    plait_fail(PLAIT_E_ARG, "outer (%s)", plait_last_error());
    assert_string_equal(plait_last_error(), "outer (inner)");
}

static void test_long_sentence_is_cut_visibly(void **state)
{
    (void)state;
    char text[2 * PLAIT_ERROR_BYTES];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    plait_fail(PLAIT_E_ARG, "%s", text);
    assert_int_equal(strlen(plait_last_error()), PLAIT_ERROR_BYTES - 1);
    assert_string_equal(plait_last_error() + PLAIT_ERROR_BYTES - 5, "x...");
    text[PLAIT_ERROR_BYTES - 1] = 0; /* just fits: not cut */
    plait_fail(PLAIT_E_ARG, "%s", text);
    assert_string_equal(plait_last_error(), text);
}

static void *fail_elsewhere(void *seen)
{
    snprintf(seen, 64, "%s", plait_last_error());
    plait_fail(PLAIT_E_STATE, "elsewhere");
    return NULL;
}

static void test_each_thread_has_its_own_sentence(void **state)
{
    (void)state;
    char seen[64] = "x";
    pthread_t thread;
    plait_fail(PLAIT_E_ARG, "here");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, seen), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(seen, "");
    assert_string_equal(plait_last_error(), "here");
}

static void test_version_of_header_and_library_agree(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", PLAIT_VERSION_MAJOR, PLAIT_VERSION_MINOR,
             PLAIT_VERSION_PATCH);
    assert_string_equal(plait_version(), text);
    assert_string_equal(plait_version(), PLAIT_VERSION_STRING);
    assert_string_equal(plait_version(), PLAIT_BUILD_VERSION);
}

static void test_dtypes(void **state)
{
    (void)state;
    static const size_t bytes[] = {4, 2, 2, 1, 656};
    static const char *const names[] = {"f32", "bf16", "f16", "fp8", "fp8_ds656"};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(plait_dtype_bytes((plait_dtype)i), bytes[i]);
        assert_string_equal(plait_dtype_name((plait_dtype)i), names[i]);
    }
    assert_int_equal(plait_dtype_bytes((plait_dtype)5), 0);
    assert_int_equal(plait_dtype_bytes((plait_dtype)-1), 0);
    assert_string_equal(plait_dtype_name((plait_dtype)-1), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_pinned),
        cmocka_unit_test(test_every_status_has_a_name),
        cmocka_unit_test(test_failure_writes_a_sentence_and_try_forwards),
        cmocka_unit_test(test_control_characters_are_replaced),
        cmocka_unit_test(test_sentence_may_quote_the_one_before),
        cmocka_unit_test(test_long_sentence_is_cut_visibly),
        cmocka_unit_test(test_each_thread_has_its_own_sentence),
        cmocka_unit_test(test_version_of_header_and_library_agree),
        cmocka_unit_test(test_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
