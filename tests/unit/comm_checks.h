/* SPDX-License-Identifier: Apache-2.0 */
/* What every communicator must do, one rank at a time: the functions are run by all ranks of a
   group and return 0 if all is well. */
#ifndef PLAIT_TESTS_COMM_CHECKS_H
#define PLAIT_TESTS_COMM_CHECKS_H

#include "ranks.h"

/* Every operation, int32_t rounds: patterns, uneven sizes and none, sums in rank order, guard bytes
   behind what is received, send buffers unchanged. */
int comm_all_operations(plait_comm *comm, void *rounds);

/* Groups of int32_t ranks each, used beside the whole. */
int comm_split_and_use(plait_comm *comm, void *group);

/* Rank int32_t takes no part; the others name it, and the group refuses further use. */
int comm_one_never_arrives(plait_comm *comm, void *missing);

/* Rank 1 asks for something else (int32_t 0 to 5 says what); all are told. */
int comm_one_differs(plait_comm *comm, void *how);

/* Rank 2 aborts. */
int comm_one_aborts(plait_comm *comm, void *unused);

/* Rank 1 is not well; the group stays usable. */
int comm_one_status(plait_comm *comm, void *unused);

/* A failed group refuses use. */
int comm_refuses_use(plait_comm *comm);

#endif
