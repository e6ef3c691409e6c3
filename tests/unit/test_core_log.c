/* SPDX-License-Identifier: Apache-2.0 */
/* The log sink and notices that appear once per process (case 51). */
#include "core/log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "unit.h"

struct seen {
    int lines;
    plait_log_level level;
    char text[600];
};

static void record(void *user, plait_log_level level, const char *text)
{
    struct seen *seen = user;
    seen->lines++;
    seen->level = level;
    snprintf(seen->text, sizeof seen->text, "%s", text);
}

/* How often the notice with this text was met; 0 when there is none. */
static uint64_t times_of(const char *wanted)
{
    uint64_t times = 0;
    const char *text;
    for (size_t i = 0; (text = plait_notice_get(i, &times)) != NULL; i++) {
        if (strcmp(text, wanted) == 0)
            return times;
    }
    return 0;
}

static void test_without_a_sink_messages_are_dropped(void **state)
{
    (void)state;
    plait_log_set_sink(NULL, NULL, PLAIT_LOG_DEBUG);
    plait_log(PLAIT_LOG_WARNING, "nobody hears %d", 1);
    plait_notice("unheard");
    assert_int_equal(times_of("unheard"), 1);
}

static void test_level_filter(void **state)
{
    (void)state;
    struct seen seen = {0};
    plait_log_set_sink(record, &seen, PLAIT_LOG_NOTICE);
    plait_log(PLAIT_LOG_INFO, "low");
    assert_int_equal(seen.lines, 0);
    plait_log(PLAIT_LOG_WARNING, "high %s", "one");
    assert_int_equal(seen.lines, 1);
    assert_int_equal(seen.level, PLAIT_LOG_WARNING);
    assert_string_equal(seen.text, "high one");
    plait_log_set_sink(NULL, NULL, PLAIT_LOG_DEBUG);
}

static void *one_rank(void *arg)
{
    (void)arg;
    for (int step = 0; step < 100; step++) {
        for (int layer = 0; layer < 60; layer++)
            plait_notice("attention falls back to %s", "mla_ref");
    }
    return NULL;
}

/* Case 51: 60 layers x 100 steps x 8 ranks meet the same condition. */
static void test_notice_appears_once_and_is_counted(void **state)
{
    (void)state;
    struct seen seen = {0};
    pthread_t ranks[8];
    plait_log_set_sink(record, &seen, PLAIT_LOG_DEBUG);
    const size_t before = plait_notice_count();
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&ranks[i], NULL, one_rank, NULL), 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_join(ranks[i], NULL), 0);
    plait_log_set_sink(NULL, NULL, PLAIT_LOG_DEBUG);
    assert_int_equal(seen.lines, 1);
    assert_int_equal(seen.level, PLAIT_LOG_NOTICE);
    assert_int_equal(plait_notice_count(), before + 1);
    assert_int_equal(times_of("attention falls back to mla_ref"), 60 * 100 * 8);
}

static void test_out_of_range_notice_is_null(void **state)
{
    (void)state;
    uint64_t times = 7;
    assert_null(plait_notice_get(plait_notice_count(), &times));
    assert_int_equal(times, 0);
    assert_null(plait_notice_get(SIZE_MAX, NULL));
}

/* Last of the group, since it fills the table. */
static void test_full_table_goes_on_counting(void **state)
{
    (void)state;
    struct seen seen = {0};
    plait_log_set_sink(record, &seen, PLAIT_LOG_DEBUG);
    for (int i = 0; i < 1000; i++)
        plait_notice("notice %d", i);
    plait_log_set_sink(NULL, NULL, PLAIT_LOG_DEBUG);
    const size_t count = plait_notice_count();
    assert_true(count < 1000);
    uint64_t times;
    assert_non_null(strstr(plait_notice_get(count - 1, &times), "more notices"));
    assert_int_equal(times_of("notice 0"), 1);
    assert_true(seen.lines < 1000);
    /* Every call is counted somewhere: those that were kept once, the rest in the last entry. */
    assert_int_equal((uint64_t)seen.lines - 1 + times, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_sink_messages_are_dropped),
        cmocka_unit_test(test_level_filter),
        cmocka_unit_test(test_notice_appears_once_and_is_counted),
        cmocka_unit_test(test_out_of_range_notice_is_null),
        cmocka_unit_test(test_full_table_goes_on_counting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
