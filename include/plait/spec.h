/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/spec.h - rules of verification: which drafted tokens stand, and where an output ends.
 *
 * A request with K drafts is verified by 1 + K rows: row 0 holds its last token, row j its draft
 * j - 1. Row j's logits choose the token after row j.
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

#ifdef __cplusplus
}
#endif
#endif
