/* SPDX-License-Identifier: Apache-2.0 */
/* trace.c: the memory of core/trace.h. */
#include "core/trace.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/status.h"

plait_status plait_trace_open(plait_trace *t, int64_t capacity)
{
    memset(t, 0, sizeof *t);
    t->spans = malloc((size_t)capacity * sizeof *t->spans);
    if (!t->spans)
        return plait_fail(PLAIT_E_NOMEM, "no memory for a trace of %lld spans",
                          (long long)capacity);
    t->capacity = capacity;
    return PLAIT_OK;
}

void plait_trace_close(plait_trace *t)
{
    free(t->spans);
    memset(t, 0, sizeof *t);
}

int64_t plait_trace_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void plait_trace_add(plait_trace *t, const char *name, int64_t begin_ns, int32_t rows)
{
    if (t->num == t->capacity) {
        t->dropped++;
        return;
    }
    t->spans[t->num++] = (plait_trace_span){name, begin_ns, plait_trace_now() - begin_ns, rows};
}
