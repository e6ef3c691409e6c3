/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds attention cases. Everything that a kernel may not use is hostile: NaN in page tails,
 * unused pages, gaps between rows and the q of padding rows; huge or negative ids in unused table
 * entries; garbage ranges for padding rows. The logical values are kept apart, in double, so that
 * the comparison shares no addressing with the kernels.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <plait/shard.h>

#include "core/convert.h"
#include "tests/check/check.h"

enum { max_seqs = 5, max_keys = 330 };

enum values { NORMAL, LARGE, EQUAL, SPIKE, VERY_NEGATIVE, NAN_KEY, TINY, n_values };
enum ranges { CHAIN, SHARD, WINDOW, FULL, EMPTY, n_ranges };
static const char *const values_name[] = {"normal",   "large", "equal", "spike",
                                          "negative", "nan",   "tiny"};
static const char *const ranges_name[] = {"chain", "shard", "window", "full", "empty"};

/* The dtypes of a mask in turn; *turn is divided by their number, for the next choice. */
static plait_dtype dtype_of(uint32_t mask, int32_t *turn)
{
    int32_t n = 0, pick;
    for (uint32_t d = 0; d < 32; d++)
        n += (int32_t)(mask >> d & 1u);
    pick = *turn % n;
    *turn /= n;
    for (uint32_t d = 0;; d++)
        if ((mask >> d & 1u) && pick-- == 0)
            return (plait_dtype)d;
}

/* Stores x as scale * code and returns what that is. */
static double put(void *base, plait_dtype dtype, int64_t offset, double x, float scale)
{
    float stored = (float)(x / scale);
    switch (dtype) {
    case PLAIT_F32:
        ((float *)base)[offset] = stored;
        return (double)stored * scale;
    case PLAIT_BF16:
        ((uint16_t *)base)[offset] = plait_bf16_from_f32(stored);
        return (double)plait_bf16_to_f32(((uint16_t *)base)[offset]) * scale;
    case PLAIT_F16:
        ((uint16_t *)base)[offset] = plait_f16_from_f32(stored);
        return (double)plait_f16_to_f32(((uint16_t *)base)[offset]) * scale;
    default:
        ((uint8_t *)base)[offset] = plait_e4m3_from_f32(stored);
        return (double)plait_e4m3_to_f32(((uint8_t *)base)[offset]) * scale;
    }
}

/* A 656-byte row from 576 values, which become the decoded ones. */
static void put_ds656(unsigned char *row, double *x)
{
    for (int g = 0; g < 4; g++) {
        float scale = 0.03125f * (float)(g + 1);
        memcpy(row + 512 + 4 * g, &scale, sizeof scale);
        for (int i = 128 * g; i < 128 * (g + 1); i++)
            x[i] = put(row, PLAIT_FP8_E4M3, i, x[i], scale);
    }
    for (int i = 512; i < 576; i++)
        x[i] = put(row + 528, PLAIT_BF16, i - 512, x[i], 1.0f);
}

static void choose_dims(plait_attn_args *a, const plait_caps *caps, plait_random *r, int32_t number)
{
    static const int32_t mla[][2] = {{576, 512}, {40, 24}, {192, 128}, {72, 72}, {33, 7}, {96, 96}};
    static const int32_t gqa[][2] = {{64, 64},  {128, 128}, {80, 80},  {192, 128},
                                     {256, 64}, {72, 96},   {112, 112}};
    static const int32_t pages[] = {1, 3, 8, 16, 32, 48, 64, 128, 1000};
    static const int32_t heads[] = {1, 2, 3, 4, 5, 8, 12, 16};
    const int32_t *d =
        a->op == PLAIT_OP_MLA ? mla[plait_random_int(r, 0, 5)] : gqa[plait_random_int(r, 0, 6)];
    int32_t turn = number, other = plait_random_int(r, 0, 99);
    a->d_qk = d[0];
    a->d_v = d[1];
    a->page_size = pages[plait_random_int(r, 0, 8)];
    a->q_dtype = dtype_of(caps->q_dtypes, &turn);
    a->kv_dtype = dtype_of(caps->kv_dtypes, &turn);
    a->out_dtype = dtype_of(caps->out_dtypes, &other);
    if (a->kv_dtype == PLAIT_FP8_DS656) {
        a->d_qk = 576;
        a->d_v = 512;
    }
    if (caps->d_qk_min == caps->d_qk_max) {
        a->d_qk = caps->d_qk_min;
        a->d_v = caps->d_v_min;
    }
    a->h_kv = a->op == PLAIT_OP_MLA ? 1 : plait_random_int(r, 1, 3);
    a->h_q = heads[plait_random_int(r, 0, 7)] * a->h_kv;
    if (a->op == PLAIT_OP_GQA && number % 5 == 0) {
        /* A rank that holds some heads only: the KV head follows from the global head. */
        a->q_per_kv = plait_random_int(r, 1, 6);
        a->q_head0 = plait_random_int(r, 0, a->h_kv * a->q_per_kv - 1);
        int32_t left = a->h_kv * a->q_per_kv - a->q_head0;
        a->h_q = a->h_q < left ? a->h_q : left;
    }
    a->softmax_scale = (float)(1 / sqrt(a->d_qk));
    a->out_scale = number % 7 == 3 ? 0.5f : 1.0f;
}

/* A gap between rows or heads: on devices, of whole 16 bytes. */
static int32_t gap(const plait_attn_case *c, plait_random *r, int32_t most)
{
    return plait_random_int(r, 0, most) * (c->args.device < 0 ? 1 : 8);
}

/* Alignment of a buffer of elements. */
static size_t align_of(const plait_attn_case *c, size_t bytes)
{
    return c->args.device >= 0 ? 16 : bytes > 16 ? 4 : bytes;
}

static void *input(plait_attn_case *c, int which, size_t count, size_t bytes, int at_end, int fill)
{
    if (!plait_guard_open(&c->buf[which], count * bytes, align_of(c, bytes), at_end, fill))
        return NULL;
    return c->buf[which].data;
}

/* Rows of each sequence and the keys that each sees. */
static int choose_rows(plait_attn_case *c, plait_random *r, int at_end, enum ranges kind,
                       int32_t *length)
{
    static const int32_t lengths[] = {0, 1, 2, 15, 31, 32, 33, 63, 65, 130, 300};
    plait_attn_args *a = &c->args;
    int32_t total = 0, rows[max_seqs], padding = plait_random_int(r, 0, 2);
    a->num_seqs = plait_random_int(r, 1, max_seqs);
    for (int32_t s = 0; s < a->num_seqs; s++)
        total += rows[s] = plait_random_int(r, 0, 9) == 9 ? 20 : plait_random_int(r, 0, 5);
    a->num_rows = total + padding;
    int32_t *start = input(c, PLAIT_BUF_ROW_START, (size_t)a->num_seqs + 1, 4, at_end, 0);
    int32_t *begin = input(c, PLAIT_BUF_BEGIN, (size_t)a->num_rows, 4, at_end, 0x7f);
    int32_t *end = input(c, PLAIT_BUF_END, (size_t)a->num_rows, 4, at_end, 0x7f);
    if (!start || !begin || !end)
        return 0;
    start[0] = 0;
    for (int32_t s = 0; s < a->num_seqs; s++) {
        plait_shard shard = {1, 0, 1};
        if (kind == SHARD) {
            shard.d = plait_random_int(r, 2, 8);
            shard.r = plait_random_int(r, 0, shard.d - 1);
            shard.i = plait_random_int(r, 0, 1) ? 1 : 16;
        }
        int32_t history = lengths[plait_random_int(r, 0, 10)];
        int32_t window = kind == WINDOW ? plait_random_int(r, 1, 70) : 0;
        start[s + 1] = start[s] + rows[s];
        length[s] = 0;
        for (int32_t j = 0; j < rows[s]; j++) {
            int32_t row = start[s] + j;
            plait_shard_range(shard, kind == FULL ? history - 1 : history + j, window, &begin[row],
                              &end[row]);
            if (kind == EMPTY)
                end[row] = begin[row] = s;
            length[s] = end[row] > length[s] ? end[row] : length[s];
        }
    }
    a->row_start = start;
    a->kv_begin = kind == WINDOW || kind == EMPTY ? begin : NULL;
    a->kv_end = end;
    return 1;
}

/* The layout of a ragged prefill without pages: the keys of all sequences follow each other in one
   page, and each row's range begins where its sequence does. */
static void choose_flat(plait_attn_case *c, int32_t *length)
{
    plait_attn_args *a = &c->args;
    int32_t *begin = (int32_t *)(void *)c->buf[PLAIT_BUF_BEGIN].data;
    int32_t *end = (int32_t *)(void *)c->buf[PLAIT_BUF_END].data;
    int32_t first = 0;
    for (int32_t s = 0; s < a->num_seqs; s++) {
        for (int32_t row = a->row_start[s]; row < a->row_start[s + 1]; row++) {
            begin[row] += first;
            end[row] += first;
        }
        first = length[s] += first;
    }
    c->flat = 1;
    a->kv_begin = begin;
    a->page_size = first > 0 ? first : 1;
}

/* Scales: none, one, or one for each head. */
static int choose_scales(plait_attn_case *c, plait_random *r, int at_end)
{
    plait_attn_args *a = &c->args;
    float *scale =
        input(c, PLAIT_BUF_SCALES, (size_t)a->h_q + 2 * (size_t)a->h_kv, 4, at_end, 0xff);
    if (!scale)
        return 0;
    int32_t mode = plait_random_int(r, 0, 2);
    if (mode == 0)
        return 1;
    a->q_scale = scale;
    a->k_scale = scale + a->h_q;
    a->v_scale = a->k_scale + a->h_kv;
    a->q_scale_n = mode == 1 ? 1 : a->h_q;
    a->k_scale_n = a->kv_dtype == PLAIT_FP8_DS656 ? 0 : mode == 1 ? 1 : a->h_kv;
    a->v_scale_n = a->op == PLAIT_OP_MLA ? 0 : a->k_scale_n;
    for (int32_t i = 0; i < a->q_scale_n; i++)
        scale[i] = (float)(1 + 0.5 * plait_random_real(r));
    for (int32_t i = 0; i < a->k_scale_n; i++)
        scale[a->h_q + i] = i % 2 ? 0.25f : 0.5f;
    for (int32_t i = 0; i < a->v_scale_n; i++)
        scale[a->h_q + a->h_kv + i] = i % 2 ? 4.0f : 2.0f;
    return 1;
}

static float scale_at(const float *scale, int32_t n, int32_t i)
{
    return n == 0 ? 1.0f : scale[n == 1 ? 0 : i];
}

/* NaN in every element of a buffer, whatever its dtype: the byte 0xff is NaN in all of them. */
static int fill_q(plait_attn_case *c, plait_random *r, int at_end, enum values kind)
{
    plait_attn_args *a = &c->args;
    a->q_head_stride = a->d_qk + gap(c, r, 3);
    a->q_row_stride = a->h_q * a->q_head_stride + gap(c, r, 3);
    size_t count = (size_t)(a->num_rows * a->q_row_stride);
    void *q = input(c, PLAIT_BUF_Q, count, plait_dtype_bytes(a->q_dtype), at_end, 0xff);
    c->q = calloc((size_t)a->num_rows * (size_t)a->h_q * (size_t)a->d_qk + 1, sizeof(double));
    if (!q || !c->q)
        return 0;
    double *to = c->q;
    for (int32_t row = 0; row < a->row_start[a->num_seqs]; row++)
        for (int32_t h = 0; h < a->h_q; h++)
            for (int32_t d = 0; d < a->d_qk; d++) {
                double x = plait_random_real(r);
                x = kind == LARGE ? 100 * x : kind == EQUAL ? 0 : kind == TINY ? 1e-40 * x : x;
                if (kind == VERY_NEGATIVE)
                    x = 1;
                *to++ = put(q, a->q_dtype, row * a->q_row_stride + h * a->q_head_stride + d, x,
                            scale_at(a->q_scale, a->q_scale_n, h));
            }
    a->q = q;
    return 1;
}

/* Key c of a sequence, d values for each KV head, before rounding. */
static void make_key(double *x, const plait_attn_args *a, plait_random *r, enum values kind,
                     int32_t n, int32_t c, int32_t length)
{
    for (int32_t i = 0; i < n; i++) {
        x[i] = plait_random_real(r);
        if (kind == SPIKE && c == length / 2)
            x[i] *= 20;
        if (kind == TINY)
            x[i] *= 1e-3;
        if (kind == NAN_KEY && c == length - 1)
            x[i] = NAN;
        if (kind == VERY_NEGATIVE)
            x[i] = -(length % 2 ? 200.0 : 6e3) / (a->d_qk * (double)a->softmax_scale);
    }
}

/* Pages: a permutation over a pool with spare pages; entries that no key needs are hostile. */
static int32_t *choose_pages(plait_attn_case *c, plait_random *r, int at_end, const int32_t *length)
{
    plait_attn_args *a = &c->args;
    int32_t used = 0, most = 0;
    for (int32_t s = 0; s < a->num_seqs; s++) {
        int32_t n = (length[s] + a->page_size - 1) / a->page_size;
        used = c->flat ? 1 : used + n;
        most = n > most ? n : most;
    }
    a->num_pages = used + plait_random_int(r, 1, 2);
    a->page_table_stride = most + plait_random_int(r, 0, 2);
    int32_t *order = malloc(sizeof(int32_t) * (size_t)a->num_pages);
    int32_t *table =
        input(c, PLAIT_BUF_TABLE, (size_t)(a->num_seqs * a->page_table_stride), 4, at_end, 0xff);
    if (!order || !table) {
        free(order);
        return NULL;
    }
    for (int32_t i = 0; i < a->num_pages; i++) {
        int32_t j = plait_random_int(r, 0, i);
        order[i] = order[j];
        order[j] = i;
    }
    int32_t next = 0;
    for (int32_t s = 0; s < a->num_seqs; s++)
        for (int32_t i = 0; i < a->page_table_stride; i++)
            table[s * a->page_table_stride + i] = i * a->page_size < length[s]
                                                      ? order[c->flat ? 0 : next++]
                                                  : i % 2 ? -1
                                                          : 2147480000;
    free(order);
    a->page_table = table;
    return table;
}

/* The least key that a row of sequence s sees; those before it stay NaN. */
static int32_t first_key(const plait_attn_args *a, int32_t s, int32_t length)
{
    int32_t first = length;
    for (int32_t row = a->row_start[s]; row < a->row_start[s + 1]; row++) {
        int32_t begin = a->kv_begin ? a->kv_begin[row] : 0;
        if (begin < a->kv_end[row] && begin < first)
            first = begin;
    }
    return first;
}

static void put_key(plait_attn_case *c, plait_random *r, enum values kind, int32_t s, int32_t key,
                    int32_t length)
{
    plait_attn_args *a = &c->args;
    int64_t page = a->page_table[s * a->page_table_stride + key / a->page_size];
    int32_t token = key % a->page_size;
    for (int32_t h = 0; h < a->h_kv; h++) {
        int64_t at = (c->key_base[s] + key) * a->h_kv + h;
        double *x = c->k + at * a->d_qk;
        int64_t to = page * a->k_page_stride + token * a->k_token_stride + h * a->k_head_stride;
        make_key(x, a, r, kind, a->d_qk, key, length);
        if (a->kv_dtype == PLAIT_FP8_DS656) {
            put_ds656(c->buf[PLAIT_BUF_K].data + to * 656, x);
            continue;
        }
        for (int32_t d = 0; d < a->d_qk; d++)
            x[d] = put(c->buf[PLAIT_BUF_K].data, a->kv_dtype, to + d, x[d],
                       scale_at(a->k_scale, a->k_scale_n, h));
        if (a->op == PLAIT_OP_MLA)
            continue;
        x = c->v + at * a->d_v;
        to = page * a->v_page_stride + token * a->v_token_stride + h * a->v_head_stride;
        make_key(x, a, r, kind == VERY_NEGATIVE ? NORMAL : kind, a->d_v, key, length);
        for (int32_t d = 0; d < a->d_v; d++)
            x[d] = put(c->buf[PLAIT_BUF_V].data, a->kv_dtype, to + d, x[d],
                       scale_at(a->v_scale, a->v_scale_n, h));
    }
}

/* Memory of K or V: NaN, or where the case is sparse, zeros, with pages so far apart that the last
   one begins beyond 2^31 elements. */
static void *cache(plait_attn_case *c, int which, int64_t *page_stride, size_t bytes, int at_end)
{
    const int64_t pages = c->args.num_pages;
    if (c->sparse && pages > 1) {
        const int64_t far = (((int64_t)1 << 31) / (pages - 1) / 64 + 1) * 64 + *page_stride;
        if (plait_guard_open_sparse(&c->buf[which], (size_t)(pages * far) * bytes)) {
            *page_stride = far;
            return c->buf[which].data;
        }
    }
    return input(c, which, (size_t)(pages * *page_stride), bytes, at_end, 0xff);
}

static int fill_kv(plait_attn_case *c, plait_random *r, int at_end, enum values kind,
                   const int32_t *length)
{
    plait_attn_args *a = &c->args;
    int64_t keys = 0, unit = a->kv_dtype == PLAIT_FP8_DS656;
    size_t bytes = plait_dtype_bytes(a->kv_dtype);
    if (!choose_pages(c, r, at_end, length))
        return 0;
    a->k_head_stride = unit ? 1 : a->d_qk + gap(c, r, 3);
    a->k_token_stride = a->h_kv * a->k_head_stride;
    a->k_page_stride = a->page_size * a->k_token_stride + gap(c, r, 1);
    a->v_head_stride = a->d_v + gap(c, r, 3);
    a->v_page_stride = a->page_size * a->v_head_stride; /* [page][head][token][d] */
    a->v_token_stride = a->v_head_stride;
    a->v_head_stride = a->v_page_stride;
    a->v_page_stride *= a->h_kv;
    a->k = cache(c, PLAIT_BUF_K, &a->k_page_stride, bytes, at_end);
    if (a->op == PLAIT_OP_GQA)
        a->v = cache(c, PLAIT_BUF_V, &a->v_page_stride, bytes, at_end);
    c->key_base = calloc(max_seqs, sizeof(int64_t));
    for (int32_t s = 0; s < a->num_seqs && c->key_base; s++) {
        c->key_base[s] = c->flat ? 0 : keys;
        keys += length[s];
    }
    size_t heads = (size_t)(keys + 1) * (size_t)a->h_kv;
    c->k = calloc(heads * (size_t)a->d_qk, sizeof(double));
    c->v = calloc(heads * (size_t)a->d_v, sizeof(double));
    if (!a->k || (a->op == PLAIT_OP_GQA && !a->v) || !c->key_base || !c->k || !c->v)
        return 0;
    for (int32_t s = 0; s < a->num_seqs; s++)
        for (int32_t key = first_key(a, s, length[s]); key < length[s]; key++)
            put_key(c, r, kind, s, key, length[s]);
    return 1;
}

/* A schedule: rows and heads in up to two parts each, keys in up to four splits, some empty. */
static int choose_schedule(plait_attn_case *c, plait_random *r, int at_end, const int32_t *length)
{
    plait_attn_args *a = &c->args;
    plait_attn_work *work =
        input(c, PLAIT_BUF_WORK, (size_t)a->num_seqs * 16, sizeof *work, at_end, 0xff);
    plait_attn_reduce *reduce =
        input(c, PLAIT_BUF_REDUCE, (size_t)a->num_seqs * 4, sizeof *reduce, at_end, 0xff);
    if (!work || !reduce)
        return 0;
    for (int32_t part = 0; part < 4 * a->num_seqs; part++) {
        int32_t s = part / 4, first = a->row_start[s], last = a->row_start[s + 1];
        int32_t row_cut = (first + last) / 2, head_cut = a->h_q / 2;
        plait_attn_work w = {.seq = s, .kv_end = length[s], .partial = -1};
        w.row_begin = part % 2 ? row_cut : first;
        w.row_end = part % 2 ? last : row_cut;
        w.head_begin = part / 2 % 2 ? head_cut : 0;
        w.head_end = part / 2 % 2 ? a->h_q : head_cut;
        int32_t splits = plait_random_int(r, 1, 4);
        if (splits == 1) {
            work[a->num_work++] = w;
            continue;
        }
        reduce[a->num_reduce++] = (plait_attn_reduce){w.row_begin, w.row_end,       w.head_begin,
                                                      w.head_end,  a->num_partials, splits};
        for (int32_t i = 0; i < splits; i++) {
            w.kv_begin = i == 0 ? 0 : w.kv_end;
            w.kv_end = i == splits - 1 ? length[s] : plait_random_int(r, w.kv_begin, length[s]);
            w.partial = a->num_partials;
            a->num_partials += (w.row_end - w.row_begin) * (w.head_end - w.head_begin);
            work[a->num_work++] = w;
        }
    }
    a->work = work;
    a->reduce = reduce;
    return 1;
}

static int open_outputs(plait_attn_case *c, plait_random *r, int at_end, int32_t number)
{
    plait_attn_args *a = &c->args;
    size_t bytes = plait_dtype_bytes(a->out_dtype);
    int two = number % 4 == 1 && a->h_q > 1;
    a->out_head_stride = a->d_v + gap(c, r, 3);
    a->out_row_stride = a->h_q * a->out_head_stride + gap(c, r, 3);
    a->lse_head_stride = two ? a->num_rows : 1;
    a->lse_row_stride = two ? 1 : a->h_q + plait_random_int(r, 0, 3);
    size_t n = (size_t)(a->num_rows * a->out_row_stride);
    size_t n_lse = (size_t)(a->num_rows * (two ? a->h_q : a->lse_row_stride));
    for (int i = 0; i <= two; i++)
        if (!plait_guard_open(&c->buf[PLAIT_BUF_OUT + i], n * bytes, align_of(c, bytes), at_end,
                              0x99) ||
            !plait_guard_open(&c->buf[PLAIT_BUF_LSE + i], n_lse * 4, 4, at_end, 0x99))
            return 0;
    a->out = c->buf[PLAIT_BUF_OUT].data;
    a->lse = number % 11 == 10 ? NULL : (float *)(void *)c->buf[PLAIT_BUF_LSE].data;
    if (two) {
        for (int i = 0; i < 2; i++) {
            c->out_bases[i] = c->buf[PLAIT_BUF_OUT + i].data;
            c->lse_bases[i] = (float *)(void *)c->buf[PLAIT_BUF_LSE + i].data;
        }
        a->out_bases = c->out_bases;
        a->lse_bases = a->lse ? c->lse_bases : NULL;
        a->heads_per_base = (a->h_q + 1) / 2;
        a->out = NULL;
        a->lse = NULL;
    }
    return 1;
}

int plait_attn_case_open(plait_attn_case *c, const plait_caps *caps, uint64_t seed, int32_t number)
{
    static const plait_attn_args init = PLAIT_ATTN_ARGS_INIT;
    plait_random r = {seed * 1000003u + (uint64_t)number};
    enum values values = (enum values)(number % n_values);
    enum ranges ranges = (enum ranges)(number / 2 % n_ranges);
    int32_t length[max_seqs];
    int at_end = number % 3 != 2;
    memset(c, 0, sizeof *c);
    c->args = init;
    c->args.op = caps->op;
    c->args.device = caps->device == PLAIT_DEVICE_CPU ? -1 : 0;
    c->number = number;
    choose_dims(&c->args, caps, &r, number);
    c->n_workers = plait_random_int(&r, 1, 3);
    int good = choose_rows(c, &r, at_end, ranges, length);
    if (good && number % 9 == 4 && c->args.device < 0)
        choose_flat(c, length);
    c->sparse = number % 32 == 30 && c->args.device < 0;
    good = good && choose_scales(c, &r, at_end) && fill_q(c, &r, at_end, values) &&
           fill_kv(c, &r, at_end, values, length) && open_outputs(c, &r, at_end, number) &&
           (number % 2 == 0 || choose_schedule(c, &r, at_end, length));
    const plait_attn_args *a = &c->args;
    snprintf(c->text, sizeof c->text,
             "case %d seed %llu: q %s kv %s out %s, d %d/%d, heads %d/%d, page %d, %d seqs, %d "
             "rows, %s, %s%s, %d work",
             number, (unsigned long long)seed, plait_dtype_name(a->q_dtype),
             plait_dtype_name(a->kv_dtype), plait_dtype_name(a->out_dtype), a->d_qk, a->d_v, a->h_q,
             a->h_kv, a->page_size, a->num_seqs, a->num_rows, values_name[values],
             ranges_name[ranges],
             c->flat     ? " in one page"
             : c->sparse ? " far apart"
                         : "",
             a->num_work);
    for (int i = 0; i < PLAIT_BUF_INPUTS; i++)
        plait_guard_read_only(&c->buf[i]);
    return good;
}

void plait_attn_case_close(plait_attn_case *c)
{
    for (int i = 0; i < PLAIT_BUFS; i++)
        plait_guard_close(&c->buf[i]);
    free(c->q);
    free(c->k);
    free(c->v);
    free(c->key_base);
    memset(c, 0, sizeof *c);
}
