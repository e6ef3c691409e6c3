/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/status.h - status codes and the sentence that goes with the last failure.
 *
 * Every function that can fail returns a plait_status. Values are pinned: they never change and
 * are never reused. A caller's bug, a thing that nothing implements and lack of memory have
 * different codes. A failing call leaves its outputs untouched or zeroed.
 */
#ifndef PLAIT_STATUS_H
#define PLAIT_STATUS_H

#include <plait/version.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum plait_status {
    PLAIT_OK = 0,
    PLAIT_E_ARG = -1,         /* an argument is outside its stated domain */
    PLAIT_E_UNSUPPORTED = -2, /* valid, but nothing here implements it */
    PLAIT_E_NOMEM = -3,       /* memory or a fixed capacity is exhausted */
    PLAIT_E_DEVICE = -4,      /* a device or driver call failed */
    PLAIT_E_COMM = -5,        /* a rank is dead, late, or disagrees */
    PLAIT_E_IO = -6,          /* a file cannot be opened, read or mapped */
    PLAIT_E_FORMAT = -7,      /* a file's content is not what it should be */
    PLAIT_E_STATE = -8        /* the object is not in a state that allows this call */
} plait_status;

/* The name of a status, as "PLAIT_E_ARG"; "PLAIT_E_?" for a value that is none. Thread-safe. */
PLAIT_API const char *plait_status_name(plait_status status);

/*
 * The sentence of the last failure on the calling thread: what was found, what was wanted and,
 * where it helps, what to do. "" when nothing failed yet on this thread. The string belongs to the
 * library and holds until the next failure on this thread. A success does not clear it.
 * A call that uses worker threads copies the sentence of the first worker that failed to the
 * thread that made the call.
 */
PLAIT_API const char *plait_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
