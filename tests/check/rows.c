/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of append and gather: every cache type and layout, slots in any order with some of other
 * ranks, NaN, infinities, subnormal numbers, ties and values out of range. The whole cache, or all
 * of the rows, must equal byte for byte what the rules of plait/kv.h give: a quotient or product in
 * float32, then the nearest code. What is not written must be as it was.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check/check.h"

enum { fill = 0x99, most_rows = 40, ds_row = 656 };

/* One tensor of rows and its cache. */
struct tensor {
    int32_t h_kv, d;
    int64_t row_stride, row_head_stride;            /* in elements of dtype */
    int64_t page_stride, token_stride, head_stride; /* in elements of kv_dtype */
    plait_guard rows, cache, scales;
    int32_t scale_n;
    unsigned char *want; /* of the cache, or of the rows */
};

struct rows_case {
    const plait_routine *routine;
    plait_op op;
    plait_dtype dtype, kv_dtype; /* of rows and cache */
    int32_t num_rows, page_size, num_pages, d_rope;
    plait_guard slots, rope, places; /* places: rows of out, or nothing */
    int64_t rope_stride;
    struct tensor t[2]; /* K, V */
    int n_tensors;
    plait_kv_append_args append;
    plait_kv_gather_args gather;
};

static int is_ds(const struct rows_case *c)
{
    return c->kv_dtype == PLAIT_FP8_DS656;
}

static void choose_shape(struct rows_case *c, plait_random *r, int32_t number)
{
    static const plait_dtype types[] = {PLAIT_F32, PLAIT_BF16, PLAIT_F16, PLAIT_FP8_E4M3,
                                        PLAIT_FP8_DS656};
    static const int32_t mla[][2] = {{576, 64}, {40, 7}, {576, 0}, {72, 8}, {17, 1}, {96, 0}};
    static const int32_t gqa[][2] = {{64, 64}, {128, 128}, {80, 96}, {192, 128}, {1, 3}, {31, 17}};
    static const int32_t pages[] = {1, 3, 16, 64};
    c->kv_dtype = types[number % 5];
    c->dtype = types[number / 5 % 3];
    c->op = is_ds(c) || plait_random_int(r, 0, 1) ? PLAIT_OP_MLA : PLAIT_OP_GQA;
    const int32_t pick = plait_random_int(r, 0, 5);
    const int32_t *d = c->op == PLAIT_OP_MLA ? mla[pick] : gqa[pick];
    c->t[0].d = d[0];
    c->d_rope = c->op == PLAIT_OP_MLA ? d[1] : 0;
    c->t[1].d = d[1];
    if (is_ds(c)) {
        c->t[0].d = 576;
        c->d_rope = pick % 2 ? 64 : 0;
    }
    c->n_tensors = c->op == PLAIT_OP_MLA ? 1 : 2;
    c->t[0].h_kv = c->t[1].h_kv = c->op == PLAIT_OP_MLA ? 1 : plait_random_int(r, 1, 4);
    c->num_rows = plait_random_int(r, 0, 9) ? plait_random_int(r, 1, most_rows) : 0;
    c->page_size = pages[plait_random_int(r, 0, 3)];
    c->num_pages = c->num_rows / c->page_size + 1 + plait_random_int(r, 0, 3);
}

/* Distinct slots in any order; a third of them -1. */
static int choose_slots(struct rows_case *c, plait_random *r, int at_end)
{
    const int32_t n = c->num_pages * c->page_size;
    if (!plait_guard_open(&c->slots, (size_t)c->num_rows * 8, 8, at_end, 0xff))
        return 0;
    int64_t *slot = (int64_t *)(void *)c->slots.data;
    int64_t *order = malloc((size_t)n * sizeof *order);
    for (int32_t i = 0; order && i < n; i++) {
        const int32_t j = plait_random_int(r, 0, i);
        order[i] = order[j];
        order[j] = i;
    }
    for (int32_t i = 0; order && i < c->num_rows; i++)
        slot[i] = plait_random_int(r, 0, 2) ? order[i] : -1;
    free(order);
    return order != NULL;
}

static float draw(plait_random *r)
{
    static const float odd[] = {0.0f,     -0.0f, 1e-41f,      -3e-39f,  448.0f,   464.0f,   -449.0f,
                                1e9f,     1e38f, -INFINITY,   INFINITY, NAN,      1.0625f,  0.01f,
                                65519.0f, 65520, 1.00390625f, 0x1p-24f, 0x1p-10f, 0x1.8p-9f};
    const int32_t dice = plait_random_int(r, 0, 12);
    const float x = (float)plait_random_real(r);
    return dice == 0   ? odd[plait_random_int(r, 0, 19)]
           : dice == 1 ? x * 1e-3f
           : dice == 2 ? x * 300
                       : x;
}

static int64_t size_of(plait_dtype dtype)
{
    return (int64_t)plait_dtype_bytes(dtype);
}

static size_t align_of(plait_dtype dtype)
{
    return dtype == PLAIT_FP8_DS656 ? 4 : plait_dtype_bytes(dtype);
}

/* Strides with gaps, tokens or heads first; scales; memory. */
static int open_tensor(struct rows_case *c, struct tensor *t, plait_random *r, int at_end,
                       int cache_fill, int rows_fill)
{
    const int ds = is_ds(c);
    const int64_t d = ds ? 1 : t->d;
    const int32_t width = c->op == PLAIT_OP_MLA ? t->d - c->d_rope : t->d;
    t->row_head_stride = width + plait_random_int(r, 0, 3);
    t->row_stride = t->h_kv * t->row_head_stride + plait_random_int(r, 0, 3);
    if (plait_random_int(r, 0, 1)) {
        t->head_stride = d + (ds ? 0 : plait_random_int(r, 0, 3));
        t->token_stride = t->h_kv * t->head_stride;
        t->page_stride = c->page_size * t->token_stride + plait_random_int(r, 0, 2);
    } else {
        t->token_stride = d + (ds ? 0 : plait_random_int(r, 0, 3));
        t->head_stride = c->page_size * t->token_stride;
        t->page_stride = t->h_kv * t->head_stride + plait_random_int(r, 0, 2);
    }
    const int32_t mode = ds ? 0 : plait_random_int(r, 0, 2);
    t->scale_n = mode == 0 ? 0 : mode == 1 ? 1 : t->h_kv;
    const size_t rows_bytes = (size_t)(c->num_rows * t->row_stride * size_of(c->dtype));
    const size_t cache_bytes = (size_t)(c->num_pages * t->page_stride * size_of(c->kv_dtype));
    if (!plait_guard_open(&t->rows, rows_bytes, align_of(c->dtype), at_end, rows_fill) ||
        !plait_guard_open(&t->cache, cache_bytes, align_of(c->kv_dtype), at_end, cache_fill) ||
        !plait_guard_open(&t->scales, (size_t)t->scale_n * 4, 4, at_end, 0xff))
        return 0;
    float *scale = (float *)(void *)t->scales.data;
    for (int32_t i = 0; i < t->scale_n; i++)
        scale[i] = (float[]){0.25f, 1.0f, 4.0f, 0.37f}[(i + plait_random_int(r, 0, 3)) % 4];
    const plait_guard *out = cache_fill == fill ? &t->cache : &t->rows;
    t->want = malloc(out->bytes + 1);
    if (t->want)
        memset(t->want, fill, out->bytes);
    return t->want != NULL;
}

static float scale_of(const struct tensor *t, int32_t head)
{
    return t->scale_n == 0 ? 1
                           : ((const float *)(void *)t->scales.data)[t->scale_n == 1 ? 0 : head];
}

/* Byte of element i of a slot's head, in the cache. */
static int64_t cache_at(const struct rows_case *c, const struct tensor *t, int64_t slot,
                        int32_t head, int32_t i)
{
    const int64_t at = slot / c->page_size * t->page_stride +
                       slot % c->page_size * t->token_stride + head * t->head_stride;
    return is_ds(c) ? at * ds_row : (at + i) * size_of(c->kv_dtype);
}

static void put_code(unsigned char *to, plait_dtype dtype, float x)
{
    const uint32_t code = plait_nearest_code(dtype, x);
    memcpy(to, &code, plait_dtype_bytes(dtype));
}

static void close_case(struct rows_case *c)
{
    for (int i = 0; i < 2; i++) {
        plait_guard_close(&c->t[i].rows);
        plait_guard_close(&c->t[i].cache);
        plait_guard_close(&c->t[i].scales);
        free(c->t[i].want);
    }
    plait_guard_close(&c->slots);
    plait_guard_close(&c->rope);
    plait_guard_close(&c->places);
}

/* NULL, or why the call failed or what it left differs. */
static const char *judge(struct rows_case *c, int (*run)(void *arg), const plait_guard *out0,
                         const plait_guard *out1)
{
    const char *why = plait_guard_reason(plait_guard_call(run, c));
    if (why)
        return why;
    if (memcmp(out0->data, c->t[0].want, out0->bytes) != 0 ||
        (out1 && memcmp(out1->data, c->t[1].want, out1->bytes) != 0))
        return "its bytes are not those of the definition";
    return plait_guard_clean(out0, fill) && (!out1 || plait_guard_clean(out1, fill))
               ? NULL
               : "it wrote beyond its output";
}

/* ---- append ---------------------------------------------------------------------------------- */

/* The values of a row's head; MLA's rope stands apart or after the latent. */
static void draw_row(struct rows_case *c, struct tensor *t, plait_random *r, int32_t row,
                     int32_t head, float *x)
{
    const int32_t apart = t->d - (c->op == PLAIT_OP_MLA ? c->d_rope : 0);
    const float size = is_ds(c) && plait_random_int(r, 0, 3) == 0 ? 0 : 1; /* all zeros, too */
    for (int32_t i = 0; i < t->d; i++) {
        unsigned char *to = t->rows.data;
        int64_t at = row * t->row_stride + head * t->row_head_stride + i;
        if (i >= apart) {
            to = c->rope.data;
            at = row * c->rope_stride + i - apart;
        }
        put_code(to + at * size_of(c->dtype), c->dtype, size * draw(r));
        x[i] = (float)plait_value_at(to, c->dtype, at);
    }
}

/* The 656 bytes of a row. */
static void want_ds(unsigned char *to, const float *x)
{
    for (int32_t g = 0; g < 4; g++) {
        float largest = 0;
        for (int32_t i = 128 * g; i < 128 * g + 128; i++)
            largest = fmaxf(largest, fminf(fabsf(isnan(x[i]) ? 0 : x[i]), FLT_MAX));
        const float scale = fmaxf(largest / 448, FLT_MIN);
        for (int32_t i = 128 * g; i < 128 * g + 128; i++)
            put_code(to + i, PLAIT_FP8_E4M3, x[i] / scale);
        memcpy(to + 512 + 4 * g, &scale, 4);
    }
    for (int32_t i = 512; i < 576; i++)
        put_code(to + 528 + 2 * (i - 512), PLAIT_BF16, x[i]);
}

static void fill_append(struct rows_case *c, plait_random *r)
{
    const int64_t *slot = (const int64_t *)(void *)c->slots.data;
    float x[576];
    for (int k = 0; k < c->n_tensors; k++) {
        struct tensor *t = &c->t[k];
        for (int32_t row = 0; row < c->num_rows; row++)
            for (int32_t head = 0; head < t->h_kv; head++) {
                draw_row(c, t, r, row, head, x);
                if (slot[row] < 0)
                    continue;
                if (is_ds(c)) {
                    want_ds(t->want + cache_at(c, t, slot[row], head, 0), x);
                    continue;
                }
                for (int32_t i = 0; i < t->d; i++)
                    put_code(t->want + cache_at(c, t, slot[row], head, i), c->kv_dtype,
                             t->scale_n ? x[i] / scale_of(t, head) : x[i]);
            }
    }
}

static int run_append(void *arg)
{
    const struct rows_case *c = arg;
    return plait_kv_append_with(c->routine, &c->append);
}

static void bind_append(struct rows_case *c)
{
    plait_kv_append_args *a = &c->append;
    *a = (plait_kv_append_args)PLAIT_KV_APPEND_ARGS_INIT;
    a->op = c->op;
    a->num_rows = c->num_rows;
    a->h_kv = c->t[0].h_kv;
    a->d_qk = c->t[0].d;
    a->d_rope = c->d_rope;
    a->page_size = c->page_size;
    a->num_pages = c->num_pages;
    a->slot = (const int64_t *)(void *)c->slots.data;
    a->k = c->t[0].rows.data;
    a->k_row_stride = c->t[0].row_stride;
    a->k_head_stride = c->t[0].row_head_stride;
    a->rope = c->d_rope ? c->rope.data : NULL;
    a->rope_row_stride = c->rope_stride;
    a->dtype = c->dtype;
    a->kv_dtype = c->kv_dtype;
    a->k_cache = c->t[0].cache.data;
    a->k_page_stride = c->t[0].page_stride;
    a->k_token_stride = c->t[0].token_stride;
    a->k_head_cache_stride = c->t[0].head_stride;
    a->k_scale = (const float *)(void *)c->t[0].scales.data;
    a->k_scale_n = c->t[0].scale_n;
    if (c->op == PLAIT_OP_MLA)
        return;
    a->d_v = c->t[1].d;
    a->v = c->t[1].rows.data;
    a->v_row_stride = c->t[1].row_stride;
    a->v_head_stride = c->t[1].row_head_stride;
    a->v_cache = c->t[1].cache.data;
    a->v_page_stride = c->t[1].page_stride;
    a->v_token_stride = c->t[1].token_stride;
    a->v_head_cache_stride = c->t[1].head_stride;
    a->v_scale = (const float *)(void *)c->t[1].scales.data;
    a->v_scale_n = c->t[1].scale_n;
}

static void tell(const struct rows_case *c, char *text)
{
    snprintf(text, 200,
             "%s, rows %s, cache %s, d %d/%d/%d, %d KV heads, %d rows, page %d, scales %d",
             c->op == PLAIT_OP_MLA ? "MLA" : "GQA", plait_dtype_name(c->dtype),
             plait_dtype_name(c->kv_dtype), c->t[0].d, c->t[1].d, c->d_rope, c->t[0].h_kv,
             c->num_rows, c->page_size, c->t[0].scale_n);
}

const char *plait_check_append(const plait_routine *routine, plait_random *r, int32_t number,
                               char *text)
{
    struct rows_case c;
    const int at_end = number % 2;
    memset(&c, 0, sizeof c);
    c.routine = routine;
    choose_shape(&c, r, number);
    tell(&c, text);
    c.rope_stride = c.d_rope + plait_random_int(r, 0, 3);
    int good = choose_slots(&c, r, at_end) &&
               plait_guard_open(&c.rope, (size_t)(c.num_rows * c.rope_stride * size_of(c.dtype)),
                                (size_t)size_of(c.dtype), at_end, 0xff);
    for (int k = 0; good && k < c.n_tensors; k++)
        good = open_tensor(&c, &c.t[k], r, at_end, fill, 0xff);
    const char *why = good ? NULL : "no memory";
    if (!why) {
        fill_append(&c, r);
        bind_append(&c);
        for (int k = 0; k < c.n_tensors; k++) {
            plait_guard_read_only(&c.t[k].rows);
            plait_guard_read_only(&c.t[k].scales);
        }
        plait_guard_read_only(&c.slots);
        plait_guard_read_only(&c.rope);
        why = judge(&c, run_append, &c.t[0].cache, c.n_tensors > 1 ? &c.t[1].cache : NULL);
    }
    close_case(&c);
    return why;
}

/* ---- gather ---------------------------------------------------------------------------------- */

/* Draws a slot's head and puts what it decodes to into x. */
static void draw_cached(struct rows_case *c, struct tensor *t, plait_random *r, int64_t slot,
                        int32_t head, float *x)
{
    unsigned char *to = t->cache.data + cache_at(c, t, slot, head, 0);
    if (!is_ds(c)) {
        for (int32_t i = 0; i < t->d; i++) {
            put_code(to + i * size_of(c->kv_dtype), c->kv_dtype, draw(r));
            x[i] = (float)plait_value_at(to, c->kv_dtype, i);
            if (t->scale_n)
                x[i] *= scale_of(t, head);
        }
        return;
    }
    for (int32_t g = 0; g < 4; g++) {
        const float scale = 0.03f * (float)(g + 1);
        memcpy(to + 512 + 4 * g, &scale, 4);
        for (int32_t i = 128 * g; i < 128 * g + 128; i++) {
            put_code(to + i, PLAIT_FP8_E4M3, draw(r));
            x[i] = (float)plait_value_at(to, PLAIT_FP8_E4M3, i) * scale;
        }
    }
    for (int32_t i = 0; i < 64; i++) {
        put_code(to + 528 + 2 * i, PLAIT_BF16, draw(r));
        x[512 + i] = (float)plait_value_at(to + 528, PLAIT_BF16, i);
    }
}

/* Half of the cases: rows go to places in reverse order. */
static int choose_places(struct rows_case *c, int32_t number, int at_end)
{
    const size_t n = number % 2 ? (size_t)c->num_rows : 0;
    if (!plait_guard_open(&c->places, n * sizeof(int64_t), 8, at_end, 0xff))
        return 0;
    for (size_t i = 0; i < n; i++)
        ((int64_t *)(void *)c->places.data)[i] = (int64_t)(n - 1 - i);
    return 1;
}

static void fill_gather(struct rows_case *c, plait_random *r)
{
    const int64_t *place = c->places.bytes ? (const int64_t *)(void *)c->places.data : NULL;
    const int64_t *slot = (const int64_t *)(void *)c->slots.data;
    struct tensor *t = &c->t[0];
    const int64_t bytes = size_of(c->dtype);
    float x[576];
    for (int32_t row = 0; row < c->num_rows; row++)
        for (int32_t head = 0; head < t->h_kv && slot[row] >= 0; head++) {
            draw_cached(c, t, r, slot[row], head, x);
            unsigned char *to =
                t->want +
                ((place ? place[row] : row) * t->row_stride + head * t->row_head_stride) * bytes;
            if (c->dtype == c->kv_dtype)
                memcpy(to, t->cache.data + cache_at(c, t, slot[row], head, 0),
                       (size_t)(is_ds(c) ? ds_row : t->d * bytes));
            else
                for (int32_t i = 0; i < t->d; i++)
                    put_code(to + i * bytes, c->dtype, x[i]);
        }
}

static int run_gather(void *arg)
{
    const struct rows_case *c = arg;
    return plait_kv_gather_with(c->routine, &c->gather);
}

static void bind_gather(struct rows_case *c)
{
    plait_kv_gather_args *a = &c->gather;
    *a = (plait_kv_gather_args)PLAIT_KV_GATHER_ARGS_INIT;
    a->num_rows = c->num_rows;
    a->h_kv = c->t[0].h_kv;
    a->d = c->t[0].d;
    a->page_size = c->page_size;
    a->num_pages = c->num_pages;
    a->slot = (const int64_t *)(void *)c->slots.data;
    a->cache = c->t[0].cache.data;
    a->kv_dtype = c->kv_dtype;
    a->page_stride = c->t[0].page_stride;
    a->token_stride = c->t[0].token_stride;
    a->head_stride = c->t[0].head_stride;
    a->scale = (const float *)(void *)c->t[0].scales.data;
    a->scale_n = c->t[0].scale_n;
    a->out = c->t[0].rows.data;
    a->out_dtype = c->dtype;
    a->out_row_stride = c->t[0].row_stride;
    a->out_head_stride = c->t[0].row_head_stride;
    a->out_row = c->places.bytes ? (const int64_t *)(void *)c->places.data : NULL;
}

const char *plait_check_gather(const plait_routine *routine, plait_random *r, int32_t number,
                               char *text)
{
    struct rows_case c;
    const int at_end = number % 2;
    memset(&c, 0, sizeof c);
    c.routine = routine;
    choose_shape(&c, r, number);
    c.d_rope = 0;
    if (number % 4 == 3)
        c.dtype = c.kv_dtype; /* bits */
    c.n_tensors = 1;
    tell(&c, text);
    const int good = choose_slots(&c, r, at_end) && choose_places(&c, number / 2, at_end) &&
                     open_tensor(&c, &c.t[0], r, at_end, 0xff, fill);
    const char *why = good ? NULL : "no memory";
    if (!why) {
        c.t[0].scale_n = c.dtype == c.kv_dtype ? 0 : c.t[0].scale_n;
        fill_gather(&c, r);
        bind_gather(&c);
        plait_guard_read_only(&c.t[0].cache);
        plait_guard_read_only(&c.t[0].scales);
        plait_guard_read_only(&c.slots);
        plait_guard_read_only(&c.places);
        why = judge(&c, run_gather, &c.t[0].rows, NULL);
    }
    close_case(&c);
    return why;
}
