/* SPDX-License-Identifier: Apache-2.0 */
/* random.c: random numbers as a hash of what they are for. No state: order and batch are nothing.
 */
#include <plait/spec.h>

/* The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
   2014): each bit of x reaches all bits. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t absorb(uint64_t hash, uint64_t value)
{
    return mix((hash + UINT64_C(0x9e3779b97f4a7c15)) ^ mix(value + UINT64_C(0x632be59bd9b4e019)));
}

double plait_spec_random(uint64_t seed, uint64_t request, int64_t position,
                         plait_spec_purpose purpose)
{
    uint64_t hash = absorb(0, seed);
    hash = absorb(hash, request);
    hash = absorb(hash, (uint64_t)position);
    hash = absorb(hash, (uint64_t)purpose);
    return (double)(hash >> 11) * 0x1p-53;
}
