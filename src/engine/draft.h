/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/draft.h - drafters: what proposes the tokens that the target verifies.
 *
 * A drafter is one file and one row of the table in draft.c. Either it proposes by itself, or it
 * advances a state of each sequence from one draft to the next; the common part then chooses a
 * token from the logits of each state.
 */
#ifndef PLAIT_ENGINE_DRAFT_H
#define PLAIT_ENGINE_DRAFT_H

#include <plait/engine.h>

struct plait_session;
struct plait_sequence;

typedef struct plait_drafter {
    const char *name;
    int32_t has_kv; /* 1: it has a KV group of its own, session->draft */

    /* Makes and frees session->drafter_data. close also follows an open that failed. May be NULL.
     */
    plait_status (*open)(struct plait_session *session);
    void (*close)(struct plait_session *session);

    /* After a target pass: takes the rows that tables, starts, counts and is_prompt name, with the
       target's states (from row `row` of each sequence on). They stand, and belong to sequences
       that may draft. Row i needs token i + 1 to be known. NULL: it takes none. */
    plait_status (*catch_up)(struct plait_session *session, int32_t num);

    /* Makes sequence->state that of draft number `round` (0, 1, ...) for the listed sequences that
       have room for it. NULL: see propose. */
    plait_status (*advance)(struct plait_session *session, int32_t num, const int32_t *list,
                            int32_t round);

    /* The draft layer over the rows of the current batch of session->draft: ids[i] is the token
       after the row's index, states [num_rows][hidden]. pass->hidden receives the states that give
       drafts and are fed back. NULL: there is no such layer. */
    plait_status (*run)(struct plait_session *session, const int32_t *ids, const float *states);

    /* What run writes to the cache, alone. */
    plait_status (*write)(struct plait_session *session, const int32_t *ids, const float *states);

    /* Logits of n <= max_logit_rows states over the target's vocabulary into pass->logits; -inf at
       tokens that it cannot propose. NULL: the target's head. */
    plait_status (*logits)(struct plait_session *session, const float *states, int32_t n);

    /* Instead of advance: fills drafts of the listed sequences, whose num_drafts are 0. */
    plait_status (*propose)(struct plait_session *session, int32_t num, const int32_t *list);
} plait_drafter;

/* NULL for PLAIT_DRAFT_NONE and for what is no kind of draft. */
const plait_drafter *plait_drafter_of(plait_draft_kind kind);

/* See plait_drafter; nothing happens without a drafter. */
plait_status plait_draft_catch_up(struct plait_session *session, int32_t num);
plait_status plait_draft_propose(struct plait_session *session, int32_t num, const int32_t *list);

/* ---- for drafters ---------------------------------------------------------------------------- */

/* Rows for plait_session_begin: one of each listed sequence with room for draft number `round`, at
   the index of its last known or drafted token, less `behind`. Returns their number. */
int32_t plait_draft_list_rows(struct plait_session *session, int32_t num, const int32_t *list,
                              int32_t round, int32_t behind);

/* The last draft, or the last known token if there is none. */
int32_t plait_draft_last_token(const struct plait_sequence *sequence);

/* A state [hidden] becomes that of sequence `place`. */
void plait_draft_keep_state(struct plait_session *session, int32_t place, const float *state);

/* draft_layer.c: catch_up and advance of drafters that have `run` and `write`. states
   [rows][hidden]: of the rows of the last target pass. */
plait_status plait_draft_layer_catch_up(struct plait_session *session, int32_t num,
                                        const float *states);
plait_status plait_draft_layer_advance(struct plait_session *session, int32_t num,
                                       const int32_t *list, int32_t round);

extern const plait_drafter plait_drafter_mtp, plait_drafter_oracle, plait_drafter_ngram,
    plait_drafter_eagle3;

#endif
