/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/config.h - what config.json of a DeepSeek V2 or V3 checkpoint says, and what follows.
 *
 * src/engine holds checkpoints, tokenizer, model, KV cache, drafting and sampling. Everything that
 * is read from a file is checked here once; the rest of the engine relies on it.
 */
#ifndef PLAIT_ENGINE_CONFIG_H
#define PLAIT_ENGINE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <plait/status.h>

enum { PLAIT_CONFIG_MAX_EOS = 16 };

typedef struct plait_rope {
    int32_t dim;     /* qk_rope_head_dim, even */
    bool interleave; /* pairs are (2i, 2i+1) in the checkpoint's layout; false: (i, i + dim/2) */
    double theta;
    bool yarn; /* the fields below hold only then */
    bool truncate;
    double factor, beta_fast, beta_slow;
    double mscale, mscale_all_dim; /* absent: 1, 0 */
    double attention_factor;       /* 0: absent */
    int32_t original_max_position; /* context that the model was trained with before YaRN */
} plait_rope;

typedef struct plait_config {
    bool v2; /* model_type deepseek_v2 */
    int32_t vocab_size, hidden_size, max_position;
    int32_t num_layers;     /* of the target, without MTP layers */
    int32_t num_mtp_layers; /* num_nextn_predict_layers; their tensors follow as layers.L.. */
    int32_t num_heads;
    int32_t q_lora_rank; /* 0: queries straight from the hidden state */
    int32_t kv_lora_rank, qk_nope_dim, qk_rope_dim, v_dim;
    int32_t intermediate_size, moe_intermediate_size;
    int32_t first_dense;    /* layers below it have a dense MLP */
    int32_t moe_layer_freq; /* of the others, those that it divides have experts */
    int32_t num_experts, experts_per_token, num_shared_experts;
    int32_t num_groups, groups_per_token;
    bool
        softmax_scores; /* V2: softmax, a group counts as its best expert; V3: sigmoid, bias, two */
    bool norm_topk_prob;
    float routed_scaling_factor;
    float rms_norm_eps;
    bool tie_word_embeddings;
    plait_rope rope;
    bool fp8;                       /* quantization_config says block-scaled fp8 */
    int32_t block_rows, block_cols; /* of weight_scale_inv; 128 x 128 */
    int32_t bos_id;                 /* -1: none */
    int32_t eos_ids[PLAIT_CONFIG_MAX_EOS];
    int32_t num_eos; /* may be 0 */
} plait_config;

/* Reads and checks DIR/config.json, and eos_token_id of DIR/generation_config.json where it is
   there. E_IO: no file; E_FORMAT: not JSON, a number out of its domain; E_UNSUPPORTED: a valid
   model that this engine does not run. *out is zeroed on failure. */
plait_status plait_config_load(const char *dir, plait_config *out);

/* The same from text; `name` stands for the file in error sentences. */
plait_status plait_config_parse(const char *text, size_t bytes, const char *name,
                                plait_config *out);

/* Whether layer l (an MTP layer counts on from num_layers) has experts. */
bool plait_config_layer_is_moe(const plait_config *config, int32_t layer);

/* inv_freq[dim/2]: radians per position of each pair, YaRN applied. */
void plait_rope_inv_freq(const plait_rope *rope, float *inv_freq);

/* What cos and sin are multiplied with: YaRN's mscale / mscale_all_dim factor, else 1. */
float plait_rope_cos_sin_factor(const plait_rope *rope);

/* d_qk^-0.5 times the square of YaRN's mscale_all_dim factor. */
float plait_rope_softmax_scale(const plait_rope *rope, int32_t d_qk);

#endif
