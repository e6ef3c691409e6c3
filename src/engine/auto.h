/* SPDX-License-Identifier: Apache-2.0 */
/* engine/auto.h - the number of drafts of each sequence, from measured acceptance and cost. */
#ifndef PLAIT_ENGINE_AUTO_H
#define PLAIT_ENGINE_AUTO_H

#include <plait/status.h>

#include <stdint.h>

struct plait_session;
struct plait_sequence;

enum {
    PLAIT_AUTO_DRAFTS = 8, /* most drafts of a sequence */
    PLAIT_AUTO_BINS = 18   /* of row counts: 1, 2, 3, 4, 5-6, 7-8, 9-12, ..., 257-384 */
};

/* What work on rows costs: the mean of recent measurements, moved to the rows of the last one. */
typedef struct plait_auto_cost {
    int32_t rows, num; /* num 0: not known */
    float seconds;
} plait_auto_cost;

/* Over all requests of an engine. Zeroed at first. */
typedef struct plait_auto {
    plait_auto_cost target[PLAIT_AUTO_BINS]; /* a step but for drafting, by its rows */
    plait_auto_cost draft[PLAIT_AUTO_BINS];  /* a round of drafting, by its rows */
    /* Drafts of each depth that were judged, and of them those that stood; of old ones little is
       left. */
    float tried[PLAIT_AUTO_DRAFTS], kept[PLAIT_AUTO_DRAFTS];
} plait_auto;

/* Of one sequence. Zeroed at its start. */
typedef struct plait_auto_counts {
    float tried, kept;         /* as above, of all depths */
    int32_t wanted;            /* drafts of its next step */
    int32_t same, probe_after; /* steps with the same number, and until another is tried */
    int32_t probed_more;       /* the last trial was of more drafts */
} plait_auto_counts;

typedef struct plait_auto_times {
    float draft_s, target_s;
} plait_auto_times;

/* Decides on the drafts of a sequence's first step. */
void plait_auto_start(const struct plait_session *session, struct plait_sequence *sequence);

/* After a step in which the listed sequences decoded: notes times and acceptance, and decides on
   the drafts of the next step. Collective. */
plait_status plait_auto_learn(struct plait_session *session, const plait_auto_times *times,
                              int32_t num, const int32_t *list, int32_t with_prompts);

#endif
