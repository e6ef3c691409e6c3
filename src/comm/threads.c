/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are threads of one process, and the group of one. An operation is: show the others
 * what is asked for and where the send buffer is; barrier; compare; read from the others' buffers;
 * barrier, after which the send buffers are free again. Each rank adds up what it receives in rank
 * order.
 *
 * A barrier and the failure of the group are one atomic word, so that a barrier either completes
 * for all ranks or fails for all that are in it.
 */
#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "core/memory.h"
#include "core/status.h"

enum { SPIN_NS = 20000, ERROR_BYTES = 640 };

/* The word: ranks that arrived in bits 0-7, barriers completed (modulo) in bits 8-30, failed. */
#define ARRIVED(word) ((word)&0xffu)
#define EPOCH(word)   ((word) >> 8 & 0x7fffffu)
#define FAILED        0x80000000u

struct member {
    _Alignas(PLAIT_ALIGN) struct group *group;
    int32_t rank;
    _Atomic uint32_t entered; /* barriers that this rank came to */
    const void *send;
    int64_t sizes[PLAIT_COMM_MAX_RANKS]; /* of operations whose callers give one size */
};

struct group {
    _Alignas(PLAIT_ALIGN) _Atomic uint32_t word;
    _Atomic uint32_t sleepers;
    _Atomic int32_t open; /* members that are not closed */
    int32_t n;
    pthread_mutex_t lock; /* of error */
    char error[ERROR_BYTES];
    plait_allocator allocator;
    size_t bytes;
    plait_comm_request *requests; /* [n] */
    struct member members[];
};

/* ---- barrier ----------------------------------------------------------------------------------*/

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void wake(struct group *g)
{
    if (atomic_load(&g->sleepers) > 0)
        syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Waits until barrier `epoch` completed or failed, at most until `deadline`; returns the word. */
static uint32_t wait_for(struct group *g, uint32_t epoch, int64_t deadline)
{
    const int64_t start = now_ns();
    uint32_t word;
    do {
        for (int i = 0; i < 16; i++) {
            word = atomic_load(&g->word);
            if (EPOCH(word) != epoch || (word & FAILED))
                return word;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    } while (now_ns() - start < SPIN_NS);
    atomic_fetch_add(&g->sleepers, 1);
    while (word = atomic_load(&g->word), EPOCH(word) == epoch && !(word & FAILED)) {
        const int64_t left = deadline - now_ns();
        if (left <= 0)
            break;
        const struct timespec t = {left / 1000000000, left % 1000000000};
        syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, word, &t, NULL, 0);
    }
    atomic_fetch_sub(&g->sleepers, 1);
    return word;
}

/* Fails the group with this sentence, unless it failed before or barrier `epoch` is over
   (UINT32_MAX: whatever the barrier). 1: the group is now failed. */
static bool fail_group(struct group *g, uint32_t epoch, const char *sentence)
{
    pthread_mutex_lock(&g->lock);
    uint32_t word = atomic_load(&g->word);
    bool failed = (word & FAILED) != 0;
    if (!failed) {
        snprintf(g->error, sizeof g->error, "%s", sentence);
        while (epoch == UINT32_MAX || EPOCH(word) == epoch)
            if ((failed = atomic_compare_exchange_weak(&g->word, &word, word | FAILED)))
                break;
    }
    pthread_mutex_unlock(&g->lock);
    wake(g);
    return failed;
}

static plait_status group_error(struct group *g)
{
    char error[ERROR_BYTES];
    pthread_mutex_lock(&g->lock);
    memcpy(error, g->error, sizeof error);
    pthread_mutex_unlock(&g->lock);
    return plait_fail(PLAIT_E_COMM, "%s", error);
}

/* Ranks that did not come to the barrier where `self` is. */
static void name_missing(const struct member *self, char *text, size_t n)
{
    const struct group *g = self->group;
    const uint32_t here = atomic_load(&self->entered);
    size_t used = 0;
    for (int32_t i = 0; i < g->n && used + 1 < n; i++)
        if (atomic_load(&g->members[i].entered) != here)
            used += (size_t)snprintf(text + used, n - used, "%s%d", used ? ", " : "", i);
}

static plait_status wait_in(struct member *self, int32_t kind, const plait_comm_call *call,
                            uint32_t epoch)
{
    struct group *g = self->group;
    int64_t deadline = now_ns() + (int64_t)(call->timeout_s * 1e9);
    for (;;) {
        const uint32_t word = wait_for(g, epoch, deadline);
        if (EPOCH(word) != epoch)
            return PLAIT_OK;
        if (word & FAILED)
            return group_error(g);
        char missing[128] = "", sentence[ERROR_BYTES];
        name_missing(self, missing, sizeof missing);
        if (!missing[0]) { /* the last one is just coming */
            deadline = now_ns() + SPIN_NS;
            continue;
        }
        snprintf(sentence, sizeof sentence,
                 "comm: rank %s of %d did not take part in %s \"%s\" (number %llu) within %g s",
                 missing, g->n, plait_comm_kind_name(kind), call->what,
                 (unsigned long long)call->sequence, call->timeout_s);
        return fail_group(g, epoch, sentence) ? group_error(g) : PLAIT_OK;
    }
}

static plait_status barrier(struct member *self, int32_t kind, const plait_comm_call *call)
{
    struct group *g = self->group;
    atomic_fetch_add(&self->entered, 1);
    uint32_t word = atomic_load(&g->word), next;
    do {
        if (word & FAILED)
            return group_error(g);
        next = ARRIVED(word) + 1 < (uint32_t)g->n ? word + 1 : EPOCH(word + 0x100u) << 8;
    } while (!atomic_compare_exchange_weak(&g->word, &word, next));
    const uint32_t epoch = EPOCH(word);
    if (EPOCH(next) != epoch) {
        wake(g);
        return PLAIT_OK;
    }
    return wait_in(self, kind, call, epoch);
}

/* ---- operations -------------------------------------------------------------------------------*/

/* Shows the request and waits for the others'. *agreed says whether they fit together. */
static plait_status enter(struct member *self, int32_t kind, const plait_comm_call *call,
                          const void *send, const int64_t *send_sizes, const int64_t *recv_sizes,
                          plait_status *agreed)
{
    struct group *g = self->group;
    if (call->device >= 0)
        return plait_fail(PLAIT_E_UNSUPPORTED, "comm: threads exchange host memory, not device %d",
                          call->device);
    /* A failed group may still be read by a late rank, so its slots stay as they are. */
    if (atomic_load(&g->word) & FAILED)
        return group_error(g);
    plait_comm_request_fill(&g->requests[self->rank], kind, call, send_sizes, recv_sizes);
    self->send = send;
    PLAIT_TRY(barrier(self, kind, call));
    *agreed = plait_comm_compare(g->requests, g->n);
    return PLAIT_OK;
}

/* Waits until all ranks have read; only then may a disagreement be returned, since it too was found
   by reading the others' sizes. */
static plait_status leave(struct member *self, int32_t kind, const plait_comm_call *call,
                          plait_status agreed)
{
    char sentence[ERROR_BYTES];
    if (agreed != PLAIT_OK)
        snprintf(sentence, sizeof sentence, "%s", plait_last_error());
    PLAIT_TRY(barrier(self, kind, call));
    if (agreed == PLAIT_OK)
        return PLAIT_OK;
    fail_group(self->group, UINT32_MAX, sentence);
    return plait_fail(agreed, "%s", sentence);
}

static void copy(void *dst, const void *src, int64_t bytes)
{
    if (bytes > 0)
        memcpy(dst, src, (size_t)bytes);
}

static int64_t sum(const int64_t *sizes, int32_t n)
{
    int64_t total = 0;
    for (int32_t i = 0; i < n; i++)
        total += sizes[i];
    return total;
}

static plait_status gather(struct member *self, int32_t kind, const plait_comm_call *call,
                           const void *send, const int64_t *bytes, void *recv)
{
    struct group *g = self->group;
    plait_status agreed;
    PLAIT_TRY(enter(self, kind, call, send, bytes, bytes, &agreed));
    unsigned char *at = recv;
    for (int32_t i = 0; agreed == PLAIT_OK && i < g->n; i++) {
        copy(at, g->members[i].send, bytes[i]);
        at += bytes[i];
    }
    return leave(self, kind, call, agreed);
}

static plait_status threads_all_gather(void *user, const plait_comm_call *call, const void *send,
                                       const int64_t *bytes, void *recv)
{
    return gather(user, PLAIT_COMM_ALL_GATHER, call, send, bytes, recv);
}

static void fill_sizes(struct member *self, int64_t size)
{
    for (int32_t i = 0; i < self->group->n; i++)
        self->sizes[i] = size;
}

static plait_status threads_exchange(void *user, const plait_comm_call *call, const void *send,
                                     size_t bytes, void *recv)
{
    struct member *self = user;
    fill_sizes(self, (int64_t)bytes);
    return gather(self, PLAIT_COMM_EXCHANGE, call, send, self->sizes, recv);
}

/* recv = the sum over ranks of their floats from `offset` on. */
static void add_up(const struct group *g, int64_t offset, int64_t count, float *recv)
{
    if (count <= 0)
        return;
    copy(recv, (const float *)g->members[0].send + offset, count * (int64_t)sizeof *recv);
    for (int32_t i = 1; i < g->n; i++) {
        const float *src = (const float *)g->members[i].send + offset;
        for (int64_t j = 0; j < count; j++)
            recv[j] += src[j];
    }
}

static plait_status threads_reduce_scatter(void *user, const plait_comm_call *call,
                                           const float *send, const int64_t *counts, float *recv)
{
    struct member *self = user;
    plait_status agreed;
    PLAIT_TRY(enter(self, PLAIT_COMM_REDUCE_SCATTER, call, send, counts, counts, &agreed));
    if (agreed == PLAIT_OK)
        add_up(self->group, sum(counts, self->rank), counts[self->rank], recv);
    return leave(self, PLAIT_COMM_REDUCE_SCATTER, call, agreed);
}

static plait_status threads_all_reduce(void *user, const plait_comm_call *call, const float *send,
                                       int64_t count, float *recv)
{
    struct member *self = user;
    plait_status agreed;
    fill_sizes(self, count);
    PLAIT_TRY(enter(self, PLAIT_COMM_ALL_REDUCE, call, send, self->sizes, self->sizes, &agreed));
    if (agreed == PLAIT_OK)
        add_up(self->group, 0, count, recv);
    return leave(self, PLAIT_COMM_ALL_REDUCE, call, agreed);
}

static plait_status threads_all_to_all(void *user, const plait_comm_call *call, const void *send,
                                       const int64_t *send_bytes, void *recv,
                                       const int64_t *recv_bytes)
{
    struct member *self = user;
    struct group *g = self->group;
    plait_status agreed;
    PLAIT_TRY(enter(self, PLAIT_COMM_ALL_TO_ALL, call, send, send_bytes, recv_bytes, &agreed));
    unsigned char *at = recv;
    for (int32_t i = 0; agreed == PLAIT_OK && i < g->n; i++) {
        const int64_t offset = sum(g->requests[i].send, self->rank);
        if (recv_bytes[i] > 0)
            copy(at, (const unsigned char *)g->members[i].send + offset, recv_bytes[i]);
        at += recv_bytes[i];
    }
    return leave(self, PLAIT_COMM_ALL_TO_ALL, call, agreed);
}

static void threads_abort(void *user, const char *why)
{
    struct member *self = user;
    char sentence[ERROR_BYTES];
    snprintf(sentence, sizeof sentence, "comm: rank %d of %d aborted: %.500s", self->rank,
             self->group->n, why);
    fail_group(self->group, UINT32_MAX, sentence);
}

/* ---- opening and closing ----------------------------------------------------------------------*/

static void free_group(struct group *g)
{
    const plait_allocator allocator = g->allocator;
    pthread_mutex_destroy(&g->lock);
    plait_mem_free(&allocator, g, g->bytes);
}

static void threads_close(void *user)
{
    struct member *self = user;
    char sentence[ERROR_BYTES];
    snprintf(sentence, sizeof sentence, "comm: rank %d of %d was closed", self->rank,
             self->group->n);
    fail_group(self->group, UINT32_MAX, sentence);
    if (atomic_fetch_sub(&self->group->open, 1) == 1)
        free_group(self->group);
}

static plait_status open_group(int32_t n, const plait_allocator *allocator, struct group **out)
{
    struct group *g;
    size_t bytes = sizeof *g + (size_t)n * (sizeof(struct member) + sizeof(plait_comm_request));
    PLAIT_TRY(plait_mem_zalloc(allocator, bytes, "group of ranks", (void **)&g));
    g->n = n;
    atomic_init(&g->open, n);
    pthread_mutex_init(&g->lock, NULL);
    g->allocator = allocator ? *allocator : *plait_allocator_default();
    g->bytes = bytes;
    g->requests = (plait_comm_request *)(g->members + n);
    for (int32_t i = 0; i < n; i++) {
        g->members[i].group = g;
        g->members[i].rank = i;
    }
    *out = g;
    return PLAIT_OK;
}

static plait_status threads_split(void *user, const plait_comm_call *call, int32_t group,
                                  plait_comm_ops *out);

static plait_comm_ops member_ops(struct member *m)
{
    return (plait_comm_ops){.size = sizeof(plait_comm_ops),
                            .user = m,
                            .rank = m->rank,
                            .n_ranks = m->group->n,
                            .exchange = threads_exchange,
                            .all_gather = threads_all_gather,
                            .reduce_scatter = threads_reduce_scatter,
                            .all_to_all = threads_all_to_all,
                            .all_reduce = threads_all_reduce,
                            .abort = threads_abort,
                            .split = threads_split,
                            .close = threads_close};
}

/* What ranks show each other in a split. */
struct offer {
    int32_t size;
    struct group *group; /* of the first rank of each sub-group */
};

/* The first rank of each sub-group makes it and shows the others where it is. */
static plait_status threads_split(void *user, const plait_comm_call *call, int32_t group,
                                  plait_comm_ops *out)
{
    struct member *self = user;
    struct offer mine = {group, NULL}, all[PLAIT_COMM_MAX_RANKS];
    if (self->rank % group == 0)
        (void)open_group(group, &self->group->allocator, &mine.group);
    plait_status status = threads_exchange(self, call, &mine, sizeof mine, all);
    if (status != PLAIT_OK) {
        if (mine.group)
            free_group(mine.group);
        return status;
    }
    for (int32_t i = 0; status == PLAIT_OK && i < self->group->n; i++)
        if (all[i].size != group)
            status = plait_fail(PLAIT_E_COMM, "comm: rank %d splits into %d, but rank 0 into %d", i,
                                all[i].size, all[0].size);
        else if (i % group == 0 && !all[i].group)
            status = plait_fail(PLAIT_E_COMM, "comm: rank %d has no memory for a sub-group", i);
    if (status != PLAIT_OK) {
        fail_group(self->group, UINT32_MAX, plait_last_error());
        if (mine.group)
            free_group(mine.group);
        return status;
    }
    *out = member_ops(&all[self->rank / group * group].group->members[self->rank % group]);
    return PLAIT_OK;
}

plait_status plait_comm_threads_open(int32_t n_ranks, double timeout_s,
                                     const plait_allocator *allocator, plait_comm **out)
{
    if (n_ranks < 1 || n_ranks > PLAIT_COMM_MAX_RANKS)
        return plait_fail(PLAIT_E_ARG, "comm: n_ranks is %d, wanted 1 to %d", n_ranks,
                          PLAIT_COMM_MAX_RANKS);
    memset(out, 0, (size_t)n_ranks * sizeof *out);
    struct group *g;
    PLAIT_TRY(open_group(n_ranks, allocator, &g));
    for (int32_t i = 0; i < n_ranks; i++) {
        const plait_comm_ops ops = member_ops(&g->members[i]);
        const plait_status status =
            plait_comm_wrap(&ops, timeout_s, false, true, allocator, &out[i]);
        if (status == PLAIT_OK)
            continue;
        for (int32_t j = i; j < n_ranks; j++)
            threads_close(&g->members[j]);
        for (int32_t j = 0; j < i; j++)
            plait_comm_close(&out[j]);
        return status;
    }
    return PLAIT_OK;
}

plait_status plait_comm_self_open(const plait_allocator *allocator, plait_comm **out)
{
    return plait_comm_threads_open(1, 1.0, allocator, out);
}
