/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread pool. One counter, the generation, tells workers that there is a task; another counts
 * the workers that are not done. Both are waited for in the same way: spin for at most 20 us, since
 * the next task of a decode step follows at once, then sleep in the kernel, since a barrier that
 * spins on a CPU which another thread needs stops both.
 */
#include <plait/threads.h>

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/cpus.h"
#include "core/memory.h"
#include "core/status.h"

enum { SPIN_NS = 20000, MAX_THREADS = 4096 };

/* A word to wait for, on a cache line of its own. */
struct event {
    _Alignas(PLAIT_ALIGN) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

struct worker {
    struct plait_pool *pool;
    pthread_t thread;
    int32_t index;
};

struct plait_pool {
    struct event generation; /* rises with each task and at the end */
    struct event running;    /* workers, but for the caller, that are not done */
    plait_task_fn fn;        /* NULL: stop */
    void *task;
    pthread_mutex_t failure_lock;
    plait_status failure; /* of the worker that failed first */
    char sentence[PLAIT_ERROR_BYTES];
    plait_executor executor;
    plait_allocator allocator;
    size_t bytes;
    int32_t n_started;
    struct worker workers[]; /* workers[0] stands for the caller */
};

/* ---- waiting ----------------------------------------------------------------------------------*/

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Waits until the word differs from `value`. */
static void wait_while(struct event *event, uint32_t value)
{
    const int64_t end = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 16; i++) {
            if (atomic_load(&event->value) != value)
                return;
            relax();
        }
    } while (now_ns() < end);
    /* The waker looks at `sleepers` after it changed the word, and the kernel compares the word
       after `sleepers` rose, so that one of them sees the other. */
    atomic_fetch_add(&event->sleepers, 1);
    while (atomic_load(&event->value) == value)
        syscall(SYS_futex, &event->value, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
    atomic_fetch_sub(&event->sleepers, 1);
}

static void wake(struct event *event)
{
    if (atomic_load(&event->sleepers) > 0)
        syscall(SYS_futex, &event->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- running ----------------------------------------------------------------------------------*/

static void run_worker(struct plait_pool *pool, int32_t index)
{
    const plait_status status = pool->fn(pool->task, index, pool->executor.n_workers);
    if (status == PLAIT_OK)
        return;
    pthread_mutex_lock(&pool->failure_lock);
    if (pool->failure == PLAIT_OK) {
        pool->failure = status;
        snprintf(pool->sentence, sizeof pool->sentence, "%s", plait_last_error());
    }
    pthread_mutex_unlock(&pool->failure_lock);
}

static void *worker_main(void *arg)
{
    struct worker *self = arg;
    struct plait_pool *pool = self->pool;
    for (uint32_t seen = 0;; seen++) {
        wait_while(&pool->generation, seen);
        if (!pool->fn)
            return NULL;
        run_worker(pool, self->index);
        if (atomic_fetch_sub(&pool->running.value, 1) == 1)
            wake(&pool->running);
    }
}

static void start_task(struct plait_pool *pool, plait_task_fn fn, void *task)
{
    pool->fn = fn;
    pool->task = task;
    atomic_store(&pool->running.value, (uint32_t)pool->n_started);
    atomic_fetch_add(&pool->generation.value, 1);
    wake(&pool->generation);
}

static plait_status pool_parallel_for(void *user, plait_task_fn fn, void *task)
{
    struct plait_pool *pool = user;
    if (pool->n_started == 0)
        return fn(task, 0, 1);

    pool->failure = PLAIT_OK;
    start_task(pool, fn, task);
    run_worker(pool, 0);
    for (uint32_t left; (left = atomic_load(&pool->running.value)) != 0;)
        wait_while(&pool->running, left);
    if (pool->failure != PLAIT_OK)
        return plait_fail(pool->failure, "%s", pool->sentence);
    return PLAIT_OK;
}

/* ---- opening and closing ----------------------------------------------------------------------*/

static plait_status check_options(const plait_pool_options *o)
{
    if (o->size < sizeof *o)
        return plait_fail(PLAIT_E_ARG, "pool: the options' size field is %zu, wanted %zu", o->size,
                          sizeof *o);
    if (o->n_threads < 0 || o->n_threads > MAX_THREADS)
        return plait_fail(PLAIT_E_ARG, "pool: n_threads is %d, wanted 1..%d, or 0 for the default",
                          o->n_threads, MAX_THREADS);
    if (o->n_local_ranks < 1 || o->rank < 0 || o->rank >= o->n_local_ranks)
        return plait_fail(PLAIT_E_ARG, "pool: rank %d of %d ranks on this host, wanted 0 <= rank",
                          o->rank, o->n_local_ranks);
    return PLAIT_OK;
}

/*
 * Keeps the workers on their rank's CPUs, so that its memory stays near. A set, not one CPU each: a
 * worker must be able to leave the CPU on which the caller happens to run. Under a quota that is
 * tighter than the mask nothing is pinned, since other groups may have chosen the same CPUs. The
 * result is advisory: a worker that cannot be pinned only costs speed.
 */
static void pin_workers(struct plait_pool *pool, int32_t rank)
{
    const int quota = plait_cpus_quota("");
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0 || (quota > 0 && quota < CPU_COUNT(&mask)))
        return;
    const cpu_set_t set = plait_cpus_of_rank(&mask, rank, pool->executor.n_workers);
    for (int32_t i = 1; i <= pool->n_started; i++)
        pthread_setaffinity_np(pool->workers[i].thread, sizeof set, &set);
}

/* Workers leave signals to the program's threads, except those that a fault raises in them. */
static int start_thread(struct worker *worker)
{
    sigset_t blocked, before;
    sigfillset(&blocked);
    const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int failed = pthread_create(&worker->thread, NULL, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

plait_status plait_pool_open(const plait_pool_options *options, plait_pool **out)
{
    const plait_pool_options defaults = PLAIT_POOL_OPTIONS_INIT;
    if (!out)
        return plait_fail(PLAIT_E_ARG, "pool: the result pointer is NULL");
    *out = NULL;
    if (!options)
        options = &defaults;
    PLAIT_TRY(check_options(options));
    const int32_t n =
        options->n_threads > 0 ? options->n_threads : plait_threads_default(options->n_local_ranks);

    struct plait_pool *pool;
    const size_t bytes = sizeof *pool + (size_t)n * sizeof *pool->workers;
    void *memory;
    PLAIT_TRY(plait_mem_zalloc(options->allocator, bytes, "pool", &memory));
    pool = memory;
    pool->bytes = bytes;
    pool->allocator = options->allocator ? *options->allocator : *plait_allocator_default();
    pthread_mutex_init(&pool->failure_lock, NULL);
    pool->executor = (plait_executor){sizeof pool->executor, pool, n, pool_parallel_for};
    for (int32_t i = 0; i < n; i++)
        pool->workers[i] = (struct worker){.pool = pool, .index = i};
    for (int32_t i = 1; i < n; i++) {
        const int failed = start_thread(&pool->workers[i]);
        if (failed) {
            plait_pool_close(&pool);
            return plait_fail(PLAIT_E_UNSUPPORTED,
                              "pool: the system refused thread %d of %d (%s); ask for fewer", i + 1,
                              n, strerrorname_np(failed));
        }
        pool->n_started++;
    }
    if (options->pin)
        pin_workers(pool, options->rank);
    *out = pool;
    return PLAIT_OK;
}

const plait_executor *plait_pool_executor(plait_pool *pool)
{
    return &pool->executor;
}

void plait_pool_close(plait_pool **pool)
{
    if (!pool || !*pool)
        return;
    struct plait_pool *p = *pool;
    start_task(p, NULL, NULL);
    for (int32_t i = 1; i <= p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_mutex_destroy(&p->failure_lock);
    const plait_allocator allocator = p->allocator;
    plait_mem_free(&allocator, p, p->bytes);
    *pool = NULL;
}

int32_t plait_threads_default(int32_t n_local_ranks)
{
    return plait_cpus_share(plait_cpus_affinity(), plait_cpus_quota(""), n_local_ranks);
}

static plait_status inline_parallel_for(void *user, plait_task_fn fn, void *task)
{
    (void)user;
    return fn(task, 0, 1);
}

const plait_executor *plait_executor_inline(void)
{
    static const plait_executor executor = {sizeof executor, NULL, 1, inline_parallel_for};
    return &executor;
}
