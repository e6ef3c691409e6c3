/* SPDX-License-Identifier: Apache-2.0 */
/* model.c: loads a rank's weights from a checkpoint. */
#include "engine/model.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/status.h"
#include "engine/model_load.h"

/* "model.layers.N.", and that with "mlp.experts.E.". */
enum { PREFIX_BYTES = 32, MLP_BYTES = 80 };

void plait_model_close(plait_model *model)
{
    for (int32_t i = 0; i < model->num_owned; i++)
        free(model->owned[i]);
    free(model->owned);
    model->owned = NULL;
    model->num_owned = model->cap_owned = 0;
}

/* The query's path: one product, or two with a norm between. */
static plait_status load_query(plait_loader *l, const char *prefix, plait_layer *layer)
{
    const plait_config *c = l->config;
    const plait_model *m = l->model;
    const int32_t d_q = c->qk_nope_dim + c->qk_rope_dim, low = c->q_lora_rank;
    if (low > 0) {
        PLAIT_TRY(plait_load_rows(l, prefix, "self_attn.q_a_proj.weight", low, c->hidden_size, 0,
                                  low, m->n_slices, &layer->q_a));
        PLAIT_TRY(
            plait_load_vector(l, prefix, "self_attn.q_a_layernorm.weight", low, &layer->q_norm));
    }
    return plait_load_rows(l, prefix,
                           low > 0 ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight",
                           (int64_t)c->num_heads * d_q, low > 0 ? low : c->hidden_size,
                           m->head_begin * d_q, m->num_heads * d_q, m->num_heads, &layer->q);
}

static plait_status load_attention(plait_loader *l, const char *prefix, plait_layer *layer)
{
    const plait_config *c = l->config;
    plait_model *m = l->model;
    const int32_t d_kv = c->qk_nope_dim + c->v_dim;
    const int64_t hidden = c->hidden_size, rank = c->kv_lora_rank;
    plait_gemm **kv_a;
    PLAIT_TRY(load_query(l, prefix, layer));
    PLAIT_TRY(plait_load_rows(l, prefix, "self_attn.kv_a_proj_with_mqa.weight",
                              rank + c->qk_rope_dim, hidden, 0, c->kv_lora_rank + c->qk_rope_dim, 1,
                              &kv_a));
    layer->kv_a = kv_a[0];
    PLAIT_TRY(
        plait_load_vector(l, prefix, "self_attn.kv_a_layernorm.weight", rank, &layer->kv_norm));

    PLAIT_TRY(plait_load_own(m, (size_t)m->num_heads, sizeof *layer->k_up, &layer->k_up));
    PLAIT_TRY(plait_load_own(m, (size_t)m->num_heads, sizeof *layer->v_up, &layer->v_up));
    PLAIT_TRY(plait_load_reserve(l, d_kv * rank));
    for (int32_t h = 0; h < m->num_heads; h++) {
        PLAIT_TRY(plait_load_tensor(l, prefix, "self_attn.kv_b_proj.weight",
                                    PLAIT_SLICE_ROWS((int64_t)c->num_heads * d_kv, rank,
                                                     (int64_t)(m->head_begin + h) * d_kv, d_kv),
                                    l->buffer, rank));
        PLAIT_TRY(plait_gemm_open(l->gemms, l->dtype, l->buffer, c->qk_nope_dim, rank, rank, 1,
                                  &layer->k_up[h]));
        PLAIT_TRY(plait_gemm_open(l->gemms, l->dtype, l->buffer + c->qk_nope_dim * rank, rank,
                                  c->v_dim, 1, rank, &layer->v_up[h]));
    }

    return plait_load_output(l, prefix, (int64_t)c->num_heads * c->v_dim,
                             (int64_t)m->head_begin * c->v_dim, (int64_t)m->num_heads * c->v_dim,
                             &layer->o);
}

static plait_status load_moe(plait_loader *l, const char *prefix, plait_layer *layer)
{
    const plait_config *c = l->config;
    const plait_model *m = l->model;
    const int32_t width = c->moe_intermediate_size, shared = width * c->num_shared_experts;
    char name[MLP_BYTES];
    layer->num_units = c->num_experts + (shared > 0);
    PLAIT_TRY(
        plait_load_own(l->model, (size_t)layer->num_units, sizeof *layer->units, &layer->units));
    PLAIT_TRY(plait_load_reserve(l, (int64_t)c->num_experts * c->hidden_size));
    PLAIT_TRY(plait_load_tensor(l, prefix, "mlp.gate.weight",
                                PLAIT_SLICE_MATRIX(c->num_experts, c->hidden_size), l->buffer,
                                c->hidden_size));
    PLAIT_TRY(plait_gemm_open(l->gemms, PLAIT_F32, l->buffer, c->hidden_size, c->num_experts, 1,
                              c->hidden_size, &layer->router));
    if (!c->softmax_scores)
        PLAIT_TRY(plait_load_vector(l, prefix, "mlp.gate.e_score_correction_bias", c->num_experts,
                                    &layer->router_bias));
    const int32_t begin = plait_part(width, m->rank, m->n_ranks);
    const int32_t end = plait_part(width, m->rank + 1, m->n_ranks);
    for (int32_t e = 0; e < c->num_experts; e++) {
        snprintf(name, sizeof name, "%smlp.experts.%d.", prefix, (int)e);
        PLAIT_TRY(plait_load_unit(l, name, width, begin, end, &layer->units[e]));
    }
    if (shared == 0)
        return PLAIT_OK;
    snprintf(name, sizeof name, "%smlp.shared_experts.", prefix);
    return plait_load_unit(l, name, shared, plait_part(shared, m->rank, m->n_ranks),
                           plait_part(shared, m->rank + 1, m->n_ranks),
                           &layer->units[c->num_experts]);
}

static plait_status load_layer(plait_loader *l, int32_t index, plait_layer *layer)
{
    const int64_t hidden = l->config->hidden_size;
    char prefix[PREFIX_BYTES];
    snprintf(prefix, sizeof prefix, "model.layers.%d.", (int)index);
    PLAIT_TRY(plait_load_vector(l, prefix, "input_layernorm.weight", hidden, &layer->input_norm));
    PLAIT_TRY(
        plait_load_vector(l, prefix, "post_attention_layernorm.weight", hidden, &layer->post_norm));
    PLAIT_TRY(load_attention(l, prefix, layer));
    if (plait_config_layer_is_moe(l->config, index))
        return load_moe(l, prefix, layer);
    return plait_load_dense(l, prefix, l->config->intermediate_size, layer);
}

static plait_status load_mtp(plait_loader *l)
{
    const plait_config *c = l->config;
    const int64_t hidden = c->hidden_size;
    plait_mtp *mtp;
    char prefix[PREFIX_BYTES];
    PLAIT_TRY(plait_load_own(l->model, 1, sizeof *mtp, &mtp));
    snprintf(prefix, sizeof prefix, "model.layers.%d.", (int)c->num_layers);
    PLAIT_TRY(plait_load_vector(l, prefix, "enorm.weight", hidden, &mtp->enorm));
    PLAIT_TRY(plait_load_vector(l, prefix, "hnorm.weight", hidden, &mtp->hnorm));
    PLAIT_TRY(plait_load_vector(l, prefix, "shared_head.norm.weight", hidden, &mtp->head_norm));
    PLAIT_TRY(plait_load_rows(l, prefix, "eh_proj.weight", hidden, 2 * hidden, 0, c->hidden_size,
                              l->model->n_slices, &mtp->join));
    PLAIT_TRY(load_layer(l, c->num_layers, &mtp->layer));
    l->model->mtp = mtp;
    return PLAIT_OK;
}

static plait_status load_all(plait_loader *l, int32_t with_mtp)
{
    const plait_config *c = l->config;
    plait_model *m = l->model;
    PLAIT_TRY(plait_load_own(m, (size_t)c->num_layers, sizeof *m->layers, &m->layers));
    for (int32_t i = 0; i < c->num_layers; i++)
        PLAIT_TRY(load_layer(l, i, &m->layers[i]));
    PLAIT_TRY(plait_load_vector(l, "", "model.norm.weight", c->hidden_size, &m->final_norm));
    PLAIT_TRY(
        plait_load_head(l, c->tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
                        c->vocab_size, &m->head));
    return with_mtp ? load_mtp(l) : PLAIT_OK;
}

plait_status plait_model_load(plait_checkpoint *checkpoint, const plait_config *config,
                              plait_gemm_set *gemms, plait_dtype dtype, int32_t with_mtp,
                              plait_model *model)
{
    plait_loader l = {checkpoint, config, gemms, dtype, model, NULL, 0};
    model->config = config;
    plait_status status = load_all(&l, with_mtp);
    free(l.buffer);
    return status;
}
