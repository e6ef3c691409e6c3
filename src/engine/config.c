/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.json of DeepSeek V2 and V3 checkpoints: reading its fields. Those that give shapes must be
 * there; the others have the defaults of transformers' configuration classes, which is what a
 * checkpoint that leaves them out was run with. Bounds are wide; they only keep later products
 * inside 64 bits.
 */
#include "engine/config_check.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "engine/json.h"

enum { MAX_CONFIG_BYTES = 16 << 20, MAX_DIM = 1 << 14, MAX_SIZE = 1 << 24, MAX_POS = 1 << 30 };

typedef enum kind { WHOLE, REAL, FLOAT, FLAG } kind;

typedef struct field {
    const char *key;
    kind kind;
    size_t offset;
    double least, most;
    double preset_v3, preset_v2; /* below least: the field must be there */
} field;

#define AT(member) offsetof(plait_config, member)
#define REQUIRED   -1e300

static const field fields[] = {
    {"vocab_size", WHOLE, AT(vocab_size), 1, MAX_SIZE, REQUIRED, REQUIRED},
    {"hidden_size", WHOLE, AT(hidden_size), 1, MAX_SIZE, REQUIRED, REQUIRED},
    {"max_position_embeddings", WHOLE, AT(max_position), 1, MAX_POS, REQUIRED, REQUIRED},
    {"num_hidden_layers", WHOLE, AT(num_layers), 1, 4096, REQUIRED, REQUIRED},
    {"num_nextn_predict_layers", WHOLE, AT(num_mtp_layers), 0, 64, 0, 0},
    {"num_attention_heads", WHOLE, AT(num_heads), 1, MAX_DIM, REQUIRED, REQUIRED},
    {"q_lora_rank", WHOLE, AT(q_lora_rank), 1, MAX_DIM, 1536, 1536},
    {"kv_lora_rank", WHOLE, AT(kv_lora_rank), 1, MAX_DIM, REQUIRED, REQUIRED},
    {"qk_nope_head_dim", WHOLE, AT(qk_nope_dim), 1, MAX_DIM, REQUIRED, REQUIRED},
    {"qk_rope_head_dim", WHOLE, AT(qk_rope_dim), 2, MAX_DIM, REQUIRED, REQUIRED},
    {"v_head_dim", WHOLE, AT(v_dim), 1, MAX_DIM, REQUIRED, REQUIRED},
    {"intermediate_size", WHOLE, AT(intermediate_size), 1, MAX_SIZE, REQUIRED, REQUIRED},
    {"moe_intermediate_size", WHOLE, AT(moe_intermediate_size), 1, MAX_SIZE, REQUIRED, REQUIRED},
    {"first_k_dense_replace", WHOLE, AT(first_dense), 0, 4096, 3, 0},
    {"moe_layer_freq", WHOLE, AT(moe_layer_freq), 1, 4096, 1, 1},
    {"n_routed_experts", WHOLE, AT(num_experts), 1, MAX_DIM, REQUIRED, REQUIRED},
    {"num_experts_per_tok", WHOLE, AT(experts_per_token), 1, MAX_DIM, 8, REQUIRED},
    {"n_shared_experts", WHOLE, AT(num_shared_experts), 0, 64, 1, REQUIRED},
    {"n_group", WHOLE, AT(num_groups), 1, MAX_DIM, 8, 1},
    {"topk_group", WHOLE, AT(groups_per_token), 1, MAX_DIM, 4, 1},
    {"norm_topk_prob", FLAG, AT(norm_topk_prob), 0, 1, 1, 0},
    {"routed_scaling_factor", FLOAT, AT(routed_scaling_factor), 1e-6, 1e6, 2.5, 1},
    {"rms_norm_eps", FLOAT, AT(rms_norm_eps), 1e-30, 1, 1e-6, 1e-6},
    {"tie_word_embeddings", FLAG, AT(tie_word_embeddings), 0, 1, 0, 0},
    {"rope_interleave", FLAG, AT(rope.interleave), 0, 1, 1, 1},
    {"rope_theta", REAL, AT(rope.theta), 1.0 + 1e-6, 1e12, 10000, 10000},
};

static const field rope_fields[] = {
    {"rope_theta", REAL, AT(rope.theta), 1.0 + 1e-6, 1e12, 0, 0},
    {"truncate", FLAG, AT(rope.truncate), 0, 1, 0, 0},
    {"factor", REAL, AT(rope.factor), 1, 1e6, 0, 0},
    {"beta_fast", REAL, AT(rope.beta_fast), 1e-6, 1e6, 0, 0},
    {"beta_slow", REAL, AT(rope.beta_slow), 1e-6, 1e6, 0, 0},
    {"mscale", REAL, AT(rope.mscale), 0, 1e3, 0, 0},
    {"mscale_all_dim", REAL, AT(rope.mscale_all_dim), 0, 1e3, 0, 0},
    {"attention_factor", REAL, AT(rope.attention_factor), 1e-6, 1e6, 0, 0},
    {"original_max_position_embeddings", WHOLE, AT(rope.original_max_position), 1, MAX_POS, 0, 0},
};

enum { NUM_FIELDS = sizeof fields / sizeof *fields };
enum { NUM_ROPE_FIELDS = sizeof rope_fields / sizeof *rope_fields };

static double preset_of(const plait_config *config, const field *f)
{
    return config->v2 ? f->preset_v2 : f->preset_v3;
}

static void field_set(plait_config *config, const field *f, double value)
{
    char *at = (char *)config + f->offset;
    switch (f->kind) {
    case WHOLE:
        memcpy(at, &(int32_t){(int32_t)value}, sizeof(int32_t));
        break;
    case REAL:
        memcpy(at, &value, sizeof value);
        break;
    case FLOAT:
        memcpy(at, &(float){(float)value}, sizeof(float));
        break;
    case FLAG:
        memcpy(at, &(bool){value != 0}, sizeof(bool));
        break;
    }
}

plait_status plait_config_wrong(const char *name, const cJSON *item, const char *wanted)
{
    char shown[PLAIT_JSON_SHOW];
    return plait_fail(PLAIT_E_FORMAT, "%s: %s is %s; wanted %s", name,
                      item->string ? item->string : "an entry", plait_json_show(item, shown),
                      wanted);
}

plait_status plait_config_unsupported(const char *name, const cJSON *item, const char *wanted)
{
    char shown[PLAIT_JSON_SHOW];
    return plait_fail(PLAIT_E_UNSUPPORTED, "%s: %s is %s, which is not supported; supported: %s",
                      name, item->string ? item->string : "an entry", plait_json_show(item, shown),
                      wanted);
}

static plait_status field_read(plait_config *config, const field *f, const cJSON *item,
                               const char *name)
{
    char wanted[96];
    int64_t whole;
    if (f->kind == FLAG) {
        if (!cJSON_IsBool(item))
            return plait_config_wrong(name, item, "true or false");
        field_set(config, f, cJSON_IsTrue(item));
    } else if (f->kind == WHOLE) {
        snprintf(wanted, sizeof wanted, "a whole number from %.0f to %.0f", f->least, f->most);
        if (!plait_json_whole(item, (int64_t)f->least, (int64_t)f->most, &whole))
            return plait_config_wrong(name, item, wanted);
        field_set(config, f, (double)whole);
    } else {
        snprintf(wanted, sizeof wanted, "a number from %g to %g", f->least, f->most);
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= f->least) ||
            !(item->valuedouble <= f->most))
            return plait_config_wrong(name, item, wanted);
        field_set(config, f, item->valuedouble);
    }
    return PLAIT_OK;
}

static const field *field_find(const field *table, int n, const cJSON *item)
{
    for (int i = 0; i < n; i++)
        if (plait_json_key(item, table[i].key))
            return &table[i];
    return NULL;
}

/* rope_scaling of transformers 4, or rope_parameters of transformers 5 with theta inside. */
static plait_status read_rope(plait_config *config, const cJSON *object, const char *name)
{
    plait_rope *rope = &config->rope;
    if (cJSON_IsNull(object))
        return PLAIT_OK;
    if (!cJSON_IsObject(object))
        return plait_config_wrong(name, object, "an object or null");
    const cJSON *type = plait_json_get(object, "rope_type");
    if (!type)
        type = plait_json_get(object, "type");
    if (!type)
        return plait_fail(PLAIT_E_FORMAT, "%s: %s has no type; wanted \"yarn\" or \"default\"",
                          name, object->string);
    rope->yarn = plait_json_is(type, "yarn");
    if (!rope->yarn && !plait_json_is(type, "default"))
        return plait_config_unsupported(name, type, "\"yarn\", \"default\"");
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        const field *f = field_find(rope_fields, NUM_ROPE_FIELDS, item);
        if (f && !cJSON_IsNull(item))
            PLAIT_TRY(field_read(config, f, item, name));
    }
    return PLAIT_OK;
}

static plait_status finish_rope(plait_config *config, const char *name)
{
    plait_rope *rope = &config->rope;
    rope->dim = config->qk_rope_dim;
    if (rope->dim % 2 != 0)
        return plait_fail(PLAIT_E_FORMAT, "%s: qk_rope_head_dim is %d; wanted an even number", name,
                          (int)rope->dim);
    if (!rope->yarn)
        return PLAIT_OK;
    if (rope->original_max_position == 0)
        rope->original_max_position = config->max_position;
    if (rope->factor == 0)
        return plait_fail(PLAIT_E_FORMAT, "%s: the YaRN parameters have no factor", name);
    if (rope->beta_fast < rope->beta_slow)
        return plait_fail(PLAIT_E_FORMAT, "%s: beta_fast is %g; wanted at least beta_slow, %g",
                          name, rope->beta_fast, rope->beta_slow);
    return PLAIT_OK;
}

static plait_status read_quantization(plait_config *config, const cJSON *object, const char *name)
{
    if (cJSON_IsNull(object))
        return PLAIT_OK;
    if (!cJSON_IsObject(object))
        return plait_config_wrong(name, object, "an object or null");
    bool method = false, block = false;
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        if (plait_json_key(item, "quant_method")) {
            if (!plait_json_is(item, "fp8"))
                return plait_config_unsupported(name, item, "\"fp8\"");
            method = true;
        } else if (plait_json_key(item, "fmt")) {
            if (!plait_json_is(item, "e4m3"))
                return plait_config_unsupported(name, item, "\"e4m3\"");
        } else if (plait_json_key(item, "weight_block_size")) {
            int64_t side;
            const cJSON *first = cJSON_IsArray(item) ? item->child : NULL;
            if (!first || !first->next || first->next->next ||
                !plait_json_whole(first, 128, 128, &side) ||
                !plait_json_whole(first->next, 128, 128, &side))
                return plait_config_unsupported(name, item, "[128, 128]");
            block = true;
        }
    }
    if (!method || !block)
        return plait_fail(PLAIT_E_FORMAT, "%s: quantization_config has no %s", name,
                          method ? "weight_block_size" : "quant_method");
    config->fp8 = true;
    return PLAIT_OK;
}

static plait_status read_eos(plait_config *config, const cJSON *item, const char *name)
{
    const cJSON *first = cJSON_IsArray(item) ? item->child : item;
    const bool list = cJSON_IsArray(item);
    int64_t id;
    config->num_eos = 0;
    if (cJSON_IsNull(item))
        return PLAIT_OK;
    for (const cJSON *entry = first; entry; entry = list ? entry->next : NULL) {
        if (!plait_json_whole(entry, 0, MAX_SIZE, &id))
            return plait_config_wrong(name, entry, "a token id");
        if (config->num_eos == PLAIT_CONFIG_MAX_EOS)
            return plait_fail(PLAIT_E_UNSUPPORTED, "%s: more than %d eos_token_id entries", name,
                              PLAIT_CONFIG_MAX_EOS);
        config->eos_ids[config->num_eos++] = (int32_t)id;
    }
    return PLAIT_OK;
}

/* What is neither a number of the table nor a fixed setting. */
static plait_status read_other(plait_config *config, const cJSON *item, const char *name)
{
    if (plait_json_key(item, "eos_token_id"))
        return read_eos(config, item, name);
    if (plait_json_key(item, "quantization_config"))
        return read_quantization(config, item, name);
    if (plait_json_key(item, "bos_token_id") && !cJSON_IsNull(item)) {
        int64_t id;
        if (!plait_json_whole(item, 0, MAX_SIZE, &id))
            return plait_config_wrong(name, item, "a token id or null");
        config->bos_id = (int32_t)id;
    }
    return plait_config_check_setting(config, item, name);
}

static void set_presets(plait_config *config)
{
    for (int i = 0; i < NUM_FIELDS; i++)
        if (preset_of(config, &fields[i]) >= fields[i].least)
            field_set(config, &fields[i], preset_of(config, &fields[i]));
    config->softmax_scores = config->v2;
    config->bos_id = -1;
    config->block_rows = config->block_cols = 128;
    config->rope.beta_fast = 32;
    config->rope.beta_slow = 1;
    config->rope.mscale = 1;
    config->rope.truncate = true;
}

static plait_status read_fields(plait_config *config, const cJSON *root, const char *name)
{
    bool seen[NUM_FIELDS] = {false};
    const cJSON *item;
    set_presets(config);
    cJSON_ArrayForEach(item, root)
    {
        const field *f = field_find(fields, NUM_FIELDS, item);
        if (!f) {
            PLAIT_TRY(read_other(config, item, name));
            continue;
        }
        if (seen[f - fields])
            return plait_fail(PLAIT_E_FORMAT, "%s: %s is there twice", name, f->key);
        seen[f - fields] = true;
        const bool none =
            plait_json_key(item, "n_shared_experts") || plait_json_key(item, "q_lora_rank");
        if (cJSON_IsNull(item) && none)
            field_set(config, f, 0);
        else if (!(cJSON_IsNull(item) && preset_of(config, f) >= f->least))
            PLAIT_TRY(field_read(config, f, item, name));
    }
    for (int i = 0; i < NUM_FIELDS; i++)
        if (!seen[i] && preset_of(config, &fields[i]) < fields[i].least)
            return plait_fail(PLAIT_E_FORMAT, "%s: %s is missing", name, fields[i].key);
    return PLAIT_OK;
}

static plait_status read_config(plait_config *config, const cJSON *root, const char *name)
{
    static const char *const rope_keys[] = {"rope_scaling", "rope_parameters"};
    PLAIT_TRY(plait_config_identify(root, name, &config->v2));
    PLAIT_TRY(read_fields(config, root, name));
    for (int i = 0; i < 2; i++) {
        const cJSON *object = plait_json_get(root, rope_keys[i]);
        if (object)
            PLAIT_TRY(read_rope(config, object, name));
    }
    PLAIT_TRY(finish_rope(config, name));
    return plait_config_check_together(config, root, name);
}

plait_status plait_config_parse(const char *text, size_t bytes, const char *name, plait_config *out)
{
    cJSON *root;
    memset(out, 0, sizeof *out);
    PLAIT_TRY(plait_json_parse(text, bytes, name, &root));
    const plait_status status = read_config(out, root, name);
    cJSON_Delete(root);
    if (status != PLAIT_OK)
        memset(out, 0, sizeof *out);
    return status;
}

/* Generation stops at the ids of generation_config.json where it names any. */
static plait_status read_generation(const char *dir, plait_config *config)
{
    char path[PATH_MAX];
    cJSON *root;
    PLAIT_TRY(plait_path_join(path, sizeof path, dir, "generation_config.json"));
    const plait_status status = plait_json_load(path, MAX_CONFIG_BYTES, &root);
    if (status == PLAIT_E_IO)
        return PLAIT_OK;
    PLAIT_TRY(status);
    const cJSON *eos = plait_json_get(root, "eos_token_id");
    plait_status result = eos && !cJSON_IsNull(eos) ? read_eos(config, eos, path) : PLAIT_OK;
    for (int32_t i = 0; result == PLAIT_OK && i < config->num_eos; i++)
        if (config->eos_ids[i] >= config->vocab_size)
            result = plait_fail(PLAIT_E_FORMAT, "%s: eos_token_id is %d; wanted less than %d", path,
                                (int)config->eos_ids[i], (int)config->vocab_size);
    cJSON_Delete(root);
    return result;
}

plait_status plait_config_load(const char *dir, plait_config *out)
{
    char path[PATH_MAX], *text;
    size_t bytes;
    memset(out, 0, sizeof *out);
    PLAIT_TRY(plait_path_join(path, sizeof path, dir, "config.json"));
    PLAIT_TRY(plait_file_read(path, MAX_CONFIG_BYTES, &text, &bytes));
    plait_status status = plait_config_parse(text, bytes, path, out);
    free(text);
    if (status == PLAIT_OK)
        status = read_generation(dir, out);
    if (status != PLAIT_OK)
        memset(out, 0, sizeof *out);
    return status;
}

bool plait_config_layer_is_moe(const plait_config *config, int32_t layer)
{
    return layer >= config->first_dense && layer % config->moe_layer_freq == 0;
}
