/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs of `plait bench`: N(0,1) values, and memory that is larger than the caches. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/convert.h"
#include "tools/bench.h"

enum { n_normal = 1 << 16, huge_page = 2 << 20 };

uint64_t plait_bench_random(plait_bench_source *s)
{
    s->state ^= s->state << 13;
    s->state ^= s->state >> 7;
    s->state ^= s->state << 17;
    return s->state;
}

/* N(0,1) values of a table that Box and Muller's formula fills. */
int plait_bench_source_open(plait_bench_source *s)
{
    s->state = 88172645463325252u;
    s->normal = malloc(n_normal * sizeof *s->normal);
    for (int32_t i = 0; s->normal && i < n_normal; i += 2) {
        double r = sqrt(-2 * log(((double)(plait_bench_random(s) >> 11) + 1) * 0x1p-53));
        double angle = 2 * 3.14159265358979 * ((double)(plait_bench_random(s) >> 11) * 0x1p-53);
        s->normal[i] = (float)(r * cos(angle));
        s->normal[i + 1] = (float)(r * sin(angle));
    }
    return s->normal != NULL;
}

void plait_bench_source_close(plait_bench_source *s)
{
    free(s->normal);
    s->normal = NULL;
}

static void draw(plait_bench_source *s, void *to, plait_dtype dtype, size_t n)
{
    const size_t bytes = plait_dtype_bytes(dtype);
    uint64_t bits = 0;
    for (size_t i = 0; i < n; i++, bits >>= 16) {
        bits = i % 4 ? bits : plait_bench_random(s);
        float x = s->normal[bits & (n_normal - 1)];
        uint32_t code = dtype == PLAIT_F32    ? plait_f32_bits(x)
                        : dtype == PLAIT_BF16 ? plait_bf16_from_f32(x)
                        : dtype == PLAIT_F16  ? plait_f16_from_f32(x)
                                              : plait_e4m3_from_f32(x);
        memcpy((char *)to + i * bytes, &code, bytes);
    }
}

/* Draws up to 4 Mi values and repeats them: distinct addresses make a call cold, not values. */
void plait_bench_fill(plait_bench_source *s, void *to, plait_dtype dtype, size_t n)
{
    const size_t drawn = n < 4 << 20 ? n : 4 << 20, bytes = plait_dtype_bytes(dtype);
    draw(s, to, dtype, drawn);
    for (size_t at = drawn; at < n; at += drawn)
        memcpy((char *)to + at * bytes, to, (n - at < drawn ? n - at : drawn) * bytes);
}

void *plait_bench_reserve(size_t bytes)
{
    size_t whole = (bytes + huge_page) / huge_page * huge_page;
    void *p = aligned_alloc(huge_page, whole);
    if (p)
        madvise(p, whole, MADV_HUGEPAGE);
    return p;
}

size_t plait_bench_cold_bytes(void)
{
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const size_t want = l3 > 0 ? 2 * (size_t)l3 : 0, least = 256u << 20, most = 640u << 20;
    return want < least ? least : want > most ? most : want;
}
