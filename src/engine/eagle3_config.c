/* SPDX-License-Identifier: Apache-2.0 */
/* eagle3_config.c: config.json of an EAGLE-3 head, and whether it fits the target. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "engine/config_check.h"
#include "engine/eagle3.h"

enum { MAX_DIM = 1 << 14, MAX_SIZE = 1 << 24 };

/* A whole number; `preset` 0: it must be there. */
static plait_status read_whole(const cJSON *root, const char *name, const char *key, int64_t most,
                               int32_t preset, int32_t *out)
{
    const cJSON *item = plait_json_get(root, key);
    int64_t value;
    *out = preset;
    if (!item || cJSON_IsNull(item))
        return preset ? PLAIT_OK : plait_fail(PLAIT_E_FORMAT, "%s: %s is missing", name, key);
    if (!plait_json_whole(item, 1, most, &value)) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "a whole number from 1 to %lld", (long long)most);
        return plait_config_wrong(name, item, wanted);
    }
    *out = (int32_t)value;
    return PLAIT_OK;
}

static plait_status read_real(const cJSON *root, const char *name, const char *key, double least,
                              double most, double preset, double *out)
{
    const cJSON *item = plait_json_get(root, key);
    *out = preset;
    if (!item || cJSON_IsNull(item))
        return PLAIT_OK;
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= least) || !(item->valuedouble <= most)) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "a number from %g to %g", least, most);
        return plait_config_wrong(name, item, wanted);
    }
    *out = item->valuedouble;
    return PLAIT_OK;
}

static plait_status read_flag(const cJSON *root, const char *name, const char *key, bool *out)
{
    const cJSON *item = plait_json_get(root, key);
    *out = false;
    if (!item || cJSON_IsNull(item))
        return PLAIT_OK;
    if (!cJSON_IsBool(item))
        return plait_config_wrong(name, item, "true or false");
    *out = cJSON_IsTrue(item);
    return PLAIT_OK;
}

/* The list stands at the top or in eagle_config. Without one: {2, L/2, L-3}. */
static plait_status read_aux(plait_eagle3_config *c, const cJSON *root, const char *name,
                             int32_t layers)
{
    static const char key[] = "eagle_aux_hidden_state_layer_ids";
    const cJSON *list = plait_json_get(root, key), *inner = plait_json_get(root, "eagle_config");
    const int32_t presets[] = {2, layers / 2, layers - 3};
    if (!list && inner)
        list = plait_json_get(inner, key);
    const bool preset = !list || cJSON_IsNull(list);
    const cJSON *item = preset || !cJSON_IsArray(list) ? NULL : list->child;
    for (int32_t i = 0; i < PLAIT_EAGLE3_AUX; i++, item = item ? item->next : NULL) {
        int64_t id = presets[i];
        if (!preset && !item)
            return plait_config_wrong(name, list, "a list of three layer numbers");
        if (!preset && !plait_json_whole(item, 0, layers - 1, &id))
            return plait_fail(PLAIT_E_FORMAT,
                              "%s: an entry of %s is no layer of the target; wanted 0 to %d", name,
                              key, (int)layers - 1);
        c->aux[i] = (int32_t)id;
    }
    if (item)
        return plait_config_wrong(name, list, "a list of three layer numbers");
    /* Engines collect the states in the order of the layers, whatever the order of the list. */
    if (c->aux[0] < 0 || c->aux[0] >= c->aux[1] || c->aux[1] >= c->aux[2])
        return plait_fail(PLAIT_E_FORMAT,
                          "%s: %s %d, %d, %d%s; wanted three different layers in ascending order",
                          name, key, (int)c->aux[0], (int)c->aux[1], (int)c->aux[2],
                          preset ? " (left out, so 2, L/2, L-3)" : "");
    return PLAIT_OK;
}

static plait_status check_settings(const cJSON *root, const char *name)
{
    static const char *const rope_keys[] = {"rope_scaling", "rope_parameters"};
    const cJSON *act = plait_json_get(root, "hidden_act");
    bool bias;
    int32_t layers;
    PLAIT_TRY(read_flag(root, name, "attention_bias", &bias));
    if (bias)
        return plait_config_unsupported(name, plait_json_get(root, "attention_bias"), "false");
    if (act && !cJSON_IsNull(act) && !plait_json_is(act, "silu"))
        return plait_config_unsupported(name, act, "\"silu\"");
    PLAIT_TRY(read_whole(root, name, "num_hidden_layers", MAX_DIM, 1, &layers));
    if (layers != 1)
        return plait_config_unsupported(name, plait_json_get(root, "num_hidden_layers"), "1");
    for (int i = 0; i < 2; i++) {
        const cJSON *rope = plait_json_get(root, rope_keys[i]);
        const cJSON *type = rope && cJSON_IsObject(rope) ? plait_json_get(rope, "rope_type") : NULL;
        if (!rope || cJSON_IsNull(rope) || (type && plait_json_is(type, "default")))
            continue;
        return plait_config_unsupported(name, rope, "null, or rope_type \"default\"");
    }
    return PLAIT_OK;
}

/* Sizes that must be those of the target: its states, its tokens. */
static plait_status check_target(const plait_eagle3_config *c, const plait_config *target,
                                 const char *name)
{
    if (c->hidden_size != target->hidden_size)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "%s: hidden_size is %d; wanted that of the target, %d", name,
                          (int)c->hidden_size, (int)target->hidden_size);
    if (c->vocab_size != target->vocab_size)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "%s: vocab_size is %d, that of the target %d: the head is for another "
                          "tokenizer",
                          name, (int)c->vocab_size, (int)target->vocab_size);
    if (c->draft_vocab_size > c->vocab_size)
        return plait_fail(PLAIT_E_FORMAT,
                          "%s: draft_vocab_size is %d; wanted at most vocab_size, %d", name,
                          (int)c->draft_vocab_size, (int)c->vocab_size);
    if (c->num_heads % c->num_kv_heads != 0)
        return plait_fail(PLAIT_E_FORMAT,
                          "%s: num_attention_heads is %d; wanted a multiple of "
                          "num_key_value_heads, %d",
                          name, (int)c->num_heads, (int)c->num_kv_heads);
    if (c->head_dim % 2 != 0)
        return plait_fail(PLAIT_E_FORMAT, "%s: head_dim is %d; wanted an even number", name,
                          (int)c->head_dim);
    return PLAIT_OK;
}

static plait_status read_config(plait_eagle3_config *c, const cJSON *root, const char *name,
                                const plait_config *target)
{
    double eps, theta;
    const cJSON *parameters = plait_json_get(root, "rope_parameters");
    PLAIT_TRY(check_settings(root, name));
    PLAIT_TRY(read_whole(root, name, "hidden_size", MAX_SIZE, 0, &c->hidden_size));
    PLAIT_TRY(read_whole(root, name, "intermediate_size", MAX_SIZE, 0, &c->intermediate_size));
    PLAIT_TRY(read_whole(root, name, "vocab_size", MAX_SIZE, 0, &c->vocab_size));
    PLAIT_TRY(read_whole(root, name, "num_attention_heads", MAX_DIM, 0, &c->num_heads));
    PLAIT_TRY(
        read_whole(root, name, "draft_vocab_size", MAX_SIZE, c->vocab_size, &c->draft_vocab_size));
    PLAIT_TRY(
        read_whole(root, name, "num_key_value_heads", MAX_DIM, c->num_heads, &c->num_kv_heads));
    const int32_t dim = c->hidden_size / c->num_heads;
    PLAIT_TRY(read_whole(root, name, "head_dim", MAX_DIM, dim > 0 ? dim : 1, &c->head_dim));
    PLAIT_TRY(read_real(root, name, "rms_norm_eps", 1e-30, 1, 1e-6, &eps));
    PLAIT_TRY(read_real(cJSON_IsObject(parameters) ? parameters : root, name, "rope_theta",
                        1.0 + 1e-6, 1e12, 10000, &theta));
    PLAIT_TRY(read_flag(root, name, "norm_before_residual", &c->norm_before_residual));
    PLAIT_TRY(read_aux(c, root, name, target->num_layers));
    c->rms_norm_eps = (float)eps;
    c->rope.dim = c->head_dim;
    c->rope.theta = theta;
    return check_target(c, target, name);
}

plait_status plait_eagle3_config_parse(const char *text, size_t bytes, const char *name,
                                       const plait_config *target, plait_eagle3_config *out)
{
    cJSON *root;
    memset(out, 0, sizeof *out);
    PLAIT_TRY(plait_json_parse(text, bytes, name, &root));
    const plait_status status = read_config(out, root, name, target);
    cJSON_Delete(root);
    return status;
}
