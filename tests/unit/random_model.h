/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the checkpoints of tests/vectors/variants: weights from a counter hash, as README.md
   there states it. Included by the tests that need it. */
#ifndef PLAIT_TESTS_RANDOM_MODEL_H
#define PLAIT_TESTS_RANDOM_MODEL_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "engine/config.h"
#include "engine/json.h"
#include "folder.h"
#include "unit.h"

enum { RANDOM_MAX_TENSORS = 512, RANDOM_NAME_BYTES = 96 };

typedef struct random_model {
    const char *dtype; /* F16, BF16 or F32 */
    size_t count;
    plait_test_tensor tensors[RANDOM_MAX_TENSORS];
    char names[RANDOM_MAX_TENSORS][RANDOM_NAME_BYTES], shapes[RANDOM_MAX_TENSORS][48];
} random_model;

/* An integer in [-32768, 32767] from a tensor's name and an element's index. */
static inline int32_t random_value(uint32_t name_hash, uint32_t index)
{
    uint32_t x = index * 0x9e3779b9u + name_hash;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return (int32_t)((x ^ x >> 16) >> 16) - 32768;
}

static inline bool random_ends(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* rows 0: a vector of cols. */
static inline void random_tensor(random_model *m, const char *prefix, const char *name,
                                 int64_t rows, int64_t cols)
{
    assert_true(m->count < RANDOM_MAX_TENSORS);
    char *full = m->names[m->count], *shape = m->shapes[m->count];
    assert_true(snprintf(full, RANDOM_NAME_BYTES, "%s%s", prefix, name) < RANDOM_NAME_BYTES);
    if (rows)
        snprintf(shape, 48, "%lld,%lld", (long long)rows, (long long)cols);
    else
        snprintf(shape, 48, "%lld", (long long)cols);
    const bool norm = random_ends(full, "norm.weight"), bias = random_ends(full, "bias");
    const bool wide =
        random_ends(full, "gate.weight") || strstr(full, "embed") || strstr(full, "head");
    const float scale = norm   ? 0x1p-17f
                        : bias ? 0x1p-18f
                               : (float)((wide ? 2.0 : 1.0) * sqrt(3.0 / (double)cols) / 32768);
    const size_t n = (size_t)((rows ? rows : 1) * cols), size = m->dtype[1] == '3' ? 4 : 2;
    unsigned char *data = malloc(n * size);
    assert_non_null(data);
    uint32_t hash = 2166136261u;
    for (const char *c = full; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    for (size_t i = 0; i < n; i++) {
        const float x = (norm ? 1.0f : 0.0f) + (float)random_value(hash, (uint32_t)i) * scale;
        const uint16_t half = m->dtype[0] == 'B' ? plait_bf16_from_f32(x) : plait_f16_from_f32(x);
        memcpy(data + i * size, size == 4 ? (const void *)&x : (const void *)&half, size);
    }
    m->tensors[m->count++] = (plait_test_tensor){full, m->dtype, shape, data, n * size};
}

static inline void random_mlp(random_model *m, const char *prefix, int64_t hidden, int64_t width)
{
    random_tensor(m, prefix, "gate_proj.weight", width, hidden);
    random_tensor(m, prefix, "up_proj.weight", width, hidden);
    random_tensor(m, prefix, "down_proj.weight", hidden, width);
}

static inline void random_attention(random_model *m, const char *prefix, const plait_config *c)
{
    const int64_t heads = c->num_heads, d_q = c->qk_nope_dim + c->qk_rope_dim;
    if (c->q_lora_rank) {
        random_tensor(m, prefix, "q_a_proj.weight", c->q_lora_rank, c->hidden_size);
        random_tensor(m, prefix, "q_a_layernorm.weight", 0, c->q_lora_rank);
        random_tensor(m, prefix, "q_b_proj.weight", heads * d_q, c->q_lora_rank);
    } else {
        random_tensor(m, prefix, "q_proj.weight", heads * d_q, c->hidden_size);
    }
    random_tensor(m, prefix, "kv_a_proj_with_mqa.weight", c->kv_lora_rank + c->qk_rope_dim,
                  c->hidden_size);
    random_tensor(m, prefix, "kv_a_layernorm.weight", 0, c->kv_lora_rank);
    random_tensor(m, prefix, "kv_b_proj.weight", heads * (c->qk_nope_dim + c->v_dim),
                  c->kv_lora_rank);
    random_tensor(m, prefix, "o_proj.weight", c->hidden_size, heads * c->v_dim);
}

static inline void random_layer(random_model *m, const plait_config *c, int32_t layer)
{
    char prefix[48], inner[80];
    snprintf(prefix, sizeof prefix, "model.layers.%d.", (int)layer);
    random_tensor(m, prefix, "input_layernorm.weight", 0, c->hidden_size);
    random_tensor(m, prefix, "post_attention_layernorm.weight", 0, c->hidden_size);
    snprintf(inner, sizeof inner, "%sself_attn.", prefix);
    random_attention(m, inner, c);
    snprintf(inner, sizeof inner, "%smlp.", prefix);
    if (!plait_config_layer_is_moe(c, layer)) {
        random_mlp(m, inner, c->hidden_size, c->intermediate_size);
        return;
    }
    random_tensor(m, inner, "gate.weight", c->num_experts, c->hidden_size);
    if (!c->v2)
        random_tensor(m, inner, "gate.e_score_correction_bias", 0, c->num_experts);
    for (int32_t e = 0; e < c->num_experts; e++) {
        snprintf(inner, sizeof inner, "%smlp.experts.%d.", prefix, (int)e);
        random_mlp(m, inner, c->hidden_size, c->moe_intermediate_size);
    }
    snprintf(inner, sizeof inner, "%smlp.shared_experts.", prefix);
    random_mlp(m, inner, c->hidden_size, (int64_t)c->moe_intermediate_size * c->num_shared_experts);
}

static inline void random_copy(const char *root, const char *from, const char *to)
{
    char *text;
    size_t bytes;
    assert_int_equal(plait_file_read(from, 16 << 20, &text, &bytes), PLAIT_OK);
    plait_test_put(root, to, text, bytes);
    free(text);
}

/* A folder with the config.json of tests/vectors/variants/NAME.json, its weights, and the bundled
   tokenizer, whose ids are not those of the model: only requests by ids make sense. */
static inline void random_model_write(const char *root, const char *name)
{
    char path[512];
    plait_config c;
    snprintf(path, sizeof path, "%s/tests/vectors/variants/%s.json", PLAIT_SOURCE_DIR, name);
    random_copy(root, path, "config.json");
    random_copy(root, PLAIT_SOURCE_DIR "/models/tiny/tokenizer.json", "tokenizer.json");
    if (plait_config_load(root, &c) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    random_model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->dtype = random_ends(name, "_bf16") ? "BF16" : random_ends(name, "_f16") ? "F16" : "F32";
    random_tensor(m, "", "model.embed_tokens.weight", c.vocab_size, c.hidden_size);
    for (int32_t l = 0; l < c.num_layers; l++)
        random_layer(m, &c, l);
    random_tensor(m, "", "model.norm.weight", 0, c.hidden_size);
    if (!c.tie_word_embeddings)
        random_tensor(m, "", "lm_head.weight", c.vocab_size, c.hidden_size);
    plait_test_put_safetensors(root, "model.safetensors", m->tensors, m->count);
    for (size_t i = 0; i < m->count; i++)
        free((void *)(uintptr_t)m->tensors[i].data);
    free(m);
}

#endif
