/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/spec.h - rules of verification: which drafted tokens stand, and where an output ends.
 *
 * A request with K drafts is verified by 1 + K rows: row 0 holds its last token, row j its draft
 * j - 1. Row j's logits choose the token after row j.
 *
 * Sampling is lossless: whatever drafts there were, tokens have the distribution of decoding
 * without them (Leviathan, Kalman, Matias: Fast inference from transformers via speculative
 * decoding, 2023). All functions are pure and thread-safe; equal inputs give equal bits.
 */
#ifndef PLAIT_SPEC_H
#define PLAIT_SPEC_H

#include <stdint.h>

#include <plait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The highest of n logits, the lowest id on ties; -1 when one of them is NaN or none is finite. */
PLAIT_API int32_t plait_spec_argmax(const float *logits, int32_t n);

/*
 * Greedy verification. chosen [1 + num_drafts]: the target's choice after each row. Keeps drafts
 * as long as they equal the choice before them. Returns the number of tokens gained (accepted
 * drafts and the one the target adds), which are chosen[0 .. result). Thread-safe.
 */
PLAIT_API int32_t plait_spec_verify_greedy(const int32_t *drafts, int32_t num_drafts,
                                           const int32_t *chosen);

/*
 * Where a run of tokens ends: the one place that decides on stops and length limits. Of `num` new
 * tokens, at most `room` may be kept; the first stop token is kept and ends the output. Returns
 * how many are kept; *stopped: 1 when the last one kept is a stop token. Thread-safe.
 */
PLAIT_API int32_t plait_spec_cut(const int32_t *tokens, int32_t num, int64_t room,
                                 const int32_t *stops, int32_t num_stops, int32_t *stopped);

/* ---- sampling -------------------------------------------------------------------------------- */

typedef struct plait_sampling {
    double temperature; /* 0: greedy */
    int32_t top_k;      /* most tokens to draw from; 0: all */
    double top_p;       /* (0, 1]; 1: all */
    uint64_t seed;
    uint64_t request; /* tells apart requests with one seed */
} plait_sampling;
#define PLAIT_SAMPLING_INIT                                                                        \
    {                                                                                              \
        0, 0, 1, 0, 0                                                                              \
    }

/* What a random number is for: numbers of two purposes are independent. */
typedef enum plait_spec_purpose {
    PLAIT_SPEC_TOKEN = 0,  /* a token of the target: no draft, or the one after all drafts */
    PLAIT_SPEC_DRAFT = 1,  /* a draft of a drafter that has a distribution */
    PLAIT_SPEC_ACCEPT = 2, /* whether a draft stands */
    PLAIT_SPEC_REDRAW = 3  /* the token instead of a draft that does not */
} plait_spec_purpose;

/* Uniform in [0, 1), 53 bits: a hash of its four arguments. `position` is the index that the token
   gets in its sequence. */
PLAIT_API double plait_spec_random(uint64_t seed, uint64_t request, int64_t position,
                                   plait_spec_purpose purpose);

/*
 * The distribution that tokens are drawn from, to probs [n]: softmax(logits / temperature), of
 * which top-k keeps the k most likely tokens, and then top-p the fewest of these, most likely
 * first, whose share of what top-k kept is at least top_p. That is the order of transformers'
 * and vLLM's samplers. Among equal logits the lowest id goes first. Temperature 0 gives 1 to the
 * highest logit. Logits may be -inf. scratch [n]. Returns the id of the highest logit; -1 as
 * plait_spec_argmax does.
 */
PLAIT_API int32_t plait_spec_distribution(const float *logits, int32_t n,
                                          const plait_sampling *sampling, int32_t *scratch,
                                          float *probs);

/* The token of probs [n] at `random` in [0, 1), in the order of ids. */
PLAIT_API int32_t plait_spec_draw(const float *probs, int32_t n, double random);

/*
 * Judges one draft: it stands with probability min(1, p/q), else the token is drawn from the
 * positive part of p - q, and never is the draft. p [n]: the target's distribution at this place;
 * q [n]: that which the draft was drawn from with PLAIT_SPEC_DRAFT, filtered as p is; NULL: the
 * draft did not depend on chance. Returns the token: `draft` if it stands, and the next row may be
 * judged.
 */
PLAIT_API int32_t plait_spec_judge(const float *p, const float *q, int32_t n, int32_t draft,
                                   const plait_sampling *sampling, int64_t position);

/*
 * Natural log-probabilities of softmax(logits) itself, before temperature and filters: of `token`,
 * and of the num_top most likely ones (ids and logprobs [num_top], most likely first, id -1 past
 * n). Needs a finite highest logit.
 */
PLAIT_API void plait_spec_logprobs(const float *logits, int32_t n, int32_t token, int32_t num_top,
                                   float *logprob, int32_t *top_ids, float *top_logprobs);

#ifdef __cplusplus
}
#endif
#endif
