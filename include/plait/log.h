/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/log.h - where the library's messages go.
 *
 * The library prints nothing by itself: without a sink, messages are dropped. A notice tells of a
 * decision that a user may not expect (a fallback, a skipped layer). It reaches the sink once per
 * process for each text, however many layers, steps and ranks meet it; how often it was met can be
 * asked.
 */
#ifndef PLAIT_LOG_H
#define PLAIT_LOG_H

#include <stddef.h>
#include <stdint.h>

#include <plait/version.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum plait_log_level {
    PLAIT_LOG_DEBUG = 0,
    PLAIT_LOG_INFO = 1,
    PLAIT_LOG_NOTICE = 2,
    PLAIT_LOG_WARNING = 3
} plait_log_level;

/* text: one line without a newline; it does not outlive the call. May be called from any thread,
   one call at a time (the library holds a lock around it), so it must not call the library. */
typedef void (*plait_log_fn)(void *user, plait_log_level level, const char *text);

/* Sets the process's sink; fn NULL drops messages. Messages below `least` are dropped.
   Thread-safe. */
PLAIT_API void plait_log_set_sink(plait_log_fn fn, void *user, plait_log_level least);

/* Number of distinct notices so far in this process. Thread-safe. */
PLAIT_API size_t plait_notice_count(void);

/* Text of notice i in order of first appearance, NULL when i is out of range; *times (may be NULL)
   receives how often it was met. The string lives as long as the process. Thread-safe. */
PLAIT_API const char *plait_notice_get(size_t i, uint64_t *times);

#ifdef __cplusplus
}
#endif
#endif
