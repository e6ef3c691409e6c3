/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plug-in with one backend: GQA in float32, any ranges, natural-log LSE. Build and prove it with
 *
 *     cc -std=c11 -O2 -fPIC -shared $(pkg-config --cflags plait) plugin_backend.c -o plugin.so -lm
 *     plait check --plugin ./plugin.so
 */
#include <math.h>
#include <string.h>

#include <plait/plugin.h>

static const float *at(const void *base, int64_t offset)
{
    return (const float *)base + offset;
}

static double scale_of(const float *scales, int32_t n, int32_t head)
{
    return n == 0 ? 1 : scales[n == 1 ? 0 : head];
}

static void attend(const plait_attn_args *a, int32_t seq, int32_t row, int32_t head)
{
    const int32_t kv = a->q_per_kv ? (a->q_head0 + head) / a->q_per_kv : head / (a->h_q / a->h_kv);
    const float *q = at(a->q, row * a->q_row_stride + head * a->q_head_stride);
    const double scale = a->softmax_scale * scale_of(a->q_scale, a->q_scale_n, head) *
                         scale_of(a->k_scale, a->k_scale_n, kv);
    const int32_t begin = seq >= 0 && a->kv_begin ? a->kv_begin[row] : 0;
    const int32_t end = seq >= 0 ? a->kv_end[row] : 0;
    double top = -INFINITY, sum = 0, acc[256] = {0};
    for (int32_t c = begin; c < end; c++) {
        const int64_t page = a->page_table[seq * a->page_table_stride + c / a->page_size];
        const int64_t token = c % a->page_size;
        const float *k =
            at(a->k, page * a->k_page_stride + token * a->k_token_stride + kv * a->k_head_stride);
        const float *v =
            at(a->v, page * a->v_page_stride + token * a->v_token_stride + kv * a->v_head_stride);
        double score = 0;
        for (int32_t d = 0; d < a->d_qk; d++)
            score += (double)q[d] * k[d];
        score *= scale;
        const double old = score > top ? exp(top - score) : 1;
        top = score > top ? score : top;
        const double w = exp(score - top);
        sum = sum * old + w;
        for (int32_t d = 0; d < a->d_v; d++)
            acc[d] = acc[d] * old + w * v[d];
    }
    const int32_t block = a->out_bases ? head / a->heads_per_base : 0;
    const int32_t local = a->out_bases ? head % a->heads_per_base : head;
    float *out = a->out_bases ? a->out_bases[block] : a->out;
    float *lse = a->out_bases ? (a->lse_bases ? a->lse_bases[block] : NULL) : a->lse;
    const double to = scale_of(a->v_scale, a->v_scale_n, kv) * a->out_scale;
    out += row * a->out_row_stride + local * a->out_head_stride;
    for (int32_t d = 0; d < a->d_v; d++)
        out[d] = end > begin ? (float)(acc[d] / sum * to) : 0;
    if (lse)
        lse[row * a->lse_row_stride + local * a->lse_head_stride] =
            end > begin ? (float)(top + log(sum)) : -INFINITY;
}

/* The schedule is not needed: worker w takes every n-th row. */
static plait_status run(const plait_attn_args *a, int32_t worker, int32_t n_workers)
{
    int32_t seq = 0;
    for (int32_t row = 0; row < a->num_rows; row++) {
        while (seq < a->num_seqs && row >= a->row_start[seq + 1])
            seq++;
        for (int32_t h = 0; row % n_workers == worker && h < a->h_q; h++)
            attend(a, seq < a->num_seqs ? seq : -1, row, h);
    }
    return PLAIT_OK;
}

static plait_status reduce(const plait_attn_args *a, int32_t worker, int32_t n_workers)
{
    (void)a, (void)worker, (void)n_workers;
    return PLAIT_OK;
}

static size_t workspace(const plait_attn_args *a, int32_t n_workers)
{
    (void)a, (void)n_workers;
    return 0;
}

static double cost(const plait_attn_args *a, int32_t n_workers)
{
    (void)n_workers;
    return 0.01 * a->num_rows * a->h_q * (a->d_qk + a->d_v);
}

static const plait_caps rows[] = {
    {.op = PLAIT_OP_GQA,
     .phases = PLAIT_PHASE_DECODE | PLAIT_PHASE_PREFILL,
     .device = PLAIT_DEVICE_CPU,
     .q_dtypes = PLAIT_DTYPE_BIT(PLAIT_F32),
     .kv_dtypes = PLAIT_DTYPE_BIT(PLAIT_F32),
     .out_dtypes = PLAIT_DTYPE_BIT(PLAIT_F32),
     .d_qk_min = 1,
     .d_qk_max = 256,
     .d_v_min = 1,
     .d_v_max = 256,
     .d_multiple = 1,
     .page_min = 1,
     .page_multiple = 1,
     .rows = PLAIT_ROWS_RAGGED,
     .ranges = PLAIT_RANGES_PER_ROW,
     .lse = PLAIT_LSE_BASE_E,
     .empty = PLAIT_EMPTY_EXACT},
};

static const plait_kernel kernel = {.name = "example.gqa",
                                    .op = PLAIT_OP_GQA,
                                    .rows = rows,
                                    .n_rows = 1,
                                    .cost = cost,
                                    .workspace = workspace,
                                    .run = run,
                                    .reduce = reduce};

static const plait_backend backends[] = {{.size = sizeof(plait_backend),
                                          .name = "example.gqa",
                                          .from = PLAIT_FROM_PLUGINS,
                                          .rows = rows,
                                          .n_rows = 1,
                                          .cost = 4,
                                          .cost_source = "estimate",
                                          .kernel = &kernel}};

const plait_plugin *plait_plugin_entry(void);

const plait_plugin *plait_plugin_entry(void)
{
    static const plait_plugin plugin = PLAIT_PLUGIN_INIT("example", "1.0", backends, 1);
    return &plugin;
}
