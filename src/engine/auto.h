/* SPDX-License-Identifier: Apache-2.0 */
/* engine/auto.h - the number of drafts of each sequence, from measured acceptance and cost. */
#ifndef PLAIT_ENGINE_AUTO_H
#define PLAIT_ENGINE_AUTO_H

#include <plait/status.h>

#include <stdint.h>

struct plait_session;

enum {
    PLAIT_AUTO_DRAFTS = 8, /* most drafts of a sequence */
    PLAIT_AUTO_ROWS = 288  /* of a step whose cost is noted, less one */
};

/* Costs of steps, over all requests of an engine; 0: not known. Zeroed at first. */
typedef struct plait_auto {
    float target_s[PLAIT_AUTO_ROWS];      /* the step but for drafting, by rows */
    float draft_s[PLAIT_AUTO_DRAFTS + 1]; /* drafting, by the most drafts of a sequence */
    int64_t steps;                        /* that were measured */
    int32_t knows_plain, knows_drafts;    /* steps without and with drafts were measured */
} plait_auto;

/* Of one sequence. Zeroed at its start. */
typedef struct plait_auto_counts {
    float tried[PLAIT_AUTO_DRAFTS], kept[PLAIT_AUTO_DRAFTS]; /* drafts of each depth */
    int32_t wanted;                                          /* drafts of its next step */
    int32_t idle, retry_after; /* steps without drafts, and until one is tried again */
} plait_auto_counts;

typedef struct plait_auto_times {
    float draft_s, target_s;
} plait_auto_times;

/* After a step in which the listed sequences decoded: notes times and acceptance, and decides on
   the drafts of the next step. Collective. */
plait_status plait_auto_learn(struct plait_session *session, const plait_auto_times *times,
                              int32_t num, const int32_t *list, int32_t with_prompts);

#endif
