/* SPDX-License-Identifier: Apache-2.0 */
/* Peak of AMX with bf16: 4 independent tiles of sums, as many as two operands on each side feed. */
#include <immintrin.h>

#include "kernel/peak.h"

static float run(int64_t rounds)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1,
                .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    float sums[16 * 16];
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_release();
    return sums[0];
}

const plait_peak plait_peak_amx = {"AMX bf16", PLAIT_CPU_AMX, 4 * 16 * 16 * 32 * 2, run};
