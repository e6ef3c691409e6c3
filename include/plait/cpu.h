/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/cpu.h - what the processor can do, and a mask to use less of it.
 *
 * Feature bits are found at run time. A mask takes bits away, so that every level can be tested on
 * one machine; it is a value that callers pass to what they open, never a global.
 */
#ifndef PLAIT_CPU_H
#define PLAIT_CPU_H

#include <stddef.h>
#include <stdint.h>

#include <plait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t plait_cpu_features;

#define PLAIT_CPU_AVX2       (1u << 0) /* AVX2, FMA and F16C */
#define PLAIT_CPU_AVX512     (1u << 1) /* AVX-512 F, BW, DQ and VL */
#define PLAIT_CPU_AVX512BF16 (1u << 2) /* VDPBF16PS and conversions */
#define PLAIT_CPU_AMX        (1u << 3) /* AMX tiles with bf16; a feature of its own */
#define PLAIT_CPU_ALL        0xffffffffu

/* The processor's features, as far as the operating system allows them. Thread-safe. */
PLAIT_API plait_cpu_features plait_cpu_detect(void);

/* Reads a level: "none", "avx2", "avx512", "avx512bf16", "amx" or "all"; each holds those before
   it. PLAIT_E_ARG names the levels. */
PLAIT_API plait_status plait_cpu_level(const char *name, plait_cpu_features *out);

/* Writes names as "avx2+avx512" ("none" for 0) into text of n bytes; returns text. */
PLAIT_API char *plait_cpu_names(plait_cpu_features features, char *text, size_t n);

#ifdef __cplusplus
}
#endif
#endif
