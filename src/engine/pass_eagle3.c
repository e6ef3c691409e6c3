/* SPDX-License-Identifier: Apache-2.0 */
/* pass_eagle3.c: the layer of an EAGLE-3 head over the rows of a batch. */
#include "engine/pass_eagle3.h"

#include <math.h>
#include <string.h>

#include "core/status.h"
#include "engine/pass_parts.h"

/* ---- the target's states --------------------------------------------------------------------- */

void plait_pass_eagle3_keep(plait_pass *p, int32_t layer)
{
    const int64_t hidden = p->model->config->hidden_size;
    plait_pass_eagle3 *e = p->eagle3;
    e->aux_rows = p->num_rows;
    for (int32_t i = 0; i < PLAIT_EAGLE3_AUX; i++) {
        if (p->model->eagle3->shared->config.aux[i] != layer)
            continue;
        for (int32_t r = 0; r < p->num_rows; r++)
            memcpy(e->aux + (r * PLAIT_EAGLE3_AUX + i) * hidden, p->x + r * hidden,
                   (size_t)hidden * sizeof(float));
    }
}

static plait_status fc_item(plait_pass *p, int32_t slice, int32_t worker)
{
    const int64_t hidden = p->model->config->hidden_size;
    plait_gemm *fc = p->model->eagle3->fc[slice];
    if (!fc)
        return PLAIT_OK;
    return plait_gemm_run(
        fc, worker, p->eagle3->aux_rows, p->eagle3->aux, PLAIT_EAGLE3_AUX * hidden,
        p->eagle3->fused + plait_part((int32_t)hidden, slice, p->model->n_slices), hidden);
}

plait_status plait_pass_eagle3_fuse(plait_pass *p)
{
    return plait_pass_items(p, p->model->n_slices, fc_item);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Keys, rotated, and values of every row, side by side, written to this rank's slots. */
static plait_status write_kv(plait_pass *p, int32_t worker)
{
    const plait_eagle3 *m = p->model->eagle3;
    const int64_t in = 2 * (int64_t)p->model->config->hidden_size;
    const int32_t d = m->shared->config.head_dim, half = m->num_kv_heads * d;
    const plait_plan_view *view = p->eagle3->attend->view;
    float *kv = p->eagle3->kv;
    PLAIT_TRY(plait_gemm_run(m->k, worker, p->num_rows, p->join, in, kv, 2 * (int64_t)half));
    PLAIT_TRY(plait_gemm_run(m->v, worker, p->num_rows, p->join, in, kv + half, 2 * (int64_t)half));
    for (int32_t r = 0; r < p->num_rows; r++) {
        float *row = kv + (int64_t)r * 2 * half;
        for (int32_t h = 0; h < m->num_kv_heads; h++)
            plait_rope_apply(p->eagle3->rope, view->position[r], row + h * d);
    }
    return plait_kv_write(p->group, 0, view->slot, kv, p->num_rows);
}

static plait_status query_item(plait_pass *p, int32_t item, int32_t worker)
{
    const plait_eagle3 *m = p->model->eagle3;
    const int32_t d = m->shared->config.head_dim, head = item - 1;
    const int64_t stride = (int64_t)m->num_heads * d;
    if (item == 0)
        return write_kv(p, worker);
    float *q = p->eagle3->q + (int64_t)head * d;
    PLAIT_TRY(plait_gemm_run(m->q[head], worker, p->num_rows, p->join,
                             2 * (int64_t)p->model->config->hidden_size, q, stride));
    for (int32_t r = 0; r < p->num_rows; r++) {
        float *row = q + r * stride;
        plait_rope_apply(p->eagle3->rope, p->eagle3->attend->view->position[r], row);
        plait_pass_put_query(p->eagle3->attend, r * stride + (int64_t)head * d, row, d);
    }
    return PLAIT_OK;
}

static plait_status output_item(plait_pass *p, int32_t slice, int32_t worker)
{
    const plait_eagle3 *m = p->model->eagle3;
    const int32_t hidden = p->model->config->hidden_size;
    if (!m->layer.o[slice])
        return PLAIT_OK;
    return plait_gemm_run(m->layer.o[slice], worker, p->num_rows, p->eagle3->attend->out,
                          (int64_t)m->num_heads * m->shared->config.head_dim,
                          p->sum + plait_part(hidden, slice, p->model->n_slices), hidden);
}

/* ---- passes ---------------------------------------------------------------------------------- */

/* The rows' inputs side by side into join, the residual stream into x. */
static void join_rows(plait_pass *p, plait_kv_group *group, const int32_t *ids, const float *states)
{
    const plait_eagle3 *m = p->model->eagle3;
    const int32_t hidden = p->model->config->hidden_size;
    const float *embedding = m->shared->embedding ? m->shared->embedding : p->embedding;
    p->num_rows = p->eagle3->attend->num_rows;
    p->eps = m->shared->config.rms_norm_eps;
    p->layer = &m->layer;
    p->group = group;
    for (int32_t r = 0; r < p->num_rows; r++) {
        float *row = p->join + (int64_t)r * 2 * hidden;
        const float *state = states + (int64_t)r * hidden;
        plait_pass_rms_norm(embedding + (int64_t)ids[r] * hidden, m->layer.input_norm, hidden,
                            p->eps, row);
        plait_pass_rms_norm(state, m->hidden_norm, hidden, p->eps, row + hidden);
        memcpy(p->x + (int64_t)r * hidden,
               m->shared->config.norm_before_residual ? row + hidden : state,
               (size_t)hidden * sizeof(float));
        p->margin[r] = INFINITY;
    }
}

plait_status plait_pass_eagle3_run(plait_pass *p, plait_kv_group *group, const int32_t *ids,
                                   const float *states)
{
    const plait_eagle3 *m = p->model->eagle3;
    join_rows(p, group, ids, states);
    PLAIT_TRY(plait_pass_items(p, 1 + m->num_heads, query_item));
    PLAIT_TRY(plait_attend_step(p->eagle3->attend, group, 0));
    PLAIT_TRY(plait_pass_items(p, p->model->n_slices, output_item));
    PLAIT_TRY(plait_pass_add_sums(p));
    PLAIT_TRY(plait_pass_mlp(p));
    memcpy(p->hidden, p->x,
           (size_t)p->num_rows * (size_t)p->model->config->hidden_size * sizeof(float));
    return PLAIT_OK;
}

plait_status plait_pass_eagle3_write(plait_pass *p, plait_kv_group *group, const int32_t *ids,
                                     const float *states)
{
    join_rows(p, group, ids, states);
    return write_kv(p, 0);
}

plait_status plait_pass_eagle3_logits(plait_pass *p, const float *states, int32_t n)
{
    const plait_model *m = p->model;
    const plait_eagle3_config *c = &m->eagle3->shared->config;
    const int32_t hidden = m->config->hidden_size, vocab = c->draft_vocab_size;
    for (int32_t r = 0; r < n; r++)
        plait_pass_rms_norm(states + (int64_t)r * hidden, m->eagle3->final_norm, hidden,
                            c->rms_norm_eps, p->y + (int64_t)r * hidden);
    PLAIT_TRY(plait_pass_head(p, &m->eagle3->head, p->y, n));
    for (int64_t i = 0; i < (int64_t)n * c->vocab_size; i++)
        p->logits[i] = -INFINITY;
    for (int32_t rank = 0; rank < m->n_ranks; rank++) {
        const int32_t begin = plait_part(vocab, rank, m->n_ranks);
        const int32_t end = plait_part(vocab, rank + 1, m->n_ranks);
        for (int32_t r = 0; r < n; r++) {
            const float *piece = p->pieces + ((int64_t)rank * n + r) * m->eagle3->head.stride;
            for (int32_t i = begin; i < end; i++)
                p->logits[(int64_t)r * c->vocab_size + m->eagle3->shared->target_ids[i]] =
                    piece[i - begin];
        }
    }
    return PLAIT_OK;
}

/* ---- buffers --------------------------------------------------------------------------------- */

void plait_pass_eagle3_lay_out(plait_arena *arena, plait_pass *p)
{
    const plait_eagle3 *m = p->model->eagle3;
    const size_t rows = (size_t)p->max_rows, hidden = (size_t)p->model->config->hidden_size;
    const size_t d = (size_t)m->shared->config.head_dim;
    plait_pass_eagle3 measured, *e = plait_arena_take(arena, 1, sizeof *e);
    p->eagle3 = e;
    e = e ? e : &measured;
    memset(e, 0, sizeof *e);
    e->aux = plait_arena_take(arena, rows * PLAIT_EAGLE3_AUX * hidden, sizeof *e->aux);
    e->fused = plait_arena_take(arena, rows * hidden, sizeof *e->fused);
    e->q = plait_arena_take(arena, rows * (size_t)m->num_heads * d, sizeof *e->q);
    e->kv = plait_arena_take(arena, rows * 2 * (size_t)m->num_kv_heads * d, sizeof *e->kv);
}
