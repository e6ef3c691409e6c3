/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of communicators over MPI. Started by mpirun with 8 processes; groups of fewer are
   made of the first ones. Process 0 prints a line for each check. */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm_checks.h"

enum { WORLD = 8 };

static int me;

/* A barrier that leaves the CPUs to those that still work. */
static void meet(void)
{
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE), !done)
        usleep(2000);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Runs fn on a group of the first n processes. Returns how many failed, on all. */
static int run(int n, double timeout_s, rank_fn fn, void *user)
{
    MPI_Comm group;
    plait_comm *comm = NULL;
    int failed = 0, all = 0;
    MPI_Comm_split(MPI_COMM_WORLD, me < n ? 0 : MPI_UNDEFINED, me, &group);
    if (me < n) {
        failed = plait_comm_mpi_open(&group, timeout_s, NULL, &comm) != PLAIT_OK;
        if (failed)
            fprintf(stderr, "open: %s\n", plait_last_error());
        failed =
            failed || plait_comm_size(comm) != n || plait_comm_rank(comm) != me || fn(comm, user);
    }
    meet();
    if (me < n) {
        plait_comm_close(&comm);
        MPI_Comm_free(&group);
    }
    MPI_Allreduce(&failed, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static void result(const char *name, int failed)
{
    if (me == 0 && failed)
        printf("not ok mpi_%s - %d ranks failed\n", name, failed);
    else if (me == 0)
        printf("ok mpi_%s\n", name);
    fflush(stdout);
    meet();
}

static void operations(int32_t rounds)
{
    char name[64];
    for (int n = 1; n <= WORLD; n++) {
        snprintf(name, sizeof name, "operations_of_%d_ranks", n);
        result(name, run(n, 60, comm_all_operations, &rounds));
    }
}

/* More than travels with a request, than the scratch of a reduction, and not the same for all. */
static int long_vectors(plait_comm *comm, void *user)
{
    const int32_t n = plait_comm_size(comm), rank = plait_comm_rank(comm);
    const int64_t count = *(const int64_t *)user;
    float *send = malloc((size_t)count * sizeof *send),
          *recv = malloc((size_t)count * sizeof *recv);
    int64_t counts[RANKS_MAX], own = 0;
    WANT(send && recv);
    for (int64_t k = 0; k < count; k++)
        send[k] = (rank % 2 ? -1e4f : 1e4f) * (float)(k % 97 + 1) + 0.1f * (float)(rank + 1);
    WANT(plait_comm_all_reduce(comm, "long", -1, NULL, send, count, recv) == PLAIT_OK);
    for (int64_t k = 0; k < count; k++) {
        float sum = 1e4f * (float)(k % 97 + 1) + 0.1f;
        for (int32_t i = 1; i < n; i++)
            sum += (i % 2 ? -1e4f : 1e4f) * (float)(k % 97 + 1) + 0.1f * (float)(i + 1);
        if (recv[k] != sum)
            WANT(!"a sum is not that of the rank order");
        send[k] = sum;
    }
    for (int32_t i = 0; i < n; i++)
        counts[i] = i ? count / (2 * n) * (i % 2 ? 1 : 2) / 2 : count / 2;
    for (int32_t i = 0; i < rank; i++)
        own += counts[i];
    WANT(plait_comm_reduce_scatter(comm, "long", -1, NULL, send, counts, recv) == PLAIT_OK);
    for (int64_t k = 0; k < counts[rank]; k++) {
        float sum = send[own + k];
        for (int32_t i = 1; i < n; i++)
            sum += send[own + k];
        if (recv[k] != sum)
            WANT(!"a share is not the sum of its rank order");
    }
    free(send);
    free(recv);
    return 0;
}

static int one_closes(plait_comm *comm, void *user)
{
    (void)user;
    if (plait_comm_rank(comm) == 0)
        return 0; /* `run` closes it, and rank 0 of this check does so before the others */
    WANT(plait_comm_agree(comm, "step", PLAIT_OK) == PLAIT_E_COMM);
    WANT(strstr(plait_last_error(), "rank 0 of 3 was closed"));
    return 0;
}

static void closing(void)
{
    MPI_Comm group;
    plait_comm *comm = NULL;
    int failed = 0, all = 0;
    const double start = seconds();
    MPI_Comm_split(MPI_COMM_WORLD, me < 3 ? 0 : MPI_UNDEFINED, me, &group);
    if (me < 3) {
        failed = plait_comm_mpi_open(&group, 20, NULL, &comm) != PLAIT_OK ||
                 one_closes(comm, NULL) || seconds() - start > 10;
        plait_comm_close(&comm);
        failed |= seconds() - start > 10; /* rank 0 does not wait for groups that failed */
    }
    MPI_Allreduce(&failed, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    result("closed_rank_ends_the_waits", all);
}

static void failures(void)
{
    int failed = 0;
    for (int n = 2; n <= 5; n++)
        for (int32_t missing = 0; missing < n; missing += n - 1)
            failed += run(n, 0.25, comm_one_never_arrives, &missing);
    result("missing_rank_is_named_within_the_deadline", failed);
    const double start = seconds();
    failed = 0;
    for (int32_t how = 0; how <= 5; how++)
        failed += run(3, 60, comm_one_differs, &how);
    result("case47_ranks_that_disagree_are_told", failed);
    result("abort_ends_the_waits", run(4, 60, comm_one_aborts, NULL));
    result("status_is_agreed", run(3, 60, comm_one_status, NULL));
    closing();
    result("failures_do_not_wait_for_the_deadline", seconds() - start > 50);
}

int main(int argc, char **argv)
{
    int level, n;
    int32_t rounds = argc > 1 ? atoi(argv[1]) : 200;
    int failed = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (n != WORLD) {
        printf("not ok mpi_start - %d processes, wanted %d\n", n, WORLD);
        return 1;
    }
    operations(rounds);
    for (n = 1; n <= WORLD; n++)
        for (int64_t count = 3000; count < 1000000; count = count * 7 + 1)
            failed += run(n, 60, long_vectors, &count);
    result("long_vectors_add_up_in_rank_order", failed);
    failed = 0;
    static const int32_t shapes[][2] = {{2, 1}, {4, 2}, {6, 3}, {8, 8}, {8, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int32_t group = shapes[i][1];
        failed += run(shapes[i][0], 60, comm_split_and_use, &group);
    }
    result("groups_are_consecutive_ranks", failed);
    failures();
    MPI_Finalize();
    return 0;
}
