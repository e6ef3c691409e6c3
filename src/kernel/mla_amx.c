/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What: MLA for bf16 queries and caches with AMX tiles of 16 x 16 sums over 32 products each.
 *   Layout, softmax and limits: mla_bf16_tmpl.h.
 * Plan: 2 x 2 tiles of sums. Scores: k is the left operand as it lies, q the right one. Values: the
 *   weights of 32 keys are transposed to [line][pair of keys] as the left operand, v is the right
 * one.
 */
/* Sums of a tile product are rounded in another order than those of value_lines, which a line takes
   when a key of another line beside it is not finite. */
enum { invariant = 0 };

#include "kernel/mla_bf16_tmpl.h"

/* Tile registers: sums 0..3, left operands 4 and 5, right ones 6 and 7, each of 16 rows of 64
   bytes. */
static void configure(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64))) = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = line_bytes;
        config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
}

static void score(const struct scratch *x, int32_t group, int32_t groups, const char *const *ahead)
{
    const size_t block = (size_t)line_bytes * 16 * (size_t)x->chunks;
    const char *q0 = x->q + block * (size_t)group, *q1 = groups == 2 ? q0 + block : q0;
    for (int32_t key = 0; key < x->keys; key += 32) {
        const char *k = x->k + block * (size_t)(key / 16);
        float *s = x->s + key * lanes;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int32_t c = 0; c < x->chunks; c++) {
            const size_t at = (size_t)line_bytes * 16 * (size_t)c;
            for (int j = 0; j < 32 && ahead; j++)
                _mm_prefetch(ahead[key + j] + line_bytes * c, _MM_HINT_T1);
            _tile_loadd(4, k + at, line_bytes);
            _tile_loadd(6, q0 + at, line_bytes);
            _tile_loadd(5, k + block + at, line_bytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
            if (groups == 2) {
                _tile_loadd(7, q1 + at, line_bytes);
                _tile_dpbf16ps(2, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, s, line_bytes);
        _tile_stored(1, s + 16 * lanes, line_bytes);
        if (groups == 2) {
            _tile_stored(2, s + tile * lanes, line_bytes);
            _tile_stored(3, s + (tile + 16) * lanes, line_bytes);
        }
    }
}

/* The weights of a group, from [pair][16 lines] to [32 keys][line][16 pairs]. */
static void transpose_weights(char *p, int32_t keys)
{
    for (int32_t c = 0; c < keys; c += 32, p += line_bytes * 16) {
        __m512i r[16];
        for (int i = 0; i < 16; i++)
            r[i] = _mm512_load_si512(p + line_bytes * i);
        plait_transpose16(r);
        for (int i = 0; i < 16; i++)
            _mm512_store_si512(p + line_bytes * i, r[i]);
    }
}

/* acc += p times v for one or two groups, 32 columns. */
static void value_block(float *acc, int64_t stride, const char *p, const char *v, int32_t keys,
                        int32_t groups)
{
    const size_t bytes = (size_t)stride * sizeof(float);
    float *acc1 = acc + 16 * stride;
    _tile_loadd(0, acc, bytes);
    _tile_loadd(1, acc + 16, bytes);
    if (groups == 2) {
        _tile_loadd(2, acc1, bytes);
        _tile_loadd(3, acc1 + 16, bytes);
    }
    for (int32_t c = 0; c < keys; c += 32, p += line_bytes * 16, v += line_bytes * 4 * 16) {
        _tile_loadd(4, p, line_bytes);
        _tile_loadd(6, v, line_bytes * 4);
        _tile_loadd(7, v + line_bytes, line_bytes * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (groups == 2) {
            _tile_loadd(5, p + line_bytes * (tile / 2), line_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, acc, bytes);
    _tile_stored(1, acc + 16, bytes);
    if (groups == 2) {
        _tile_stored(2, acc1, bytes);
        _tile_stored(3, acc1 + 16, bytes);
    }
}

/* Whether a group's weights go through the tile product. */
static int whole(const struct scratch *x, int32_t group, int not_finite)
{
    return group < x->lines->padded / lanes &&
           (x->view[group] == PLAIT_MLA_FULL || (x->view[group] == PLAIT_MLA_EDGE && !not_finite));
}

static void add_values(const struct scratch *x, int32_t at, int not_finite)
{
    const int32_t groups = x->lines->padded / lanes;
    for (int32_t g = 0; g < groups; g++)
        if (whole(x, g, not_finite))
            transpose_weights(x->p + line_bytes * g * (tile / 2), x->keys);
        else if (x->view[g] == PLAIT_MLA_EDGE)
            value_lines(x, g * lanes, (g + 1) * lanes, at);
    for (int32_t c = 0; c < x->blocks * columns; c += 32) {
        const char *v = x->v + line_bytes * (c / columns * (tile / 2) * 4 + c % columns / 16);
        for (int32_t g = 0; g < groups; g++) {
            if (!whole(x, g, not_finite))
                continue;
            const int32_t n = whole(x, g + 1, not_finite) ? 2 : 1;
            value_block(x->acc + g * lanes * x->acc_stride + c, x->acc_stride,
                        x->p + line_bytes * g * (tile / 2), v, x->keys, n);
            g += n - 1;
        }
    }
}

static plait_status run(const plait_attn_args *args, int32_t worker, int32_t n_workers)
{
    struct scratch x;
    configure();
    run_blocks(args, worker, n_workers, attend, &x);
    _tile_release();
    return PLAIT_OK;
}

/* Multiply-adds in a microsecond on one core: see Measured. */
static double cost(const plait_attn_args *args, int32_t n_workers)
{
    return 1.0 + plait_attn_macs(args) / (270000.0 * n_workers);
}

const plait_kernel plait_kernel_mla_amx = {
    .name = "mla_amx",
    .op = PLAIT_OP_MLA,
    .needs = PLAIT_CPU_AVX512 | PLAIT_CPU_AVX512BF16 | PLAIT_CPU_AMX,
    .device = PLAIT_DEVICE_CPU,
    .rows = rows,
    .n_rows = 1,
    .cost = cost,
    .workspace = workspace,
    .run = run,
    .reduce = plait_attn_reduce_partials,
};
