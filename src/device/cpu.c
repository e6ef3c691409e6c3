/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processor's features and their names. A feature counts only if the processor has every bit
 * that its kernels use and the operating system saves the registers that they need.
 */
#include <plait/cpu.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Levels in rising order: each holds the features of those before it. */
static const struct {
    const char *name;
    plait_cpu_features feature;
} levels[] = {
    {"none", 0},
    {"avx2", PLAIT_CPU_AVX2},
    {"avx512", PLAIT_CPU_AVX512},
    {"avx512bf16", PLAIT_CPU_AVX512BF16},
    {"amx", PLAIT_CPU_AMX},
};
enum { N_LEVELS = sizeof levels / sizeof *levels };

#if defined(__x86_64__)

struct leaf {
    uint32_t eax, ebx, ecx, edx;
};

static struct leaf cpuid(uint32_t leaf, uint32_t subleaf)
{
    struct leaf r = {0, 0, 0, 0};
    __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
    return r;
}

/* The register states that the operating system saves, XCR0; needs OSXSAVE. */
static uint64_t saved_states(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Whether all given bits are set. */
static bool all(uint64_t word, uint64_t bits)
{
    return (word & bits) == bits;
}

/* Linux grants the AMX tile state only to processes that ask for it (arch_prctl, feature 18). */
static bool amx_granted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}

plait_cpu_features plait_cpu_detect(void)
{
    const struct leaf one = cpuid(1, 0), seven = cpuid(7, 0), seven_one = cpuid(7, 1);
    const uint32_t osxsave = 1u << 27, avx = 1u << 28, fma = 1u << 12, f16c = 1u << 29;
    if (!all(one.ecx, osxsave | avx | fma | f16c))
        return 0;
    const uint64_t states = saved_states();
    const uint64_t ymm = 0x6, zmm = 0xe6, tiles = 3u << 17;
    const uint32_t avx2 = 1u << 5;
    const uint32_t avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    const uint32_t bf16 = 1u << 5;                                     /* leaf 7.1 eax */
    const uint32_t amx = 1u << 22 | 1u << 24;                          /* bf16, tile; edx */

    plait_cpu_features found = 0;
    if (!all(states, ymm) || !all(seven.ebx, avx2))
        return 0;
    found |= PLAIT_CPU_AVX2;
    if (all(states, zmm) && all(seven.ebx, avx512))
        found |= PLAIT_CPU_AVX512;
    if (found & PLAIT_CPU_AVX512 && all(seven_one.eax, bf16))
        found |= PLAIT_CPU_AVX512BF16;
    if (all(states, tiles) && all(seven.edx, amx) && amx_granted())
        found |= PLAIT_CPU_AMX;
    return found;
}

#else

plait_cpu_features plait_cpu_detect(void)
{
    return 0;
}

#endif

plait_status plait_cpu_level(const char *name, plait_cpu_features *out)
{
    if (!name || !out)
        return plait_fail(PLAIT_E_ARG, "cpu level: the name and the result must not be NULL");
    if (strcmp(name, "all") == 0) {
        *out = PLAIT_CPU_ALL;
        return PLAIT_OK;
    }
    plait_cpu_features features = 0;
    for (int i = 0; i < N_LEVELS; i++) {
        features |= levels[i].feature;
        if (strcmp(name, levels[i].name) == 0) {
            *out = features;
            return PLAIT_OK;
        }
    }
    return plait_fail(
        PLAIT_E_ARG,
        "cpu level \"%s\" is unknown; the levels are none, avx2, avx512, avx512bf16, amx "
        "and all",
        name);
}

char *plait_cpu_names(plait_cpu_features features, char *text, size_t n)
{
    size_t used = 0;
    if (n > 0)
        text[0] = 0;
    for (int i = 1; i < N_LEVELS && used < n; i++) {
        if (features & levels[i].feature)
            used +=
                (size_t)snprintf(text + used, n - used, "%s%s", used ? "+" : "", levels[i].name);
    }
    if (used == 0)
        snprintf(text, n, "none");
    return text;
}
