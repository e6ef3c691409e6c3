/* SPDX-License-Identifier: Apache-2.0 */
#include "core/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Notices are few: distinct decisions, not events. The table is static so that noticing something
   on a run path allocates nothing; its last entry stands for all that find no room. */
enum { TEXT_BYTES = 512, MAX_NOTICES = 128 };
static const char overflow_text[] = "more notices than are kept; further ones are only counted";

static struct {
    pthread_mutex_t lock;
    plait_log_fn fn;
    void *user;
    plait_log_level least;
    size_t n_notices;
    struct {
        uint64_t times;
        char text[TEXT_BYTES];
    } notices[MAX_NOTICES];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

void plait_log_set_sink(plait_log_fn fn, void *user, plait_log_level least)
{
    pthread_mutex_lock(&state.lock);
    state.fn = fn;
    state.user = user;
    state.least = least;
    pthread_mutex_unlock(&state.lock);
}

/* Under the lock. */
static void send(plait_log_level level, const char *text)
{
    if (state.fn && level >= state.least)
        state.fn(state.user, level, text);
}

void plait_log(plait_log_level level, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&state.lock);
    send(level, text);
    pthread_mutex_unlock(&state.lock);
}

/* Under the lock: the entry of a text, made if it is new. */
static size_t notice_entry(const char *text)
{
    for (size_t i = 0; i < state.n_notices; i++) {
        if (strcmp(state.notices[i].text, text) == 0)
            return i;
    }
    if (state.n_notices == MAX_NOTICES)
        return MAX_NOTICES - 1;
    if (state.n_notices == MAX_NOTICES - 1)
        text = overflow_text;
    memcpy(state.notices[state.n_notices].text, text, strlen(text) + 1);
    return state.n_notices++;
}

void plait_notice(const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&state.lock);
    const size_t i = notice_entry(text);
    if (state.notices[i].times++ == 0)
        send(PLAIT_LOG_NOTICE, state.notices[i].text);
    pthread_mutex_unlock(&state.lock);
}

size_t plait_notice_count(void)
{
    pthread_mutex_lock(&state.lock);
    const size_t count = state.n_notices;
    pthread_mutex_unlock(&state.lock);
    return count;
}

const char *plait_notice_get(size_t i, uint64_t *times)
{
    pthread_mutex_lock(&state.lock);
    const char *text = i < state.n_notices ? state.notices[i].text : NULL;
    if (times)
        *times = text ? state.notices[i].times : 0;
    pthread_mutex_unlock(&state.lock);
    return text;
}
