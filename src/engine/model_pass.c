/* SPDX-License-Identifier: Apache-2.0 */
/* model_pass.c: the layers of a DeepSeek V2 or V3 model over the rows of a batch. */
#include "engine/model_pass.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "core/status.h"
#include "engine/moe.h"
#include "engine/pass_eagle3.h"
#include "engine/pass_parts.h"
#include "kernel/routine.h"

enum { SMALL_PRODUCT = 1 << 18 }; /* multiply-adds that take less time than to wake a worker */

static plait_trace *trace_of(const plait_pass *p)
{
    return p->attend->options.trace;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

struct items {
    plait_pass *pass;
    plait_pass_item_fn fn;
    int32_t count;
    atomic_int next;
};

static plait_status take_items(void *task, int32_t worker, int32_t n_workers)
{
    (void)n_workers;
    struct items *items = task;
    for (;;) {
        const int item = atomic_fetch_add_explicit(&items->next, 1, memory_order_relaxed);
        if (item >= items->count)
            return PLAIT_OK;
        PLAIT_TRY(items->fn(items->pass, item, worker));
    }
}

plait_status plait_pass_items(plait_pass *p, int32_t count, plait_pass_item_fn fn)
{
    struct items items = {p, fn, count, 0};
    if (p->n_workers == 1 || count == 1)
        return take_items(&items, 0, 1);
    return p->executor->parallel_for(p->executor->user, take_items, &items);
}

/* ---- norms ----------------------------------------------------------------------------------- */

void plait_pass_rms_norm(const float *x, const float *weight, int32_t n, float eps, float *out)
{
    float sums[16] = {0}, sum = 0; /* independent, so that none waits for the one before */
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int32_t j = 0; j < 16; j++)
            sums[j] += x[i + j] * x[i + j];
    for (; i < n; i++)
        sum += x[i] * x[i];
    for (int32_t j = 0; j < 16; j++)
        sum += sums[j];
    const float scale = 1.0f / sqrtf(sum / (float)n + eps);
    for (i = 0; i < n; i++)
        out[i] = x[i] * scale * weight[i];
}

void plait_pass_norm_rows(const plait_pass *p, const float *x, const float *weight, float *out)
{
    const int32_t hidden = p->model->config->hidden_size;
    for (int32_t r = 0; r < p->num_rows; r++)
        plait_pass_rms_norm(x + (int64_t)r * hidden, weight, hidden, p->eps,
                            out + (int64_t)r * hidden);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Latent and rope key of every row, normalised, rotated and written to this rank's slots. */
static plait_status write_latents(plait_pass *p, int32_t worker)
{
    const plait_config *c = p->model->config;
    const int32_t width = c->kv_lora_rank + c->qk_rope_dim;
    PLAIT_TRY(plait_gemm_run(p->layer->kv_a, worker, p->num_rows, p->y, c->hidden_size, p->latent,
                             width));
    for (int32_t r = 0; r < p->num_rows; r++) {
        float *row = p->latent + (int64_t)r * width;
        plait_pass_rms_norm(row, p->layer->kv_norm, c->kv_lora_rank, c->rms_norm_eps, row);
        plait_rope_apply(p->rope, p->attend->view->position[r], row + c->kv_lora_rank);
    }
    return plait_kv_write(p->group, p->layer_index, p->attend->view->slot, p->latent, p->num_rows);
}

void plait_pass_put_query(const plait_attend *a, int64_t at, const float *values, int32_t n)
{
    if (a->options.q_dtype == PLAIT_F32) {
        memcpy((float *)a->q + at, values, (size_t)n * sizeof(float));
        return;
    }
    plait_routine_best(PLAIT_ROUTINE_APPEND)
        ->convert((uint16_t *)a->q + at, PLAIT_BF16, values, PLAIT_F32, n, NULL);
}

/* A slice of the low-rank state that the queries are made of. */
static plait_status query_slice(plait_pass *p, int32_t slice, int32_t worker)
{
    const plait_config *c = p->model->config;
    const int32_t at = plait_part(c->q_lora_rank, slice, p->model->n_slices);
    if (!p->layer->q_a[slice])
        return PLAIT_OK;
    return plait_gemm_run(p->layer->q_a[slice], worker, p->num_rows, p->y, c->hidden_size,
                          p->query + at, c->q_lora_rank);
}

static plait_status query_state(plait_pass *p)
{
    const plait_config *c = p->model->config;
    PLAIT_TRY(plait_pass_items(p, p->model->n_slices, query_slice));
    for (int32_t r = 0; r < p->num_rows; r++) {
        float *row = p->query + (int64_t)r * c->q_lora_rank;
        plait_pass_rms_norm(row, p->layer->q_norm, c->q_lora_rank, c->rms_norm_eps, row);
    }
    return PLAIT_OK;
}

/* Queries of one head in latent space: (q_nope * W_UK, rope(q_rope)). */
static plait_status query_head(plait_pass *p, int32_t head, int32_t worker)
{
    const plait_config *c = p->model->config;
    const int32_t d_q = c->qk_nope_dim + c->qk_rope_dim, rank = c->kv_lora_rank;
    const int64_t stride = rank + c->qk_rope_dim;
    const plait_pass_worker *w = &p->workers[worker];
    const float *from = p->query ? p->query : p->y;
    const int32_t width = p->query ? c->q_lora_rank : c->hidden_size;
    PLAIT_TRY(plait_gemm_run(p->layer->q[head], worker, p->num_rows, from, width, w->head, d_q));
    PLAIT_TRY(
        plait_gemm_run(p->layer->k_up[head], worker, p->num_rows, w->head, d_q, w->mid, rank));
    for (int32_t r = 0; r < p->num_rows; r++) {
        float *rope = w->head + (int64_t)r * d_q + c->qk_nope_dim;
        const int64_t at = ((int64_t)r * p->model->num_heads + head) * stride;
        plait_rope_apply(p->rope, p->attend->view->position[r], rope);
        plait_pass_put_query(p->attend, at, w->mid + (int64_t)r * rank, rank);
        plait_pass_put_query(p->attend, at + rank, rope, c->qk_rope_dim);
    }
    return PLAIT_OK;
}

static plait_status query_item(plait_pass *p, int32_t item, int32_t worker)
{
    return item == 0 ? write_latents(p, worker) : query_head(p, item - 1, worker);
}

static plait_status value_item(plait_pass *p, int32_t head, int32_t worker)
{
    const plait_config *c = p->model->config;
    const int32_t heads = p->model->num_heads;
    return plait_gemm_run(p->layer->v_up[head], worker, p->num_rows,
                          p->attend->out + (int64_t)head * c->kv_lora_rank,
                          (int64_t)heads * c->kv_lora_rank, p->values + (int64_t)head * c->v_dim,
                          (int64_t)heads * c->v_dim);
}

static plait_status output_item(plait_pass *p, int32_t slice, int32_t worker)
{
    const plait_model *m = p->model;
    const int32_t hidden = m->config->hidden_size, width = m->num_heads * m->config->v_dim;
    if (!p->layer->o[slice])
        return PLAIT_OK;
    return plait_gemm_run(p->layer->o[slice], worker, p->num_rows, p->values, width,
                          p->sum + plait_part(hidden, slice, m->n_slices), hidden);
}

plait_status plait_pass_add_sums(plait_pass *p)
{
    const int64_t n = (int64_t)p->num_rows * p->model->config->hidden_size;
    const float *sum = p->sum;
    if (p->model->n_ranks > 1) {
        const int64_t begin = plait_trace_begin(trace_of(p));
        PLAIT_TRY(plait_attend_sum(p->attend, p->sum, n, p->total));
        plait_trace_end(trace_of(p), "sum over ranks", begin, p->num_rows);
        sum = p->total;
    }
    for (int64_t i = 0; i < n; i++)
        p->x[i] += sum[i];
    return PLAIT_OK;
}

static plait_status attention(plait_pass *p)
{
    int64_t begin = plait_trace_begin(trace_of(p));
    plait_pass_norm_rows(p, p->x, p->layer->input_norm, p->y);
    if (p->query)
        PLAIT_TRY(query_state(p));
    PLAIT_TRY(plait_pass_items(p, 1 + p->model->num_heads, query_item));
    plait_trace_end(trace_of(p), "query and latent GEMMs", begin, p->num_rows);
    begin = plait_trace_begin(trace_of(p));
    PLAIT_TRY(plait_attend_step(p->attend, p->group, p->layer_index));
    plait_trace_end(trace_of(p), "attention", begin, p->num_rows);
    begin = plait_trace_begin(trace_of(p));
    PLAIT_TRY(plait_pass_items(p, p->model->num_heads, value_item));
    PLAIT_TRY(plait_pass_items(p, p->model->n_slices, output_item));
    plait_trace_end(trace_of(p), "value and output GEMMs", begin, p->num_rows);
    return plait_pass_add_sums(p);
}

/* ---- MLP ------------------------------------------------------------------------------------- */

static float silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* The rows of unit u and their weights. All rows take part in dense parts and shared experts. */
static int32_t unit_rows(const plait_pass *p, int32_t unit, int32_t *rows, float *weights)
{
    const plait_config *c = p->model->config;
    const int32_t k = c->experts_per_token;
    int32_t n = 0;
    for (int32_t r = 0; r < p->num_rows; r++) {
        if (!p->layer->router || unit >= c->num_experts) {
            rows[n] = r;
            weights[n++] = 1.0f;
            continue;
        }
        for (int32_t i = 0; i < k; i++) {
            if (p->experts[r * k + i] == unit) {
                rows[n] = r;
                weights[n++] = p->weights[r * k + i];
            }
        }
    }
    return n;
}

static plait_status run_unit(plait_pass *p, int32_t index, int32_t worker)
{
    const plait_mlp_unit *u = &p->layer->units[index];
    const plait_pass_worker *w = &p->workers[worker];
    const int32_t hidden = p->model->config->hidden_size;
    const int32_t n = u->width ? unit_rows(p, index, w->rows, w->weights) : 0;
    if (n == 0)
        return PLAIT_OK;
    for (int32_t i = 0; i < n; i++)
        memcpy(w->in + (int64_t)i * hidden, p->y + (int64_t)w->rows[i] * hidden,
               (size_t)hidden * sizeof(float));
    PLAIT_TRY(plait_gemm_run(u->gate_up, worker, n, w->in, hidden, w->mid, 2 * (int64_t)u->width));
    for (int32_t i = 0; i < n; i++) {
        float *gate = w->mid + (int64_t)i * 2 * u->width, *up = gate + u->width;
        for (int32_t j = 0; j < u->width; j++)
            gate[j] = silu(gate[j]) * up[j];
    }
    PLAIT_TRY(plait_gemm_run(u->down, worker, n, w->mid, 2 * (int64_t)u->width, w->out, hidden));
    for (int32_t i = 0; i < n; i++) {
        float *sum = w->sum + (int64_t)w->rows[i] * hidden;
        for (int32_t j = 0; j < hidden; j++)
            sum[j] += w->weights[i] * w->out[(int64_t)i * hidden + j];
    }
    return PLAIT_OK;
}

static plait_status run_units(void *task, int32_t worker, int32_t n_workers)
{
    (void)n_workers;
    plait_pass *p = task;
    memset(p->workers[worker].sum, 0,
           (size_t)p->num_rows * (size_t)p->model->config->hidden_size * sizeof(float));
    for (int32_t u = 0; u < p->layer->num_units; u++) {
        if (p->unit_worker[u] == worker)
            PLAIT_TRY(run_unit(p, u, worker));
    }
    return PLAIT_OK;
}

/*
 * Gives each unit to the worker with the least work so far. The assignment depends on the routing
 * only, so that sums are made in the same order in every run.
 */
static void assign_units(plait_pass *p)
{
    const plait_config *c = p->model->config;
    int64_t *load = p->unit_load;
    memset(load, 0, (size_t)p->n_workers * sizeof *load);
    for (int32_t u = p->layer->num_units - 1; u >= 0; u--) {
        int32_t least = 0;
        for (int32_t w = 1; w < p->n_workers; w++) {
            if (load[w] < load[least])
                least = w;
        }
        int64_t rows = p->num_rows;
        if (p->layer->router && u < c->num_experts)
            rows = p->unit_rows[u];
        p->unit_worker[u] = least;
        /* An expert's weights cost about as much to read as four rows to compute. */
        load[least] += rows ? (rows + 4) * p->layer->units[u].width : 0;
    }
}

static plait_status route(plait_pass *p)
{
    const plait_config *c = p->model->config;
    const int32_t k = c->experts_per_token;
    PLAIT_TRY(plait_gemm_run(p->layer->router, 0, p->num_rows, p->y, c->hidden_size, p->routing,
                             c->num_experts));
    memset(p->unit_rows, 0, (size_t)c->num_experts * sizeof *p->unit_rows);
    for (int32_t r = 0; r < p->num_rows; r++) {
        int32_t *experts = p->experts + r * k;
        const float margin =
            plait_moe_route(c, p->routing + (int64_t)r * c->num_experts, p->layer->router_bias,
                            p->workers[0].route, experts, p->weights + r * k);
        p->margin[r] = margin < p->margin[r] ? margin : p->margin[r];
        for (int32_t i = 0; i < k; i++)
            p->unit_rows[experts[i]]++;
    }
    return PLAIT_OK;
}

plait_status plait_pass_mlp(plait_pass *p)
{
    const int64_t begin = plait_trace_begin(trace_of(p));
    plait_pass_norm_rows(p, p->x, p->layer->post_norm, p->y);
    if (p->layer->router)
        PLAIT_TRY(route(p));
    assign_units(p);
    PLAIT_TRY(p->executor->parallel_for(p->executor->user, run_units, p));
    const int64_t n = (int64_t)p->num_rows * p->model->config->hidden_size;
    memcpy(p->sum, p->workers[0].sum, (size_t)n * sizeof(float));
    for (int32_t w = 1; w < p->n_workers; w++) {
        for (int64_t i = 0; i < n; i++)
            p->sum[i] += p->workers[w].sum[i];
    }
    plait_trace_end(trace_of(p), "MLP GEMMs", begin, p->num_rows);
    return plait_pass_add_sums(p);
}

/* ---- passes ---------------------------------------------------------------------------------- */

static plait_status run_layer(plait_pass *p, const plait_layer *layer, plait_kv_group *group,
                              int32_t index)
{
    p->layer = layer;
    p->group = group;
    p->layer_index = index;
    PLAIT_TRY(attention(p));
    return plait_pass_mlp(p);
}

plait_status plait_pass_target(plait_pass *p, plait_kv_group *group, const int32_t *ids)
{
    const plait_config *c = p->model->config;
    p->num_rows = p->attend->num_rows;
    p->eps = c->rms_norm_eps;
    for (int32_t r = 0; r < p->num_rows; r++) {
        memcpy(p->x + (int64_t)r * c->hidden_size, p->embedding + (int64_t)ids[r] * c->hidden_size,
               (size_t)c->hidden_size * sizeof(float));
        p->margin[r] = INFINITY;
    }
    for (int32_t i = 0; i < c->num_layers; i++) {
        if (p->eagle3)
            plait_pass_eagle3_keep(p, i);
        PLAIT_TRY(run_layer(p, &p->model->layers[i], group, i));
    }
    plait_pass_norm_rows(p, p->x, p->model->final_norm, p->hidden);
    return PLAIT_OK;
}

static plait_status join_item(plait_pass *p, int32_t slice, int32_t worker)
{
    const int32_t hidden = p->model->config->hidden_size, n = p->model->n_slices;
    if (!p->model->mtp->join[slice])
        return PLAIT_OK;
    return plait_gemm_run(p->model->mtp->join[slice], worker, p->num_rows, p->join,
                          2 * (int64_t)hidden, p->x + plait_part(hidden, slice, n), hidden);
}

/* The rows' inputs, joined, become the residual stream. */
static plait_status join_rows(plait_pass *p, const int32_t *ids, const float *states)
{
    const plait_config *c = p->model->config;
    const plait_mtp *mtp = p->model->mtp;
    const int64_t hidden = c->hidden_size;
    p->num_rows = p->attend->num_rows;
    p->eps = c->rms_norm_eps;
    for (int32_t r = 0; r < p->num_rows; r++) {
        float *row = p->join + r * 2 * hidden;
        /* The norm of zeros is zeros: the row at position 0 has no embedding. */
        if (p->attend->view->position[r] == 0)
            memset(row, 0, (size_t)hidden * sizeof(float));
        else
            plait_pass_rms_norm(p->embedding + ids[r] * hidden, mtp->enorm, c->hidden_size,
                                c->rms_norm_eps, row);
        plait_pass_rms_norm(states + r * hidden, mtp->hnorm, c->hidden_size, c->rms_norm_eps,
                            row + hidden);
        p->margin[r] = INFINITY;
    }
    if (p->num_rows * 2 * hidden * hidden > SMALL_PRODUCT)
        return plait_pass_items(p, p->model->n_slices, join_item);
    for (int32_t slice = 0; slice < p->model->n_slices; slice++)
        PLAIT_TRY(join_item(p, slice, 0));
    return PLAIT_OK;
}

plait_status plait_pass_mtp(plait_pass *p, plait_kv_group *group, const int32_t *ids,
                            const float *states)
{
    PLAIT_TRY(join_rows(p, ids, states));
    PLAIT_TRY(run_layer(p, &p->model->mtp->layer, group, 0));
    plait_pass_norm_rows(p, p->x, p->model->mtp->head_norm, p->hidden);
    return PLAIT_OK;
}

plait_status plait_pass_mtp_write(plait_pass *p, plait_kv_group *group, const int32_t *ids,
                                  const float *states)
{
    PLAIT_TRY(join_rows(p, ids, states));
    p->layer = &p->model->mtp->layer;
    p->group = group;
    p->layer_index = 0;
    plait_pass_norm_rows(p, p->x, p->layer->input_norm, p->y);
    return write_latents(p, 0);
}

static plait_status head_item(plait_pass *p, int32_t slice, int32_t worker)
{
    const plait_model *m = p->model;
    const plait_head *h = p->head;
    if (!h->products[slice])
        return PLAIT_OK;
    return plait_gemm_run(h->products[slice], worker, p->head_rows, p->head_input,
                          m->config->hidden_size,
                          p->piece + plait_part(h->count, slice, m->n_slices), h->stride);
}

plait_status plait_pass_head(plait_pass *p, const plait_head *head, const float *states, int32_t n)
{
    const plait_model *m = p->model;
    p->head = head;
    p->head_input = states;
    p->head_rows = n;
    PLAIT_TRY(plait_pass_items(p, m->n_slices, head_item));
    return plait_attend_gather(p->attend, p->piece, (int64_t)n * head->stride, p->pieces);
}

plait_status plait_pass_logits(plait_pass *p, const float *states, int32_t n)
{
    const plait_model *m = p->model;
    const int32_t vocab = m->config->vocab_size;
    const int64_t begin = plait_trace_begin(trace_of(p));
    PLAIT_TRY(plait_pass_head(p, &m->head, states, n));
    for (int32_t rank = 0; rank < m->n_ranks; rank++) {
        const int32_t first = plait_part(vocab, rank, m->n_ranks);
        const int32_t end = plait_part(vocab, rank + 1, m->n_ranks);
        for (int32_t r = 0; r < n; r++)
            memcpy(p->logits + (int64_t)r * vocab + first,
                   p->pieces + ((int64_t)rank * n + r) * m->head.stride,
                   (size_t)(end - first) * sizeof(float));
    }
    plait_trace_end(trace_of(p), "logits GEMM", begin, n);
    return PLAIT_OK;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static int64_t widest_unit(const plait_layer *layer, int64_t widest)
{
    for (int32_t u = 0; u < layer->num_units; u++) {
        if (2 * (int64_t)layer->units[u].width > widest)
            widest = 2 * (int64_t)layer->units[u].width;
    }
    return widest;
}

/* The widest intermediate of any unit, or of an absorbed query. */
static int64_t mid_width(const plait_model *m)
{
    int64_t widest = m->config->kv_lora_rank;
    for (int32_t l = 0; l < m->config->num_layers; l++)
        widest = widest_unit(&m->layers[l], widest);
    if (m->mtp)
        widest = widest_unit(&m->mtp->layer, widest);
    return m->eagle3 ? widest_unit(&m->eagle3->layer, widest) : widest;
}

static float *floats(plait_arena *arena, int64_t n)
{
    return plait_arena_take(arena, (size_t)n, sizeof(float));
}

static int32_t *ints(plait_arena *arena, int64_t n)
{
    return plait_arena_take(arena, (size_t)n, sizeof(int32_t));
}

static void lay_out_worker(plait_arena *arena, const plait_pass *p, plait_pass_worker *w)
{
    const plait_config *c = p->model->config;
    const int64_t rows = p->max_rows, hidden = c->hidden_size;
    w->in = floats(arena, rows * hidden);
    w->mid = floats(arena, rows * mid_width(p->model));
    w->out = floats(arena, rows * hidden);
    w->sum = floats(arena, rows * hidden);
    w->head = floats(arena, rows * (c->qk_nope_dim + c->qk_rope_dim));
    w->rows = ints(arena, rows);
    w->weights = floats(arena, rows);
    w->route = floats(arena, 2 * (int64_t)c->num_experts);
}

static void lay_out(plait_arena *arena, plait_pass *p)
{
    const plait_model *m = p->model;
    const plait_config *c = m->config;
    const int64_t rows = p->max_rows, hidden = c->hidden_size;
    const int64_t pieces = (int64_t)p->max_logit_rows * m->head.stride;
    p->x = floats(arena, rows * hidden);
    p->y = floats(arena, rows * hidden);
    p->hidden = floats(arena, rows * hidden);
    p->join = floats(arena, rows * 2 * hidden);
    p->query = floats(arena, rows * c->q_lora_rank);
    p->latent = floats(arena, rows * (c->kv_lora_rank + c->qk_rope_dim));
    p->values = floats(arena, rows * m->num_heads * c->v_dim);
    p->sum = floats(arena, rows * hidden);
    p->total = floats(arena, rows * hidden);
    p->routing = floats(arena, rows * c->num_experts);
    p->experts = ints(arena, rows * c->experts_per_token);
    p->weights = floats(arena, rows * c->experts_per_token);
    p->margin = floats(arena, rows);
    p->unit_worker = ints(arena, c->num_experts + 1 + p->n_workers);
    p->unit_rows = ints(arena, c->num_experts);
    p->unit_load = plait_arena_take(arena, (size_t)p->n_workers, sizeof *p->unit_load);
    p->logits = floats(arena, (int64_t)p->max_logit_rows * c->vocab_size);
    p->piece = floats(arena, pieces);
    p->pieces = floats(arena, pieces * m->n_ranks);
    p->workers = plait_arena_take(arena, (size_t)p->n_workers, sizeof *p->workers);
    for (int32_t w = 0; w < p->n_workers; w++) {
        plait_pass_worker measured;
        lay_out_worker(arena, p, p->workers ? &p->workers[w] : &measured);
    }
    if (m->eagle3)
        plait_pass_eagle3_lay_out(arena, p);
}

plait_status plait_pass_open(const plait_model *model, const plait_rope_table *rope,
                             const float *embedding, plait_attend *attend,
                             const plait_executor *executor, int32_t max_rows,
                             int32_t max_logit_rows, plait_pass *p)
{
    memset(p, 0, sizeof *p);
    p->model = model;
    p->rope = rope;
    p->embedding = embedding;
    p->attend = attend;
    p->executor = executor;
    p->n_workers = executor->n_workers;
    p->max_rows = max_rows;
    p->max_logit_rows = max_logit_rows;
    lay_out(&p->arena, p);
    PLAIT_TRY(plait_arena_reserve(&p->arena, attend->options.allocator, "passes of a step"));
    lay_out(&p->arena, p);
    return PLAIT_OK;
}

void plait_pass_close(plait_pass *p)
{
    plait_arena_free(&p->arena, p->attend ? p->attend->options.allocator : NULL);
    memset(p, 0, sizeof *p);
}
