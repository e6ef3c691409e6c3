/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool: each worker once, failures, waiting without burning CPU, pinning (case 45). */
#include <plait/threads.h>

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "core/cpus.h"
#include "core/status.h"
#include "unit.h"

enum { MAX_WORKERS = 16 };

static plait_pool *open_pool(int32_t n_threads, int32_t pin)
{
    plait_pool_options options = PLAIT_POOL_OPTIONS_INIT;
    options.n_threads = n_threads;
    options.pin = pin;
    plait_pool *pool;
    assert_int_equal(plait_pool_open(&options, &pool), PLAIT_OK);
    return pool;
}

static plait_status run(plait_pool *pool, plait_task_fn fn, void *task)
{
    const plait_executor *executor = plait_pool_executor(pool);
    return executor->parallel_for(executor->user, fn, task);
}

/* Plain memory on purpose: the pool has to order these writes, which the thread sanitizer checks.
 */
struct tally {
    int calls[MAX_WORKERS];
    int input;
};

static plait_status count_call(void *task, int32_t worker, int32_t n_workers)
{
    struct tally *tally = task;
    if (worker < 0 || worker >= n_workers || n_workers > MAX_WORKERS)
        return plait_fail(PLAIT_E_ARG, "worker %d of %d", worker, n_workers);
    tally->calls[worker] += tally->input;
    return PLAIT_OK;
}

static void test_each_worker_runs_once_in_every_task(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= 8; n++) {
        plait_pool *pool = open_pool(n, 0);
        assert_int_equal(plait_pool_executor(pool)->n_workers, n);
        struct tally tally = {0};
        int sum = 0;
        for (int round = 0; round < 500; round++) {
            tally.input = round;
            sum += round;
            assert_int_equal(run(pool, count_call, &tally), PLAIT_OK);
            for (int32_t w = 0; w < MAX_WORKERS; w++)
                assert_int_equal(tally.calls[w], w < n ? sum : 0);
        }
        plait_pool_close(&pool);
        assert_null(pool);
    }
}

static plait_status fail_in_worker(void *task, int32_t worker, int32_t n_workers)
{
    (void)n_workers;
    if (worker == *(const int32_t *)task)
        return plait_fail(PLAIT_E_DEVICE, "worker %d broke", worker);
    return PLAIT_OK;
}

static void test_failure_and_its_sentence_reach_the_caller(void **state)
{
    (void)state;
    plait_pool *pool = open_pool(4, 0);
    for (int32_t worker = 0; worker < 4; worker++) {
        plait_fail(PLAIT_E_ARG, "older");
        assert_int_equal(run(pool, fail_in_worker, &worker), PLAIT_E_DEVICE);
        char wanted[32];
        snprintf(wanted, sizeof wanted, "worker %d broke", worker);
        assert_string_equal(plait_last_error(), wanted);
    }
    int32_t none = -1; /* a failure does not stick to the next task */
    assert_int_equal(run(pool, fail_in_worker, &none), PLAIT_OK);
    plait_pool_close(&pool);
}

static plait_status on_calling_thread(void *task, int32_t worker, int32_t n_workers)
{
    const pthread_t *caller = task;
    const int same = pthread_equal(*caller, pthread_self());
    return worker == 0 && n_workers == 1 && same ? PLAIT_OK : PLAIT_E_STATE;
}

static void test_inline_executor_is_one_worker_on_this_thread(void **state)
{
    (void)state;
    const plait_executor *executor = plait_executor_inline();
    pthread_t self = pthread_self();
    assert_int_equal(executor->n_workers, 1);
    assert_int_equal(executor->parallel_for(executor->user, on_calling_thread, &self), PLAIT_OK);
}

static int count_threads(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        n += entry->d_name[0] != '.';
    closedir(folder);
    return n;
}

/* Case 45: a count that was asked for is honoured; the default is the share of this rank. */
static void test_number_of_threads_that_are_started(void **state)
{
    (void)state;
    /* A joined thread may stay in the list for a moment. */
    const struct timespec pause = {0, 50 * 1000000};
    nanosleep(&pause, NULL);
    const int before = count_threads();
    plait_pool *pool = open_pool(5, 0);
    assert_int_equal(count_threads(), before + 4);
    plait_pool_close(&pool);

    const int32_t share = plait_cpus_share(plait_cpus_affinity(), plait_cpus_quota(""), 1);
    assert_int_equal(plait_threads_default(1), share);
    assert_int_equal(plait_threads_default(100000), 1);
    assert_int_equal(plait_pool_open(NULL, &pool), PLAIT_OK);
    assert_int_equal(plait_pool_executor(pool)->n_workers, share);
    plait_pool_close(&pool);
}

static double cpu_seconds(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static plait_status first_sleeps(void *task, int32_t worker, int32_t n_workers)
{
    (void)n_workers;
    const struct timespec pause = {0, 200 * 1000000};
    if (worker == *(const int32_t *)task)
        nanosleep(&pause, NULL);
    return PLAIT_OK;
}

/* Case 45: neither workers without a task nor a caller that waits for one may spin on. Seven idle
   workers would burn several times the limit in these 400 ms, even on two CPUs. */
static void test_waiting_sleeps(void **state)
{
    (void)state;
    plait_pool *pool = open_pool(8, 0);
    const double before = cpu_seconds();
    int32_t sleeper = 0; /* workers wait for the next task */
    assert_int_equal(run(pool, first_sleeps, &sleeper), PLAIT_OK);
    sleeper = 7; /* the caller waits for a worker */
    assert_int_equal(run(pool, first_sleeps, &sleeper), PLAIT_OK);
    const double used = cpu_seconds() - before;
    plait_pool_close(&pool);
    assert_true(used < 0.15);
}

static plait_status note_mask(void *task, int32_t worker, int32_t n_workers)
{
    (void)n_workers;
    cpu_set_t *masks = task;
    const int failed = pthread_getaffinity_np(pthread_self(), sizeof *masks, &masks[worker]);
    return failed ? PLAIT_E_STATE : PLAIT_OK;
}

static void test_pinned_workers_stay_on_the_ranks_cpus(void **state)
{
    (void)state;
    cpu_set_t before;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    const int quota = plait_cpus_quota("");
    if (CPU_COUNT(&before) < 2 || (quota > 0 && quota < CPU_COUNT(&before))) {
        print_message("one CPU, or a quota below the affinity mask: nothing is pinned\n");
        skip();
    }
    plait_pool_options options = PLAIT_POOL_OPTIONS_INIT;
    options.n_local_ranks = 1024;
    for (int32_t rank = 0; rank < 3; rank++) {
        options.rank = rank;
        options.n_threads = rank + 2;
        plait_pool *pool;
        assert_int_equal(plait_pool_open(&options, &pool), PLAIT_OK);
        cpu_set_t wanted = plait_cpus_of_rank(&before, rank, options.n_threads);
        cpu_set_t seen[4] = {0}; /* the memory sanitizer does not know that the kernel fills them */
        assert_int_equal(run(pool, note_mask, seen), PLAIT_OK);
        plait_pool_close(&pool);
        assert_true(CPU_EQUAL(&seen[0], &before)); /* the caller is left alone */
        for (int32_t w = 1; w < options.n_threads; w++)
            assert_true(CPU_EQUAL(&seen[w], &wanted));
    }
}

static void refuse(plait_pool_options options, const char *named)
{
    plait_pool *pool = (plait_pool *)&options;
    assert_int_equal(plait_pool_open(&options, &pool), PLAIT_E_ARG);
    assert_null(pool);
    assert_non_null(strstr(plait_last_error(), named));
}

static void test_bad_options_are_refused(void **state)
{
    (void)state;
    const plait_pool_options good = PLAIT_POOL_OPTIONS_INIT;
    plait_pool_options bad = good;
    bad.size = 8;
    refuse(bad, "size field is 8");
    bad = good, bad.n_threads = -1;
    refuse(bad, "n_threads is -1");
    bad = good, bad.n_threads = INT32_MAX;
    refuse(bad, "n_threads is 2147483647");
    bad = good, bad.n_local_ranks = 0;
    refuse(bad, "rank 0 of 0");
    bad = good, bad.rank = 1;
    refuse(bad, "rank 1 of 1");
    assert_int_equal(plait_pool_open(&good, NULL), PLAIT_E_ARG);
}

static void *no_memory(void *user, size_t bytes, size_t align)
{
    (void)user, (void)bytes, (void)align;
    return NULL;
}

static void free_nothing(void *user, void *ptr, size_t bytes)
{
    (void)user, (void)ptr, (void)bytes;
}

static void test_no_memory(void **state)
{
    (void)state;
    const plait_allocator empty = {sizeof empty, NULL, no_memory, free_nothing};
    plait_pool_options options = PLAIT_POOL_OPTIONS_INIT;
    options.allocator = &empty;
    plait_pool *pool = NULL;
    assert_int_equal(plait_pool_open(&options, &pool), PLAIT_E_NOMEM);
    assert_null(pool);
}

static plait_status note_sigint(void *task, int32_t worker, int32_t n_workers)
{
    (void)n_workers;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    ((int *)task)[2 * worker] = sigismember(&blocked, SIGINT);
    ((int *)task)[2 * worker + 1] = sigismember(&blocked, SIGSEGV);
    return PLAIT_OK;
}

static void test_workers_leave_signals_to_the_program(void **state)
{
    (void)state;
    plait_pool *pool = open_pool(2, 0);
    int blocked[4];
    assert_int_equal(run(pool, note_sigint, blocked), PLAIT_OK);
    plait_pool_close(&pool);
    assert_int_equal(blocked[0], 0);
    assert_int_equal(blocked[2], 1);
    assert_int_equal(blocked[3], 0);
}

/* Sets *ok at the end if everything held. */
static void *one_rank(void *ok)
{
    for (int i = 0; i < 20; i++) {
        plait_pool_options options = PLAIT_POOL_OPTIONS_INIT;
        options.n_threads = 3;
        plait_pool *pool;
        struct tally tally = {.input = 1};
        if (plait_pool_open(&options, &pool) != PLAIT_OK)
            return NULL;
        for (int round = 0; round < 20; round++) {
            if (run(pool, count_call, &tally) != PLAIT_OK)
                return NULL;
        }
        plait_pool_close(&pool);
        for (int w = 0; w < 3; w++) {
            if (tally.calls[w] != 20)
                return NULL;
        }
    }
    *(int *)ok = 1;
    return NULL;
}

static void test_pools_of_several_ranks_side_by_side(void **state)
{
    (void)state;
    pthread_t ranks[4];
    int ok[4] = {0};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&ranks[i], NULL, one_rank, &ok[i]), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(ranks[i], NULL), 0);
        assert_int_equal(ok[i], 1);
    }
}

static void test_close_accepts_null(void **state)
{
    (void)state;
    plait_pool *none = NULL;
    plait_pool_close(&none);
    plait_pool_close(NULL);
    assert_null(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_worker_runs_once_in_every_task),
        cmocka_unit_test(test_failure_and_its_sentence_reach_the_caller),
        cmocka_unit_test(test_inline_executor_is_one_worker_on_this_thread),
        cmocka_unit_test(test_number_of_threads_that_are_started),
        cmocka_unit_test(test_waiting_sleeps),
        cmocka_unit_test(test_pinned_workers_stay_on_the_ranks_cpus),
        cmocka_unit_test(test_bad_options_are_refused),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_workers_leave_signals_to_the_program),
        cmocka_unit_test(test_pools_of_several_ranks_side_by_side),
        cmocka_unit_test(test_close_accepts_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
