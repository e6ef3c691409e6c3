/* SPDX-License-Identifier: Apache-2.0 */
/* What all communicators share. A control message is a run of frames of one fixed size, so that
   ranks which disagree about its size still meet in the transport and can say so. */
#include "comm/comm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"

enum { FRAME_BYTES = 512, ERROR_BYTES = 640 };

/* The head of a message's first frame; the rest of the frame is payload, or the sentence of a rank
   whose status is not PLAIT_OK. */
struct head {
    int32_t kind, status;
    uint64_t sequence, bytes;
    char what[PLAIT_COMM_WHAT_BYTES];
};

enum { HEAD_PAYLOAD = FRAME_BYTES - sizeof(struct head) };

struct plait_comm {
    plait_comm_ops ops;
    plait_allocator allocator;
    double timeout_s;
    uint64_t sequence;
    bool checked, native, broken;
    char error[ERROR_BYTES]; /* why it is broken */
    unsigned char *send_frame;
    unsigned char *frames;        /* [n][FRAME_BYTES] */
    int64_t *own_sizes;           /* [2][n], send and recv; checked only */
    int64_t *sizes;               /* [n][2][n]; checked only */
    plait_comm_request *requests; /* [n] */
    plait_arena arena;
};

const char *plait_comm_kind_name(int32_t kind)
{
    static const char *const names[] = {"exchange", "all_gather", "reduce_scatter", "all_to_all",
                                        "all_reduce"};
    return kind >= 0 && kind <= PLAIT_COMM_ALL_REDUCE ? names[kind] : "unknown operation";
}

/* ---- comparison -------------------------------------------------------------------------------*/

void plait_comm_request_fill(plait_comm_request *r, int32_t kind, const plait_comm_call *call,
                             const int64_t *send, const int64_t *recv)
{
    r->kind = kind;
    r->sequence = call->sequence;
    snprintf(r->what, sizeof r->what, "%s", call->what);
    r->send = send;
    r->recv = recv;
}

static plait_status compare_sizes(const plait_comm_request *q, int32_t n, int32_t i)
{
    for (int32_t j = 0; j < n; j++) {
        /* The size as the two sides see it: for all_to_all what i sends to j, else entry j of the
           list that every rank gives. */
        const bool pairs = q[i].kind == PLAIT_COMM_ALL_TO_ALL;
        const int32_t peer = pairs ? j : 0;
        const int64_t mine = q[i].send[j], theirs = pairs ? q[j].recv[i] : q[0].send[j];
        if (mine != theirs)
            return plait_fail(
                PLAIT_E_COMM,
                "comm: in %s \"%s\" (number %llu) rank %d gives size %lld for rank %d, where rank "
                "%d gives %lld",
                plait_comm_kind_name(q[i].kind), q[i].what, (unsigned long long)q[i].sequence, i,
                (long long)mine, j, peer, (long long)theirs);
    }
    return PLAIT_OK;
}

static plait_status compare_order(const plait_comm_request *q, int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        if (q[i].kind != q[0].kind || q[i].sequence != q[0].sequence ||
            strncmp(q[i].what, q[0].what, sizeof q[i].what) != 0)
            return plait_fail(
                PLAIT_E_COMM,
                "comm: rank %d calls %s \"%s\" (number %llu), but rank 0 calls %s \"%s\" "
                "(number %llu)",
                i, plait_comm_kind_name(q[i].kind), q[i].what, (unsigned long long)q[i].sequence,
                plait_comm_kind_name(q[0].kind), q[0].what, (unsigned long long)q[0].sequence);
    return PLAIT_OK;
}

plait_status plait_comm_compare(const plait_comm_request *q, int32_t n)
{
    PLAIT_TRY(compare_order(q, n));
    for (int32_t i = 0; i < n; i++)
        PLAIT_TRY(compare_sizes(q, n, i));
    return PLAIT_OK;
}

/* ---- opening and closing ----------------------------------------------------------------------*/

static void lay_out(plait_arena *arena, struct plait_comm *c)
{
    const size_t n = (size_t)c->ops.n_ranks;
    c->send_frame = plait_arena_take(arena, 1, FRAME_BYTES);
    c->frames = plait_arena_take(arena, n, FRAME_BYTES);
    c->requests = plait_arena_take(arena, n, sizeof *c->requests);
    c->own_sizes = plait_arena_take(arena, c->checked ? 2 * n : 0, sizeof *c->own_sizes);
    c->sizes = plait_arena_take(arena, c->checked ? 2 * n * n : 0, sizeof *c->sizes);
}

static plait_status check_ops(const plait_comm_ops *ops, double timeout_s)
{
    if (!ops || ops->size < sizeof *ops)
        return plait_fail(PLAIT_E_ARG, "comm: ops of size %zu, wanted at least %zu",
                          ops ? ops->size : 0, sizeof *ops);
    if (ops->n_ranks < 1 || ops->n_ranks > PLAIT_COMM_MAX_RANKS)
        return plait_fail(PLAIT_E_ARG, "comm: n_ranks is %d, wanted 1 to %d", ops->n_ranks,
                          PLAIT_COMM_MAX_RANKS);
    if (ops->rank < 0 || ops->rank >= ops->n_ranks)
        return plait_fail(PLAIT_E_ARG, "comm: rank is %d, wanted 0 to %d", ops->rank,
                          ops->n_ranks - 1);
    if (!ops->exchange || !ops->all_gather || !ops->reduce_scatter || !ops->all_to_all ||
        !ops->all_reduce)
        return plait_fail(PLAIT_E_ARG, "comm: an operation is NULL, wanted exchange, all_gather, "
                                       "reduce_scatter, all_to_all and all_reduce");
    if (!(timeout_s > 0) || !(timeout_s <= 1e9))
        return plait_fail(PLAIT_E_ARG, "comm: the deadline is %g s, wanted above 0 and at most 1e9",
                          timeout_s);
    return PLAIT_OK;
}

plait_status plait_comm_wrap(const plait_comm_ops *ops, double timeout_s, bool checked, bool native,
                             const plait_allocator *allocator, plait_comm **out)
{
    *out = NULL;
    PLAIT_TRY(check_ops(ops, timeout_s));
    if (!allocator)
        allocator = plait_allocator_default();
    struct plait_comm *c;
    PLAIT_TRY(plait_mem_zalloc(allocator, sizeof *c, "communicator", (void **)&c));
    c->ops = *ops;
    c->allocator = *allocator;
    c->timeout_s = timeout_s;
    c->checked = checked;
    c->native = native;
    lay_out(&c->arena, c);
    const plait_status status = plait_arena_reserve(&c->arena, allocator, "communicator");
    if (status != PLAIT_OK) {
        plait_mem_free(allocator, c, sizeof *c);
        return status;
    }
    lay_out(&c->arena, c);
    *out = c;
    return PLAIT_OK;
}

plait_status plait_comm_from_ops(const plait_comm_ops *ops, double timeout_s, int32_t checked,
                                 const plait_allocator *allocator, plait_comm **out)
{
    return plait_comm_wrap(ops, timeout_s, checked != 0, false, allocator, out);
}

void plait_comm_close(plait_comm **comm)
{
    if (!comm || !*comm)
        return;
    struct plait_comm *c = *comm;
    const plait_allocator allocator = c->allocator;
    if (c->ops.close)
        c->ops.close(c->ops.user);
    plait_arena_free(&c->arena, &allocator);
    plait_mem_free(&allocator, c, sizeof *c);
    *comm = NULL;
}

int32_t plait_comm_rank(const plait_comm *comm)
{
    return comm->ops.rank;
}

int32_t plait_comm_size(const plait_comm *comm)
{
    return comm->ops.n_ranks;
}

/* ---- one operation ----------------------------------------------------------------------------*/

/* Takes the next place in the order, unless the group failed before. */
static plait_status begin(struct plait_comm *c, int32_t kind, const char *what, int32_t device,
                          void *stream, plait_comm_call *call)
{
    if (c->broken)
        return plait_fail(PLAIT_E_COMM, "comm: %s \"%s\" refused, the group failed before: %s",
                          plait_comm_kind_name(kind), what, c->error);
    *call = (plait_comm_call){sizeof *call, what, ++c->sequence, c->timeout_s, device, stream};
    return PLAIT_OK;
}

/* A failed operation leaves the group unusable, since ranks no longer stand at the same place. */
static plait_status finish(struct plait_comm *c, int32_t kind, const plait_comm_call *call,
                           plait_status status)
{
    if (status == PLAIT_OK)
        return PLAIT_OK;
    if (!c->native)
        plait_fail(PLAIT_E_COMM,
                   "comm: %s \"%s\" (number %llu) failed on rank %d of %d: the caller's "
                   "communicator returned %s",
                   plait_comm_kind_name(kind), call->what, (unsigned long long)call->sequence,
                   c->ops.rank, c->ops.n_ranks, plait_status_name(status));
    c->broken = true;
    snprintf(c->error, sizeof c->error, "%s", plait_last_error());
    return c->native ? status : PLAIT_E_COMM;
}

/* The same for a failure that this layer found. */
static plait_status disagree(struct plait_comm *c)
{
    c->broken = true;
    snprintf(c->error, sizeof c->error, "%s", plait_last_error());
    if (c->ops.abort)
        c->ops.abort(c->ops.user, c->error);
    return PLAIT_E_COMM;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- control plane ----------------------------------------------------------------------------*/

static void put_head(struct plait_comm *c, const plait_comm_call *call, plait_status status,
                     const void *send, size_t bytes)
{
    struct head head = {
        .kind = PLAIT_COMM_EXCHANGE, .status = status, .sequence = call->sequence, .bytes = bytes};
    snprintf(head.what, sizeof head.what, "%s", call->what);
    memset(c->send_frame, 0, FRAME_BYTES);
    memcpy(c->send_frame, &head, sizeof head);
    if (status != PLAIT_OK)
        snprintf((char *)c->send_frame + sizeof head, HEAD_PAYLOAD, "%s", plait_last_error());
    else if (bytes > 0)
        memcpy(c->send_frame + sizeof head, send, min_size(bytes, HEAD_PAYLOAD));
}

/* Compares the heads of all ranks. *agreed is the status of the first rank that is not well. */
static plait_status read_heads(struct plait_comm *c, plait_status *agreed)
{
    int64_t sizes[PLAIT_COMM_MAX_RANKS];
    *agreed = PLAIT_OK;
    for (int32_t i = 0; i < c->ops.n_ranks; i++) {
        struct head h;
        memcpy(&h, c->frames + (size_t)i * FRAME_BYTES, sizeof h);
        c->requests[i] = (plait_comm_request){.kind = h.kind, .sequence = h.sequence};
        memcpy(c->requests[i].what, h.what, sizeof h.what);
        c->requests[i].what[sizeof h.what - 1] = 0;
        sizes[i] = (int64_t)h.bytes;
    }
    PLAIT_TRY(compare_order(c->requests, c->ops.n_ranks));
    for (int32_t i = 0; i < c->ops.n_ranks; i++) {
        struct head h;
        memcpy(&h, c->frames + (size_t)i * FRAME_BYTES, sizeof h);
        if (*agreed == PLAIT_OK && h.status != PLAIT_OK) {
            const char *why = (const char *)c->frames + (size_t)i * FRAME_BYTES + sizeof h;
            *agreed = plait_fail((plait_status)h.status, "rank %d, %s: %.*s", i,
                                 c->requests[i].what, (int)HEAD_PAYLOAD - 1, why);
        }
        if (h.bytes != (uint64_t)sizes[0] && *agreed == PLAIT_OK)
            return plait_fail(PLAIT_E_COMM,
                              "comm: in exchange \"%s\" (number %llu) rank %d sends %llu bytes, "
                              "but rank 0 sends %lld",
                              c->requests[i].what, (unsigned long long)h.sequence, i,
                              (unsigned long long)h.bytes, (long long)sizes[0]);
    }
    return PLAIT_OK;
}

/* Scatters part [at, at + part) of every rank's message from the frames. */
static void take_part(struct plait_comm *c, size_t offset, size_t at, size_t part, size_t bytes,
                      void *recv)
{
    for (size_t i = 0; part > 0 && i < (size_t)c->ops.n_ranks; i++)
        memcpy((unsigned char *)recv + i * bytes + at, c->frames + i * FRAME_BYTES + offset, part);
}

static plait_status exchange(struct plait_comm *c, const plait_comm_call *call, plait_status status,
                             const void *send, size_t bytes, void *recv)
{
    const plait_comm_ops *ops = &c->ops;
    put_head(c, call, status, send, bytes);
    PLAIT_TRY(finish(c, PLAIT_COMM_EXCHANGE, call,
                     ops->exchange(ops->user, call, c->send_frame, FRAME_BYTES, c->frames)));
    plait_status agreed = PLAIT_OK;
    if (read_heads(c, &agreed) != PLAIT_OK)
        return disagree(c);
    if (agreed != PLAIT_OK)
        return agreed;
    size_t at = min_size(bytes, HEAD_PAYLOAD);
    take_part(c, sizeof(struct head), 0, at, bytes, recv);
    for (size_t part; at < bytes; at += part) {
        part = min_size(bytes - at, FRAME_BYTES);
        memcpy(c->send_frame, (const unsigned char *)send + at, part);
        PLAIT_TRY(finish(c, PLAIT_COMM_EXCHANGE, call,
                         ops->exchange(ops->user, call, c->send_frame, FRAME_BYTES, c->frames)));
        take_part(c, 0, at, part, bytes, recv);
    }
    return PLAIT_OK;
}

plait_status plait_comm_exchange(plait_comm *comm, const char *what, plait_status status,
                                 const void *send, size_t bytes, void *recv)
{
    plait_comm_call call;
    PLAIT_TRY(begin(comm, PLAIT_COMM_EXCHANGE, what, -1, NULL, &call));
    return exchange(comm, &call, status, send, bytes, recv);
}

plait_status plait_comm_agree(plait_comm *comm, const char *what, plait_status status)
{
    return plait_comm_exchange(comm, what, status, NULL, 0, NULL);
}

plait_status plait_comm_agree_late(plait_comm *comm, const char *what, plait_status status,
                                   double least_s)
{
    const double timeout_s = comm->timeout_s;
    comm->timeout_s = timeout_s > least_s ? timeout_s : least_s;
    status = plait_comm_agree(comm, what, status);
    comm->timeout_s = timeout_s;
    return status;
}

void plait_comm_abort(plait_comm *comm, const char *why)
{
    if (comm->broken)
        return;
    comm->broken = true;
    snprintf(comm->error, sizeof comm->error, "this rank, %d, aborted: %s", comm->ops.rank, why);
    if (comm->ops.abort)
        comm->ops.abort(comm->ops.user, why);
}

plait_status plait_comm_split(plait_comm *comm, int32_t group, plait_comm **out)
{
    *out = NULL;
    if (group < 1 || comm->ops.n_ranks % group != 0)
        return plait_fail(PLAIT_E_ARG, "comm: groups of %d ranks, wanted a divisor of %d", group,
                          comm->ops.n_ranks);
    if (!comm->ops.split)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "comm: this communicator has no split; open one for each group");
    plait_comm_call call;
    PLAIT_TRY(begin(comm, PLAIT_COMM_EXCHANGE, "split", -1, NULL, &call));
    plait_comm_ops ops = {.size = sizeof ops};
    PLAIT_TRY(finish(comm, PLAIT_COMM_EXCHANGE, &call,
                     comm->ops.split(comm->ops.user, &call, group, &ops)));
    const plait_status status =
        plait_comm_wrap(&ops, comm->timeout_s, comm->checked, comm->native, &comm->allocator, out);
    if (status != PLAIT_OK && ops.close)
        ops.close(ops.user);
    return status;
}

/* ---- data plane -------------------------------------------------------------------------------*/

/* In a checked group, compares what the ranks are about to do. */
static plait_status announce(struct plait_comm *c, int32_t kind, plait_comm_call *call,
                             const int64_t *send, const int64_t *recv)
{
    if (!c->checked)
        return PLAIT_OK;
    const size_t n = (size_t)c->ops.n_ranks;
    memcpy(c->own_sizes, send, n * sizeof *send);
    memcpy(c->own_sizes + n, recv, n * sizeof *recv);
    char what[PLAIT_COMM_WHAT_BYTES + 16];
    snprintf(what, sizeof what, "%s %s", plait_comm_kind_name(kind), call->what);
    plait_comm_call before = *call;
    before.what = what;
    before.device = -1;
    before.stream = NULL;
    PLAIT_TRY(exchange(c, &before, PLAIT_OK, c->own_sizes, 2 * n * sizeof *send, c->sizes));
    for (size_t i = 0; i < n; i++)
        plait_comm_request_fill(&c->requests[i], kind, call, c->sizes + 2 * n * i,
                                c->sizes + 2 * n * i + n);
    return plait_comm_compare(c->requests, c->ops.n_ranks) == PLAIT_OK ? PLAIT_OK : disagree(c);
}

plait_status plait_comm_all_gather(plait_comm *comm, const char *what, int32_t device, void *stream,
                                   const void *send, const int64_t *bytes, void *recv)
{
    const int32_t kind = PLAIT_COMM_ALL_GATHER;
    plait_comm_call call;
    PLAIT_TRY(begin(comm, kind, what, device, stream, &call));
    PLAIT_TRY(announce(comm, kind, &call, bytes, bytes));
    return finish(comm, kind, &call,
                  comm->ops.all_gather(comm->ops.user, &call, send, bytes, recv));
}

plait_status plait_comm_reduce_scatter(plait_comm *comm, const char *what, int32_t device,
                                       void *stream, const float *send, const int64_t *counts,
                                       float *recv)
{
    const int32_t kind = PLAIT_COMM_REDUCE_SCATTER;
    plait_comm_call call;
    PLAIT_TRY(begin(comm, kind, what, device, stream, &call));
    PLAIT_TRY(announce(comm, kind, &call, counts, counts));
    return finish(comm, kind, &call,
                  comm->ops.reduce_scatter(comm->ops.user, &call, send, counts, recv));
}

plait_status plait_comm_all_to_all(plait_comm *comm, const char *what, int32_t device, void *stream,
                                   const void *send, const int64_t *send_bytes, void *recv,
                                   const int64_t *recv_bytes)
{
    const int32_t kind = PLAIT_COMM_ALL_TO_ALL;
    plait_comm_call call;
    PLAIT_TRY(begin(comm, kind, what, device, stream, &call));
    PLAIT_TRY(announce(comm, kind, &call, send_bytes, recv_bytes));
    return finish(comm, kind, &call,
                  comm->ops.all_to_all(comm->ops.user, &call, send, send_bytes, recv, recv_bytes));
}

plait_status plait_comm_all_reduce(plait_comm *comm, const char *what, int32_t device, void *stream,
                                   const float *send, int64_t count, float *recv)
{
    const int32_t kind = PLAIT_COMM_ALL_REDUCE;
    int64_t counts[PLAIT_COMM_MAX_RANKS];
    for (int32_t i = 0; i < comm->ops.n_ranks; i++)
        counts[i] = count;
    plait_comm_call call;
    PLAIT_TRY(begin(comm, kind, what, device, stream, &call));
    PLAIT_TRY(announce(comm, kind, &call, counts, counts));
    return finish(comm, kind, &call,
                  comm->ops.all_reduce(comm->ops.user, &call, send, count, recv));
}

#if !PLAIT_HAVE_MPI
plait_status plait_comm_mpi_open(const void *mpi_comm, double timeout_s,
                                 const plait_allocator *allocator, plait_comm **out)
{
    (void)mpi_comm, (void)timeout_s, (void)allocator;
    *out = NULL;
    return plait_fail(PLAIT_E_UNSUPPORTED, "comm: this library was built without MPI; install it "
                                           "(tools/setup) and build again with PLAIT_MPI=ON");
}
#endif
