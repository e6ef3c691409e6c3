/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of `plait check` for the kernels of one name pattern, up to the first failure.
 * mutants.sh links it with a kernel that has a planted fault.
 *
 *   check_mutant PATTERN     exit 0: all pass; 1: a case fails, told on stdout; 3: none can run
 * here
 */
#include <stdio.h>

#include <plait/cpu.h>

#include "tests/check/check.h"

int main(int argc, char **argv)
{
    static const int32_t cases[] = {12, 48, PLAIT_CHECK_CASES}; /* most faults show early */
    plait_check_counts n = {0, 0, 0, 0};
    plait_check_item item;
    int64_t passed = 0;
    plait_guard_seconds = 3;
    for (int step = 0; step < 3 && argc == 2; step++)
        for (int32_t i = 0; plait_check_item_get(i, &item); i++) {
            if (!plait_kernel_match(item.name, argv[1]))
                continue;
            n = plait_check_run(&item, plait_cpu_detect(), 0, cases[step], stdout);
            passed += n.passed;
            if (n.failed)
                return 1;
        }
    return passed ? 0 : 3;
}
