/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which models are run. A field that changes the computation is either read or has to hold a
 * supported value; it is never passed over.
 */
#include "engine/config_check.h"

#include <stdio.h>

#include "core/status.h"

typedef struct family {
    const char *architecture, *model_type;
} family;

static const family families[] = {{"DeepseekV3ForCausalLM", "deepseek_v3"},
                                  {"DeepseekV2ForCausalLM", "deepseek_v2"}};

plait_status plait_config_identify(const cJSON *root, const char *name, bool *v2)
{
    const cJSON *list = plait_json_get(root, "architectures");
    const cJSON *type = plait_json_get(root, "model_type");
    const cJSON *first = cJSON_IsArray(list) ? list->child : NULL;
    char shown[PLAIT_JSON_SHOW];
    if (list && !first)
        return plait_config_wrong(name, list, "a list with the name of the architecture");
    if (!first && !type)
        return plait_fail(PLAIT_E_FORMAT, "%s has neither architectures nor model_type", name);
    for (int i = 0; i < 2; i++) {
        *v2 = i == 1;
        if (first ? plait_json_is(first, families[i].architecture)
                  : plait_json_is(type, families[i].model_type))
            return PLAIT_OK;
    }
    if (!first)
        return plait_config_unsupported(name, type, "\"deepseek_v3\", \"deepseek_v2\"");
    return plait_fail(PLAIT_E_UNSUPPORTED,
                      "%s: the architecture is %s; supported: DeepseekV3ForCausalLM, "
                      "DeepseekV2ForCausalLM",
                      name, plait_json_show(first, shown));
}

/* Settings with few supported values, of V3 and V2. A null counts as left out. */
typedef struct setting {
    const char *key;
    const char *values[2][3];
} setting;

#define BOTH(...)                                                                                  \
    {                                                                                              \
        {__VA_ARGS__},                                                                             \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

static const setting settings[] = {
    {"model_type", {{"deepseek_v3"}, {"deepseek_v2"}}},
    {"scoring_func", {{"sigmoid"}, {"softmax"}}},
    {"topk_method", {{"noaux_tc"}, {"greedy", "group_limited_greedy"}}},
    {"hidden_act", BOTH("silu")},
    {"torch_dtype", BOTH("bfloat16", "float16", "float32")},
    {"dtype", BOTH("bfloat16", "float16", "float32")},
};

/* Switches with one supported value. */
static const struct {
    const char *key;
    bool value;
} switches[] = {{"attention_bias", false}, {"mlp_bias", false}, {"use_mla", true}};

plait_status plait_config_check_setting(const plait_config *config, const cJSON *item,
                                        const char *name)
{
    if (cJSON_IsNull(item))
        return PLAIT_OK;
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (plait_json_key(item, switches[i].key) &&
            !(switches[i].value ? cJSON_IsTrue(item) : cJSON_IsFalse(item)))
            return plait_config_unsupported(name, item, switches[i].value ? "true" : "false");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (!plait_json_key(item, settings[i].key))
            continue;
        char wanted[96] = "";
        const char *const *values = settings[i].values[config->v2];
        for (int v = 0, used = 0; v < 3 && values[v]; v++) {
            if (plait_json_is(item, values[v]))
                return PLAIT_OK;
            used += snprintf(wanted + used, sizeof wanted - (size_t)used, "%s\"%s\"", v ? ", " : "",
                             values[v]);
        }
        return plait_config_unsupported(name, item, wanted);
    }
    return PLAIT_OK;
}

static plait_status check_groups(const plait_config *c, const char *name)
{
    if (c->num_experts % c->num_groups != 0)
        return plait_fail(PLAIT_E_FORMAT,
                          "%s: n_routed_experts is %d; wanted a multiple of n_group, %d", name,
                          (int)c->num_experts, (int)c->num_groups);
    const int32_t size = c->num_experts / c->num_groups;
    if (!c->softmax_scores && c->num_groups > 1 && size < 2)
        return plait_fail(PLAIT_E_FORMAT,
                          "%s: n_group %d leaves 1 expert in a group; a group's score takes two",
                          name, (int)c->num_groups);
    if (c->groups_per_token > c->num_groups)
        return plait_fail(PLAIT_E_FORMAT, "%s: topk_group is %d; wanted at most n_group, %d", name,
                          (int)c->groups_per_token, (int)c->num_groups);
    if (c->experts_per_token > size * c->groups_per_token)
        return plait_fail(PLAIT_E_FORMAT,
                          "%s: num_experts_per_tok is %d; %d groups of %d experts give at most %d",
                          name, (int)c->experts_per_token, (int)c->groups_per_token, (int)size,
                          (int)(size * c->groups_per_token));
    return PLAIT_OK;
}

static plait_status check_routing(plait_config *c, const cJSON *root, const char *name)
{
    const cJSON *method = plait_json_get(root, "topk_method");
    if (c->v2 && !(method && plait_json_is(method, "group_limited_greedy")))
        c->num_groups = c->groups_per_token = 1; /* greedy, also where it is left out */
    /* The authors' code leaves out the factor where it normalises, others apply both. */
    if (c->v2 && c->norm_topk_prob && c->routed_scaling_factor != 1.0f)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "%s: norm_topk_prob is true with routed_scaling_factor %g, which has no "
                          "one meaning for deepseek_v2; supported: false, or a factor of 1",
                          name, (double)c->routed_scaling_factor);
    return check_groups(c, name);
}

plait_status plait_config_check_together(plait_config *c, const cJSON *root, const char *name)
{
    const cJSON *kv_heads = plait_json_get(root, "num_key_value_heads");
    int64_t n;
    if (kv_heads && !cJSON_IsNull(kv_heads) &&
        !plait_json_whole(kv_heads, c->num_heads, c->num_heads, &n))
        return plait_config_wrong(name, kv_heads,
                                  "num_attention_heads (latent attention has no KV heads)");
    if (c->first_dense > c->num_layers)
        return plait_fail(PLAIT_E_FORMAT,
                          "%s: first_k_dense_replace is %d; wanted at most num_hidden_layers, %d",
                          name, (int)c->first_dense, (int)c->num_layers);
    PLAIT_TRY(check_routing(c, root, name));
    for (int32_t i = -1; i < c->num_eos; i++) {
        const int32_t id = i < 0 ? c->bos_id : c->eos_ids[i];
        if (id >= c->vocab_size)
            return plait_fail(PLAIT_E_FORMAT, "%s: %s is %d; wanted less than vocab_size, %d", name,
                              i < 0 ? "bos_token_id" : "eos_token_id", (int)id, (int)c->vocab_size);
    }
    return PLAIT_OK;
}
