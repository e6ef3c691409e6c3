/* SPDX-License-Identifier: Apache-2.0 */
/* plan/plan.h - what the two halves of src/plan share: the plan's buffers and the scheduler. */
#ifndef PLAIT_PLAN_PLAN_H
#define PLAIT_PLAN_PLAN_H

#include <plait/plan.h>

#include "core/memory.h"

struct plait_plan {
    plait_plan_options o;
    plait_arena arena;
    plait_plan_view view; /* its pointers are those below, set once at open */

    /* As the last batch gave them, in its order: what a refresh starts from. */
    int64_t *req_committed;
    int32_t *req_q_len;
    uint8_t *req_class;

    int32_t *order, *place;
    int64_t *committed, *length;
    int32_t *pages_needed, *row_start;
    int64_t *index, *slot;
    int32_t *position, *kv_begin, *kv_end;
    int32_t *page_table;

    plait_attn_work *work;
    plait_attn_reduce *reduce;
    int32_t max_work, max_partials;

    /* Items before they are dealt out, their costs, and the workers' shares. */
    plait_attn_work *pieces;
    int64_t *piece_cost, *load;
    int32_t *dealt;
};

/* Sets max_work and max_partials from the options; PLAIT_E_ARG if they do not fit. */
plait_status plait_schedule_capacity(plait_plan *plan);

/* Fills work and reduce for the rows, ranges and sequences that stand in the plan. */
void plait_schedule(plait_plan *plan);

#endif
