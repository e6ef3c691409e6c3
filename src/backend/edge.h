/* SPDX-License-Identifier: Apache-2.0 */
/* backend/edge.h - what a foreign kernel wrote becomes a partial state of plait/merge.h. */
#ifndef PLAIT_BACKEND_EDGE_H
#define PLAIT_BACKEND_EDGE_H

#include <plait/attn.h>

/*
 * Converts out and lse of the call `args` in place: base, empty rows, bad values. raw not NULL: the
 * LSE as the kernel laid it out, [h_q][raw_rows]. Returns how many row-heads with keys have an LSE
 * of NaN or +inf.
 */
int64_t plait_edge_convert(const plait_attn_args *args, plait_lse_mode lse, const float *raw,
                           int32_t raw_rows, const char *name);

/* Writes the padding rows as empty. */
void plait_edge_pad(const plait_attn_args *args);

#endif
