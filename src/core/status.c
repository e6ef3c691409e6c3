/* SPDX-License-Identifier: Apache-2.0 */
#include "core/status.h"

#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[PLAIT_ERROR_BYTES];

const char *plait_version(void)
{
    return PLAIT_VERSION_STRING;
}

const char *plait_status_name(plait_status status)
{
    switch (status) {
    case PLAIT_OK:
        return "PLAIT_OK";
    case PLAIT_E_ARG:
        return "PLAIT_E_ARG";
    case PLAIT_E_UNSUPPORTED:
        return "PLAIT_E_UNSUPPORTED";
    case PLAIT_E_NOMEM:
        return "PLAIT_E_NOMEM";
    case PLAIT_E_DEVICE:
        return "PLAIT_E_DEVICE";
    case PLAIT_E_COMM:
        return "PLAIT_E_COMM";
    case PLAIT_E_IO:
        return "PLAIT_E_IO";
    case PLAIT_E_FORMAT:
        return "PLAIT_E_FORMAT";
    case PLAIT_E_STATE:
        return "PLAIT_E_STATE";
    }
    return "PLAIT_E_?";
}

const char *plait_last_error(void)
{
    return last_error;
}

plait_status plait_fail_v(plait_status status, const char *format, va_list args)
{
    /* Arguments may point into the old sentence, so the new one is written beside it. */
    char text[sizeof last_error];
    const int length = vsnprintf(text, sizeof text, format, args);
    if (length >= (int)sizeof text)
        memcpy(text + sizeof text - 4, "...", 4);
    /* Text from a file must not steer the terminal that shows it. */
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c < ' ' || *c == 0x7f)
            *c = '?';
    memcpy(last_error, text, strlen(text) + 1);
    return status;
}

plait_status plait_fail(plait_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    plait_fail_v(status, format, args);
    va_end(args);
    return status;
}
