/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/threads.h - who runs the workers: the library's pool or the caller's.
 *
 * Work is given as a task that is called once for each worker index. Workers of one task need not
 * run at the same time (no task waits for another worker), so any thread pool can carry them out,
 * one thread included.
 */
#ifndef PLAIT_THREADS_H
#define PLAIT_THREADS_H

#include <stddef.h>
#include <stdint.h>

#include <plait/memory.h>
#include <plait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef plait_status (*plait_task_fn)(void *task, int32_t worker, int32_t n_workers);

/*
 * An executor runs tasks. parallel_for must call fn(task, w, n_workers) exactly once for each
 * w in [0, n_workers), return after all calls ended, make their writes visible to the caller, and
 * return the first status that is not PLAIT_OK (or PLAIT_OK). One call at a time per executor.
 */
typedef struct plait_executor {
    size_t size; /* sizeof(plait_executor) */
    void *user;
    int32_t n_workers; /* >= 1 */
    plait_status (*parallel_for)(void *user, plait_task_fn fn, void *task);
} plait_executor;

/* An executor with one worker that runs on the calling thread. A static object. */
PLAIT_API const plait_executor *plait_executor_inline(void);

/* ---- the library's own pool ---------------------------------------------------------------- */

typedef struct plait_pool plait_pool;

typedef struct plait_pool_options {
    size_t size;       /* sizeof(plait_pool_options) */
    int32_t n_threads; /* workers, the calling thread included; 0: plait_threads_default() */
    int32_t rank;      /* this rank among those of the host: which CPUs its threads are pinned to */
    int32_t n_local_ranks; /* ranks on this host, >= 1 */
    int32_t pin;           /* 1: keep the workers on this rank's CPUs of the mask; 0: do not */
    const plait_allocator *allocator; /* NULL: the C library's */
} plait_pool_options;
#define PLAIT_POOL_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(plait_pool_options), 0, 0, 1, 1, NULL                                               \
    }

/* min(affinity, floor(cgroup CPU quota)) divided among the n_local_ranks ranks of this host, at
   least 1. Thread-safe. */
PLAIT_API int32_t plait_threads_default(int32_t n_local_ranks);

/*
 * Starts n_threads - 1 threads; the caller of parallel_for is worker 0, and its affinity is never
 * changed. A rank's CPUs are n_threads of the affinity mask, rank after rank, round the mask; under
 * a cgroup quota that is tighter than the mask nothing is pinned. Waiting threads spin at most
 * 20 us and then block. options NULL: the defaults. On failure *out is NULL. Returns PLAIT_E_ARG,
 * PLAIT_E_NOMEM, PLAIT_E_UNSUPPORTED (the system refused a thread).
 */
PLAIT_API plait_status plait_pool_open(const plait_pool_options *options, plait_pool **out);

/* The pool as an executor; lives as long as the pool. */
PLAIT_API const plait_executor *plait_pool_executor(plait_pool *pool);

/* Stops the threads and sets *pool to NULL; NULL is accepted. */
PLAIT_API void plait_pool_close(plait_pool **pool);

#ifdef __cplusplus
}
#endif
#endif
