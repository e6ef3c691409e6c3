/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are processes, over MPI, point to point: only so does a rank see which other one is
 * silent. An operation is: each rank sends every other what it asks for (order, name, all sizes),
 * with the data itself where that is short; all compare, and so come to the same verdict; what is
 * long follows. Reductions are added in rank order by the rank that keeps the result.
 *
 * MPI transports progress only inside calls, and none waits with a deadline, so waiting is a loop
 * over tests.
 */
#include "comm/mpi_link.h"

#include <stdio.h>
#include <string.h>

#include "core/status.h"

enum {
    INLINE_BYTES = 2048,        /* data that travels with the request: with it below eager limits */
    SCRATCH_FLOATS = 1 << 16,   /* of one rank in a reduction at a time */
    MESSAGE_MOST = 1 << 30,     /* bytes of one message; MPI counts in int */
    CLOSED_GRACE_NS = 10000000, /* what a rank sent before it closed may still be on its way */
    ALIVE_GRACE_NS = 700000000, /* for the news from a rank that is alive and late */
};

struct head {
    int32_t kind;
    uint64_t sequence;
    char what[PLAIT_COMM_WHAT_BYTES];
};

struct group {
    plait_mpi_group base;
    plait_allocator allocator;
    plait_arena arena;
    int32_t stuck;                /* MPI may still use the group's memory */
    size_t stride;                /* of a message: head, sizes [2][n], data */
    unsigned char *out, *in;      /* [n][stride] */
    plait_comm_request *requests; /* [n] */
    MPI_Request *waits;           /* [2][n]: receives, sends */
    float *scratch;               /* [n][SCRATCH_FLOATS] */
    int64_t *own_sizes;           /* [n] of operations whose callers give one size */
    /* The data of the operation in progress, by peer. */
    const unsigned char **send_at;
    unsigned char **recv_at;
    int64_t *send_bytes, *recv_bytes;
    int32_t kind;
    const plait_comm_call *call;
    int64_t deadline;
};

/* ---- waiting ----------------------------------------------------------------------------------*/

/* "1, 3": the marked ranks as processes of the link. */
static void list_ranks(const struct group *g, const unsigned char *marked, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int32_t i = 0; i < g->base.n && used + 1 < bytes; i++)
        if (marked[i])
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", used ? ", " : "",
                                     g->base.first + i);
}

/* Marks the ranks whose message did not come, or else who took none. Returns how many. */
static int32_t mark_missing(struct group *g, unsigned char *missing)
{
    const int32_t n = g->base.n;
    int32_t count = 0;
    for (int32_t half = 0; half < 2 && count == 0; half++)
        for (int32_t i = 0; i < n; i++) {
            int done = 1;
            MPI_Test(&g->waits[half * n + i], &done, MPI_STATUS_IGNORE);
            missing[i] = !done;
            count += !done;
        }
    return count;
}

/* Takes back what was posted. What MPI does not give back keeps the group's memory. */
static void cancel(struct group *g)
{
    for (int32_t i = 0; i < 2 * g->base.n; i++) {
        int done = 0;
        if (g->waits[i] == MPI_REQUEST_NULL)
            continue;
        if (i < g->base.n)
            MPI_Cancel(&g->waits[i]);
        if (MPI_Test(&g->waits[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
            MPI_Request_free(&g->waits[i]);
            g->stuck = 1;
        }
    }
}

static plait_status give_up(struct group *g)
{
    cancel(g);
    return plait_mpi_group_error(&g->base);
}

/* Whether one of the missing closed the group: then nothing of it can follow but what is on its way
   already. */
static int some_closed(const struct group *g, const unsigned char *missing)
{
    for (int32_t i = 0; i < g->base.n; i++)
        if (missing[i] && g->base.closed[i])
            return 1;
    return 0;
}

/* Names who is missing and fails the group. */
static plait_status late(struct group *g, const char *verb, const unsigned char *missing)
{
    char ranks[128], sentence[PLAIT_MPI_ERROR_BYTES];
    list_ranks(g, missing, ranks, sizeof ranks);
    if (some_closed(g, missing))
        snprintf(sentence, sizeof sentence, "comm: rank %s of %d was closed", ranks,
                 g->base.link->n);
    else
        snprintf(sentence, sizeof sentence,
                 "comm: rank %s of %d %s %s \"%s\" (number %llu) within %g s", ranks,
                 g->base.link->n, verb, plait_comm_kind_name(g->kind), g->call->what,
                 (unsigned long long)g->call->sequence, g->call->timeout_s);
    plait_mpi_fail(&g->base, sentence);
    return give_up(g);
}

static plait_status mpi_error(struct group *g, int code)
{
    char why[MPI_MAX_ERROR_STRING] = "", sentence[PLAIT_MPI_ERROR_BYTES];
    int length = 0;
    MPI_Error_string(code, why, &length);
    snprintf(sentence, sizeof sentence, "comm: rank %d of %d: MPI fails %s \"%s\": %.300s",
             g->base.link->rank, g->base.link->n, plait_comm_kind_name(g->kind), g->call->what,
             why);
    plait_mpi_fail(&g->base, sentence);
    return give_up(g);
}

/* Waits for all that is posted. `verb` says what a rank that is late did not do. */
static plait_status wait_all(struct group *g, const char *verb)
{
    const int64_t start = plait_mpi_now_ns();
    int64_t deadline = g->deadline;
    int extended = 0;
    for (int32_t tries = 1;; tries++) {
        unsigned char missing[PLAIT_COMM_MAX_RANKS] = {0};
        int done = 0;
        const int code = MPI_Testall(2 * g->base.n, g->waits, &done, MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS)
            return mpi_error(g, code);
        if (done)
            return PLAIT_OK;
        plait_mpi_rest(start);
        if (tries % 16)
            continue;
        plait_mpi_link_read(g->base.link);
        if (g->base.failed)
            return give_up(g);
        const int64_t now = plait_mpi_now_ns();
        if (g->base.num_closed == 0 && now <= deadline)
            continue;
        if (mark_missing(g, missing) == 0)
            continue;
        const int closed = some_closed(g, missing);
        if (closed && now + CLOSED_GRACE_NS < deadline)
            deadline = now + CLOSED_GRACE_NS;
        if (now <= deadline)
            continue;
        /* Who answers waits for another rank itself, in another group or one operation behind, and
           will tell whom it misses. */
        if (!closed && plait_mpi_all_alive(&g->base, missing) && !extended) {
            extended = 1;
            deadline = plait_mpi_now_ns() + ALIVE_GRACE_NS;
            continue;
        }
        if (g->base.failed)
            return give_up(g);
        return late(g, verb, missing);
    }
}

/* ---- the request ------------------------------------------------------------------------------*/

static size_t data_offset(const struct group *g)
{
    return sizeof(struct head) + 2 * (size_t)g->base.n * sizeof(int64_t);
}

static int is_short(int64_t bytes)
{
    return bytes <= INLINE_BYTES;
}

static void put_request(struct group *g, int32_t to, const int64_t *send, const int64_t *recv)
{
    const size_t n = (size_t)g->base.n;
    unsigned char *at = g->out + (size_t)to * g->stride;
    struct head head = {.kind = g->kind, .sequence = g->call->sequence};
    snprintf(head.what, sizeof head.what, "%s", g->call->what);
    memcpy(at, &head, sizeof head);
    memcpy(at + sizeof head, send, n * sizeof *send);
    memcpy(at + sizeof head + n * sizeof *send, recv, n * sizeof *recv);
    size_t bytes = data_offset(g);
    if (g->send_bytes[to] > 0 && is_short(g->send_bytes[to])) {
        memcpy(at + bytes, g->send_at[to], (size_t)g->send_bytes[to]);
        bytes += (size_t)g->send_bytes[to];
    }
    if (to != g->base.rank)
        MPI_Isend(at, (int)bytes, MPI_BYTE, g->base.first + to, 2 * g->base.id + 1,
                  g->base.link->comm, &g->waits[g->base.n + to]);
}

static void read_requests(struct group *g)
{
    for (int32_t i = 0; i < g->base.n; i++) {
        const unsigned char *at = (i == g->base.rank ? g->out : g->in) + (size_t)i * g->stride;
        const int64_t *sizes = (const int64_t *)(const void *)(at + sizeof(struct head));
        struct head head;
        memcpy(&head, at, sizeof head);
        g->requests[i] = (plait_comm_request){
            .kind = head.kind, .sequence = head.sequence, .send = sizes, .recv = sizes + g->base.n};
        memcpy(g->requests[i].what, head.what, sizeof head.what);
        g->requests[i].what[sizeof head.what - 1] = 0;
    }
}

/* Sends and compares requests, with what is short of the data in send_at. */
static plait_status meet(struct group *g, int32_t kind, const plait_comm_call *call,
                         const int64_t *send, const int64_t *recv)
{
    if (call->device >= 0)
        return plait_fail(PLAIT_E_UNSUPPORTED, "comm: mpi exchanges host memory, not device %d",
                          call->device);
    plait_mpi_link_read(g->base.link);
    if (g->base.failed)
        return plait_mpi_group_error(&g->base);
    g->kind = kind;
    g->call = call;
    g->deadline = plait_mpi_now_ns() + (int64_t)(call->timeout_s * 1e9);
    for (int32_t i = 0; i < g->base.n; i++)
        if (i != g->base.rank)
            MPI_Irecv(g->in + (size_t)i * g->stride, (int)g->stride, MPI_BYTE, g->base.first + i,
                      2 * g->base.id + 1, g->base.link->comm, &g->waits[i]);
    for (int32_t i = 0; i < g->base.n; i++)
        put_request(g, i, send, recv);
    PLAIT_TRY(wait_all(g, "did not take part in"));
    read_requests(g);
    const plait_status agreed = plait_comm_compare(g->requests, g->base.n);
    if (agreed != PLAIT_OK)
        plait_mpi_fail(&g->base, plait_last_error());
    return agreed;
}

/* ---- data -------------------------------------------------------------------------------------*/

static void copy(void *dst, const void *src, int64_t bytes)
{
    if (bytes > 0)
        memcpy(dst, src, (size_t)bytes);
}

static const unsigned char *inline_data(const struct group *g, int32_t from)
{
    return g->in + (size_t)from * g->stride + data_offset(g);
}

static int64_t part_of(int64_t bytes, int64_t at, int64_t most)
{
    return bytes - at < most ? bytes - at : most;
}

/* Posts part [at, at + most) of every message to and from the others that is not short. Returns
   whether there was any. */
static int post(struct group *g, int64_t at, int64_t most)
{
    int any = 0;
    const int tag = 2 * g->base.id + 2;
    for (int32_t i = 0; i < g->base.n; i++) {
        const int64_t in = part_of(g->recv_bytes[i], at, most);
        const int64_t out = part_of(g->send_bytes[i], at, most);
        if (i == g->base.rank)
            continue;
        if (!is_short(g->recv_bytes[i]) && in > 0 && ++any)
            MPI_Irecv(g->recv_at[i], (int)in, MPI_BYTE, g->base.first + i, tag, g->base.link->comm,
                      &g->waits[i]);
        if (!is_short(g->send_bytes[i]) && out > 0 && ++any)
            MPI_Isend(g->send_at[i] + at, (int)out, MPI_BYTE, g->base.first + i, tag,
                      g->base.link->comm, &g->waits[g->base.n + i]);
    }
    return any;
}

/* Carries send_at to the others and theirs to recv_at. */
static plait_status move(struct group *g)
{
    const int32_t me = g->base.rank;
    for (int32_t i = 0; i < g->base.n; i++)
        if (i == me)
            copy(g->recv_at[i], g->send_at[i], g->recv_bytes[i]);
        else if (is_short(g->recv_bytes[i]))
            copy(g->recv_at[i], inline_data(g, i), g->recv_bytes[i]);
    for (int64_t at = 0; post(g, at, MESSAGE_MOST); at += MESSAGE_MOST) {
        PLAIT_TRY(wait_all(g, "stopped in"));
        for (int32_t i = 0; i < g->base.n; i++)
            if (g->recv_bytes[i] - at > MESSAGE_MOST)
                g->recv_at[i] += MESSAGE_MOST;
    }
    return PLAIT_OK;
}

/* recv = the sum over ranks of `count` floats, this rank's own at `own`; the others' came with
   their requests or lie in scratch. */
static void add_up(const struct group *g, const float *own, int64_t count, float *recv)
{
    for (int32_t i = 0; i < g->base.n && count > 0; i++) {
        const float *from = i == g->base.rank ? own
                            : is_short(g->recv_bytes[i])
                                ? (const float *)(const void *)inline_data(g, i)
                                : g->scratch + (int64_t)i * SCRATCH_FLOATS;
        if (i == 0)
            copy(recv, from, count * (int64_t)sizeof *recv);
        for (int64_t k = 0; i > 0 && k < count; k++)
            recv[k] += from[k];
    }
}

/* Sends each rank its floats at send_at and adds up what all give for this one. */
static plait_status reduce(struct group *g, const float *own, int64_t count, float *recv)
{
    const int64_t most = SCRATCH_FLOATS * (int64_t)sizeof(float);
    for (int32_t i = 0; i < g->base.n; i++)
        g->recv_at[i] = (unsigned char *)(g->scratch + (int64_t)i * SCRATCH_FLOATS);
    int64_t done = 0;
    if (is_short(count * (int64_t)sizeof(float))) {
        add_up(g, own, count, recv);
        done = count;
    }
    for (int64_t at = 0; post(g, at, most) || done < count; at += most) {
        const int64_t part = part_of(count, done, SCRATCH_FLOATS);
        PLAIT_TRY(wait_all(g, "stopped in"));
        add_up(g, own + done, part, recv + done);
        done += part;
    }
    return PLAIT_OK;
}

/* ---- operations -------------------------------------------------------------------------------*/

static plait_status gather(struct group *g, int32_t kind, const plait_comm_call *call,
                           const void *send, const int64_t *bytes, void *recv)
{
    unsigned char *at = recv;
    for (int32_t i = 0; i < g->base.n; i++) {
        g->send_at[i] = send;
        g->send_bytes[i] = bytes[g->base.rank];
        g->recv_at[i] = at;
        g->recv_bytes[i] = bytes[i];
        at = bytes[i] > 0 ? at + bytes[i] : at;
    }
    PLAIT_TRY(meet(g, kind, call, bytes, bytes));
    return move(g);
}

static void fill_sizes(struct group *g, int64_t size)
{
    for (int32_t i = 0; i < g->base.n; i++)
        g->own_sizes[i] = size;
}

static plait_status mpi_exchange(void *user, const plait_comm_call *call, const void *send,
                                 size_t bytes, void *recv)
{
    struct group *g = user;
    fill_sizes(g, (int64_t)bytes);
    return gather(g, PLAIT_COMM_EXCHANGE, call, send, g->own_sizes, recv);
}

static plait_status mpi_all_gather(void *user, const plait_comm_call *call, const void *send,
                                   const int64_t *bytes, void *recv)
{
    return gather(user, PLAIT_COMM_ALL_GATHER, call, send, bytes, recv);
}

static plait_status mpi_all_to_all(void *user, const plait_comm_call *call, const void *send,
                                   const int64_t *send_bytes, void *recv, const int64_t *recv_bytes)
{
    struct group *g = user;
    const unsigned char *from = send;
    unsigned char *to = recv;
    for (int32_t i = 0; i < g->base.n; i++) {
        g->send_at[i] = from;
        g->send_bytes[i] = send_bytes[i];
        g->recv_at[i] = to;
        g->recv_bytes[i] = recv_bytes[i];
        from = send_bytes[i] > 0 ? from + send_bytes[i] : from;
        to = recv_bytes[i] > 0 ? to + recv_bytes[i] : to;
    }
    PLAIT_TRY(meet(g, PLAIT_COMM_ALL_TO_ALL, call, send_bytes, recv_bytes));
    return move(g);
}

/* Rank i gets counts[i] floats of send, from where those of the ranks before it end. Returns where
   this rank's own begin. */
static int64_t aim_shares(struct group *g, const float *send, const int64_t *counts)
{
    int64_t at = 0, own = 0;
    for (int32_t i = 0; i < g->base.n; i++) {
        own = i == g->base.rank ? at : own;
        g->send_at[i] = (const unsigned char *)(send ? send + at : send);
        g->send_bytes[i] = counts[i] * (int64_t)sizeof *send;
        g->recv_bytes[i] = counts[g->base.rank] * (int64_t)sizeof *send;
        at += counts[i];
    }
    return own;
}

static plait_status mpi_reduce_scatter(void *user, const plait_comm_call *call, const float *send,
                                       const int64_t *counts, float *recv)
{
    struct group *g = user;
    const int64_t own = aim_shares(g, send, counts);
    PLAIT_TRY(meet(g, PLAIT_COMM_REDUCE_SCATTER, call, counts, counts));
    return reduce(g, send ? send + own : send, counts[g->base.rank], recv);
}

/* Long vectors of more than two ranks: each rank adds up its share, and all gather the shares. */
static plait_status reduce_shares(struct group *g, const plait_comm_call *call, const float *send,
                                  int64_t count, float *recv)
{
    const int32_t n = g->base.n, me = g->base.rank;
    int64_t shares[PLAIT_COMM_MAX_RANKS];
    for (int32_t i = 0; i < n; i++) {
        shares[i] = count / n + (i < count % n);
        g->send_bytes[i] = 0;
    }
    PLAIT_TRY(meet(g, PLAIT_COMM_ALL_REDUCE, call, g->own_sizes, g->own_sizes));
    const int64_t own = aim_shares(g, send, shares);
    PLAIT_TRY(reduce(g, send + own, shares[me], recv + own));
    unsigned char *at = (unsigned char *)recv;
    for (int32_t i = 0; i < n; i++) {
        g->send_at[i] = (const unsigned char *)(recv + own);
        g->send_bytes[i] = shares[me] * (int64_t)sizeof *recv;
        g->recv_at[i] = at;
        g->recv_bytes[i] = shares[i] * (int64_t)sizeof *recv;
        at += g->recv_bytes[i];
    }
    g->recv_bytes[me] = 0; /* it is in place */
    return move(g);
}

static plait_status mpi_all_reduce(void *user, const plait_comm_call *call, const float *send,
                                   int64_t count, float *recv)
{
    struct group *g = user;
    fill_sizes(g, count);
    /* No share is short then, so nothing of it was to travel with the requests. */
    if (g->base.n > 2 && !is_short(count / g->base.n * (int64_t)sizeof *send))
        return reduce_shares(g, call, send, count, recv);
    for (int32_t i = 0; i < g->base.n; i++) {
        g->send_at[i] = (const unsigned char *)send;
        g->send_bytes[i] = g->recv_bytes[i] = count * (int64_t)sizeof *send;
    }
    PLAIT_TRY(meet(g, PLAIT_COMM_ALL_REDUCE, call, g->own_sizes, g->own_sizes));
    return reduce(g, send, count, recv);
}

static void mpi_abort(void *user, const char *why)
{
    struct group *g = user;
    char sentence[PLAIT_MPI_ERROR_BYTES];
    snprintf(sentence, sizeof sentence, "comm: rank %d of %d aborted: %.500s", g->base.link->rank,
             g->base.link->n, why);
    plait_mpi_fail(&g->base, sentence);
}

/* ---- opening and closing ----------------------------------------------------------------------*/

static void lay_out(plait_arena *arena, struct group *g)
{
    const size_t n = (size_t)g->base.n;
    g->base.closed = plait_arena_take(arena, n, 1);
    g->out = plait_arena_take(arena, n, g->stride);
    g->in = plait_arena_take(arena, n, g->stride);
    g->requests = plait_arena_take(arena, n, sizeof *g->requests);
    g->waits = plait_arena_take(arena, 2 * n, sizeof(MPI_Request));
    g->scratch = plait_arena_take(arena, n, SCRATCH_FLOATS * sizeof(float));
    g->own_sizes = plait_arena_take(arena, n, sizeof *g->own_sizes);
    g->send_at = plait_arena_take(arena, n, sizeof(void *));
    g->recv_at = plait_arena_take(arena, n, sizeof(void *));
    g->send_bytes = plait_arena_take(arena, n, sizeof *g->send_bytes);
    g->recv_bytes = plait_arena_take(arena, n, sizeof *g->recv_bytes);
}

/* Ranks [first, first + n) of the link; no other process is asked. It joins the link later. */
static plait_status open_group(plait_mpi_link *link, int32_t first, int32_t n, struct group **out)
{
    struct group *g;
    PLAIT_TRY(plait_mem_zalloc(&link->allocator, sizeof *g, "group of ranks", (void **)&g));
    g->allocator = link->allocator;
    g->base.link = link;
    g->base.first = first;
    g->base.n = n;
    g->base.rank = link->rank - first;
    g->stride = (data_offset(g) + INLINE_BYTES + PLAIT_ALIGN - 1) / PLAIT_ALIGN * PLAIT_ALIGN;
    lay_out(&g->arena, g);
    const plait_status status = plait_arena_reserve(&g->arena, &g->allocator, "group of ranks");
    if (status != PLAIT_OK) {
        plait_mem_free(&g->allocator, g, sizeof *g);
        return status;
    }
    lay_out(&g->arena, g);
    memset(g->base.closed, 0, (size_t)n);
    for (int32_t i = 0; i < 2 * n; i++)
        g->waits[i] = MPI_REQUEST_NULL;
    *out = g;
    return PLAIT_OK;
}

static void free_group(struct group *g)
{
    if (g->stuck)
        return;
    const plait_allocator allocator = g->allocator;
    plait_arena_free(&g->arena, &allocator);
    plait_mem_free(&allocator, g, sizeof *g);
}

static void join_link(struct group *g, int32_t id)
{
    plait_mpi_link *link = g->base.link;
    g->base.id = id;
    link->next_group = id + 1;
    g->base.next = link->groups;
    link->groups = &g->base;
    link->num_open++;
}

static void mpi_close(void *user)
{
    struct group *g = user;
    plait_mpi_link *link = g->base.link;
    plait_mpi_group **at = &link->groups;
    plait_mpi_link_read(link);
    if (!g->base.failed)
        plait_mpi_tell(&g->base, PLAIT_MPI_CLOSED, "");
    while (*at != &g->base)
        at = &(*at)->next;
    *at = g->base.next;
    free_group(g);
    if (--link->num_open == 0)
        plait_mpi_link_close(link);
}

static plait_status mpi_split(void *user, const plait_comm_call *call, int32_t group,
                              plait_comm_ops *out);

static plait_comm_ops group_ops(struct group *g)
{
    return (plait_comm_ops){.size = sizeof(plait_comm_ops),
                            .user = g,
                            .rank = g->base.rank,
                            .n_ranks = g->base.n,
                            .exchange = mpi_exchange,
                            .all_gather = mpi_all_gather,
                            .reduce_scatter = mpi_reduce_scatter,
                            .all_to_all = mpi_all_to_all,
                            .all_reduce = mpi_all_reduce,
                            .abort = mpi_abort,
                            .split = mpi_split,
                            .close = mpi_close};
}

/* What ranks show each other in a split. The highest number is new to all of them. */
struct offer {
    int32_t size, ready, next_group;
};

static plait_status check_offers(const struct offer *all, int32_t n, int32_t *id)
{
    *id = 0;
    for (int32_t i = 0; i < n; i++) {
        *id = all[i].next_group > *id ? all[i].next_group : *id;
        if (all[i].size != all[0].size)
            return plait_fail(PLAIT_E_COMM, "comm: rank %d splits into %d, but rank 0 into %d", i,
                              all[i].size, all[0].size);
        if (!all[i].ready)
            return plait_fail(PLAIT_E_COMM, "comm: rank %d has no memory for a sub-group", i);
    }
    return PLAIT_OK;
}

static plait_status mpi_split(void *user, const plait_comm_call *call, int32_t group,
                              plait_comm_ops *out)
{
    struct group *g = user, *sub = NULL;
    plait_mpi_link *link = g->base.link;
    const int32_t first = g->base.first + g->base.rank / group * group;
    struct offer mine = {group, 0, link->next_group}, all[PLAIT_COMM_MAX_RANKS];
    int32_t id = 0;
    mine.ready = open_group(link, first, group, &sub) == PLAIT_OK;
    plait_status status = mpi_exchange(g, call, &mine, sizeof mine, all);
    if (status == PLAIT_OK) {
        status = check_offers(all, g->base.n, &id);
        if (status != PLAIT_OK)
            plait_mpi_fail(&g->base, plait_last_error());
    }
    if (status != PLAIT_OK) {
        if (sub)
            free_group(sub);
        return status;
    }
    join_link(sub, id);
    *out = group_ops(sub);
    return PLAIT_OK;
}

/* Starts MPI where the caller did not. */
static plait_status start_mpi(const void *mpi_comm, int32_t *started)
{
    int is_up = 0, is_over = 0, level = 0, is_main = 1;
    *started = 0;
    MPI_Initialized(&is_up);
    MPI_Finalized(&is_over);
    if (is_over)
        return plait_fail(PLAIT_E_STATE, "comm: MPI was finalized; a process starts it only once");
    if (!is_up) {
        if (mpi_comm)
            return plait_fail(PLAIT_E_ARG, "comm: a communicator of MPI, but MPI is not started");
        *started = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) == MPI_SUCCESS;
        return *started ? PLAIT_OK : plait_fail(PLAIT_E_COMM, "comm: MPI did not start");
    }
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&is_main);
    if (level <= MPI_THREAD_FUNNELED && !is_main)
        return plait_fail(PLAIT_E_STATE, "comm: MPI allows calls of the thread that started it "
                                         "only; start it with MPI_THREAD_SERIALIZED");
    return PLAIT_OK;
}

plait_status plait_comm_mpi_open(const void *mpi_comm, double timeout_s,
                                 const plait_allocator *allocator, plait_comm **out)
{
    *out = NULL;
    if (!(timeout_s > 0))
        return plait_fail(PLAIT_E_ARG, "comm: the deadline is %g s, wanted above 0", timeout_s);
    plait_mpi_link *link;
    struct group *g;
    int32_t started;
    PLAIT_TRY(start_mpi(mpi_comm, &started));
    MPI_Comm comm = MPI_COMM_WORLD;
    if (mpi_comm)
        memcpy(&comm, mpi_comm, sizeof comm);
    PLAIT_TRY(plait_mpi_link_open(comm, started, timeout_s, allocator, &link));
    plait_status status = open_group(link, 0, link->n, &g);
    if (status != PLAIT_OK) {
        plait_mpi_link_close(link);
        return status;
    }
    join_link(g, 0);
    const plait_comm_ops ops = group_ops(g);
    status = plait_comm_wrap(&ops, timeout_s, false, true, allocator, out);
    if (status != PLAIT_OK)
        mpi_close(g);
    return status;
}
