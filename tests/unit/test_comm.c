/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: every operation at 1 to 8 ranks, and ranks that are missing or disagree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <plait/comm.h>

#include "ranks.h"
#include "unit.h"

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

static int all_operations(plait_comm *comm, void *user)
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

static void operations_at_1_to_8_ranks(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= 8; n++) {
        int32_t rounds = n <= 4 ? 200 : 60;
        assert_int_equal(run_ranks(n, 60, all_operations, &rounds), 0);
    }
}

static void self_is_a_group_of_one(void **state)
{
    (void)state;
    plait_comm *comm;
    int32_t rounds = 50;
    assert_int_equal(plait_comm_self_open(NULL, &comm), PLAIT_OK);
    assert_int_equal(plait_comm_size(comm), 1);
    assert_int_equal(all_operations(comm, &rounds), 0);
    plait_comm_close(&comm);
    assert_null(comm);
    plait_comm_close(&comm);
}

static int split_and_use(plait_comm *comm, void *user)
{
    const int32_t group = *(const int32_t *)user, me = plait_comm_rank(comm);
    plait_comm *sub;
    WANT(plait_comm_split(comm, group, &sub) == PLAIT_OK);
    WANT(plait_comm_size(sub) == group && plait_comm_rank(sub) == me % group);
    int32_t ids[RANKS_MAX], rounds = 10;
    WANT(plait_comm_exchange(sub, "ids", PLAIT_OK, &me, sizeof me, ids) == PLAIT_OK);
    for (int32_t i = 0; i < group; i++)
        WANT(ids[i] == me / group * group + i);
    WANT(all_operations(sub, &rounds) == 0);
    WANT(plait_comm_agree(comm, "end", PLAIT_OK) == PLAIT_OK);
    plait_comm_close(&sub);
    return 0;
}

static void groups_are_consecutive_ranks(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{2, 1}, {4, 2}, {6, 3}, {8, 8}, {8, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int32_t group = shapes[i][1];
        assert_int_equal(run_ranks(shapes[i][0], 60, split_and_use, &group), 0);
    }
}

static int wrong_split(plait_comm *comm, void *user)
{
    (void)user;
    plait_comm *sub;
    WANT(plait_comm_split(comm, 4, &sub) == PLAIT_E_ARG && !sub);
    return 0;
}

static void a_group_must_divide_the_ranks(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(6, 60, wrong_split, NULL), 0);
}

/* ---- failures ---------------------------------------------------------------------------------*/

static int refuses_use(plait_comm *comm)
{
    float x = 1, y = 0;
    WANT(plait_comm_all_reduce(comm, "again", -1, NULL, &x, 1, &y) == PLAIT_E_COMM);
    WANT(strstr(plait_last_error(), "refused"));
    return 0;
}

static int one_never_arrives(plait_comm *comm, void *user)
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
    return refuses_use(comm);
}

static void missing_rank_is_named_within_the_deadline(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= 5; n++)
        for (int32_t missing = 0; missing < n; missing += n - 1)
            assert_int_equal(run_ranks(n, 0.25, one_never_arrives, &missing), 0);
}

static int one_differs(plait_comm *comm, void *user)
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
    return refuses_use(comm);
}

static void case47_ranks_that_disagree_are_told_not_hung(void **state)
{
    (void)state;
    const double start = seconds();
    for (int32_t how = 0; how <= 5; how++)
        assert_int_equal(run_ranks(3, 60, one_differs, &how), 0);
    assert_true(seconds() - start < 30);
}

static int one_aborts(plait_comm *comm, void *user)
{
    if (plait_comm_rank(comm) == 2) {
        plait_comm_abort(comm, "the kernel failed");
        return refuses_use(comm);
    }
    (void)user;
    WANT(plait_comm_agree(comm, "step", PLAIT_OK) == PLAIT_E_COMM);
    WANT(strstr(plait_last_error(), "rank 2") && strstr(plait_last_error(), "the kernel failed"));
    return refuses_use(comm);
}

static void abort_ends_the_waits_of_the_others(void **state)
{
    (void)state;
    const double start = seconds();
    assert_int_equal(run_ranks(4, 60, one_aborts, NULL), 0);
    assert_true(seconds() - start < 30);
}

static int one_closes(plait_comm *comm, void *user)
{
    plait_comm **own = user;
    const int32_t me = plait_comm_rank(comm);
    if (me == 0) {
        plait_comm_close(&own[0]);
        return 0;
    }
    WANT(plait_comm_agree(comm, "step", PLAIT_OK) == PLAIT_E_COMM);
    WANT(strstr(plait_last_error(), "rank 0 of 3 was closed"));
    return 0;
}

static void closed_rank_ends_the_waits_of_the_others(void **state)
{
    (void)state;
    plait_comm *comms[3];
    assert_int_equal(plait_comm_threads_open(3, 60, NULL, comms), PLAIT_OK);
    assert_int_equal(run_on(comms, 3, one_closes, comms), 0);
    for (int i = 0; i < 3; i++)
        plait_comm_close(&comms[i]);
}

static int one_status(plait_comm *comm, void *user)
{
    (void)user;
    const plait_status mine = plait_comm_rank(comm) == 1 ? PLAIT_E_NOMEM : PLAIT_OK;
    WANT(plait_comm_agree(comm, "open", mine) == PLAIT_E_NOMEM);
    WANT(strstr(plait_last_error(), "rank 1, open"));
    WANT(plait_comm_agree(comm, "open", PLAIT_OK) == PLAIT_OK);
    return 0;
}

static void a_status_is_agreed_by_all(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, 60, one_status, NULL), 0);
}

/* ---- a caller's own communicator ----------------------------------------------------------------
 * The group of threads seen through foreign functions; `lost` makes every operation fail. */

struct foreign {
    plait_comm *inner;
    int lost, calls;
};

static plait_status foreign_exchange(void *user, const plait_comm_call *call, const void *send,
                                     size_t bytes, void *recv)
{
    struct foreign *f = user;
    (void)call;
    f->calls++;
    return f->lost ? PLAIT_E_COMM : plait_comm_exchange(f->inner, "f", PLAIT_OK, send, bytes, recv);
}

static plait_status foreign_all_gather(void *user, const plait_comm_call *call, const void *send,
                                       const int64_t *bytes, void *recv)
{
    struct foreign *f = user;
    (void)call;
    return plait_comm_all_gather(f->inner, "f", -1, NULL, send, bytes, recv);
}

static plait_status foreign_reduce_scatter(void *user, const plait_comm_call *call,
                                           const float *send, const int64_t *counts, float *recv)
{
    struct foreign *f = user;
    (void)call;
    return plait_comm_reduce_scatter(f->inner, "f", -1, NULL, send, counts, recv);
}

static plait_status foreign_all_to_all(void *user, const plait_comm_call *call, const void *send,
                                       const int64_t *send_bytes, void *recv,
                                       const int64_t *recv_bytes)
{
    struct foreign *f = user;
    (void)call;
    return plait_comm_all_to_all(f->inner, "f", -1, NULL, send, send_bytes, recv, recv_bytes);
}

static plait_status foreign_all_reduce(void *user, const plait_comm_call *call, const float *send,
                                       int64_t count, float *recv)
{
    struct foreign *f = user;
    (void)call;
    return plait_comm_all_reduce(f->inner, "f", -1, NULL, send, count, recv);
}

static plait_comm_ops foreign_ops(struct foreign *f)
{
    return (plait_comm_ops){.size = sizeof(plait_comm_ops),
                            .user = f,
                            .rank = plait_comm_rank(f->inner),
                            .n_ranks = plait_comm_size(f->inner),
                            .exchange = foreign_exchange,
                            .all_gather = foreign_all_gather,
                            .reduce_scatter = foreign_reduce_scatter,
                            .all_to_all = foreign_all_to_all,
                            .all_reduce = foreign_all_reduce};
}

static int use_foreign(plait_comm *inner, void *user)
{
    const int32_t checked = *(const int32_t *)user;
    struct foreign f = {inner, 0, 0};
    const plait_comm_ops ops = foreign_ops(&f);
    plait_comm *comm, *sub;
    int32_t rounds = 20;
    WANT(plait_comm_from_ops(&ops, 60, checked, NULL, &comm) == PLAIT_OK);
    WANT(all_operations(comm, &rounds) == 0);
    WANT(plait_comm_split(comm, 1, &sub) == PLAIT_E_UNSUPPORTED);
    WANT(checked ? f.calls >= 5 * rounds : f.calls >= rounds);
    f.lost = 1;
    WANT(plait_comm_agree(comm, "step", PLAIT_OK) == PLAIT_E_COMM);
    WANT(strstr(plait_last_error(), "exchange \"step\"") && strstr(plait_last_error(), "on rank"));
    WANT(refuses_use(comm) == 0);
    plait_comm_close(&comm);
    return 0;
}

static void callers_own_communicator(void **state)
{
    (void)state;
    for (int32_t checked = 0; checked <= 1; checked++)
        for (int32_t n = 1; n <= 4; n += 3)
            assert_int_equal(run_ranks(n, 60, use_foreign, &checked), 0);
}

static int foreign_differs(plait_comm *inner, void *user)
{
    struct foreign f = {inner, 0, 0};
    const plait_comm_ops ops = foreign_ops(&f);
    plait_comm *comm;
    WANT(plait_comm_from_ops(&ops, 60, 1, NULL, &comm) == PLAIT_OK);
    const int failed = one_differs(comm, user);
    plait_comm_close(&comm);
    return failed;
}

static void case47_a_checked_group_tells_what_differs(void **state)
{
    (void)state;
    for (int32_t how = 0; how <= 5; how++)
        assert_int_equal(run_ranks(3, 60, foreign_differs, &how), 0);
}

static void bad_arguments_are_named(void **state)
{
    (void)state;
    plait_comm *comms[1] = {NULL};
    assert_int_equal(plait_comm_threads_open(0, 1, NULL, comms), PLAIT_E_ARG);
    assert_int_equal(plait_comm_threads_open(257, 1, NULL, comms), PLAIT_E_ARG);
    assert_int_equal(plait_comm_threads_open(1, 0, NULL, comms), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "deadline"));
    plait_comm_ops ops = {.size = sizeof ops, .n_ranks = 2, .rank = 2};
    assert_int_equal(plait_comm_from_ops(&ops, 1, 0, NULL, comms), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "rank is 2"));
    ops.rank = 0;
    assert_int_equal(plait_comm_from_ops(&ops, 1, 0, NULL, comms), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "NULL"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_at_1_to_8_ranks),
        cmocka_unit_test(self_is_a_group_of_one),
        cmocka_unit_test(groups_are_consecutive_ranks),
        cmocka_unit_test(a_group_must_divide_the_ranks),
        cmocka_unit_test(missing_rank_is_named_within_the_deadline),
        cmocka_unit_test(case47_ranks_that_disagree_are_told_not_hung),
        cmocka_unit_test(abort_ends_the_waits_of_the_others),
        cmocka_unit_test(closed_rank_ends_the_waits_of_the_others),
        cmocka_unit_test(a_status_is_agreed_by_all),
        cmocka_unit_test(callers_own_communicator),
        cmocka_unit_test(case47_a_checked_group_tells_what_differs),
        cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
