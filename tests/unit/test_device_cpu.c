/* SPDX-License-Identifier: Apache-2.0 */
/* Feature bits of the processor, their levels and names (case 46). */
#include <plait/cpu.h>

#include <stdio.h>
#include <string.h>

#include "unit.h"

static void test_levels_hold_those_before_them(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        plait_cpu_features features;
    } levels[] = {{"none", 0},
                  {"avx2", PLAIT_CPU_AVX2},
                  {"avx512", PLAIT_CPU_AVX2 | PLAIT_CPU_AVX512},
                  {"avx512bf16", PLAIT_CPU_AVX2 | PLAIT_CPU_AVX512 | PLAIT_CPU_AVX512BF16},
                  {"amx", PLAIT_CPU_AVX2 | PLAIT_CPU_AVX512 | PLAIT_CPU_AVX512BF16 | PLAIT_CPU_AMX},
                  {"all", PLAIT_CPU_ALL}};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        plait_cpu_features features = 12345;
        assert_int_equal(plait_cpu_level(levels[i].name, &features), PLAIT_OK);
        assert_int_equal(features, levels[i].features);
    }
}

static void test_unknown_level_is_refused_by_name(void **state)
{
    (void)state;
    plait_cpu_features features = 12345;
    const char *const bad[] = {"sse9", "", "AVX2", "avx2 ", "avx"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(plait_cpu_level(bad[i], &features), PLAIT_E_ARG);
        assert_int_equal(features, 12345);
        assert_non_null(strstr(plait_last_error(), bad[i]));
        assert_non_null(strstr(plait_last_error(), "avx512bf16"));
    }
    assert_int_equal(plait_cpu_level(NULL, &features), PLAIT_E_ARG);
}

static void test_names(void **state)
{
    (void)state;
    char text[64];
    assert_string_equal(plait_cpu_names(0, text, sizeof text), "none");
    assert_string_equal(plait_cpu_names(PLAIT_CPU_AVX512, text, sizeof text), "avx512");
    assert_string_equal(plait_cpu_names(PLAIT_CPU_AVX2 | PLAIT_CPU_AMX, text, sizeof text),
                        "avx2+amx");
    char small[8];
    memset(small, 'x', sizeof small);
    assert_string_equal(plait_cpu_names(PLAIT_CPU_AVX2 | PLAIT_CPU_AMX, small, 7), "avx2+a");
    assert_int_equal(small[7], 'x');
    plait_cpu_names(PLAIT_CPU_AVX2, small, 0);
    assert_int_equal(small[7], 'x');
}

/* The kernel's list of flags is an independent reading of the same bits. */
static void test_detection_agrees_with_the_kernel(void **state)
{
    (void)state;
    static char line[65536];
    FILE *file = fopen("/proc/cpuinfo", "r");
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file))
        found = strncmp(line, "flags", 5) == 0;
    if (file)
        fclose(file);
    if (!found) {
        print_message("/proc/cpuinfo lists no flags here\n");
        skip();
    }
    line[strcspn(line, "\n")] = ' ';
    const plait_cpu_features features = plait_cpu_detect();
    const int avx2 = strstr(line, " avx2 ") && strstr(line, " fma ") && strstr(line, " f16c ");
    const int avx512 = strstr(line, " avx512f ") && strstr(line, " avx512bw ") &&
                       strstr(line, " avx512dq ") && strstr(line, " avx512vl ");
    assert_int_equal((features & PLAIT_CPU_AVX2) != 0, avx2);
    assert_int_equal((features & PLAIT_CPU_AVX512) != 0, avx2 && avx512);
    assert_int_equal((features & PLAIT_CPU_AVX512BF16) != 0,
                     avx2 && avx512 && strstr(line, " avx512_bf16 "));
    if (features & PLAIT_CPU_AMX)
        assert_non_null(strstr(line, " amx_bf16 "));
    assert_int_equal(
        features & ~(PLAIT_CPU_AVX2 | PLAIT_CPU_AVX512 | PLAIT_CPU_AVX512BF16 | PLAIT_CPU_AMX), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels_hold_those_before_them),
        cmocka_unit_test(test_unknown_level_is_refused_by_name),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_detection_agrees_with_the_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
