/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of kernels.def, attention first, and the cases of the other ops. */
#include <math.h>
#include <string.h>

#include "core/status.h"
#include "tests/check/check.h"

int plait_check_item_get(int32_t i, plait_check_item *item)
{
    const plait_kernel *kernel = plait_kernel_get(i);
    const plait_routine *routine = kernel ? NULL : plait_routine_get(i - plait_kernel_count());
    if (!kernel && !routine)
        return 0;
    *item = (plait_check_item){.name = kernel ? kernel->name : routine->name,
                               .needs = kernel ? kernel->needs : routine->needs,
                               .kernel = kernel,
                               .routine = routine};
    return 1;
}

static const char *check_case(const plait_routine *routine, uint64_t seed, int32_t number,
                              double *worst, char *text)
{
    plait_random r = {seed * 1000003u + (uint64_t)number};
    switch (routine->op) {
    case PLAIT_ROUTINE_MERGE:
        return plait_check_merge(routine, &r, number, worst, text);
    case PLAIT_ROUTINE_APPEND:
        return plait_check_append(routine, &r, number, text);
    default:
        return plait_check_gather(routine, &r, number, text);
    }
}

plait_check_counts plait_check_run(const plait_check_item *item, plait_cpu_features features,
                                   uint64_t seed, int32_t cases, FILE *to)
{
    plait_check_counts n = {0, 0, 0, 0};
    if (item->kernel)
        return plait_check_kernel(item->kernel, features, seed, cases, to);
    for (int32_t i = 0; i < cases; i++) {
        char text[200] = "";
        double worst = 0;
        const int skip = (item->needs & ~features) != 0;
        const char *why = skip ? NULL : check_case(item->routine, seed, i, &worst, text);
        n.skipped += skip;
        n.failed += why != NULL;
        n.passed += !why && !skip;
        n.worst = fmax(n.worst, worst);
        if (why && n.failed <= 10)
            fprintf(to, "FAILED %s case %d seed %llu: %s: %s\n", item->name, i,
                    (unsigned long long)seed, text, why);
    }
    return n;
}
