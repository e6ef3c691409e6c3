/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/comm.h - communicators: how the ranks of a group exchange messages and buffers.
 *
 * A communicator has two planes. The control plane gathers small host messages, each with the
 * operation's name, a sequence number, its size and a status word; every decision that changes what
 * ranks do is agreed there. The data plane moves buffers. All calls are collective: each rank of
 * the group makes the same calls in the same order.
 *
 * A rank that does not arrive within the deadline, or that calls something else, gives every other
 * rank PLAIT_E_COMM with a sentence that names the rank and the operation; the group then refuses
 * further use at once. After such a failure a stalled rank may still read the buffers of the call:
 * keep them until the group is closed on all ranks.
 *
 * A handle belongs to one rank and is used by one thread at a time. Run calls do not allocate.
 */
#ifndef PLAIT_COMM_H
#define PLAIT_COMM_H

#include <stddef.h>
#include <stdint.h>

#include <plait/memory.h>
#include <plait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct plait_comm plait_comm;

typedef enum plait_memory_kind { PLAIT_MEMORY_HOST = 0, PLAIT_MEMORY_DEVICE = 1 } plait_memory_kind;

/* Most ranks of a group, and most bytes of one control message. */
#define PLAIT_COMM_MAX_RANKS   256
#define PLAIT_COMM_MESSAGE_MAX 1024

/* What every operation is told besides its buffers. */
typedef struct plait_comm_call {
    const char *op;   /* its name, for messages */
    int64_t seq;      /* number of this call on this communicator, equal on all ranks */
    double timeout_s; /* deadline of the call */
    plait_memory_kind memory;
    void *stream;
} plait_comm_call;

/*
 * A communicator of the caller's. Buffers are concatenations in rank order without gaps; counts
 * may be 0 and differ between ranks; send and recv do not overlap. Each function returns
 * PLAIT_E_COMM when a rank is dead, late or disagrees.
 */
typedef struct plait_comm_ops {
    size_t size; /* sizeof(plait_comm_ops) */
    void *user;
    int32_t rank, n_ranks;
    /* Control: gathers `bytes` bytes of each rank, [n_ranks][bytes]. Host memory. */
    plait_status (*exchange)(void *user, const plait_comm_call *call, const void *send,
                             size_t bytes, void *recv);
    /* Gathers bytes[k] bytes of each rank k. */
    plait_status (*all_gather)(void *user, const plait_comm_call *call, const void *send,
                               const size_t *bytes, void *recv);
    /* Sums the send buffers in float32; rank k gets its counts[k] floats of the sum. */
    plait_status (*reduce_scatter_f32)(void *user, const plait_comm_call *call, const float *send,
                                       const size_t *counts, float *recv);
    /* Sends send_bytes[k] bytes to rank k and takes recv_bytes[k] bytes from it. */
    plait_status (*all_to_all)(void *user, const plait_comm_call *call, const void *send,
                               const size_t *send_bytes, void *recv, const size_t *recv_bytes);
    /* Sums count floats over the ranks, in place. */
    plait_status (*all_reduce_f32)(void *user, const plait_comm_call *call, float *data,
                                   size_t count);
    /* Makes this and later calls of all ranks fail soon. May be NULL. */
    void (*abort)(void *user, const char *why);
    /* Collective: fills *out with the ops of this rank's group of `d` consecutive ranks. May be
       NULL: then only d = 1 and d = n_ranks are possible. */
    plait_status (*split)(void *user, const plait_comm_call *call, int32_t d,
                          struct plait_comm_ops *out);
    void (*close)(void *user); /* may be NULL */
} plait_comm_ops;

/* A group of one rank: copies, no messages. */
PLAIT_API plait_status plait_comm_self(const plait_allocator *allocator, plait_comm **out);

/*
 * n ranks that are threads of this process: out[k] is rank k's handle. Sums are taken in rank
 * order. Waiting ranks spin at most 20 us and then block. On failure out[] is all NULL.
 */
PLAIT_API plait_status plait_comm_threads_open(int32_t n, double timeout_s,
                                               const plait_allocator *allocator, plait_comm **out);

/*
 * A communicator over the caller's ops, which are copied. checked 1: before each data call the
 * ranks agree on its name and sizes on the control plane, so that a mismatch is reported instead
 * of hanging. On failure *out is NULL and ops->close is not called.
 */
PLAIT_API plait_status plait_comm_from_ops(const plait_comm_ops *ops, double timeout_s,
                                           int32_t checked, const plait_allocator *allocator,
                                           plait_comm **out);

/* Collective: the group of ranks g*d .. g*d+d-1 that holds this rank; d divides the number of
   ranks. The new communicator is independent of the old one, which may be closed first. */
PLAIT_API plait_status plait_comm_split(plait_comm *comm, int32_t d, plait_comm **out);

/* Frees the handle and sets it to NULL; NULL is accepted. Not collective. */
PLAIT_API void plait_comm_close(plait_comm **comm);

PLAIT_API int32_t plait_comm_rank(const plait_comm *comm);
PLAIT_API int32_t plait_comm_n_ranks(const plait_comm *comm);

/* PLAIT_OK, or PLAIT_E_COMM with the first failure's sentence once the group refuses use. */
PLAIT_API plait_status plait_comm_health(const plait_comm *comm);

/* Makes the group unusable on all ranks: what a rank does when it cannot go on. */
PLAIT_API void plait_comm_abort(plait_comm *comm, const char *why);

/*
 * Control: gathers `bytes` (<= PLAIT_COMM_MESSAGE_MAX) of each rank to recv [n_ranks][bytes], with
 * this rank's status. If some rank's status is not PLAIT_OK, that rank gets its status back and
 * the others PLAIT_E_COMM naming it; the group stays usable. bytes 0: agree on the status alone.
 */
PLAIT_API plait_status plait_comm_exchange(plait_comm *comm, const char *op, plait_status status,
                                           const void *send, size_t bytes, void *recv);

/* The data plane, as in plait_comm_ops; memory kind and stream are those of the buffers. */
PLAIT_API plait_status plait_comm_all_gather(plait_comm *comm, const char *op, const void *send,
                                             const size_t *bytes, void *recv,
                                             plait_memory_kind memory, void *stream);
PLAIT_API plait_status plait_comm_reduce_scatter_f32(plait_comm *comm, const char *op,
                                                     const float *send, const size_t *counts,
                                                     float *recv, plait_memory_kind memory,
                                                     void *stream);
PLAIT_API plait_status plait_comm_all_to_all(plait_comm *comm, const char *op, const void *send,
                                             const size_t *send_bytes, void *recv,
                                             const size_t *recv_bytes, plait_memory_kind memory,
                                             void *stream);
PLAIT_API plait_status plait_comm_all_reduce_f32(plait_comm *comm, const char *op, float *data,
                                                 size_t count, plait_memory_kind memory,
                                                 void *stream);

#ifdef __cplusplus
}
#endif
#endif
