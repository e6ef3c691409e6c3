/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel/peak.h - the fastest that each instruction class multiplies and adds, from registers
 * alone. It is the ceiling that `plait bench` holds a kernel of that class against.
 */
#ifndef PLAIT_KERNEL_PEAK_H
#define PLAIT_KERNEL_PEAK_H

#include <stdint.h>

#include <plait/cpu.h>

typedef struct plait_peak {
    const char *name; /* what it measures */
    plait_cpu_features needs;
    int32_t flops; /* of one round */
    float (*run)(int64_t rounds);
} plait_peak;

#if defined(__x86_64__)
extern const plait_peak plait_peak_amx, plait_peak_avx512bf16, plait_peak_avx512, plait_peak_avx2;
#endif

/* Classes from the best one down; NULL past the last. */
const plait_peak *plait_peak_get(int32_t i);

#endif
