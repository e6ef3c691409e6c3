/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include <pthread.h>

struct job {
    plait_comm *comm;
    rank_fn fn;
    void *user;
    int failed;
};

static void *job_main(void *arg)
{
    struct job *job = arg;
    job->failed = job->fn(job->comm, job->user) != 0;
    return NULL;
}

int run_on(plait_comm *const *comms, int32_t n, rank_fn fn, void *user)
{
    pthread_t threads[RANKS_MAX];
    struct job jobs[RANKS_MAX];
    int failed = 0;
    for (int32_t i = 0; i < n; i++) {
        jobs[i] = (struct job){comms[i], fn, user, 1};
        if (pthread_create(&threads[i], NULL, job_main, &jobs[i]) != 0)
            return n;
    }
    for (int32_t i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        failed += jobs[i].failed;
    }
    return failed;
}

int run_ranks(int32_t n, double timeout_s, rank_fn fn, void *user)
{
    plait_comm *comms[RANKS_MAX];
    if (plait_comm_threads_open(n, timeout_s, NULL, comms) != PLAIT_OK)
        return n;
    const int failed = run_on(comms, n, fn, user);
    for (int32_t i = 0; i < n; i++)
        plait_comm_close(&comms[i]);
    return failed;
}
