/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/trace.h - where the time of a rank went: spans that lie beside each other or one in
 * another.
 *
 * Thread-safe while nothing records: between calls of the engine.
 */
#ifndef PLAIT_TRACE_H
#define PLAIT_TRACE_H

#include <stdint.h>

typedef struct plait_trace_span {
    const char *name;     /* static text */
    int64_t begin_ns, ns; /* of the monotonic clock */
    int32_t rows;         /* tokens that it was about */
} plait_trace_span;

#endif
