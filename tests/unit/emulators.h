/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPU kernels that keep the contracts of kernels from elsewhere, quirks included. f32, any dims.
 */
#ifndef PLAIT_TESTS_EMULATORS_H
#define PLAIT_TESTS_EMULATORS_H

#include <plait/backend.h>

typedef struct emulator {
    plait_kernel kernel;
    plait_caps caps;
    int32_t lse_heads_first;
} emulator;

enum { n_emulators = 7 };

/* Emulator i for an op; its kernel points into it, and it lives as long as the process. */
const emulator *emulator_get(plait_op op, int32_t i);

/*
 * Kernel i (below emulators_open) that does what a capability row says and no more: it fails with
 * PLAIT_E_STATE on numbers of rows, heads, dims or pages that the row lacks, and what it writes
 * into empty rows changes. The row and note are read in each call.
 */
enum { emulators_open = 3 };
void emulator_open(int32_t i, const plait_caps *row, const plait_row_note *note, plait_op op,
                   plait_kernel *out);
extern int32_t emulator_calls; /* of kernels that emulator_open opened */

#endif
