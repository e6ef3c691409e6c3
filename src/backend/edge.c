/* SPDX-License-Identifier: Apache-2.0 */
/* The edge to kernels from elsewhere: see plait/strategy.h. */
#include <math.h>
#include <string.h>

#include "backend/edge.h"
#include "core/log.h"

static const float ln2 = 0.693147180559945309f;

static void empty_row(const plait_attn_args *args, int32_t row)
{
    size_t bytes = plait_dtype_bytes(args->out_dtype);
    for (int32_t h = 0; h < args->h_q; h++) {
        int64_t at = row * args->out_row_stride + h * args->out_head_stride;
        memset((unsigned char *)args->out + at * (int64_t)bytes, 0, bytes * (size_t)args->d_v);
        if (args->lse)
            args->lse[row * args->lse_row_stride + h * args->lse_head_stride] = -INFINITY;
    }
}

void plait_edge_pad(const plait_attn_args *args)
{
    for (int32_t r = args->row_start[args->num_seqs]; r < args->num_rows; r++)
        empty_row(args, r);
}

int64_t plait_edge_convert(const plait_attn_args *args, plait_lse_mode lse, const float *raw,
                           int32_t raw_rows, const char *name)
{
    const int32_t used = args->row_start[args->num_seqs];
    const float scale = lse == PLAIT_LSE_BASE_2 ? ln2 : 1.0f;
    int64_t bad = 0;
    for (int32_t r = 0; r < args->num_rows; r++) {
        int32_t begin = args->kv_begin && r < used ? args->kv_begin[r] : 0;
        if (r >= used || begin >= args->kv_end[r]) {
            empty_row(args, r);
            continue;
        }
        for (int32_t h = 0; args->lse && h < args->h_q; h++) {
            float *to = &args->lse[r * args->lse_row_stride + h * args->lse_head_stride];
            float x = raw ? raw[(int64_t)h * raw_rows + r] : *to;
            int wrong = isnan(x) || x == INFINITY;
            bad += wrong;
            *to = wrong ? NAN : x * scale;
        }
    }
    if (bad)
        plait_notice("%s: an LSE of a row that has keys is NaN or +inf; it stays NaN", name);
    return bad;
}
