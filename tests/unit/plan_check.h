/* SPDX-License-Identifier: Apache-2.0 */
/* Batches for tests of the plan, and the plan against brute force. */
#ifndef PLAIT_TESTS_PLAN_CHECK_H
#define PLAIT_TESTS_PLAN_CHECK_H

#include "unit.h"

#include <plait/plan.h>

enum { max_seqs = 8, max_rows = 160, max_pages = 256, n_heads = 4 };

/* A batch with its arrays; page ids are unlike for all requests, and shuffled. */
typedef struct test_batch {
    plait_plan_batch b;
    int64_t committed[max_seqs];
    int32_t q_len[max_seqs];
    uint8_t is_prompt[max_seqs];
    int32_t table[max_seqs * max_pages];
} test_batch;

/* MLA, n_heads heads, 3 workers, splits of at least 4 keys, the capacities above. */
plait_plan_options test_plan_options(int32_t d, int32_t r, int32_t i, int32_t page);

plait_plan *test_plan_open(const plait_plan_options *o);

void test_batch_init(test_batch *t, int32_t n, const int64_t *committed, const int32_t *q_len);

/* Checks every array of the plan of `t`, token by token and cell by cell. */
void test_plan_check(const plait_plan_options *o, const test_batch *t, const plait_plan *plan);

void test_plan_build_and_check(const plait_plan_options *o, test_batch *t);

/* The same arrays, by content; page ids as far as they are needed. */
void assert_same_plan(const plait_plan *x, const plait_plan *y);

#endif
