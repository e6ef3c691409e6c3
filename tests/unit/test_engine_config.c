/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: fields, defaults, refusals by name; YaRN (case 39). */
#include "engine/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

static const char base[] =
    "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\","
    "\"q_lora_rank\":null,\"vocab_size\":2048,\"hidden_size\":256,\"num_hidden_layers\":6,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":8,\"kv_lora_rank\":512,"
    "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
    "\"intermediate_size\":512,\"moe_intermediate_size\":128,\"n_routed_experts\":8,"
    "\"num_experts_per_tok\":2,\"n_group\":2,\"topk_group\":1,\"first_k_dense_replace\":1,"
    "\"max_position_embeddings\":2048%s}";

static plait_status parse(const char *more, plait_config *config)
{
    char text[2048];
    const int n = snprintf(text, sizeof text, base, more);
    assert_true(n > 0 && (size_t)n < sizeof text);
    return plait_config_parse(text, (size_t)n, "config.json", config);
}

/* base with its `key` set to `value`. */
static plait_status parse_with(const char *key, const char *value, plait_config *config)
{
    char text[2048], quoted[64], out[4096];
    snprintf(text, sizeof text, base, "");
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    char *at = strstr(text, quoted);
    assert_non_null(at);
    char *rest = at + strlen(quoted);
    rest += *rest == '[' ? strcspn(rest, "]") + 1 : strcspn(rest, ",}");
    const int n =
        snprintf(out, sizeof out, "%.*s%s%s%s", (int)(at - text), text, quoted, value, rest);
    return plait_config_parse(out, (size_t)n, "config.json", config);
}

static void refused(plait_status got, plait_status want, const char *a, const char *b)
{
    assert_int_equal(got, want);
    if (!strstr(plait_last_error(), a) || !strstr(plait_last_error(), b))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", plait_last_error(), a, b);
}

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.9g; wanted %.9g", got, want);
}

static void test_fields_and_defaults(void **state)
{
    (void)state;
    plait_config c;
    assert_int_equal(parse("", &c), PLAIT_OK);
    assert_int_equal(c.vocab_size, 2048);
    assert_int_equal(c.kv_lora_rank, 512);
    assert_int_equal(c.num_mtp_layers, 0);
    assert_int_equal(c.num_shared_experts, 1);
    assert_true(c.norm_topk_prob && c.rope.interleave && !c.tie_word_embeddings && !c.fp8);
    near(c.routed_scaling_factor, 2.5, 0);
    near(c.rms_norm_eps, 1e-6f, 0);
    near(c.rope.theta, 10000, 0);
    assert_int_equal(c.bos_id, -1);
    assert_int_equal(c.num_eos, 0);
    assert_false(plait_config_layer_is_moe(&c, 0));
    assert_true(plait_config_layer_is_moe(&c, 1));
    assert_int_equal(parse(",\"num_nextn_predict_layers\":1,\"eos_token_id\":[1,5],"
                           "\"rope_interleave\":false,\"quantization_config\":{\"quant_method\":"
                           "\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]}",
                           &c),
                     PLAIT_OK);
    assert_int_equal(c.num_mtp_layers, 1);
    assert_int_equal(c.num_eos, 2);
    assert_int_equal(c.eos_ids[1], 5);
    assert_true(c.fp8 && !c.rope.interleave);
    assert_int_equal(parse(",\"eos_token_id\":7", &c), PLAIT_OK);
    assert_int_equal(c.num_eos, 1);
}

static void test_refusals_name_found_and_supported(void **state)
{
    (void)state;
    plait_config c;
    refused(parse_with("architectures", "[\"LlamaForCausalLM\"]", &c), PLAIT_E_UNSUPPORTED,
            "LlamaForCausalLM", "DeepseekV3ForCausalLM");
    refused(parse(",\"scoring_func\":\"softmax\"", &c), PLAIT_E_UNSUPPORTED, "softmax", "sigmoid");
    refused(parse(",\"topk_method\":\"group_limited_greedy\"", &c), PLAIT_E_UNSUPPORTED,
            "group_limited_greedy", "noaux_tc");
    refused(parse(",\"torch_dtype\":\"float64\"", &c), PLAIT_E_UNSUPPORTED, "float64", "bfloat16");
    refused(parse(",\"dtype\":\"float64\"", &c), PLAIT_E_UNSUPPORTED, "float64", "float16");
    refused(parse(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", &c), PLAIT_E_UNSUPPORTED,
            "linear", "yarn");
    refused(parse(",\"quantization_config\":{\"quant_method\":\"awq\"}", &c), PLAIT_E_UNSUPPORTED,
            "awq", "fp8");
    refused(parse(",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":"
                  "[64,128]}",
                  &c),
            PLAIT_E_UNSUPPORTED, "weight_block_size", "[128, 128]");
    refused(parse(",\"attention_bias\":true", &c), PLAIT_E_UNSUPPORTED, "attention_bias", "false");
    refused(parse(",\"attention_bias\":7", &c), PLAIT_E_UNSUPPORTED, "attention_bias", "false");
    refused(parse(",\"hidden_act\":\"gelu\"", &c), PLAIT_E_UNSUPPORTED, "gelu", "silu");
    refused(parse(",\"mlp_bias\":true", &c), PLAIT_E_UNSUPPORTED, "mlp_bias", "false");
    refused(parse(",\"use_mla\":false", &c), PLAIT_E_UNSUPPORTED, "use_mla", "true");
    refused(parse_with("model_type", "\"deepseek_v2\"", &c), PLAIT_E_UNSUPPORTED, "deepseek_v2",
            "deepseek_v3"); /* contradicts the architecture */
}

/* A V2 file: `base` with its own names, the given fields and more. */
static plait_status parse_v2(const char *q_lora, const char *more, plait_config *config)
{
    char text[4096];
    const int n =
        snprintf(text, sizeof text,
                 "{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"model_type\":\"deepseek_v2\",%s"
                 "\"vocab_size\":2048,\"hidden_size\":256,\"num_hidden_layers\":6,"
                 "\"num_attention_heads\":8,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,"
                 "\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"intermediate_size\":512,"
                 "\"moe_intermediate_size\":128,\"n_routed_experts\":12,\"num_experts_per_tok\":2,"
                 "\"n_shared_experts\":2,\"max_position_embeddings\":2048%s}",
                 q_lora, more);
    assert_true(n > 0 && (size_t)n < sizeof text);
    return plait_config_parse(text, (size_t)n, "config.json", config);
}

static void test_v2_fields_and_defaults(void **state)
{
    (void)state;
    plait_config c;
    assert_int_equal(parse_v2("", "", &c), PLAIT_OK);
    assert_true(c.v2 && c.softmax_scores && !c.norm_topk_prob && c.rope.interleave);
    assert_int_equal(c.q_lora_rank, 1536); /* left out; null is none */
    assert_int_equal(c.num_shared_experts, 2);
    assert_int_equal(c.num_groups, 1);
    assert_int_equal(c.first_dense, 0);
    near(c.routed_scaling_factor, 1, 0);
    assert_int_equal(parse_v2("\"q_lora_rank\":null,",
                              ",\"topk_method\":\"group_limited_greedy\",\"n_group\":3,"
                              "\"topk_group\":2,\"first_k_dense_replace\":1,\"moe_layer_freq\":2,"
                              "\"scoring_func\":\"softmax\",\"dtype\":\"float16\","
                              "\"routed_scaling_factor\":16,\"tie_word_embeddings\":true",
                              &c),
                     PLAIT_OK);
    assert_int_equal(c.q_lora_rank, 0);
    assert_int_equal(c.num_groups, 3);
    assert_int_equal(c.groups_per_token, 2);
    assert_true(c.tie_word_embeddings);
    for (int layer = 0; layer < 6; layer++)
        assert_int_equal(plait_config_layer_is_moe(&c, layer), layer == 2 || layer == 4);
    /* greedy does not know groups; a null is the default */
    assert_int_equal(
        parse_v2("", ",\"topk_method\":\"greedy\",\"n_group\":5,\"topk_group\":null", &c),
        PLAIT_OK);
    assert_int_equal(c.num_groups, 1);
    assert_int_equal(parse_v2("", ",\"norm_topk_prob\":true", &c), PLAIT_OK);
    assert_true(c.norm_topk_prob);
    /* One expert in a group is enough where a group counts as its best. */
    assert_int_equal(parse_v2("",
                              ",\"topk_method\":\"group_limited_greedy\",\"n_group\":12,"
                              "\"topk_group\":2",
                              &c),
                     PLAIT_OK);
    refused(parse_v2("", ",\"scoring_func\":\"sigmoid\"", &c), PLAIT_E_UNSUPPORTED, "sigmoid",
            "softmax");
    refused(parse_v2("", ",\"topk_method\":\"noaux_tc\"", &c), PLAIT_E_UNSUPPORTED, "noaux_tc",
            "\"greedy\", \"group_limited_greedy\"");
    refused(parse_v2("", ",\"norm_topk_prob\":true,\"routed_scaling_factor\":16", &c),
            PLAIT_E_UNSUPPORTED, "norm_topk_prob", "16");
    refused(parse_v2("\"q_lora_rank\":0,", "", &c), PLAIT_E_FORMAT, "q_lora_rank", "from 1");
    refused(parse_v2("", ",\"moe_layer_freq\":[1,0]", &c), PLAIT_E_FORMAT, "moe_layer_freq",
            "list");
    refused(parse_v2("", ",\"topk_method\":\"group_limited_greedy\",\"n_group\":5", &c),
            PLAIT_E_FORMAT, "n_group", "multiple");
}

static void test_nonsense_numbers_are_format_errors(void **state)
{
    (void)state;
    static const char *const bad[] = {"0", "-1", "1.5", "1e300", "\"8\"", "[]", "null", "true"};
    static const char *const keys[] = {"vocab_size", "hidden_size", "num_hidden_layers",
                                       "kv_lora_rank", "num_attention_heads"};
    plait_config c;
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            refused(parse_with(keys[k], bad[i], &c), PLAIT_E_FORMAT, keys[k], "wanted");
            assert_int_equal(c.vocab_size, 0); /* zeroed on failure */
        }
    refused(parse_with("qk_rope_head_dim", "63", &c), PLAIT_E_FORMAT, "63", "even");
    refused(parse_with("n_group", "3", &c), PLAIT_E_FORMAT, "n_group", "multiple");
    refused(parse_with("n_group", "8", &c), PLAIT_E_FORMAT, "n_group", "two");
    refused(parse_with("topk_group", "3", &c), PLAIT_E_FORMAT, "topk_group", "2");
    refused(parse_with("num_experts_per_tok", "5", &c), PLAIT_E_FORMAT, "num_experts_per_tok", "4");
    refused(parse_with("num_key_value_heads", "2", &c), PLAIT_E_FORMAT, "num_key_value_heads",
            "wanted");
    refused(parse_with("first_k_dense_replace", "7", &c), PLAIT_E_FORMAT, "7", "6");
    refused(parse(",\"eos_token_id\":2048", &c), PLAIT_E_FORMAT, "eos_token_id", "2048");
    refused(parse(",\"eos_token_id\":[1,-3]", &c), PLAIT_E_FORMAT, "-3", "token id");
    refused(parse(",\"rms_norm_eps\":0", &c), PLAIT_E_FORMAT, "rms_norm_eps", "wanted");
    refused(parse(",\"rope_scaling\":{\"type\":\"yarn\"}", &c), PLAIT_E_FORMAT, "YaRN", "factor");
    refused(parse(",\"vocab_size\":4", &c), PLAIT_E_FORMAT, "vocab_size", "twice");
}

static void test_every_truncation_is_refused(void **state)
{
    (void)state;
    char text[2048];
    plait_config c;
    const int n = snprintf(text, sizeof text, base, "");
    for (int i = 0; i < n; i++) {
        char *copy = malloc((size_t)i + 1); /* an overrun is seen by the address sanitizer */
        memcpy(copy, text, (size_t)i);
        assert_int_equal(plait_config_parse(copy, (size_t)i, "config.json", &c), PLAIT_E_FORMAT);
        free(copy);
    }
    refused(plait_config_parse("{} x", 4, "config.json", &c), PLAIT_E_FORMAT, "config.json",
            "more text");
    refused(plait_config_load("/nonexistent", &c), PLAIT_E_IO, "/nonexistent/config.json",
            "No such");
}

/* Whatever the text holds, it is refused or its numbers lie inside their bounds. */
static void test_mutated_files(void **state)
{
    (void)state;
    char good[2048];
    uint32_t x = 99;
    int parsed = 0;
    const size_t n = (size_t)snprintf(good, sizeof good, base,
                                      ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
                                      "\"mscale_all_dim\":1},\"eos_token_id\":[1,2]");
    for (int i = 0; i < 20000; i++) {
        char *text = malloc(n);
        memcpy(text, good, n);
        for (int k = i % 3; k >= 0; k--) {
            x = x * 1664525u + 1013904223u;
            text[(x >> 8) % n] = x >> 31 ? (char)(x >> 3) : "0123456789-.eE[]{},:\""[x % 21];
        }
        plait_config c;
        if (plait_config_parse(text, n, "config.json", &c) == PLAIT_OK) {
            float freq[1 << 13];
            parsed++;
            assert_true(c.moe_layer_freq > 0 && c.q_lora_rank >= 0);
            assert_true(c.hidden_size > 0 && c.num_layers > 0 && c.num_heads > 0);
            assert_true(c.num_experts >= c.experts_per_token && c.num_experts % c.num_groups == 0);
            assert_true(c.rope.dim == c.qk_rope_dim && c.rope.dim % 2 == 0);
            plait_rope_inv_freq(&c.rope, freq);
            for (int32_t f = 0; f < c.rope.dim / 2; f++)
                assert_true(isfinite(freq[f]));
            assert_true(isfinite(plait_rope_softmax_scale(&c.rope, c.qk_nope_dim + c.rope.dim)));
        }
        free(text);
    }
    assert_true(parsed > 1000 && parsed < 19000); /* both happen */
}

/* Case 39: the factor comes from mscale_all_dim, squared, and is absent without it. */
static void test_case39_softmax_scale(void **state)
{
    (void)state;
    static const struct {
        const char *rope;
        double scale;
    } table[] = {
        {",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":1.0,"
         "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":512}",
         0.135234},
        {",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":40,\"mscale\":0.707,"
         "\"mscale_all_dim\":0.707,\"original_max_position_embeddings\":512}",
         0.114721},
        {",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,"
         "\"original_max_position_embeddings\":512}",
         0.0721688},
        {",\"rope_scaling\":null", 0.0721688},
        {",\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":10000,\"factor\":40,"
         "\"mscale\":1.0,\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":512}",
         0.135234},
        {",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000}", 0.0721688},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        plait_config c;
        assert_int_equal(parse(table[i].rope, &c), PLAIT_OK);
        near(plait_rope_softmax_scale(&c.rope, 192), table[i].scale, 6e-7);
    }
}

static void test_cos_sin_factor(void **state)
{
    (void)state;
    plait_config c;
    /* Neither is there: mscale 1, mscale_all_dim 0. */
    assert_int_equal(parse(",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40}", &c), PLAIT_OK);
    plait_rope rope = c.rope;
    near(plait_rope_cos_sin_factor(&rope), 0.1 * log(40) + 1, 1e-6);
    rope.mscale = 0.5;
    near(plait_rope_cos_sin_factor(&rope), 0.05 * log(40) + 1, 1e-6);
    rope.mscale = 1;
    rope.mscale_all_dim = 1;
    near(plait_rope_cos_sin_factor(&rope), 1, 1e-7);
    rope.mscale = rope.mscale_all_dim = 0.707;
    near(plait_rope_cos_sin_factor(&rope), 1, 1e-7);
    rope.mscale = 1;
    near(plait_rope_cos_sin_factor(&rope), 1.3688879454 / 1.2608037774, 1e-6);
    rope.attention_factor = 1.25;
    near(plait_rope_cos_sin_factor(&rope), 1.25, 0);
    rope.yarn = false;
    near(plait_rope_cos_sin_factor(&rope), 1, 0);
}

/* _compute_yarn_parameters of transformers 5.17.0 for theta 10000, dim 64, factor 4, 512 tokens. */
static const float yarn_inv_freq[32] = {
    1.00000000e+00f, 7.49894202e-01f, 5.62341332e-01f, 4.21696514e-01f, 2.97983855e-01f,
    2.09775373e-01f, 1.47050023e-01f, 1.02578573e-01f, 7.11538419e-02f, 4.90315408e-02f,
    3.35241891e-02f, 2.27067322e-02f, 1.52032580e-02f, 1.00327339e-02f, 6.49755914e-03f,
    4.10314277e-03f, 2.49999994e-03f, 1.87473558e-03f, 1.40585331e-03f, 1.05424121e-03f,
    7.90569466e-04f, 5.92843455e-04f, 4.44569858e-04f, 3.33380362e-04f, 2.50000012e-04f,
    1.87473546e-04f, 1.40585325e-04f, 1.05424122e-04f, 7.90569466e-05f, 5.92843462e-05f,
    4.44569851e-05f, 3.33380376e-05f};

static void test_inv_freq(void **state)
{
    (void)state;
    float freq[32];
    plait_rope rope = {.dim = 64, .theta = 1e4};
    plait_rope_inv_freq(&rope, freq);
    for (int i = 0; i < 32; i++)
        near(freq[i], pow(1e4, -i / 32.0), 1e-7);
    rope = (plait_rope){.dim = 64,
                        .theta = 1e4,
                        .yarn = true,
                        .truncate = true,
                        .factor = 4,
                        .beta_fast = 32,
                        .beta_slow = 1,
                        .original_max_position = 512};
    plait_rope_inv_freq(&rope, freq);
    for (int i = 0; i < 32; i++)
        near(freq[i] / yarn_inv_freq[i], 1, 2e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields_and_defaults),
        cmocka_unit_test(test_refusals_name_found_and_supported),
        cmocka_unit_test(test_v2_fields_and_defaults),
        cmocka_unit_test(test_nonsense_numbers_are_format_errors),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_mutated_files),
        cmocka_unit_test(test_case39_softmax_scale),
        cmocka_unit_test(test_cos_sin_factor),
        cmocka_unit_test(test_inv_freq),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
