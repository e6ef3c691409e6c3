/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: every operation at 1 to 8 ranks, and ranks that are missing or disagree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <plait/comm.h>

#include "comm_checks.h"
#include "unit.h"

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void operations_at_1_to_8_ranks(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= 8; n++) {
        int32_t rounds = 200;
        assert_int_equal(run_ranks(n, 60, comm_all_operations, &rounds), 0);
    }
}

static void self_is_a_group_of_one(void **state)
{
    (void)state;
    plait_comm *comm;
    int32_t rounds = 50;
    assert_int_equal(plait_comm_self_open(NULL, &comm), PLAIT_OK);
    assert_int_equal(plait_comm_size(comm), 1);
    assert_int_equal(comm_all_operations(comm, &rounds), 0);
    plait_comm_close(&comm);
    assert_null(comm);
    plait_comm_close(&comm);
}

static void groups_are_consecutive_ranks(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{2, 1}, {4, 2}, {6, 3}, {8, 8}, {8, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int32_t group = shapes[i][1];
        assert_int_equal(run_ranks(shapes[i][0], 60, comm_split_and_use, &group), 0);
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

static void missing_rank_is_named_within_the_deadline(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= 5; n++)
        for (int32_t missing = 0; missing < n; missing += n - 1)
            assert_int_equal(run_ranks(n, 0.25, comm_one_never_arrives, &missing), 0);
}

static void case47_ranks_that_disagree_are_told_not_hung(void **state)
{
    (void)state;
    const double start = seconds();
    for (int32_t how = 0; how <= 5; how++)
        assert_int_equal(run_ranks(3, 60, comm_one_differs, &how), 0);
    assert_true(seconds() - start < 30);
}

static void abort_ends_the_waits_of_the_others(void **state)
{
    (void)state;
    const double start = seconds();
    assert_int_equal(run_ranks(4, 60, comm_one_aborts, NULL), 0);
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

static void a_status_is_agreed_by_all(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, 60, comm_one_status, NULL), 0);
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
    WANT(comm_all_operations(comm, &rounds) == 0);
    WANT(plait_comm_split(comm, 1, &sub) == PLAIT_E_UNSUPPORTED);
    WANT(checked ? f.calls >= 5 * rounds : f.calls >= rounds);
    f.lost = 1;
    WANT(plait_comm_agree(comm, "step", PLAIT_OK) == PLAIT_E_COMM);
    WANT(strstr(plait_last_error(), "exchange \"step\"") && strstr(plait_last_error(), "on rank"));
    WANT(comm_refuses_use(comm) == 0);
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
    const int failed = comm_one_differs(comm, user);
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
