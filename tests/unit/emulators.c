/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "emulators.h"

/* What is written for a row without keys. */
enum empties { EXACT, ZERO, PLUS_INF, FINITE, UNWRITTEN, MASKED };

struct quirks {
    const char *name;
    plait_rows_mode rows;
    plait_ranges_mode ranges;
    plait_lse_mode lse;
    enum empties empty; /* MASKED: keys get a finite score, and count if all are masked */
    int32_t heads_first;
};

static const struct quirks quirks[n_emulators] = {
    {"no_lse", PLAIT_ROWS_SINGLE, PLAIT_RANGES_NONE, PLAIT_LSE_NONE, ZERO, 0},
    {"end_base2", PLAIT_ROWS_UNIFORM, PLAIT_RANGES_END_ALIGNED, PLAIT_LSE_BASE_2, UNWRITTEN, 0},
    {"end_masked", PLAIT_ROWS_UNIFORM, PLAIT_RANGES_END_ALIGNED, PLAIT_LSE_BASE_E, MASKED, 0},
    {"heads_first", PLAIT_ROWS_RAGGED, PLAIT_RANGES_NONE, PLAIT_LSE_BASE_E, PLUS_INF, 1},
    {"single", PLAIT_ROWS_SINGLE, PLAIT_RANGES_NONE, PLAIT_LSE_BASE_2, FINITE, 0},
    {"uniform", PLAIT_ROWS_UNIFORM, PLAIT_RANGES_NONE, PLAIT_LSE_BASE_2, ZERO, 1},
    {"ranges", PLAIT_ROWS_RAGGED, PLAIT_RANGES_PER_ROW, PLAIT_LSE_BASE_2, FINITE, 0},
};

static const float *key(const plait_attn_args *a, int32_t seq, int32_t c, int32_t head)
{
    int64_t page = a->page_table[seq * a->page_table_stride + c / a->page_size];
    return (const float *)a->k + page * a->k_page_stride + c % a->page_size * a->k_token_stride +
           head * a->k_head_stride;
}

static const float *value(const plait_attn_args *a, int32_t seq, int32_t c, int32_t head)
{
    if (a->op == PLAIT_OP_MLA)
        return key(a, seq, c, 0);
    int64_t page = a->page_table[seq * a->page_table_stride + c / a->page_size];
    return (const float *)a->v + page * a->v_page_stride + c % a->page_size * a->v_token_stride +
           head * a->v_head_stride;
}

static void write_empty(enum empties how, float *out, float *lse, int32_t n)
{
    if (how == UNWRITTEN)
        return;
    for (int32_t d = 0; d < n; d++)
        out[d] = how == FINITE ? 3.0f : 0;
    *lse = how == EXACT ? -INFINITY : how == PLUS_INF ? INFINITY : how == FINITE ? -4.0f : 0;
}

/* One row and head over keys [begin, end); without keys and MASKED: those of the
   sequence, all with the score -1. */
static void attend(const plait_attn_args *a, const struct quirks *k, int32_t seq, int32_t row,
                   int32_t head, int32_t begin, int32_t end, float *lse)
{
    const int64_t at = row * a->out_row_stride + head * a->out_head_stride;
    const int32_t kv_head = a->op == PLAIT_OP_MLA ? 0 : head / (a->h_q / a->h_kv);
    const float *q = (const float *)a->q + row * a->q_row_stride + head * a->q_head_stride;
    const int32_t all = a->kv_end[a->row_start[seq + 1] - 1];
    const int masked = k->empty == MASKED && begin >= end && all > 0;
    float *out = (float *)a->out + at;
    double sum = 0, acc[64] = {0};
    if (begin >= end && !masked) {
        write_empty(k->empty, out, lse, a->d_v);
        return;
    }
    for (int32_t c = masked ? 0 : begin; c < (masked ? all : end); c++) {
        double score = 0;
        for (int32_t d = 0; d < a->d_qk; d++)
            score += (double)q[d] * key(a, seq, c, kv_head)[d];
        double w = exp(masked ? -1.0 : score * a->softmax_scale);
        sum += w;
        for (int32_t d = 0; d < a->d_v; d++)
            acc[d] += w * value(a, seq, c, kv_head)[d];
    }
    for (int32_t d = 0; d < a->d_v; d++)
        out[d] = (float)(acc[d] / sum * a->out_scale);
    *lse = (float)(k->lse == PLAIT_LSE_BASE_2 ? log2(sum) : log(sum));
}

static plait_status run(const plait_attn_args *a, const struct quirks *k)
{
    for (int32_t s = 0; s < a->num_seqs; s++)
        for (int32_t r = a->row_start[s]; r < a->row_start[s + 1]; r++) {
            const int32_t last = a->row_start[s + 1] - 1;
            int32_t begin = 0, end = a->kv_end[last];
            if (k->ranges == PLAIT_RANGES_END_ALIGNED)
                end -= last - r;
            if (k->ranges == PLAIT_RANGES_PER_ROW) {
                begin = a->kv_begin ? a->kv_begin[r] : 0;
                end = a->kv_end[r];
            }
            for (int32_t h = 0; h < a->h_q; h++) {
                float none, *lse = &none;
                if (a->lse && k->lse != PLAIT_LSE_NONE)
                    lse =
                        a->lse + (k->heads_first ? (int64_t)h * a->num_rows + r
                                                 : r * a->lse_row_stride + h * a->lse_head_stride);
                attend(a, k, s, r, h, begin, end, lse);
            }
        }
    return PLAIT_OK;
}

#define RUN(i)                                                                                     \
    static plait_status run_##i(const plait_attn_args *args, int32_t worker, int32_t n_workers)    \
    {                                                                                              \
        (void)n_workers;                                                                           \
        return worker ? PLAIT_OK : run(args, &quirks[i]);                                          \
    }
RUN(0)
RUN(1)
RUN(2)
RUN(3)
RUN(4)
RUN(5)
RUN(6)

static size_t no_workspace(const plait_attn_args *args, int32_t n_workers)
{
    (void)args;
    (void)n_workers;
    return 0;
}

const emulator *emulator_get(plait_op op, int32_t i)
{
    static emulator all[2][n_emulators];
    static plait_status (*const runs[n_emulators])(const plait_attn_args *, int32_t, int32_t) = {
        run_0, run_1, run_2, run_3, run_4, run_5, run_6};
    const struct quirks *k = &quirks[i];
    emulator *e = &all[op][i];
    e->caps = (plait_caps){.op = op,
                           .device = PLAIT_DEVICE_CPU,
                           .rows = k->rows,
                           .ranges = k->ranges,
                           .lse = k->lse,
                           .empty = PLAIT_EMPTY_UNDEFINED};
    e->kernel = (plait_kernel){.name = k->name,
                               .op = op,
                               .rows = &e->caps,
                               .n_rows = 1,
                               .workspace = no_workspace,
                               .run = runs[i]};
    e->lse_heads_first = k->heads_first;
    return e;
}

/* ---- kernels after a row ----------------------------------------------------------------------
 */

static struct {
    const plait_caps *row;
    const plait_row_note *note;
} opened[emulators_open];

int32_t emulator_calls;

static int lacks(const plait_attn_args *a, const plait_caps *c, const plait_row_note *note)
{
    const int32_t first = a->num_seqs ? a->row_start[1] - a->row_start[0] : 0;
    for (int32_t s = 0; s < a->num_seqs; s++) {
        int32_t n = a->row_start[s + 1] - a->row_start[s];
        if ((c->rows == PLAIT_ROWS_SINGLE && n != 1) ||
            (c->rows == PLAIT_ROWS_UNIFORM && n != first) || (c->rows_max && n > c->rows_max))
            return 1;
    }
    return (note->heads_max && a->h_q > note->heads_max) || a->d_qk < c->d_qk_min ||
           (c->page_max && a->page_size > c->page_max) || (a->lse && c->lse == PLAIT_LSE_NONE);
}

static plait_status run_opened(const plait_attn_args *a, int32_t i)
{
    static const enum empties empties[] = {ZERO, PLUS_INF, FINITE, UNWRITTEN, MASKED};
    const plait_caps *c = opened[i].row;
    struct quirks k = {"",
                       c->rows,
                       c->ranges,
                       c->lse,
                       empties[emulator_calls++ % 5],
                       opened[i].note->lse_heads_first};
    return lacks(a, c, opened[i].note) ? PLAIT_E_STATE : run(a, &k);
}

#define OPENED(i)                                                                                  \
    static plait_status opened_##i(const plait_attn_args *args, int32_t worker, int32_t n_workers) \
    {                                                                                              \
        (void)n_workers;                                                                           \
        return worker ? PLAIT_OK : run_opened(args, i);                                            \
    }
OPENED(0)
OPENED(1)
OPENED(2)

void emulator_open(int32_t i, const plait_caps *row, const plait_row_note *note, plait_op op,
                   plait_kernel *out)
{
    static const char *const names[] = {"emulated.0", "emulated.1", "emulated.2"};
    static plait_status (*const runs[])(const plait_attn_args *, int32_t,
                                        int32_t) = {opened_0, opened_1, opened_2};
    opened[i].row = row;
    opened[i].note = note;
    *out = (plait_kernel){.name = names[i],
                          .op = op,
                          .rows = row,
                          .n_rows = 1,
                          .workspace = no_workspace,
                          .run = runs[i]};
}
