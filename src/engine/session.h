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

#include "engine/auto.h"
#include "engine/draft.h"
#include "engine/model_pass.h"
#include "engine/stop.h"

enum { PLAIT_MAX_SPEC_TOKENS = 16, PLAIT_SESSION_BATCH = 32 };

/* A request as all ranks get it. */
typedef struct plait_job {
    const plait_request *request;
    int32_t *prompt; /* [num_prompt] */
    int64_t num_prompt, limit;
    plait_stops stops;
} plait_job;

/* One request in progress: a place of the batch. */
typedef struct plait_sequence {
    const plait_request *request; /* NULL: the place is free */
    const plait_stops *stops;
    int32_t index; /* the request's number */
    int32_t *ids;  /* [max_position]: prompt, then new tokens */
    int64_t num_prompt, num_known, limit;
    int64_t num_cached; /* tokens in the target's cache; below num_prompt: prefill goes on */
    int64_t num_reused; /* of the prompt, found in the prefix cache; -1: not looked up */
    int32_t finished, cancelled;
    int32_t stopped; /* by its last token, which has no text */
    int32_t cut;     /* by a stop text */
    int32_t drafts[PLAIT_MAX_SPEC_TOKENS];
    int32_t draft_rows[PLAIT_MAX_SPEC_TOKENS]; /* of the sampler's draft_probs */
    int32_t num_drafts;
    int32_t rejected; /* a draft of this step does not stand */
    int32_t row;      /* its first row in the target pass whose states are kept for the draft */
    float *state;     /* [hidden] fed back by the last draft row */
    int64_t steps, num_drafted, num_accepted;
    int32_t last_accepted;    /* drafts of the last step that stood */
    plait_auto_counts counts; /* with spec_auto */
    double start_s, first_s, last_s;
    plait_reader reader;  /* of the new tokens */
    int64_t num_streamed; /* of the final ones */
    int64_t num_indexed;  /* tokens whose pairs the n-gram index has */
} plait_sequence;

/* Where rank 0 puts text and tokens as they become final, and results of what is done. */
typedef struct plait_output {
    plait_stream_fn fn; /* may be NULL */
    void *user;
    plait_result *results; /* of each request, with room for its ids and text */
} plait_output;

/* Whose token a row of logits chooses: that of index num_known + offset of the sequence. */
typedef struct plait_pick {
    plait_sequence *sequence;
    int32_t offset;
    int32_t num_drafts; /* drafts beside these rows; -1: the row itself chooses a draft */
} plait_pick;

/* Scratch of sampling. */
typedef struct plait_sampler {
    plait_pick *picks;  /* [max_rows] */
    float *probs;       /* [vocab] of a target's row */
    int32_t *order;     /* [vocab] */
    float *draft_probs; /* [max_rows][vocab] of a step's drafts; NULL: they do not hang on chance */
    int32_t num_draft_rows;
} plait_sampler;

typedef struct plait_session {
    plait_pass *pass;
    plait_kv_group *target, *draft; /* draft NULL: no draft layer */
    plait_attend *draft_attend;     /* of draft's batches */
    const plait_drafter *drafter;   /* NULL: none */
    void *drafter_data;             /* its own */
    int32_t spec_tokens;            /* of a step and sequence, the most with spec_auto */
    int32_t spec_auto;              /* their number follows from measurements */
    plait_auto adapt;
    int32_t debug_ranks; /* compare tokens of all ranks after every step */
    int32_t max_rows;    /* of a step, at most the pass's */
    const int32_t *eos_ids;
    int32_t num_eos;
    const plait_tokenizer *tokenizer;
    plait_output *output; /* NULL: not rank 0 */

    /* Requests wait in order and take a place, whose number is that of its page tables. */
    plait_sequence sequences[PLAIT_SESSION_BATCH];
    const plait_job *jobs;
    int32_t num_jobs, next_job;
    int32_t turn;       /* the place that is first among those that decode */
    uint32_t cancelled; /* places whose request the caller gave up, as bits; rank 0 only */
    int64_t most_kv, most_draft_kv; /* bytes of pages in use after a step */

    /* Scratch of one step: [max_rows] each. The rows of a batch are named by tables (places),
       starts, counts and is_prompt. */
    int32_t *ids, *chosen, *tables, *counts;
    int64_t *starts;
    uint8_t *is_prompt;
    float *states; /* [max_rows][hidden] */
    plait_sampler sampler;
    plait_text_buffer text; /* that became final in a sequence's step */

    plait_arena arena; /* of what the session and its sequences point to */
    const plait_allocator *allocator;
} plait_session;

/* Memory comes from the allocator of pass->attend. */
plait_status plait_session_open(plait_session *session);
void plait_session_close(plait_session *session);

/* Most drafts that a sequence can have: no more than can be kept beside the token that the target
   adds. */
int32_t plait_session_most(const plait_session *session, const plait_sequence *sequence);

/* Drafts that a sequence is to have in its next step, if the drafter has so many. */
int32_t plait_session_room(const plait_session *session, const plait_sequence *sequence);

/* Starts a batch of `group`: takes pages for the rows that tables, starts, counts and is_prompt
   name, and plans it. The four come back in the plan's order, in which the rows are to be filled.
 */
plait_status plait_session_begin(plait_session *session, plait_kv_group *group, int32_t num_seqs);

/* ---- session_sample.c ------------------------------------------------------------------------ */

void plait_sample_lay_out(plait_arena *arena, plait_session *session);

/* Refuses by name what is wrong in a request's sampling. */
plait_status plait_sample_check(const plait_request *request, int32_t index);

/* Makes room for the log-probabilities that a request wants. */
plait_status plait_sample_open_result(const plait_request *request, int64_t num_new,
                                      plait_result *result);

/* Logits of n <= max_logit_rows states into pass->logits. */
typedef plait_status (*plait_logits_fn)(plait_session *session, const float *states, int32_t n);

/*
 * Tokens from the logits of states [n] into chosen: of requests that are greedy the highest logit,
 * else drafts are drawn and judged; from the row of the first draft that does not stand on, tokens
 * of that sequence mean nothing but the first. Fails when a row's logits are not finite. logits
 * NULL: the target's head. picks NULL: the highest logit.
 */
plait_status plait_session_choose(plait_session *session, plait_logits_fn logits,
                                  const float *states, int32_t n, const plait_pick *picks,
                                  int32_t *chosen);

/* With debug_ranks: fails on all ranks, by name, when the ids of the target pass or what was chosen
   differ between them. */
plait_status plait_sample_compare(plait_session *session, int32_t num_rows, int32_t num_chosen);

/* ---- session_schedule.c ---------------------------------------------------------------------- */

/* Generates for all jobs. The pages of each of them alone must fit in the groups. */
plait_status plait_session_run(plait_session *session, const plait_job *jobs, int32_t num);

/* ---- session_step.c -------------------------------------------------------------------------- */

/*
 * One step: drafts for the sequences that decode, then one target pass over 1 + K rows of each of
 * them and over chunks of prompts (chunk[i] rows of prefill[i]), then acceptance.
 */
plait_status plait_session_step(plait_session *session, int32_t num_decode, const int32_t *decode,
                                int32_t num_prefill, const int32_t *prefill, const int32_t *chunk);

/* Ends a sequence that has all its tokens: what was held back of its text is final. */
plait_status plait_session_finish(plait_session *session, plait_sequence *sequence);

/* Tells of what a sequence gained. */
plait_status plait_session_settle(plait_session *session, int32_t place);

/* Frees the place of a finished sequence; its pages go back. */
void plait_session_leave(plait_session *session, int32_t place);

/* ---- output.c -------------------------------------------------------------------------------- */

/* Hands final tokens and text to the caller, and the result of a finished request. *give_up: 1 when
   the caller wants no more of this request. */
plait_status plait_output_tell(plait_output *output, plait_sequence *sequence,
                               const plait_text_buffer *text, int32_t *give_up);

#endif
