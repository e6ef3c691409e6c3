/* SPDX-License-Identifier: Apache-2.0 */
/*
 * src/comm: communicators. comm.c holds what all of them share: the order of operations, the frames
 * of the control plane, comparison of what ranks ask for. Each kind is a file that fills
 * plait_comm_ops.
 */
#ifndef PLAIT_COMM_COMM_H
#define PLAIT_COMM_COMM_H

#include <stdbool.h>

#include <plait/comm.h>

typedef enum plait_comm_kind {
    PLAIT_COMM_EXCHANGE,
    PLAIT_COMM_ALL_GATHER,
    PLAIT_COMM_REDUCE_SCATTER,
    PLAIT_COMM_ALL_TO_ALL,
    PLAIT_COMM_ALL_REDUCE
} plait_comm_kind;

const char *plait_comm_kind_name(int32_t kind);

enum { PLAIT_COMM_WHAT_BYTES = 40 };

/* What a rank asks for. sizes [n] in the unit of the operation. */
typedef struct plait_comm_request {
    int32_t kind;
    uint64_t sequence;
    char what[PLAIT_COMM_WHAT_BYTES];
    const int64_t *send, *recv; /* recv differs from send for all_to_all only */
} plait_comm_request;

void plait_comm_request_fill(plait_comm_request *r, int32_t kind, const plait_comm_call *call,
                             const int64_t *send, const int64_t *recv);

/* PLAIT_E_COMM, naming the first rank that does not fit, unless the n requests are one operation.
   All ranks that see the same requests come to the same result. */
plait_status plait_comm_compare(const plait_comm_request *requests, int32_t n);

/* plait_comm_agree after work that takes ranks unequally long: waits `least_s` at least. */
plait_status plait_comm_agree_late(plait_comm *comm, const char *what, plait_status status,
                                   double least_s);

/* plait_comm_from_ops for a kind of ours, which writes its own sentences. */
plait_status plait_comm_wrap(const plait_comm_ops *ops, double timeout_s, bool checked, bool native,
                             const plait_allocator *allocator, plait_comm **out);

#endif
