/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/comm.h - communicators: a group of ranks that exchange messages and buffers.
 *
 * Each rank holds one handle. Operations are collective: every rank of the group calls the same
 * operations in the same order with sizes that fit together. Two planes:
 *
 *   control  small host messages with a sequence number, a size and a status word. Decisions that
 *            change what ranks do are agreed here.
 *   data     all_gather, reduce_scatter, all_to_all and all_reduce on buffers. Reductions are
 *            float32, added in rank order, so that all ranks get the same bits.
 *
 * Simplest use, ranks as threads of one process:
 *
 *     plait_comm *ranks[2];
 *     plait_comm_threads_open(2, 30.0, NULL, ranks);     then give ranks[r] to thread r
 *
 * A rank that is missing, late, aborts or disagrees gives every other rank PLAIT_E_COMM within the
 * deadline; the sentence names the rank and the operation. The group then refuses all further use;
 * only plait_comm_close is left. A rank that stalled inside an operation may read the others' send
 * buffers until it returns; they hold no meaning for it then, but must still be there.
 *
 * A handle is used by one thread at a time. Nothing allocates but the functions that open or split.
 * Send buffers may be changed once the operation returned; send and receive buffers must not
 * overlap. Zero bytes are valid everywhere, and a buffer of zero bytes may be NULL.
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

/* Most ranks of a group. */
#define PLAIT_COMM_MAX_RANKS 256

typedef struct plait_comm plait_comm;

/* What goes with each operation: its place in the order, where buffers are, how long to wait. */
typedef struct plait_comm_call {
    size_t size;       /* sizeof(plait_comm_call) */
    const char *what;  /* what the operation is for, as "gather q"; a static string */
    uint64_t sequence; /* set by the library: 1, 2, ... for this handle */
    double timeout_s;  /* set by the library from the group's deadline */
    int32_t device;    /* where the buffers are; -1: host memory */
    void *stream;      /* of that device; NULL on the host */
} plait_comm_call;

/*
 * A communicator of the caller's: the functions that plait_comm_from_ops wraps. Each returns
 * PLAIT_OK, or PLAIT_E_COMM when a rank is lost, not later than call->timeout_s after it began. n
 * is n_ranks; blocks lie in rank order without gaps.
 */
typedef struct plait_comm_ops {
    size_t size; /* sizeof(plait_comm_ops) */
    void *user;
    int32_t rank, n_ranks;
    /* Control plane: `bytes` of every rank to recv [n][bytes]. All ranks give the same size. */
    plait_status (*exchange)(void *user, const plait_comm_call *call, const void *send,
                             size_t bytes, void *recv);
    /* Data plane. bytes[n]: what each rank sends; the same on every rank. */
    plait_status (*all_gather)(void *user, const plait_comm_call *call, const void *send,
                               const int64_t *bytes, void *recv);
    /* counts[n]: floats that each rank receives; send holds their sum. */
    plait_status (*reduce_scatter)(void *user, const plait_comm_call *call, const float *send,
                                   const int64_t *counts, float *recv);
    /* send_bytes[j] go to rank j, recv_bytes[j] come from rank j. */
    plait_status (*all_to_all)(void *user, const plait_comm_call *call, const void *send,
                               const int64_t *send_bytes, void *recv, const int64_t *recv_bytes);
    plait_status (*all_reduce)(void *user, const plait_comm_call *call, const float *send,
                               int64_t count, float *recv);
    /* Makes the other ranks' waits end with PLAIT_E_COMM. May be NULL: their deadline does it. */
    void (*abort)(void *user, const char *why);
    /* Optional: the ops of this rank in its group of `group` consecutive ranks; they are closed
       separately. NULL: plait_comm_split is PLAIT_E_UNSUPPORTED. */
    plait_status (*split)(void *user, const plait_comm_call *call, int32_t group,
                          struct plait_comm_ops *out);
    /* Called once by plait_comm_close. May be NULL. */
    void (*close)(void *user);
} plait_comm_ops;

/* ---- opening -------------------------------------------------------------------------------- */

/* A group of one rank. allocator NULL: the C library's. */
PLAIT_API plait_status plait_comm_self_open(const plait_allocator *allocator, plait_comm **out);

/*
 * n_ranks ranks of one process, each used by its own thread: out[n_ranks]. timeout_s > 0 is the
 * deadline of every operation. Waits spin at most 20 us and then block, so ranks may share CPUs.
 * On failure nothing is opened and out[] is NULL. Each handle is closed separately, in any order.
 */
PLAIT_API plait_status plait_comm_threads_open(int32_t n_ranks, double timeout_s,
                                               const plait_allocator *allocator, plait_comm **out);

/*
 * The processes of an MPI communicator, one rank each; collective over them. mpi_comm is the
 * address of an MPI_Comm, which stays the caller's; NULL: MPI_COMM_WORLD, and MPI is started if it
 * is not (MPI_THREAD_FUNNELED) and then ends with the last handle. The library and the caller must
 * be built with the same MPI. Host memory only. Under MPI_THREAD_FUNNELED a handle belongs to the
 * thread that started MPI.
 *
 * Waits spin at most 20 us, then yield, then sleep. plait_comm_close of the last handle waits for
 * the other processes to close theirs, at most the deadline. After a failure it waits for nobody
 * and never ends MPI, which could hang: the process should end with exit(). Without
 * `mpirun --enable-recovery` the launcher may kill the others before they can report.
 * PLAIT_E_UNSUPPORTED: this library was built without MPI.
 */
PLAIT_API plait_status plait_comm_mpi_open(const void *mpi_comm, double timeout_s,
                                           const plait_allocator *allocator, plait_comm **out);

/*
 * The caller's own communicator. With `checked` 1, every data operation is preceded by a control
 * message, so that ranks which disagree about operation, order or sizes are reported and not hung.
 * On failure ops->close is not called.
 */
PLAIT_API plait_status plait_comm_from_ops(const plait_comm_ops *ops, double timeout_s,
                                           int32_t checked, const plait_allocator *allocator,
                                           plait_comm **out);

/* Collective: groups of `group` consecutive ranks (group divides the number of ranks); *out is
   this rank's handle in its group, with rank = rank mod group. */
PLAIT_API plait_status plait_comm_split(plait_comm *comm, int32_t group, plait_comm **out);

/* Not collective. Ranks that still wait for this one fail at once. Sets *comm to NULL; NULL is
   accepted. */
PLAIT_API void plait_comm_close(plait_comm **comm);

PLAIT_API int32_t plait_comm_rank(const plait_comm *comm);
PLAIT_API int32_t plait_comm_size(const plait_comm *comm);

/* ---- control plane -------------------------------------------------------------------------- */

/*
 * `bytes` of every rank to recv [n][bytes] in rank order, on the host; meant for small messages.
 * `status` is this rank's own state: if any rank's is not PLAIT_OK, every rank returns that of the
 * first such rank, with a sentence that names it, and the group stays usable.
 */
PLAIT_API plait_status plait_comm_exchange(plait_comm *comm, const char *what, plait_status status,
                                           const void *send, size_t bytes, void *recv);

/* plait_comm_exchange without a message: all ranks go on, or none. */
PLAIT_API plait_status plait_comm_agree(plait_comm *comm, const char *what, plait_status status);

/* This rank cannot go on: the others' operations end with PLAIT_E_COMM and this sentence. */
PLAIT_API void plait_comm_abort(plait_comm *comm, const char *why);

/* ---- data plane: see plait_comm_ops for the shapes. device -1: host memory. -------------------
 */

PLAIT_API plait_status plait_comm_all_gather(plait_comm *comm, const char *what, int32_t device,
                                             void *stream, const void *send, const int64_t *bytes,
                                             void *recv);
PLAIT_API plait_status plait_comm_reduce_scatter(plait_comm *comm, const char *what, int32_t device,
                                                 void *stream, const float *send,
                                                 const int64_t *counts, float *recv);
PLAIT_API plait_status plait_comm_all_to_all(plait_comm *comm, const char *what, int32_t device,
                                             void *stream, const void *send,
                                             const int64_t *send_bytes, void *recv,
                                             const int64_t *recv_bytes);
PLAIT_API plait_status plait_comm_all_reduce(plait_comm *comm, const char *what, int32_t device,
                                             void *stream, const float *send, int64_t count,
                                             float *recv);

#ifdef __cplusplus
}
#endif
#endif
