/* SPDX-License-Identifier: Apache-2.0 */
#include "comm_checks.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GUARD = 64, MAX_BYTES = 1 << 16 };

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The size of what i sends to j in a round: uneven, and often 0. */
static int64_t size_of(int32_t i, int32_t j, int32_t round)
{
    return (i * 7 + j * 13 + round * 5) % 11 * ((i + j + round) % 3) * 29;
}

static unsigned char byte_of(int32_t i, int32_t j, int64_t at)
{
    return (unsigned char)(i * 31 + j * 17 + at * 3 + 1);
}

struct buffers {
    unsigned char send[MAX_BYTES], copy[MAX_BYTES], recv[MAX_BYTES + GUARD];
};

static int guards_hold(const struct buffers *b, int64_t used)
{
    for (int64_t i = used; i < used + GUARD; i++)
        if (b->recv[i] != 0x99)
            return 0;
    return memcmp(b->send, b->copy, sizeof b->send) == 0;
}

static void prepare(struct buffers *b)
{
    memcpy(b->copy, b->send, sizeof b->send);
    memset(b->recv, 0x99, sizeof b->recv);
}

static int check_all_to_all(plait_comm *comm, struct buffers *b, int32_t round)
{
    const int32_t n = plait_comm_size(comm), me = plait_comm_rank(comm);
    int64_t send[RANKS_MAX], recv[RANKS_MAX], at = 0;
    for (int32_t j = 0; j < n; j++) {
        send[j] = size_of(me, j, round);
        recv[j] = size_of(j, me, round);
        for (int64_t k = 0; k < send[j]; k++)
            b->send[at++] = byte_of(me, j, k);
    }
    prepare(b);
    WANT(plait_comm_all_to_all(comm, "test", -1, NULL, b->send, send, b->recv, recv) == PLAIT_OK);
    at = 0;
    for (int32_t j = 0; j < n; j++)
        for (int64_t k = 0; k < recv[j]; k++)
            WANT(b->recv[at++] == byte_of(j, me, k));
    WANT(guards_hold(b, at));
    return 0;
}

static int check_all_gather(plait_comm *comm, struct buffers *b, int32_t round)
{
    const int32_t n = plait_comm_size(comm), me = plait_comm_rank(comm);
    int64_t bytes[RANKS_MAX], at = 0;
    for (int32_t j = 0; j < n; j++)
        bytes[j] = size_of(j, 0, round);
    for (int64_t k = 0; k < bytes[me]; k++)
        b->send[k] = byte_of(me, 0, k);
    prepare(b);
    WANT(plait_comm_all_gather(comm, "test", -1, NULL, b->send, bytes, b->recv) == PLAIT_OK);
    for (int32_t j = 0; j < n; j++)
        for (int64_t k = 0; k < bytes[j]; k++)
            WANT(b->recv[at++] == byte_of(j, 0, k));
    WANT(guards_hold(b, at));
    return 0;
}

/* A value whose sum depends on the order. */
static float value_of(int32_t rank, int64_t at)
{
    return (float)(at % 97 + 1) * (rank % 2 ? -1.0e4f : 1.0e4f) + 0.1f * (float)(rank + 1);
}

static float sum_of(int32_t n, int64_t at)
{
    float sum = value_of(0, at);
    for (int32_t i = 1; i < n; i++)
        sum += value_of(i, at);
    return sum;
}

static int check_reductions(plait_comm *comm, struct buffers *b, int32_t round)
{
    const int32_t n = plait_comm_size(comm), me = plait_comm_rank(comm);
    int64_t counts[RANKS_MAX], total = 0, before = 0;
    for (int32_t j = 0; j < n; j++) {
        counts[j] = size_of(j, 1, round);
        before += j < me ? counts[j] : 0;
        total += counts[j];
    }
    float *send = (float *)(void *)b->send, *recv = (float *)(void *)b->recv;
    for (int64_t k = 0; k < total; k++)
        send[k] = value_of(me, k);
    prepare(b);
    WANT(plait_comm_reduce_scatter(comm, "test", -1, NULL, send, counts, recv) == PLAIT_OK);
    for (int64_t k = 0; k < counts[me]; k++)
        WANT(recv[k] == sum_of(n, before + k));
    WANT(guards_hold(b, counts[me] * 4));
    prepare(b);
    WANT(plait_comm_all_reduce(comm, "test", -1, NULL, send, total, recv) == PLAIT_OK);
    for (int64_t k = 0; k < total; k++)
        WANT(recv[k] == sum_of(n, k));
    WANT(guards_hold(b, total * 4));
    return 0;
}

static int check_exchange(plait_comm *comm, struct buffers *b, int32_t round)
{
    const int32_t n = plait_comm_size(comm), me = plait_comm_rank(comm);
    const size_t bytes = (size_t)(round * 131 % 1500); /* less and more than a frame */
    for (size_t k = 0; k < bytes; k++)
        b->send[k] = byte_of(me, round, (int64_t)k);
    prepare(b);
    WANT(plait_comm_exchange(comm, "test", PLAIT_OK, b->send, bytes, b->recv) == PLAIT_OK);
    for (int32_t j = 0; j < n; j++)
        for (size_t k = 0; k < bytes; k++)
            WANT(b->recv[(size_t)j * bytes + k] == byte_of(j, round, (int64_t)k));
    WANT(guards_hold(b, (int64_t)bytes * n));
    return 0;
}

int comm_all_operations(plait_comm *comm, void *user)
{
    const int32_t rounds = *(const int32_t *)user;
    struct buffers *b = calloc(1, sizeof *b);
    int failed = 0;
    for (int32_t round = 0; round < rounds && !failed; round++)
        failed = check_all_to_all(comm, b, round) || check_all_gather(comm, b, round) ||
                 check_reductions(comm, b, round) || check_exchange(comm, b, round);
    free(b);
    return failed;
}

int comm_split_and_use(plait_comm *comm, void *user)
{
    const int32_t group = *(const int32_t *)user, me = plait_comm_rank(comm);
    plait_comm *sub;
    WANT(plait_comm_split(comm, group, &sub) == PLAIT_OK);
    WANT(plait_comm_size(sub) == group && plait_comm_rank(sub) == me % group);
    int32_t ids[RANKS_MAX], rounds = 10;
    WANT(plait_comm_exchange(sub, "ids", PLAIT_OK, &me, sizeof me, ids) == PLAIT_OK);
    for (int32_t i = 0; i < group; i++)
        WANT(ids[i] == me / group * group + i);
    WANT(comm_all_operations(sub, &rounds) == 0);
    WANT(plait_comm_agree(comm, "end", PLAIT_OK) == PLAIT_OK);
    plait_comm_close(&sub);
    return 0;
}

int comm_refuses_use(plait_comm *comm)
{
    float x = 1, y = 0;
    WANT(plait_comm_all_reduce(comm, "again", -1, NULL, &x, 1, &y) == PLAIT_E_COMM);
    WANT(strstr(plait_last_error(), "refused"));
    return 0;
}

int comm_one_never_arrives(plait_comm *comm, void *user)
{
    const int32_t missing = *(const int32_t *)user, n = plait_comm_size(comm);
    if (plait_comm_rank(comm) == missing)
        return 0;
    float x = 1, y = 0;
    char name[16];
    snprintf(name, sizeof name, "rank %d ", missing);
    const double start = seconds();
    WANT(n == 1 || plait_comm_all_reduce(comm, "sum", -1, NULL, &x, 1, &y) == PLAIT_E_COMM);
    const double took = seconds() - start;
    WANT(strstr(plait_last_error(), name) && strstr(plait_last_error(), "all_reduce \"sum\""));
    WANT(took >= 0.2 && took < 5);
    return comm_refuses_use(comm);
}

int comm_one_differs(plait_comm *comm, void *user)
{
    const int32_t how = *(const int32_t *)user, me = plait_comm_rank(comm);
    const int odd = me == 1;
    float send[64] = {0}, recv[64];
    int64_t sizes[3] = {4, 4, 4}, other[3] = {4, 8, 4};
    plait_status status = PLAIT_OK;
    switch (how) {
    case 0: /* another operation */
        status = odd ? plait_comm_all_gather(comm, "x", -1, NULL, send, sizes, recv)
                     : plait_comm_reduce_scatter(comm, "x", -1, NULL, send, sizes, recv);
        break;
    case 1: /* another size */
        status = plait_comm_all_reduce(comm, "x", -1, NULL, send, odd ? 5 : 4, recv);
        break;
    case 2:
        status = plait_comm_all_to_all(comm, "x", -1, NULL, send, odd ? other : sizes, recv, sizes);
        break;
    case 3: /* another place in the order */
        if (!odd)
            status = plait_comm_all_reduce(comm, "x", -1, NULL, send, 4, recv);
        if (status == PLAIT_OK)
            status = plait_comm_all_reduce(comm, "y", -1, NULL, send, 4, recv);
        break;
    case 4: /* a control message against a data operation */
        status = odd ? plait_comm_agree(comm, "x", PLAIT_OK)
                     : plait_comm_all_reduce(comm, "x", -1, NULL, send, 4, recv);
        break;
    default: /* another message size */
        status = plait_comm_exchange(comm, "x", PLAIT_OK, send, odd ? 8 : 4, recv);
    }
    WANT(status == PLAIT_E_COMM && strstr(plait_last_error(), "rank 1"));
    return comm_refuses_use(comm);
}

int comm_one_aborts(plait_comm *comm, void *user)
{
    if (plait_comm_rank(comm) == 2) {
        plait_comm_abort(comm, "the kernel failed");
        return comm_refuses_use(comm);
    }
    (void)user;
    WANT(plait_comm_agree(comm, "step", PLAIT_OK) == PLAIT_E_COMM);
    WANT(strstr(plait_last_error(), "rank 2") && strstr(plait_last_error(), "the kernel failed"));
    return comm_refuses_use(comm);
}

int comm_one_status(plait_comm *comm, void *user)
{
    (void)user;
    const plait_status mine = plait_comm_rank(comm) == 1 ? PLAIT_E_NOMEM : PLAIT_OK;
    WANT(plait_comm_agree(comm, "open", mine) == PLAIT_E_NOMEM);
    WANT(strstr(plait_last_error(), "rank 1, open"));
    WANT(plait_comm_agree(comm, "open", PLAIT_OK) == PLAIT_OK);
    return 0;
}
