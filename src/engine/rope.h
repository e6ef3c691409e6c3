/* SPDX-License-Identifier: Apache-2.0 */
/* engine/rope.h - rotary position embedding of the rope part of queries and keys. */
#ifndef PLAIT_ENGINE_ROPE_H
#define PLAIT_ENGINE_ROPE_H

#include "engine/config.h"

/* cos and sin of every position and pair, YaRN's factors applied. */
typedef struct plait_rope_table {
    float *cos_sin; /* [length][2][dim / 2] */
    int64_t length;
    int32_t dim;
    bool interleave;
} plait_rope_table;

plait_status plait_rope_table_open(const plait_rope *rope, int64_t length, plait_rope_table *out);
void plait_rope_table_close(plait_rope_table *table);

/* Rotates x[dim] at `position` in [0, length) in place: pairs (2i, 2i+1) where interleaved, else
   (i, i + dim/2). */
void plait_rope_apply(const plait_rope_table *table, int64_t position, float *x);

#endif
