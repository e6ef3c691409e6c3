/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/session.h - the decoding loop of one rank.
 *
 * Every rank runs the same loop over the same requests and takes the same decisions from the same
 * logits. A sequence of n known tokens has n - 1 of them in the target's cache: the last one is the
 * first row of the next step.
 */
#ifndef PLAIT_ENGINE_SESSION_H
#define PLAIT_ENGINE_SESSION_H

#include <plait/engine.h>

#include "engine/model_pass.h"
#include "engine/tokenizer.h"

enum { PLAIT_MAX_SPEC_TOKENS = 16, PLAIT_SESSION_BATCH = 32 };

/* One request in progress. */
typedef struct plait_sequence {
    const plait_request *request;
    int32_t *ids; /* [limit]: prompt, then new tokens */
    int64_t num_prompt, num_known, limit;
    int32_t finished, stopped;
    int32_t drafts[PLAIT_MAX_SPEC_TOKENS];
    int32_t num_drafts;
    int32_t row;  /* its first row in the target pass whose states are kept for the draft */
    float *state; /* [hidden] fed back by the last draft row */
    int64_t steps, num_drafted, num_accepted;
    double start_s, first_s, last_s;
    plait_text_stream stream;
    int64_t num_streamed;
} plait_sequence;

/* Where rank 0 puts text and tokens as they become final. */
typedef struct plait_output {
    plait_stream_fn fn;
    void *user;
    const plait_tokenizer *tokenizer;
    char *text; /* of the tokens of one step */
    size_t capacity;
} plait_output;

typedef struct plait_session {
    plait_pass *pass;
    plait_kv_group *target, *draft; /* draft NULL: no draft layer */
    plait_draft_kind kind;
    int32_t spec_tokens;
    plait_sequence *sequences;
    int32_t num_sequences;
    const int32_t *eos_ids;
    int32_t num_eos;
    plait_output *output; /* NULL: not rank 0 */
    /* Scratch of one step: [max_rows] each. */
    int32_t *ids, *chosen, *tables, *counts;
    int64_t *starts;
    float *states; /* [max_rows][hidden] */
} plait_session;

plait_status plait_session_open(plait_session *session);
void plait_session_close(plait_session *session);

/* Generates for all sequences. */
plait_status plait_session_run(plait_session *session);

/* Drafts for a sequence with room for them: at most spec_tokens, and no more than can be kept
   beside the token that the target adds. */
int32_t plait_session_room(const plait_session *session, const plait_sequence *sequence);

/* Starts a batch of `group`: takes pages for the rows that tables, starts and counts name, and
   plans it. The three come back in the plan's order, in which the rows are to be filled. */
plait_status plait_session_begin(plait_session *session, plait_kv_group *group, int32_t num_seqs,
                                 int32_t is_prompt);

/* The highest logit of states [n] into chosen; fails when a row's are not finite. */
plait_status plait_session_choose(plait_session *session, const float *states, int32_t n,
                                  int32_t *chosen);

/* ---- draft.c --------------------------------------------------------------------------------- */

/* After a target pass: gives the draft layer the rows that tables, starts and counts name, with the
   target's states (from row `row` of each sequence on); row i needs token i + 1 to be known. */
plait_status plait_draft_catch_up(plait_session *session, int32_t num, int32_t is_prompt);

/* Fills drafts of the listed sequences. */
plait_status plait_draft_propose(plait_session *session, int32_t num, const int32_t *sequences);

#endif
