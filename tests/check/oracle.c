/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a row and head must give, from the definition, in double over the logical values, and how
 * far a kernel may be off. The tolerance follows from the op, the dtypes and the data alone; no
 * kernel has one of its own.
 *
 * Let u = 2^-24, the unit roundoff of float32. A rounding to float32 has a relative error that is
 * uniform up to u at the lower end of a binade and up to u/2 at its upper end: 0.41 u in the root
 * mean square. A sum of n terms x in any one order has n - 1 roundings of partial sums; partial sum
 * k has the expected square (k/n)^2 S^2 + k/n (1 - k/n) Q with S = sum x, Q = sum x^2. So its error
 * is
 *
 *     0.41 u sqrt(n/3 S^2 + n/6 Q)        and 0.41 u sqrt(Q) more if products are rounded first.
 *
 * Terms that are equal, or differ by less than the rounding of their sum does, are rounded alike
 * at every step, so that errors add up: to at most u |S| n/2 in one order, and u |S| for products.
 *
 * `deviations` = 6 of these are allowed (2.5 u in all): a few million values are compared, and
 * chance exceeds 6 deviations once in 5e8. Kernels that sum in blocks stay far below.
 *
 *   score   sum of d_qk products, and 5 roundings: scales, log2(e), product, difference to the top.
 *   weight  error of its score; 3 u |lse|, since the top and the lse of a split are float32; 4 u of
 *           the exponential.
 *   lse     errors of the weights, weighted; their sum; 2 u |lse| and 2 u of log and product.
 *   out     errors of the weights times values, and times |out| through the divisor; the sum of
 *           n products; 6 u |out| for divisor, scales and merges; 4 u sum w |v| for rescaling when
 *           the top is raised; weights below 2^-110 may be anything below; half an ulp of out's
 *           type. Where q and the cache are in types that bf16 holds, the weights may be rounded to
 *           bf16 for the product: 2^-8 of each. What these roundings have in common (all of it,
 *           where scores are equal) changes out by at most 2^-8 |out|; the rest is independent; the
 *           whole is never more than 2^-8 sum w |v|.
 *
 * Tensor cores of devices do not round sums but truncate them: each of 36 partial sums by 2^-22 of
 * the largest term, so a score may be off by 2^-17 sum |q k|, a value by 2^-17 sum w |v|. They
 * multiply weights in the cache's type; all of these may err in one direction.
 */
#include <math.h>
#include <string.h>

#include "tests/check/check.h"

static const double unit = 0x1p-24, deviations = 6 * 0.41, truncated = 0x1p-17;

/* What the sum of n terms may lose. */
static double sum_slack(double n, double sum, double squares)
{
    const double spread = n * squares - sum * sum; /* n^2 times the variance of the terms */
    if (spread <= n * n * unit * unit * sum * sum)
        return unit * fabs(sum) * (n / 2 + 1);
    return deviations * unit * sqrt(n / 3 * sum * sum + (n / 6 + 1) * squares);
}

/* The unit roundoff of the type that the weights may be rounded to; 0: they may not. */
static double weight_unit(const plait_attn_args *a)
{
    const uint32_t bf16 = PLAIT_DTYPE_BIT(PLAIT_BF16) | PLAIT_DTYPE_BIT(PLAIT_FP8_E4M3);
    if (a->device >= 0 && a->kv_dtype == PLAIT_F16)
        return 0x1p-10;
    return (bf16 >> a->q_dtype & 1u) && (bf16 >> a->kv_dtype & 1u) ? 0x1p-8 : 0;
}

/* A row and head: its query, its KV head and the keys that it sees. */
struct line {
    const plait_attn_case *c;
    const double *q;
    int64_t key0; /* logical number of the first key */
    int32_t n, kv_head;
    double weight[512], slack[512]; /* slack: of a score, then of a weight as a share of it */
};

static const double *key_of(const struct line *l, int32_t i)
{
    const plait_attn_args *a = &l->c->args;
    return l->c->k + ((l->key0 + i) * a->h_kv + l->kv_head) * a->d_qk;
}

static const double *value_of(const struct line *l, int32_t i)
{
    const plait_attn_args *a = &l->c->args;
    return a->op == PLAIT_OP_MLA ? key_of(l, i)
                                 : l->c->v + ((l->key0 + i) * a->h_kv + l->kv_head) * a->d_v;
}

/* Score i into weight[i], what it may be off by into slack[i]. */
static void score(struct line *l, int32_t i)
{
    const plait_attn_args *a = &l->c->args;
    const double *k = key_of(l, i);
    double sum = 0, squares = 0, size = 0;
    for (int32_t d = 0; d < a->d_qk; d++) {
        double x = l->q[d] * k[d];
        sum += x;
        squares += x * x;
        size += fabs(x);
    }
    l->weight[i] = sum * a->softmax_scale;
    l->slack[i] = a->softmax_scale * sum_slack(a->d_qk, sum, squares);
    l->slack[i] += 5 * unit * fabs(l->weight[i]);
    if (a->device >= 0)
        l->slack[i] += truncated * a->softmax_scale * size;
}

/* Turns scores into weights; returns the lse and adds up what the sum of weights may be off by. */
static double weigh(struct line *l, double *off)
{
    double top = -INFINITY, sum = 0, squares = 0;
    for (int32_t i = 0; i < l->n; i++)
        top = fmax(top, l->weight[i]);
    for (int32_t i = 0; i < l->n; i++)
        sum += exp(l->weight[i] - top);
    double lse = top + log(sum);
    *off = 0;
    for (int32_t i = 0; i < l->n; i++) {
        l->weight[i] = exp(l->weight[i] - lse);
        squares += l->weight[i] * l->weight[i];
        l->slack[i] += unit * (3 * fabs(lse) + 4);
        if (l->weight[i] != 0)
            *off += l->weight[i] * l->slack[i];
    }
    *off += sum_slack(l->n, 1, squares);
    return lse;
}

static void values(const struct line *l, double off, plait_expected *e)
{
    const plait_attn_args *a = &l->c->args;
    const double weight_u = weight_unit(a);
    double spread[512] = {0}, squares[512] = {0}, largest[512] = {0};
    for (int32_t i = 0; i < l->n; i++) {
        const double *v = value_of(l, i), w = l->weight[i];
        for (int32_t d = 0; d < a->d_v; d++) {
            double x = w * v[d] * a->out_scale;
            e->out[d] += x;
            spread[d] += fabs(x);
            squares[d] += x * x;
            largest[d] = fmax(largest[d], fabs(v[d] * a->out_scale));
            e->out_slack[d] += w != 0 ? l->slack[i] * fabs(x) : 0;
        }
    }
    for (int32_t d = 0; d < a->d_v; d++) {
        double size = fabs(e->out[d]);
        double worst = weight_u * spread[d];
        double likely = weight_u * (size + deviations * sqrt(squares[d]));
        e->out_slack[d] += (off + 6 * unit) * size + sum_slack(l->n, size, squares[d]) +
                           4 * unit * spread[d] + 0x1p-110 * largest[d] +
                           (a->device >= 0 || worst < likely ? worst : likely);
        if (a->device >= 0)
            e->out_slack[d] += truncated * spread[d];
        e->out_round[d] = plait_half_ulp(a->out_dtype, size + e->out_slack[d]);
    }
}

void plait_expect(const plait_attn_case *c, int32_t seq, int32_t row, int32_t head,
                  plait_expected *e)
{
    const plait_attn_args *a = &c->args;
    int32_t begin = a->kv_begin ? a->kv_begin[row] : 0;
    int32_t per = a->q_per_kv ? a->q_per_kv : a->h_q / a->h_kv;
    double off;
    memset(e, 0, sizeof *e);
    e->lse = -INFINITY;
    if (seq < 0 || begin >= a->kv_end[row])
        return;
    struct line l = {.c = c,
                     .q = c->q + ((int64_t)row * a->h_q + head) * a->d_qk,
                     .key0 = c->key_base[seq] + begin,
                     .n = a->kv_end[row] - begin,
                     .kv_head = a->op == PLAIT_OP_MLA ? 0 : (a->q_head0 + head) / per};
    for (int32_t i = 0; i < l.n; i++)
        score(&l, i);
    e->lse = weigh(&l, &off);
    e->lse_slack = off + unit * (2 * fabs(e->lse) + 2);
    values(&l, off, e);
}
