/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a function once for each rank of a communicator, each in its own thread. */
#ifndef PLAIT_TESTS_RANKS_H
#define PLAIT_TESTS_RANKS_H

#include <stdint.h>
#include <stdio.h>

#include <plait/comm.h>

enum { RANKS_MAX = 16 };

/* Returns 0 if all is well. It runs in a thread, so it must not use cmocka's assertions. */
typedef int (*rank_fn)(plait_comm *comm, void *user);

/* The first condition that does not hold is told and fails the rank. */
#define WANT(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #cond, plait_last_error());            \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Opens a group of n threads, runs fn in all and closes it. Returns how many did not give 0. */
int run_ranks(int32_t n, double timeout_s, rank_fn fn, void *user);

/* The same over handles that the caller opened. */
int run_on(plait_comm *const *comms, int32_t n, rank_fn fn, void *user);

#endif
