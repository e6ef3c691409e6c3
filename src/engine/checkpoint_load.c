/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a slice of a tensor: decoding, block scales, and the check that every value is finite. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/convert.h"
#include "core/status.h"
#include "engine/checkpoint_table.h"

enum { CHUNK = 256 };

typedef struct scales {
    const plait_tensor *tensor; /* NULL: none */
    int64_t row_block, col_block, cols;
} scales;

static float element(const plait_tensor *t, int64_t i)
{
    uint32_t u;
    uint16_t h;
    switch (t->type) {
    case PLAIT_TENSOR_F32:
        memcpy(&u, t->data + 4 * i, sizeof u);
        return plait_f32_from_bits(u);
    case PLAIT_TENSOR_BF16:
        memcpy(&h, t->data + 2 * i, sizeof h);
        return plait_bf16_to_f32(h);
    case PLAIT_TENSOR_F16:
        memcpy(&h, t->data + 2 * i, sizeof h);
        return plait_f16_to_f32(h);
    default:
        return plait_e4m3_to_f32(t->data[i]);
    }
}

static void mark_used(plait_checkpoint *c, const plait_tensor *t)
{
    atomic_store_explicit(&c->used[t - c->tensors], 1, memory_order_relaxed);
}

/* The spellings of a block scale that are in use. All of them multiply the code. */
static const plait_tensor *find_scale(const plait_checkpoint *c, const char *name)
{
    static const struct {
        const char *cut, *add;
    } spellings[] = {{"", "_scale_inv"},
                     {"", "_scale"},
                     {"", ".scale"},
                     {"weight", "scale"},
                     {"weight", "scale_weight"}};
    char text[512];
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        const size_t length = strlen(name), cut = strlen(spellings[i].cut);
        if (length < cut || strcmp(name + length - cut, spellings[i].cut) != 0)
            continue;
        const int n =
            snprintf(text, sizeof text, "%.*s%s", (int)(length - cut), name, spellings[i].add);
        if (n < 0 || (size_t)n >= sizeof text)
            continue;
        const plait_tensor *scale = plait_checkpoint_find(c, text);
        if (scale)
            return scale;
    }
    return NULL;
}

/* Finds the scale of an fp8 tensor of rows x cols: one for each block, or one for all. */
static plait_status scales_of(plait_checkpoint *c, const plait_tensor *t, int64_t rows,
                              int64_t cols, scales *out)
{
    memset(out, 0, sizeof *out);
    if (t->type != PLAIT_TENSOR_E4M3)
        return PLAIT_OK;
    const plait_tensor *s = find_scale(c, t->name);
    if (!s)
        return plait_fail(PLAIT_E_FORMAT,
                          "tensor %.200s is fp8 and has no scale; wanted %.200s_scale_inv", t->name,
                          t->name);
    if (s->type != PLAIT_TENSOR_F32 && s->type != PLAIT_TENSOR_BF16)
        return plait_fail(PLAIT_E_UNSUPPORTED, "scale %.200s has dtype %s; supported: F32, BF16",
                          s->name, s->dtype);
    const int64_t want_rows = (rows + c->block_rows - 1) / c->block_rows;
    const int64_t want_cols = (cols + c->block_cols - 1) / c->block_cols;
    if (s->rank == 2 && s->shape[0] == want_rows && s->shape[1] == want_cols)
        *out = (scales){s, c->block_rows, c->block_cols, want_cols};
    else if (s->rank == 0 || (s->rank == 1 && s->shape[0] == 1))
        *out = (scales){s, rows, cols, 1};
    else
        return plait_fail(PLAIT_E_FORMAT,
                          "scale %.200s has shape [%lld, %lld] (rank %d); wanted [%lld, %lld]",
                          s->name, (long long)s->shape[0], (long long)s->shape[1], (int)s->rank,
                          (long long)want_rows, (long long)want_cols);
    mark_used(c, s);
    return PLAIT_OK;
}

/* Decodes n elements of one row from column col on. Returns the first that is not finite, n if
   there is none. */
static int64_t decode(const plait_tensor *t, const scales *s, int64_t row, int64_t cols,
                      int64_t col, int64_t n, float *values)
{
    const int64_t base = row * cols + col;
    int64_t i = 0;
    for (; i < n; i++)
        values[i] = element(t, base + i);
    for (i = 0; s->tensor && i < n;) {
        const int64_t block = (col + i) / s->col_block;
        const float scale = element(s->tensor, row / s->row_block * s->cols + block);
        const int64_t end =
            (block + 1) * s->col_block - col < n ? (block + 1) * s->col_block - col : n;
        for (; i < end; i++)
            values[i] *= scale;
    }
    for (i = 0; i < n; i++)
        if (!(fabsf(values[i]) <= FLT_MAX))
            break;
    return i;
}

/* Returns the first value that bf16 cannot hold, n if there is none. */
static int64_t store(const float *values, int64_t n, plait_dtype dtype, void *dst, int64_t offset)
{
    if (dtype == PLAIT_F32) {
        memcpy((float *)dst + offset, values, (size_t)n * sizeof *values);
        return n;
    }
    uint16_t *out = (uint16_t *)dst + offset;
    for (int64_t i = 0; i < n; i++) {
        out[i] = plait_bf16_from_f32(values[i]);
        if ((out[i] & 0x7f80u) == 0x7f80u)
            return i;
    }
    return n;
}

/* The slice in rows and columns of the file: a vector is one row. */
static plait_status check_shape(const plait_tensor *t, const plait_slice *s)
{
    const bool vector = s->rows == 0;
    if (t->rank == (vector ? 1 : 2) && t->shape[0] == (vector ? s->cols : s->rows) &&
        (vector || t->shape[1] == s->cols))
        return PLAIT_OK;
    return plait_fail(PLAIT_E_FORMAT,
                      "tensor %.200s has shape [%lld, %lld] (rank %d); config.json wants [%lld, "
                      "%lld] (rank %d)",
                      t->name, (long long)t->shape[0], (long long)t->shape[1], (int)t->rank,
                      (long long)(vector ? s->cols : s->rows), (long long)(vector ? 0 : s->cols),
                      vector ? 1 : 2);
}

static bool range_ok(int64_t first, int64_t n, int64_t all)
{
    return first >= 0 && n >= 0 && first <= all && n <= all - first;
}

static plait_status load_rows(const plait_tensor *t, const scales *scale, const plait_slice *s,
                              plait_dtype dtype, void *dst, int64_t dst_stride)
{
    float values[CHUNK];
    for (int64_t r = 0; r < s->n_rows; r++)
        for (int64_t c = 0; c < s->n_cols; c += CHUNK) {
            const int64_t n = s->n_cols - c < CHUNK ? s->n_cols - c : CHUNK;
            int64_t good = decode(t, scale, s->row0 + r, s->cols, s->col0 + c, n, values);
            if (good == n)
                good = store(values, n, dtype, dst, r * dst_stride + c);
            if (good < n)
                return plait_fail(PLAIT_E_FORMAT,
                                  "tensor %.200s holds %g at row %lld, column %lld; weights must "
                                  "be finite in %s",
                                  t->name, (double)values[good], (long long)(s->row0 + r),
                                  (long long)(s->col0 + c + good), plait_dtype_name(dtype));
        }
    return PLAIT_OK;
}

plait_status plait_checkpoint_load(plait_checkpoint *checkpoint, const char *name,
                                   const plait_slice *slice, plait_dtype dtype, void *dst,
                                   int64_t dst_stride)
{
    plait_slice s = *slice;
    scales scale;
    const plait_tensor *t = plait_checkpoint_find(checkpoint, name);
    if (!t)
        return plait_fail(PLAIT_E_FORMAT, "the checkpoint has no tensor %.200s", name);
    if (t->type == PLAIT_TENSOR_OTHER)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "tensor %.200s has dtype %s; supported: BF16, F16, F32, F8_E4M3", name,
                          t->dtype);
    PLAIT_TRY(check_shape(t, &s));
    if (s.rows == 0) {
        s.rows = s.n_rows = 1;
        s.row0 = 0;
    }
    if (dtype != PLAIT_F32 && dtype != PLAIT_BF16)
        return plait_fail(PLAIT_E_ARG, "weights are loaded as f32 or bf16, not %s",
                          plait_dtype_name(dtype));
    if (!range_ok(s.row0, s.n_rows, s.rows) || !range_ok(s.col0, s.n_cols, s.cols) ||
        dst_stride < s.n_cols)
        return plait_fail(PLAIT_E_ARG, "tensor %.200s: the slice is not inside [%lld, %lld]", name,
                          (long long)s.rows, (long long)s.cols);
    PLAIT_TRY(scales_of(checkpoint, t, s.rows, s.cols, &scale));
    mark_used(checkpoint, t);
    return load_rows(t, &scale, &s, dtype, dst, dst_stride);
}
