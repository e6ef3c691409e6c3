/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core/trace.h - records spans of one thread into memory that is taken once. A NULL trace records
 * nothing and costs a comparison.
 */
#ifndef PLAIT_CORE_TRACE_H
#define PLAIT_CORE_TRACE_H

#include <stddef.h>

#include <plait/status.h>
#include <plait/trace.h>

enum { PLAIT_TRACE_SPANS = 1 << 20 };

typedef struct plait_trace {
    plait_trace_span *spans;
    int64_t num, capacity;
    int64_t dropped; /* spans for which there was no room */
} plait_trace;

plait_status plait_trace_open(plait_trace *trace, int64_t capacity);
void plait_trace_close(plait_trace *trace);

int64_t plait_trace_now(void);
void plait_trace_add(plait_trace *trace, const char *name, int64_t begin_ns, int32_t rows);

static inline int64_t plait_trace_begin(const plait_trace *trace)
{
    return trace ? plait_trace_now() : 0;
}

static inline void plait_trace_end(plait_trace *trace, const char *name, int64_t begin_ns,
                                   int32_t rows)
{
    if (trace)
        plait_trace_add(trace, name, begin_ns, rows);
}

#endif
