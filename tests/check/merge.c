/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of merge: states of any type with empty ones, infinite and NaN LSEs, payloads that must not
 * be read, in place and apart. Expected from the definition in double, with the errors of float32
 * added up in the worst case: u = 2^-24,
 *
 *   weight  u |lse_i - top| of the difference, 2 u of the exponential, n u of the sum, u of the
 *           quotient
 *   out     errors of the weights times values, (n + 1) u sum w |x| of products and sums, 2^-149
 *           instead where they are subnormal, half an ulp of the type
 *   lse     n u of the sum, 2 u |log| of the logarithm, u |lse| of the last sum
 *
 * States that are empty change no bit, and every variant has the bits of merge_ref.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check/check.h"

enum { most = 24, fill = 0x99 };

enum lse_kind { NORMAL, EQUAL, LARGE, EMPTY_ALL, EMPTY_BUT_ONE, SOME_EMPTY, FAR, NAN_ONE, n_kinds };
static const char *const kind_name[] = {"normal",        "equal",      "large", "all empty",
                                        "one not empty", "some empty", "far",   "nan"};

struct merge_case {
    const plait_routine *routine;
    int32_t n, rows, heads, d_v;
    uint32_t flags;
    int in_place, status;
    plait_partial part[most];
    plait_merged to;
    plait_guard out[most], lse[most], to_out, to_lse;
    unsigned char *before; /* the first state, which a merge in place overwrites */
};

static int64_t at(const struct merge_case *c, int32_t i, int32_t row, int32_t head)
{
    return row * c->part[i].row_stride + head * c->part[i].head_stride;
}

static float lse_at(const struct merge_case *c, int32_t i, int32_t row, int32_t head)
{
    const plait_partial *p = &c->part[i];
    return p->lse[row * p->lse_row_stride + head * p->lse_head_stride];
}

static float choose_lse(plait_random *r, enum lse_kind kind, int32_t i, int32_t one, int32_t n)
{
    const float x = (float)(8 * plait_random_real(r));
    const int32_t dice = plait_random_int(r, 0, 3);
    switch (kind) {
    case EQUAL:
        return 1.25f;
    case LARGE:
        return 5000 + x;
    case EMPTY_ALL:
        return dice ? -INFINITY : INFINITY;
    case EMPTY_BUT_ONE:
        return i == one ? x : dice ? -INFINITY : INFINITY;
    case SOME_EMPTY:
        return dice == 0 ? -INFINITY : dice == 1 ? INFINITY : x;
    case FAR:
        return i == one ? 200 : i == (one + 1) % n ? 199 : -x * x; /* weights of 0 */
    case NAN_ONE:
        return i == one ? NAN : x;
    default:
        return x;
    }
}

/* Values of a state; NaN where its weight will be 0. */
static void fill_state(struct merge_case *c, plait_random *r, int32_t i, enum lse_kind kind,
                       int32_t one)
{
    const plait_partial *p = &c->part[i];
    for (int32_t row = 0; row < c->rows; row++)
        for (int32_t head = 0; head < c->heads; head++) {
            const float lse = choose_lse(r, kind, i, one, c->n);
            ((float *)(void *)c->lse[i].data)[row * p->lse_row_stride + head * p->lse_head_stride] =
                lse;
            const int unread = !(lse > -90 && lse < 1e30f) || (kind == FAR && lse < 100);
            for (int32_t d = 0; d < c->d_v && !unread; d++) {
                double x = plait_random_real(r);
                x = d % 11 == 3 ? -0.0 : d % 11 == 5 ? 1e-41 * x : d % 11 == 7 ? 1e4 * x : x;
                const uint32_t code = plait_nearest_code(p->dtype, (float)x);
                memcpy(c->out[i].data +
                           (at(c, i, row, head) + d) * (int64_t)plait_dtype_bytes(p->dtype),
                       &code, plait_dtype_bytes(p->dtype));
            }
        }
}

static int open_case(struct merge_case *c, plait_random *r, int32_t number)
{
    static const int32_t counts[] = {0, 1, 2, 3, 4, 8, 17},
                         dims[] = {1, 7, 16, 24, 33, 64, 72, 96, 128, 80, 512, 200};
    static const plait_dtype types[] = {PLAIT_F32, PLAIT_BF16, PLAIT_F16};
    const int at_end = number % 2;
    const enum lse_kind kind = (enum lse_kind)(number % n_kinds);
    c->n = counts[plait_random_int(r, 0, 6)];
    c->rows = plait_random_int(r, 0, 9) ? plait_random_int(r, 1, 4) : 0;
    c->heads = plait_random_int(r, 1, 5);
    c->d_v = dims[plait_random_int(r, 0, 11)];
    c->flags = plait_random_int(r, 0, 1) ? PLAIT_MERGE_NAN_IS_EMPTY : 0;
    c->in_place = c->n > 0 && number % 5 == 0;
    const int32_t one = plait_random_int(r, 0, c->n ? c->n - 1 : 0);
    for (int32_t i = 0; i <= c->n; i++) { /* the last is the destination */
        const plait_dtype dtype = types[plait_random_int(r, 0, 2)];
        const int64_t head_stride = c->d_v + plait_random_int(r, 0, 3);
        const int64_t row_stride = c->heads * head_stride + plait_random_int(r, 0, 3);
        const int64_t lse_row = c->heads + plait_random_int(r, 0, 2);
        const size_t bytes = plait_dtype_bytes(dtype);
        plait_guard *out = i < c->n ? &c->out[i] : &c->to_out;
        plait_guard *lse = i < c->n ? &c->lse[i] : &c->to_lse;
        const int with = i < c->n ? 0xff : fill;
        if (!plait_guard_open(out, (size_t)(c->rows * row_stride) * bytes, bytes, at_end, with) ||
            !plait_guard_open(lse, (size_t)(c->rows * lse_row) * 4, 4, at_end, with))
            return 0;
        if (i == c->n) {
            c->to = (plait_merged){out->data,
                                   dtype,
                                   row_stride,
                                   head_stride,
                                   number % 7 == 6 ? NULL : (float *)(void *)lse->data,
                                   lse_row,
                                   1};
            continue;
        }
        c->part[i] = (plait_partial){
            out->data, dtype, row_stride, head_stride, (float *)(void *)lse->data, lse_row, 1};
        if (i > 0 && plait_random_int(r, 0, 9) == 0)
            c->part[i].out = NULL; /* a sink */
        fill_state(c, r, i, kind, one);
    }
    return 1;
}

static void close_case(struct merge_case *c)
{
    for (int32_t i = 0; i < most; i++) {
        plait_guard_close(&c->out[i]);
        plait_guard_close(&c->lse[i]);
    }
    plait_guard_close(&c->to_out);
    plait_guard_close(&c->to_lse);
    free(c->before);
}

static int run(void *arg)
{
    struct merge_case *c = arg;
    return plait_merge_with(c->routine, c->part, c->n, c->rows, c->heads, c->d_v, c->flags, &c->to);
}

/* What a row and head must give. */
struct want {
    double lse, lse_slack, weight[most], slack[most]; /* slack: a share of the weight */
};

static void weigh(const struct merge_case *c, int32_t row, int32_t head, struct want *w)
{
    const double u = 0x1p-24;
    double top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < c->n; i++) {
        w->weight[i] = (double)lse_at(c, i, row, head);
        if (isinf(w->weight[i]) || (isnan(w->weight[i]) && (c->flags & PLAIT_MERGE_NAN_IS_EMPTY)))
            w->weight[i] = -INFINITY;
        top = isnan(w->weight[i]) ? NAN : w->weight[i] > top ? w->weight[i] : top;
    }
    w->lse = top;
    if (!(top > -INFINITY))
        return;
    for (int32_t i = 0; i < c->n; i++) {
        w->slack[i] = u * (isinf(w->weight[i]) ? 0 : top - w->weight[i]) + (3 + c->n) * u;
        sum += w->weight[i] = exp(w->weight[i] - top);
    }
    for (int32_t i = 0; i < c->n; i++)
        w->weight[i] /= sum;
    w->lse = top + log(sum);
    w->lse_slack = u * ((2 + c->n) + 2 * log(sum) + fabs(w->lse));
}

/* The value d of a state, which in place is what stood there before. */
static double state_value(const struct merge_case *c, int32_t i, int64_t offset)
{
    const void *out = c->in_place && i == 0 ? c->before : c->part[i].out;
    return out ? plait_value_at(out, c->part[i].dtype, offset) : 0;
}

static double compare_value(const struct merge_case *c, const struct want *w, int32_t row,
                            int32_t head, int32_t d, double got)
{
    double sum = 0, spread = 0, slack = 0;
    if (isnan(w->lse))
        return isnan(got) ? 0 : INFINITY;
    for (int32_t i = 0; i < c->n && w->lse > -INFINITY; i++) {
        if (w->weight[i] < 1e-40) /* may be 0: not read */
            continue;
        const double x = w->weight[i] * state_value(c, i, at(c, i, row, head) + d);
        sum += x;
        spread += fabs(x);
        slack += fabs(x) * w->slack[i];
    }
    if (w->lse == -INFINITY)
        return got == 0 && !signbit(got) ? 0 : INFINITY;
    slack += (c->n + 1) * (0x1p-24 * spread + 0x1p-149);
    const double off = fabs(got - sum) - plait_half_ulp(c->to.dtype, fabs(sum) + slack);
    return off <= 0 ? 0 : isnan(off) ? INFINITY : off / slack;
}

static double compare(const struct merge_case *c)
{
    double worst = 0;
    for (int32_t row = 0; row < c->rows; row++)
        for (int32_t head = 0; head < c->heads; head++) {
            struct want w = {.lse = 0};
            weigh(c, row, head, &w);
            if (c->to.lse) {
                const float got =
                    c->to.lse[row * c->to.lse_row_stride + head * c->to.lse_head_stride];
                const double off = fabs((double)got - w.lse) / w.lse_slack;
                const int same = (isnan(w.lse) && isnan(got)) || (double)got == w.lse;
                worst = fmax(worst, same ? 0 : isnan(off) ? INFINITY : off);
            }
            for (int32_t d = 0; d < c->d_v; d++)
                worst =
                    fmax(worst, compare_value(c, &w, row, head, d,
                                              plait_value_at(c->to.out, c->to.dtype,
                                                             row * c->to.row_stride +
                                                                 head * c->to.head_stride + d)));
        }
    return worst;
}

/* NULL if a lone non-empty state keeps its bits and nothing else was written. Overwrites the
   result. */
static const char *check_bits(struct merge_case *c)
{
    const size_t bytes = plait_dtype_bytes(c->to.dtype), row_bytes = bytes * (size_t)c->d_v;
    unsigned char *out = c->to.out;
    for (int32_t row = 0; row < c->rows; row++)
        for (int32_t head = 0; head < c->heads; head++) {
            struct want w = {.lse = 0};
            int32_t one = 0;
            weigh(c, row, head, &w);
            while (one < c->n - 1 && w.weight[one] != 1)
                one++;
            const int64_t to = row * c->to.row_stride + head * c->to.head_stride;
            const int lone = c->n > 0 && w.lse > -INFINITY && w.weight[one] == 1 &&
                             (double)lse_at(c, one, row, head) == w.lse && c->part[one].out;
            if (lone && c->part[one].dtype == c->to.dtype && !c->in_place &&
                memcmp(out + to * (int64_t)bytes,
                       (const unsigned char *)c->part[one].out +
                           at(c, one, row, head) * (int64_t)bytes,
                       row_bytes) != 0)
                return "the only state with keys did not keep its bits";
            if (!c->in_place)
                memset(out + to * (int64_t)bytes, fill, row_bytes);
            if (c->to.lse && !c->in_place)
                memset(&c->to.lse[row * c->to.lse_row_stride + head * c->to.lse_head_stride], fill,
                       4);
        }
    if (c->in_place)
        return NULL;
    for (size_t i = 0; i < c->to_out.bytes; i++)
        if (c->to_out.data[i] != fill)
            return "it wrote between its outputs";
    for (size_t i = 0; i < c->to_lse.bytes; i++)
        if (c->to_lse.data[i] != fill)
            return "it wrote between its outputs";
    return plait_guard_clean(&c->to_out, fill) && plait_guard_clean(&c->to_lse, fill)
               ? NULL
               : "it wrote beyond its outputs";
}

/* Whether merge_ref gives the same bits. */
static int equals_reference(struct merge_case *c)
{
    const plait_routine *mine = c->routine;
    const size_t n = c->to_out.bytes, m = c->to_lse.bytes;
    unsigned char *copy = malloc(n + m + 1);
    int same = 0;
    if (copy && !c->in_place) {
        memcpy(copy, c->to_out.data, n);
        memcpy(copy + n, c->to_lse.data, m);
        c->routine = plait_routine_pick(PLAIT_ROUTINE_MERGE, 0);
        run(c);
        same = memcmp(copy, c->to_out.data, n) == 0 && memcmp(copy + n, c->to_lse.data, m) == 0;
        c->routine = mine;
    }
    free(copy);
    return same || c->in_place;
}

const char *plait_check_merge(const plait_routine *routine, plait_random *r, int32_t number,
                              double *worst, char *text)
{
    struct merge_case c;
    memset(&c, 0, sizeof c);
    c.routine = routine;
    const char *why = open_case(&c, r, number) ? NULL : "no memory";
    snprintf(text, 200, "%d states, %d rows, %d heads, d_v %d, %s%s, to %s", c.n, c.rows, c.heads,
             c.d_v, kind_name[number % n_kinds], c.in_place ? ", in place" : "",
             plait_dtype_name(c.to.dtype));
    for (int32_t i = c.in_place; !why && i < c.n; i++) {
        plait_guard_read_only(&c.out[i]);
        plait_guard_read_only(&c.lse[i]);
    }
    if (!why && c.in_place) {
        c.before = malloc(c.out[0].bytes + 1);
        why = c.before ? NULL : "no memory";
        if (!why)
            memcpy(c.before, c.out[0].data, c.out[0].bytes);
        const plait_partial *p = &c.part[0];
        /* Its LSE goes elsewhere, so that the expected result is still known. */
        c.to.out = c.out[0].data;
        c.to.dtype = p->dtype;
        c.to.row_stride = p->row_stride;
        c.to.head_stride = p->head_stride;
    }
    if (!why)
        why = plait_guard_reason(plait_guard_call(run, &c));
    if (!why)
        *worst = compare(&c);
    if (!why && !(*worst <= 1))
        why = "the result is wrong";
    if (!why && !equals_reference(&c))
        why = "its bits are not those of merge_ref";
    if (!why)
        why = check_bits(&c);
    close_case(&c);
    return why;
}
