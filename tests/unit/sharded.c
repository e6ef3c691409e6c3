/* SPDX-License-Identifier: Apache-2.0 */
#include <plait/merge.h>
#include <plait/shard.h>

#include <math.h>
#include <string.h>

#include "sharded.h"
#include "unit.h"

uint64_t batch_seed = 1;

int32_t batch_pick(int32_t least, int32_t most)
{
    batch_seed = batch_seed * 6364136223846793005u + 1442695040888963407u;
    return least + (int32_t)((batch_seed >> 33) % (uint64_t)(most - least + 1));
}

struct batch batch;
struct rank batch_ranks[max_d];
float batch_out[max_rows * max_heads * d_v], batch_lse[max_rows * max_heads];

static float noise(void)
{
    return (float)batch_pick(-1000, 1000) / 500;
}

void batch_fill(void)
{
    batch.num_rows = 0;
    for (int32_t s = 0; s < batch.seqs; s++) {
        batch.row_start[s] = batch.num_rows;
        batch.num_rows += batch.rows[s];
        for (int32_t p = 0; p < batch.length[s]; p++)
            for (int32_t h = 0; h < batch.h_kv; h++) {
                for (int32_t d = 0; d < d_qk; d++)
                    batch.k[s][p][h][d] = noise();
                for (int32_t d = 0; d < d_v; d++)
                    batch.v[s][p][h][d] = noise();
            }
    }
    batch.row_start[batch.seqs] = batch.num_rows;
    for (int32_t i = 0; i < batch.num_rows * batch.h_q * d_qk; i++)
        batch.q[i] = noise();
}

void batch_random(void)
{
    const int32_t most = batch_pick(0, 2) ? 4 : 1, uniform = batch_pick(1, 4);
    memset(&batch, 0, sizeof batch);
    batch.op = batch_pick(0, 1) ? PLAIT_OP_GQA : PLAIT_OP_MLA;
    batch.ranks = batch_pick(1, max_d);
    batch.interleave = batch_pick(1, 5);
    batch.seqs = batch_pick(1, max_seqs);
    batch.h_kv = batch.op == PLAIT_OP_MLA ? 1 : batch_pick(1, max_kv);
    batch.h_q = batch.h_kv * batch_pick(1, 2);
    if (batch.op == PLAIT_OP_GQA && batch.ranks > 1 && batch_pick(0, 1)) {
        batch.h_kv = 1; /* the heads of a DCP group */
        batch.h_q = batch.ranks * batch_pick(1, 2);
    }
    batch.ragged = batch_pick(0, 1);
    for (int32_t s = 0; s < batch.seqs; s++) {
        batch.rows[s] = batch.ragged ? batch_pick(0, most) : most == 1 ? 1 : uniform;
        batch.length[s] = batch.rows[s] + batch_pick(0, batch_pick(0, 1) ? 3 : max_keys - 4);
    }
    batch_fill();
    batch.ragged = 0;
    for (int32_t s = 1; s < batch.seqs; s++)
        batch.ragged |= batch.rows[s] != batch.rows[0];
    batch.num_rows += batch_pick(0, 2);
}

/* The rank's shard, in pages that are not in order; everything else is NaN. */
void batch_open_rank(plait_attn_args *a, int32_t r)
{
    static const plait_attn_args init = PLAIT_ATTN_ARGS_INIT;
    struct rank *k = &batch_ranks[r];
    plait_shard shard = {.d = batch.ranks, .r = r, .i = batch.interleave};
    memset(k, 0xff, sizeof *k);
    for (int32_t s = 0; s < batch.seqs; s++) {
        for (int32_t i = 0; i < stride; i++)
            k->table[s * stride + i] = batch.seqs * stride - 1 - (s * stride + i);
        for (int32_t i = 0; i < batch.rows[s]; i++)
            k->end[batch.row_start[s] + i] =
                (int32_t)plait_shard_len(shard, batch.length[s] - batch.rows[s] + i + 1);
        for (int32_t p = 0; p < batch.length[s]; p++) {
            if (p / batch.interleave % batch.ranks != r)
                continue;
            int32_t c = (int32_t)plait_shard_len(shard, p);
            int32_t at = (k->table[s * stride + c / page] * page + c % page) * batch.h_kv;
            memcpy(k->k + at * d_qk, batch.k[s][p], (size_t)batch.h_kv * d_qk * sizeof(float));
            memcpy(k->v + at * d_v, batch.v[s][p], (size_t)batch.h_kv * d_v * sizeof(float));
        }
    }
    *a = init;
    a->op = batch.op;
    a->num_seqs = batch.seqs;
    a->num_rows = batch.num_rows;
    a->h_q = batch.h_q;
    a->h_kv = batch.h_kv;
    a->d_qk = d_qk;
    a->d_v = d_v;
    a->page_size = page;
    a->row_start = batch.row_start;
    a->kv_end = k->end;
    a->page_table = k->table;
    a->page_table_stride = stride;
    a->num_pages = batch.seqs * stride;
    a->q = batch.q;
    a->q_head_stride = d_qk;
    a->q_row_stride = batch.h_q * d_qk;
    a->k = k->k;
    a->k_head_stride = d_qk;
    a->k_token_stride = batch.h_kv * d_qk;
    a->k_page_stride = page * a->k_token_stride;
    a->v = batch.op == PLAIT_OP_GQA ? k->v : NULL;
    a->v_head_stride = d_v;
    a->v_token_stride = batch.h_kv * d_v;
    a->v_page_stride = page * a->v_token_stride;
    a->out = k->out;
    a->out_head_stride = d_v;
    a->out_row_stride = batch.h_q * d_v;
    a->lse = k->lse;
    a->lse_head_stride = 1;
    a->lse_row_stride = batch.h_q;
    a->softmax_scale = 0.25f;
}

void batch_merge(void)
{
    plait_partial parts[max_d];
    plait_merged to = {batch_out, PLAIT_F32, batch.h_q * d_v, d_v, batch_lse, batch.h_q, 1};
    for (int32_t r = 0; r < batch.ranks; r++)
        parts[r] = (plait_partial){
            batch_ranks[r].out, PLAIT_F32, batch.h_q * d_v, d_v, batch_ranks[r].lse, batch.h_q, 1};
    assert_int_equal(plait_merge(parts, batch.ranks, batch.num_rows, batch.h_q, d_v, 0, &to),
                     PLAIT_OK);
}

/* The LSE of row i of sequence s, head h, from the definition; want NULL or its output. */
static double reference(int32_t s, int32_t i, int32_t h, double *want)
{
    const int32_t row = batch.row_start[s] + i, n = batch.length[s] - batch.rows[s] + i + 1;
    const int32_t kv = batch.op == PLAIT_OP_MLA ? 0 : h / (batch.h_q / batch.h_kv);
    const float *q = batch.q + (row * batch.h_q + h) * d_qk;
    double sum = 0, to[d_v] = {0};
    for (int32_t p = 0; p < n; p++) {
        const float *value = batch.op == PLAIT_OP_MLA ? batch.k[s][p][0] : batch.v[s][p][kv];
        double score = 0;
        for (int32_t d = 0; d < d_qk; d++)
            score += (double)q[d] * batch.k[s][p][kv][d];
        sum += exp(score * 0.25);
        for (int32_t d = 0; d < d_v; d++)
            to[d] += exp(score * 0.25) * value[d];
    }
    for (int32_t d = 0; want && d < d_v; d++)
        want[d] = to[d] / sum;
    return log(sum);
}

/* The largest error of row i of sequence s, head h. */
static double row_error(int32_t s, int32_t i, int32_t h)
{
    const int32_t at = (batch.row_start[s] + i) * batch.h_q + h;
    double want[d_v], lse = reference(s, i, h, want);
    double worst = fabs(batch_lse[at] - lse) / (1 + fabs(lse));
    for (int32_t d = 0; d < d_v; d++) {
        double e = fabs(batch_out[at * d_v + d] - want[d]);
        if (!(e <= worst)) /* a NaN is the worst */
            worst = e;
    }
    return isnan(worst) ? INFINITY : worst;
}

void batch_take_out(void)
{
    memcpy(batch_out, batch_ranks[0].out, sizeof batch_out);
    for (int32_t row = 0; row < batch.num_rows * batch.h_q; row++)
        batch_lse[row] = -INFINITY;
    for (int32_t s = 0; s < batch.seqs; s++)
        for (int32_t i = 0; i < batch.rows[s]; i++)
            for (int32_t h = 0; h < batch.h_q; h++) {
                float *to = &batch_lse[(batch.row_start[s] + i) * batch.h_q + h];
                *to = (float)reference(s, i, h, NULL);
            }
}

double batch_error(void)
{
    double worst = 0;
    for (int32_t s = 0; s < batch.seqs; s++)
        for (int32_t i = 0; i < batch.rows[s]; i++)
            for (int32_t h = 0; h < batch.h_q; h++)
                worst = fmax(worst, row_error(s, i, h));
    for (int32_t r = batch.row_start[batch.seqs]; r < batch.num_rows; r++)
        for (int32_t i = 0; i < batch.h_q; i++)
            if (batch_lse[r * batch.h_q + i] != -INFINITY ||
                batch_out[(r * batch.h_q + i) * d_v] != 0)
                worst = INFINITY;
    return worst;
}
