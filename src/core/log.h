/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core/log.h - messages of the library, to the sink of plait/log.h.
 */
#ifndef PLAIT_CORE_LOG_H
#define PLAIT_CORE_LOG_H

#include <plait/log.h>

/* One line to the sink; dropped without one. Not for notices. Thread-safe. */
void plait_log(plait_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Counts a notice and sends it to the sink at its first appearance in this process. Name what is
   decided, not the layer, step or rank that met it, or the text differs each time. Does not
   allocate. Thread-safe. */
void plait_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
