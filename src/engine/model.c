/* SPDX-License-Identifier: Apache-2.0 */
/* model.c: loads a rank's weights from a checkpoint. */
#include "engine/model.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/status.h"

/* "model.layers.N.", that with "mlp.experts.E.", and a tensor's full name. */
enum { PREFIX_BYTES = 32, MLP_BYTES = 80, NAME_BYTES = 160 };

/* What all loading steps need. */
struct loader {
    plait_checkpoint *checkpoint;
    const plait_config *config;
    plait_gemm_set *gemms;
    plait_dtype dtype;
    plait_model *model;
    float *buffer; /* of the weights that are being laid out */
    size_t buffer_floats;
};

static plait_status own(plait_model *model, size_t count, size_t bytes, void *out)
{
    if (model->num_owned == model->cap_owned) {
        const int32_t cap = model->cap_owned * 2 + 64;
        void **more = realloc(model->owned, (size_t)cap * sizeof *more);
        if (!more)
            return plait_fail(PLAIT_E_NOMEM, "no memory for the model");
        model->owned = more;
        model->cap_owned = cap;
    }
    void *p = calloc(count ? count : 1, bytes);
    if (!p)
        return plait_fail(PLAIT_E_NOMEM, "no memory for the model");
    model->owned[model->num_owned++] = p;
    *(void **)out = p;
    return PLAIT_OK;
}

void plait_model_close(plait_model *model)
{
    for (int32_t i = 0; i < model->num_owned; i++)
        free(model->owned[i]);
    free(model->owned);
    model->owned = NULL;
    model->num_owned = model->cap_owned = 0;
}

static plait_status reserve(struct loader *l, int64_t floats)
{
    if ((size_t)floats <= l->buffer_floats)
        return PLAIT_OK;
    free(l->buffer);
    l->buffer_floats = 0;
    l->buffer = malloc((size_t)floats * sizeof(float));
    if (!l->buffer)
        return plait_fail(PLAIT_E_NOMEM, "no memory for %lld weights", (long long)floats);
    l->buffer_floats = (size_t)floats;
    return PLAIT_OK;
}

static plait_status load(struct loader *l, const char *prefix, const char *name, plait_slice slice,
                         float *dst, int64_t stride)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return plait_checkpoint_load(l->checkpoint, full, &slice, PLAIT_F32, dst, stride);
}

static plait_status load_vector(struct loader *l, const char *prefix, const char *name, int64_t n,
                                float **out)
{
    PLAIT_TRY(own(l->model, (size_t)n, sizeof(float), out));
    return load(l, prefix, name, PLAIT_SLICE_VECTOR(n), *out, n);
}

/* Rows [first, first + n) of a [rows, cols] weight, cut into `slices` products. */
static plait_status load_rows(struct loader *l, const char *prefix, const char *name, int64_t rows,
                              int64_t cols, int32_t first, int32_t n, int32_t slices,
                              plait_gemm ***out)
{
    PLAIT_TRY(own(l->model, (size_t)slices, sizeof **out, out));
    PLAIT_TRY(reserve(l, (int64_t)n * cols));
    PLAIT_TRY(load(l, prefix, name, PLAIT_SLICE_ROWS(rows, cols, first, n), l->buffer, cols));
    for (int32_t s = 0; s < slices; s++) {
        const int32_t at = plait_part(n, s, slices), end = plait_part(n, s + 1, slices);
        if (end > at)
            PLAIT_TRY(plait_gemm_open(l->gemms, l->dtype, l->buffer + at * cols, cols, end - at, 1,
                                      cols, &(*out)[s]));
    }
    return PLAIT_OK;
}

/* The query's path: one product, or two with a norm between. */
static plait_status load_query(struct loader *l, const char *prefix, plait_layer *layer)
{
    const plait_config *c = l->config;
    const plait_model *m = l->model;
    const int32_t d_q = c->qk_nope_dim + c->qk_rope_dim, low = c->q_lora_rank;
    if (low > 0) {
        PLAIT_TRY(load_rows(l, prefix, "self_attn.q_a_proj.weight", low, c->hidden_size, 0, low,
                            m->n_slices, &layer->q_a));
        PLAIT_TRY(load_vector(l, prefix, "self_attn.q_a_layernorm.weight", low, &layer->q_norm));
    }
    return load_rows(l, prefix, low > 0 ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight",
                     (int64_t)c->num_heads * d_q, low > 0 ? low : c->hidden_size,
                     m->head_begin * d_q, m->num_heads * d_q, m->num_heads, &layer->q);
}

static plait_status load_attention(struct loader *l, const char *prefix, plait_layer *layer)
{
    const plait_config *c = l->config;
    plait_model *m = l->model;
    const int32_t d_kv = c->qk_nope_dim + c->v_dim;
    const int64_t hidden = c->hidden_size, rank = c->kv_lora_rank;
    plait_gemm **kv_a;
    PLAIT_TRY(load_query(l, prefix, layer));
    PLAIT_TRY(load_rows(l, prefix, "self_attn.kv_a_proj_with_mqa.weight", rank + c->qk_rope_dim,
                        hidden, 0, c->kv_lora_rank + c->qk_rope_dim, 1, &kv_a));
    layer->kv_a = kv_a[0];
    PLAIT_TRY(load_vector(l, prefix, "self_attn.kv_a_layernorm.weight", rank, &layer->kv_norm));

    PLAIT_TRY(own(m, (size_t)m->num_heads, sizeof *layer->k_up, &layer->k_up));
    PLAIT_TRY(own(m, (size_t)m->num_heads, sizeof *layer->v_up, &layer->v_up));
    PLAIT_TRY(reserve(l, d_kv * rank));
    for (int32_t h = 0; h < m->num_heads; h++) {
        PLAIT_TRY(load(l, prefix, "self_attn.kv_b_proj.weight",
                       PLAIT_SLICE_ROWS((int64_t)c->num_heads * d_kv, rank,
                                        (int64_t)(m->head_begin + h) * d_kv, d_kv),
                       l->buffer, rank));
        PLAIT_TRY(plait_gemm_open(l->gemms, l->dtype, l->buffer, c->qk_nope_dim, rank, rank, 1,
                                  &layer->k_up[h]));
        PLAIT_TRY(plait_gemm_open(l->gemms, l->dtype, l->buffer + c->qk_nope_dim * rank, rank,
                                  c->v_dim, 1, rank, &layer->v_up[h]));
    }

    const int64_t width = (int64_t)m->num_heads * c->v_dim;
    PLAIT_TRY(own(m, (size_t)m->n_slices, sizeof *layer->o, &layer->o));
    PLAIT_TRY(reserve(l, hidden * width));
    PLAIT_TRY(load(l, prefix, "self_attn.o_proj.weight",
                   PLAIT_SLICE_COLS(hidden, (int64_t)c->num_heads * c->v_dim,
                                    (int64_t)m->head_begin * c->v_dim, width),
                   l->buffer, width));
    for (int32_t s = 0; s < m->n_slices; s++) {
        const int32_t at = plait_part(c->hidden_size, s, m->n_slices);
        const int32_t end = plait_part(c->hidden_size, s + 1, m->n_slices);
        if (end > at)
            PLAIT_TRY(plait_gemm_open(l->gemms, l->dtype, l->buffer + at * width, width, end - at,
                                      1, width, &layer->o[s]));
    }
    return PLAIT_OK;
}

/* Columns [begin, end) of the intermediate width `total` of one MLP. */
static plait_status load_unit(struct loader *l, const char *prefix, int64_t total, int32_t begin,
                              int32_t end, plait_mlp_unit *unit)
{
    const int64_t hidden = l->config->hidden_size, width = end - begin;
    unit->width = end - begin;
    if (width == 0)
        return PLAIT_OK;
    PLAIT_TRY(reserve(l, 2 * width * hidden));
    const plait_slice rows = PLAIT_SLICE_ROWS(total, hidden, begin, width);
    PLAIT_TRY(load(l, prefix, "gate_proj.weight", rows, l->buffer, hidden));
    PLAIT_TRY(load(l, prefix, "up_proj.weight", rows, l->buffer + width * hidden, hidden));
    PLAIT_TRY(plait_gemm_open(l->gemms, l->dtype, l->buffer, hidden, 2 * width, 1, hidden,
                              &unit->gate_up));
    PLAIT_TRY(load(l, prefix, "down_proj.weight", PLAIT_SLICE_COLS(hidden, total, begin, width),
                   l->buffer, width));
    return plait_gemm_open(l->gemms, l->dtype, l->buffer, width, hidden, 1, width, &unit->down);
}

static plait_status load_dense(struct loader *l, const char *prefix, plait_layer *layer)
{
    const plait_model *m = l->model;
    const int32_t total = l->config->intermediate_size;
    const int32_t begin = plait_part(total, m->rank, m->n_ranks);
    const int32_t count = plait_part(total, m->rank + 1, m->n_ranks) - begin;
    char mlp[MLP_BYTES];
    snprintf(mlp, sizeof mlp, "%smlp.", prefix);
    layer->num_units = m->n_slices;
    PLAIT_TRY(own(l->model, (size_t)layer->num_units, sizeof *layer->units, &layer->units));
    for (int32_t s = 0; s < m->n_slices; s++)
        PLAIT_TRY(load_unit(l, mlp, total, begin + plait_part(count, s, m->n_slices),
                            begin + plait_part(count, s + 1, m->n_slices), &layer->units[s]));
    return PLAIT_OK;
}

static plait_status load_moe(struct loader *l, const char *prefix, plait_layer *layer)
{
    const plait_config *c = l->config;
    const plait_model *m = l->model;
    const int32_t width = c->moe_intermediate_size, shared = width * c->num_shared_experts;
    char name[MLP_BYTES];
    layer->num_units = c->num_experts + (shared > 0);
    PLAIT_TRY(own(l->model, (size_t)layer->num_units, sizeof *layer->units, &layer->units));
    PLAIT_TRY(reserve(l, (int64_t)c->num_experts * c->hidden_size));
    PLAIT_TRY(load(l, prefix, "mlp.gate.weight", PLAIT_SLICE_MATRIX(c->num_experts, c->hidden_size),
                   l->buffer, c->hidden_size));
    PLAIT_TRY(plait_gemm_open(l->gemms, PLAIT_F32, l->buffer, c->hidden_size, c->num_experts, 1,
                              c->hidden_size, &layer->router));
    if (!c->softmax_scores)
        PLAIT_TRY(load_vector(l, prefix, "mlp.gate.e_score_correction_bias", c->num_experts,
                              &layer->router_bias));
    const int32_t begin = plait_part(width, m->rank, m->n_ranks);
    const int32_t end = plait_part(width, m->rank + 1, m->n_ranks);
    for (int32_t e = 0; e < c->num_experts; e++) {
        snprintf(name, sizeof name, "%smlp.experts.%d.", prefix, (int)e);
        PLAIT_TRY(load_unit(l, name, width, begin, end, &layer->units[e]));
    }
    if (shared == 0)
        return PLAIT_OK;
    snprintf(name, sizeof name, "%smlp.shared_experts.", prefix);
    return load_unit(l, name, shared, plait_part(shared, m->rank, m->n_ranks),
                     plait_part(shared, m->rank + 1, m->n_ranks), &layer->units[c->num_experts]);
}

static plait_status load_layer(struct loader *l, int32_t index, plait_layer *layer)
{
    const int64_t hidden = l->config->hidden_size;
    char prefix[PREFIX_BYTES];
    snprintf(prefix, sizeof prefix, "model.layers.%d.", (int)index);
    PLAIT_TRY(load_vector(l, prefix, "input_layernorm.weight", hidden, &layer->input_norm));
    PLAIT_TRY(load_vector(l, prefix, "post_attention_layernorm.weight", hidden, &layer->post_norm));
    PLAIT_TRY(load_attention(l, prefix, layer));
    if (plait_config_layer_is_moe(l->config, index))
        return load_moe(l, prefix, layer);
    return load_dense(l, prefix, layer);
}

static plait_status load_mtp(struct loader *l)
{
    const plait_config *c = l->config;
    const int64_t hidden = c->hidden_size;
    plait_mtp *mtp;
    char prefix[PREFIX_BYTES];
    PLAIT_TRY(own(l->model, 1, sizeof *mtp, &mtp));
    snprintf(prefix, sizeof prefix, "model.layers.%d.", (int)c->num_layers);
    PLAIT_TRY(load_vector(l, prefix, "enorm.weight", hidden, &mtp->enorm));
    PLAIT_TRY(load_vector(l, prefix, "hnorm.weight", hidden, &mtp->hnorm));
    PLAIT_TRY(load_vector(l, prefix, "shared_head.norm.weight", hidden, &mtp->head_norm));
    PLAIT_TRY(load_rows(l, prefix, "eh_proj.weight", hidden, 2 * hidden, 0, c->hidden_size,
                        l->model->n_slices, &mtp->join));
    PLAIT_TRY(load_layer(l, c->num_layers, &mtp->layer));
    l->model->mtp = mtp;
    return PLAIT_OK;
}

static plait_status load_all(struct loader *l, int32_t with_mtp)
{
    const plait_config *c = l->config;
    plait_model *m = l->model;
    PLAIT_TRY(own(m, (size_t)c->num_layers, sizeof *m->layers, &m->layers));
    for (int32_t i = 0; i < c->num_layers; i++)
        PLAIT_TRY(load_layer(l, i, &m->layers[i]));
    PLAIT_TRY(load_vector(l, "", "model.norm.weight", c->hidden_size, &m->final_norm));
    m->vocab_stride = (c->vocab_size + m->n_ranks - 1) / m->n_ranks;
    m->vocab_begin = plait_part(c->vocab_size, m->rank, m->n_ranks);
    m->vocab_count = plait_part(c->vocab_size, m->rank + 1, m->n_ranks) - m->vocab_begin;
    PLAIT_TRY(load_rows(
        l, "", c->tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
        c->vocab_size, c->hidden_size, m->vocab_begin, m->vocab_count, m->n_slices, &m->head));
    return with_mtp ? load_mtp(l) : PLAIT_OK;
}

plait_status plait_model_load(plait_checkpoint *checkpoint, const plait_config *config,
                              plait_gemm_set *gemms, plait_dtype dtype, int32_t with_mtp,
                              plait_model *model)
{
    struct loader l = {checkpoint, config, gemms, dtype, model, NULL, 0};
    model->config = config;
    plait_status status = load_all(&l, with_mtp);
    free(l.buffer);
    return status;
}
