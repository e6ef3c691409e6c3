/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPU kernels that keep the contracts of kernels from elsewhere, quirks included. f32, any dims.
 */
#ifndef PLAIT_TESTS_EMULATORS_H
#define PLAIT_TESTS_EMULATORS_H

#include <plait/attn.h>

typedef struct emulator {
    plait_kernel kernel;
    plait_caps caps;
    int32_t lse_heads_first;
} emulator;

enum { n_emulators = 7 };

/* Emulator i for an op; its kernel points into it, and it lives as long as the process. */
const emulator *emulator_get(plait_op op, int32_t i);

#endif
