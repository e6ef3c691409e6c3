/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core/status.h - how the library fails: one call writes the sentence and gives the code.
 */
#ifndef PLAIT_CORE_STATUS_H
#define PLAIT_CORE_STATUS_H

#include <stdarg.h>

#include <plait/status.h>

/* Room for a sentence with its closing 0; what does not fit is cut and ends in "...". */
enum { PLAIT_ERROR_BYTES = 2048 };

/* Writes the calling thread's last-error sentence and returns `status`. */
plait_status plait_fail(plait_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same with a va_list. */
plait_status plait_fail_v(plait_status status, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));

/* Forwards a failure. A macro because it returns from the caller. */
#define PLAIT_TRY(expr)                                                                            \
    do {                                                                                           \
        plait_status plait_try_status = (expr);                                                    \
        if (plait_try_status != PLAIT_OK)                                                          \
            return plait_try_status;                                                               \
    } while (0)

#endif
