/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What: attention by its definition, one row, head and key at a time; MLA and GQA, every dtype.
 * Precision: stored values times their scales in double; scores, sums and the running softmax in
 * double (base e); rounded once to float32, and from there to the output's type.
 * Limits: none but those of the arguments. It is what other kernels are compared with.
 */
#include "kernel/attn_ref.h"

#include <math.h>
#include <string.h>

#include "core/convert.h"

/* Values of one cache row in PLAIT_FP8_DS656: byte offsets of its three parts. */
enum { ds_latent = 512, ds_scales_at = 512, ds_rope_at = 528 };

static void read_ds656(double *dst, const unsigned char *src, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (i < ds_latent) {
            float scale;
            memcpy(&scale, src + ds_scales_at + i / 128 * 4, sizeof scale);
            dst[i] = (double)plait_e4m3_to_f32(src[i]) * scale;
        } else {
            uint16_t b;
            memcpy(&b, src + ds_rope_at + (i - ds_latent) * 2, sizeof b);
            dst[i] = plait_bf16_to_f32(b);
        }
    }
}

/* Reads n values from element `offset` of base, times scale. */
static void read_row(double *dst, const void *base, plait_dtype dtype, int64_t offset, int32_t n,
                     double scale)
{
    const unsigned char *p =
        (const unsigned char *)base + offset * (int64_t)plait_dtype_bytes(dtype);
    switch (dtype) {
    case PLAIT_F32:
        for (int32_t i = 0; i < n; i++)
            dst[i] = scale * ((const float *)p)[i];
        break;
    case PLAIT_BF16:
        for (int32_t i = 0; i < n; i++)
            dst[i] = scale * plait_bf16_to_f32(((const uint16_t *)p)[i]);
        break;
    case PLAIT_F16:
        for (int32_t i = 0; i < n; i++)
            dst[i] = scale * plait_f16_to_f32(((const uint16_t *)p)[i]);
        break;
    case PLAIT_FP8_E4M3:
        for (int32_t i = 0; i < n; i++)
            dst[i] = scale * plait_e4m3_to_f32(p[i]);
        break;
    case PLAIT_FP8_DS656:
        read_ds656(dst, p, n);
        break;
    }
}

/* A worker's scratch: a query row, a key row, a value row, and the sum. */
struct scratch {
    double *q, *k, *v, *acc;
};

static size_t scratch_doubles(const plait_attn_args *args)
{
    return (2 * ((size_t)args->d_qk + (size_t)args->d_v) + 7) / 8 * 8;
}

static void read_key(const plait_attn_args *args, int32_t seq, int32_t c, int32_t kv_head,
                     struct scratch *s)
{
    int64_t at = plait_attn_key_offset(args, seq, c, args->k_page_stride, args->k_token_stride);
    if (args->kv_dtype != PLAIT_FP8_DS656)
        at += kv_head * args->k_head_stride;
    read_row(s->k, args->k, args->kv_dtype, at, args->d_qk,
             plait_attn_scale(args->k_scale, args->k_scale_n, kv_head));
    if (args->op == PLAIT_OP_MLA) {
        memcpy(s->v, s->k, sizeof(double) * (size_t)args->d_v);
        return;
    }
    at = plait_attn_key_offset(args, seq, c, args->v_page_stride, args->v_token_stride);
    read_row(s->v, args->v, args->kv_dtype, at + kv_head * args->v_head_stride, args->d_v,
             plait_attn_scale(args->v_scale, args->v_scale_n, kv_head));
}

static void attend(const plait_attn_args *args, const plait_attn_work *item, int32_t row,
                   int32_t head, struct scratch *s)
{
    int32_t begin, end, kv_head = plait_attn_kv_head(args, head);
    double top = -INFINITY, sum = 0;
    plait_attn_row_range(args, item, row, &begin, &end);
    if (begin >= end) {
        plait_attn_write(args, item, row, head, NULL, 0);
        return;
    }
    read_row(s->q, args->q, args->q_dtype, row * args->q_row_stride + head * args->q_head_stride,
             args->d_qk, plait_attn_scale(args->q_scale, args->q_scale_n, head));
    memset(s->acc, 0, sizeof(double) * (size_t)args->d_v);
    for (int32_t c = begin; c < end; c++) {
        double score = 0;
        read_key(args, item->seq, c, kv_head, s);
        for (int32_t d = 0; d < args->d_qk; d++)
            score += s->q[d] * s->k[d];
        score *= args->softmax_scale;
        if (!(score <= top)) {
            double shrink = exp(top - score);
            for (int32_t d = 0; d < args->d_v; d++)
                s->acc[d] *= shrink;
            sum *= shrink;
            top = score;
        }
        double p = exp(score - top);
        sum += p;
        for (int32_t d = 0; d < args->d_v; d++)
            s->acc[d] += p * s->v[d];
    }
    float *out = (float *)s->v; /* the last value row is no longer needed */
    for (int32_t d = 0; d < args->d_v; d++)
        out[d] = (float)(s->acc[d] / sum * args->out_scale);
    plait_attn_write(args, item, row, head, out, (float)(top + log(sum)));
}

plait_status plait_attn_ref_run(const plait_attn_args *args, int32_t worker, int32_t n_workers)
{
    struct scratch s;
    s.q = (double *)((char *)args->workspace + plait_attn_partial_bytes(args)) +
          (size_t)worker * scratch_doubles(args);
    s.k = s.q + args->d_qk;
    s.v = s.k + args->d_qk;
    s.acc = s.v + args->d_v;
    for (int32_t i = worker; i < plait_attn_items(args); i += n_workers) {
        plait_attn_work item = plait_attn_item(args, i);
        for (int32_t row = item.row_begin; row < item.row_end; row++)
            for (int32_t head = item.head_begin; head < item.head_end; head++)
                attend(args, &item, row, head, &s);
    }
    plait_attn_write_padding(args, worker, n_workers);
    return PLAIT_OK;
}

size_t plait_attn_ref_workspace(const plait_attn_args *args, int32_t n_workers)
{
    return plait_attn_partial_bytes(args) +
           (size_t)n_workers * scratch_doubles(args) * sizeof(double);
}

/* 1000 multiply-adds in a microsecond, measured with bf16 and f32 on one Zen 4 core. */
double plait_attn_ref_cost(const plait_attn_args *args, int32_t n_workers)
{
    return plait_attn_macs(args) / (1000.0 * n_workers);
}
