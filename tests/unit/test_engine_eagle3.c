/* SPDX-License-Identifier: Apache-2.0 */
/* EAGLE-3 heads: what is read from their files, what is refused, heads that ranks cannot share. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <plait/engine.h>

#include "engine/eagle3.h"
#include "engine/json.h"
#include "engine/safetensors.h"
#include "folder.h"
#include "vector_file.h"

#define MODEL PLAIT_SOURCE_DIR "/models/tiny"
#define HEAD  MODEL "/eagle3"

/* ---- config.json ----------------------------------------------------------------------------- */

static plait_config target_of(int32_t layers)
{
    plait_config c = {0};
    c.hidden_size = 256;
    c.vocab_size = 2048;
    c.num_layers = layers;
    return c;
}

/* A config with `more` in front; what it repeats counts, for look-ups find the first. */
static plait_status parse(const char *more, int32_t layers, plait_eagle3_config *out)
{
    static const char rest[] = "\"hidden_size\": 256, \"intermediate_size\": 1024, "
                               "\"vocab_size\": 2048, \"num_attention_heads\": 12}";
    char text[1024];
    const plait_config target = target_of(layers);
    snprintf(text, sizeof text, "{%s%s", more, rest);
    return plait_eagle3_config_parse(text, strlen(text), "head", &target, out);
}

#define IDS "\"eagle_aux_hidden_state_layer_ids\": "

static void left_out_settings_have_the_defaults_of_public_heads(void **state)
{
    (void)state;
    plait_eagle3_config c;
    assert_int_equal(parse("\"num_attention_heads\": 8, ", 8, &c), PLAIT_OK);
    assert_int_equal(c.aux[0], 2);
    assert_int_equal(c.aux[1], 4);
    assert_int_equal(c.aux[2], 5);
    assert_int_equal(c.draft_vocab_size, 2048);
    assert_int_equal(c.num_kv_heads, 8);
    assert_int_equal(c.head_dim, 32);
    assert_false(c.norm_before_residual);
    assert_int_equal(parse("\"eagle_config\": {" IDS "[0, 3, 7]}, \"head_dim\": 64, ", 8, &c),
                     PLAIT_OK);
    assert_int_equal(c.aux[0], 0);
    assert_int_equal(c.aux[2], 7);
}

static void configs_that_do_not_fit_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *more, *sentence;
        int32_t layers;
    } cases[] = {
        {"", "2, 3, 3 (left out", 6},
        {IDS "[1, 3, 3], \"head_dim\": 64, ", "1, 3, 3; wanted three different layers", 6},
        {IDS "[3, 1, 5], \"head_dim\": 64, ", "ascending", 6},
        {IDS "[1, 3], \"head_dim\": 64, ", "three layer numbers", 6},
        {IDS "[1, 2, 3, 4], \"head_dim\": 64, ", "three layer numbers", 6},
        {IDS "[1, 3, 6], \"head_dim\": 64, ", "wanted 0 to 5", 6},
        {IDS "[1, 3, \"5\"], \"head_dim\": 64, ", "wanted 0 to 5", 6},
        {IDS "7, ", "three layer numbers", 6},
        {"\"hidden_size\": 128, \"head_dim\": 64, ", "that of the target, 256", 8},
        {"\"vocab_size\": 2047, \"head_dim\": 64, ", "another tokenizer", 8},
        {"\"draft_vocab_size\": 2049, \"head_dim\": 64, ", "at most vocab_size, 2048", 8},
        {"\"draft_vocab_size\": 0, ", "from 1 to", 8},
        {"\"num_key_value_heads\": 5, \"head_dim\": 64, ", "multiple of num_key_value_heads", 8},
        {"\"head_dim\": 63, ", "even number", 8},
        {"\"num_hidden_layers\": 2, ", "supported: 1", 8},
        {"\"attention_bias\": true, ", "supported: false", 8},
        {"\"hidden_act\": \"gelu\", ", "supported: \"silu\"", 8},
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, ", "rope_scaling", 8},
        {"\"norm_before_residual\": 1, ", "true or false", 8},
        {"\"rms_norm_eps\": -1, ", "rms_norm_eps", 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        plait_eagle3_config c;
        const plait_status status = parse(cases[i].more, cases[i].layers, &c);
        if (status == PLAIT_OK || !strstr(plait_last_error(), cases[i].sentence))
            fail_msg("case %zu: %s, not \"%s\"", i, status ? plait_last_error() : "accepted",
                     cases[i].sentence);
    }
}

/* ---- heads that are changed ------------------------------------------------------------------ */

enum { MAX_TENSORS = 24 };

/* The bundled head, to be changed and written to a folder. */
struct copy {
    plait_safetensors file;
    plait_test_tensor tensors[MAX_TENSORS];
    char names[MAX_TENSORS][96], shapes[MAX_TENSORS][32];
    size_t n;
    int64_t d2t[1536];
    char *config, root[PLAIT_TEST_PATH];
};

static plait_test_tensor *tensor_of(struct copy *c, const char *name)
{
    for (size_t i = 0; i < c->n; i++) {
        if (!strcmp(c->names[i], name))
            return &c->tensors[i];
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

static struct copy *copy_head(void)
{
    struct copy *c = calloc(1, sizeof *c);
    size_t bytes;
    assert_int_equal(plait_safetensors_open(HEAD "/model.safetensors", &c->file), PLAIT_OK);
    assert_int_equal(plait_file_read(HEAD "/config.json", 1 << 16, &c->config, &bytes), PLAIT_OK);
    assert_in_range(c->file.count, 1, MAX_TENSORS - 1);
    c->n = c->file.count;
    for (size_t i = 0; i < c->n; i++) {
        const plait_tensor *t = &c->file.tensors[i];
        snprintf(c->names[i], sizeof c->names[i], "%s", t->name);
        if (t->rank == 2)
            snprintf(c->shapes[i], sizeof c->shapes[i], "%d, %d", (int)t->shape[0],
                     (int)t->shape[1]);
        else
            snprintf(c->shapes[i], sizeof c->shapes[i], "%d", (int)t->shape[0]);
        c->tensors[i] = (plait_test_tensor){c->names[i], t->dtype, c->shapes[i], t->data, t->bytes};
    }
    plait_test_tensor *d2t = tensor_of(c, "d2t");
    assert_int_equal(d2t->bytes, sizeof c->d2t);
    memcpy(c->d2t, d2t->data, sizeof c->d2t);
    d2t->data = c->d2t;
    return c;
}

static void put_copy(struct copy *c)
{
    plait_test_folder_make(c->root);
    plait_test_put_text(c->root, "config.json", c->config);
    plait_test_put_safetensors(c->root, "model.safetensors", c->tensors, c->n);
}

static void free_copy(struct copy *c)
{
    if (*c->root)
        plait_test_folder_remove(c->root);
    plait_safetensors_close(&c->file);
    free(c->config);
    free(c);
}

static void drop(struct copy *c, const char *name)
{
    plait_test_tensor *t = tensor_of(c, name);
    *t = c->tensors[--c->n];
}

static plait_status open_head(const char *dir, int32_t dcp, int32_t replicated, plait_engine **e)
{
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    o.model_dir = MODEL;
    o.draft = PLAIT_DRAFT_EAGLE3;
    o.draft_dir = dir;
    o.dtype = PLAIT_F32;
    o.dcp = dcp;
    o.draft_kv_replicated = replicated;
    return plait_engine_open(&o, e);
}

static void expect_refusal(const char *dir, int32_t dcp, plait_status want, const char *sentence)
{
    plait_engine *e;
    const plait_status status = open_head(dir, dcp, 0, &e);
    if (status != want || !strstr(plait_last_error(), sentence))
        fail_msg("%s: %s, wanted %s with \"%s\"", plait_status_name(status),
                 status ? plait_last_error() : "", plait_status_name(want), sentence);
    assert_null(e);
}

static void refuse_copy(struct copy *c, const char *sentence)
{
    put_copy(c);
    expect_refusal(c->root, 1, PLAIT_E_FORMAT, sentence);
    free_copy(c);
}

static void damaged_heads_are_refused_by_name(void **state)
{
    (void)state;
    struct copy *c = copy_head();
    drop(c, "midlayer.self_attn.k_proj.weight");
    refuse_copy(c, "midlayer.self_attn.k_proj.weight");
    c = copy_head();
    drop(c, "d2t");
    refuse_copy(c, "no tensor d2t");
    c = copy_head();
    tensor_of(c, "d2t")->dtype = "F64";
    refuse_copy(c, "d2t has dtype F64");
    c = copy_head();
    c->d2t[7] = -8;
    refuse_copy(c, "d2t[7] is -8: draft id 7 would be outside");
    c = copy_head();
    c->d2t[1535] = 2048 - 1535;
    refuse_copy(c, "d2t[1535] is 513");
    c = copy_head();
    c->d2t[1] = INT64_MAX;
    refuse_copy(c, "d2t[1] is");
    c = copy_head();
    c->d2t[1] = c->d2t[0] - 1;
    refuse_copy(c, "two draft ids");
    c = copy_head();
    char *width = strstr(c->config, "1024");
    assert_non_null(width);
    memcpy(width, " 512", 4);
    refuse_copy(c, "gate_proj");
    c = copy_head();
    plait_test_tensor *fc = tensor_of(c, "fc.weight");
    uint16_t *values = malloc(fc->bytes);
    memcpy(values, fc->data, fc->bytes);
    values[5] = 0x7fc0;
    fc->data = values;
    refuse_copy(c, "fc.weight");
    free(values);
    expect_refusal("/nonexistent", 1, PLAIT_E_IO, "/nonexistent/config.json");
    expect_refusal(NULL, 1, PLAIT_E_ARG, "draft_dir is NULL");
}

/* Draft logits of a few tokens, [5][vocab]; freed by the caller. */
static float *draft_logits(const char *dir, size_t *n)
{
    static const int32_t ids[] = {0, 311, 645, 260, 97};
    plait_engine *e;
    *n = 5 * 2048;
    float *out = malloc(*n * sizeof *out);
    if (open_head(dir, 1, 0, &e) != PLAIT_OK ||
        plait_engine_logits(e, ids, 5, 0, NULL, NULL, out, 1) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    plait_engine_close(&e);
    return out;
}

static void names_of_a_llama_layer_are_the_same_head(void **state)
{
    (void)state;
    struct copy *c = copy_head();
    for (size_t i = 0; i < c->n; i++) {
        if (!strncmp(c->names[i], "midlayer.", 9))
            memcpy(c->names[i], "layers.0.", 9);
    }
    put_copy(c);
    size_t n;
    float *want = draft_logits(HEAD, &n), *got = draft_logits(c->root, &n);
    assert_memory_equal(got, want, n * sizeof *got);
    free(want);
    free(got);
    free_copy(c);
}

/* A head's own embedding is used: all zeros makes tokens alike. */
static void an_embedding_of_its_own_replaces_the_targets(void **state)
{
    (void)state;
    struct copy *c = copy_head();
    const size_t bytes = 2048 * 256 * 2;
    void *zeros = calloc(1, bytes);
    c->tensors[c->n++] =
        (plait_test_tensor){"embed_tokens.weight", "BF16", "2048, 256", zeros, bytes};
    put_copy(c);
    size_t n;
    float *with = draft_logits(HEAD, &n), *without = draft_logits(c->root, &n);
    assert_memory_not_equal(with, without, n * sizeof *with);
    free(with);
    free(without);
    free(zeros);
    free_copy(c);
}

/* norm_before_residual against the public definition. */
static void the_residual_may_be_normalised(void **state)
{
    (void)state;
    struct copy *c = copy_head();
    char *flag = strstr(c->config, "\"norm_before_residual\": false");
    assert_non_null(flag);
    memcpy(strstr(flag, "false"), "true ", 5);
    put_copy(c);
    plait_engine *e;
    if (open_head(c->root, 1, 0, &e) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    const double worst = worst_draft(e, "eagle3_residual.bin", 0);
    assert_true(worst <= 1e-3);
    plait_engine_close(&e);
    free_copy(c);
}

/* ---- heads and ranks ------------------------------------------------------------------------- */

/* 12 query heads are no multiple of 5 ranks: refused where five share a cache, while uneven heads
   over a replicated cache give the tokens of one rank. */
static void uneven_heads_need_a_replicated_cache(void **state)
{
    (void)state;
    expect_refusal(HEAD, 5, PLAIT_E_UNSUPPORTED,
                   "needs 12 query heads to be a multiple of tensor parallel size 5");
    int32_t ids[2][12];
    for (int i = 0; i < 2; i++) {
        plait_engine *e;
        plait_generation *g;
        plait_request q = PLAIT_REQUEST_INIT;
        if (open_head(HEAD, i ? 5 : 1, 1, &e) != PLAIT_OK)
            fail_msg("%s", plait_last_error());
        q.text = "The read() function";
        q.text_bytes = strlen(q.text);
        q.max_new_tokens = 12;
        q.ignore_eos = 1;
        if (plait_engine_generate(e, &q, 1, NULL, NULL, &g) != PLAIT_OK)
            fail_msg("%s", plait_last_error());
        assert_int_equal(g->results[0].num_new, 12);
        assert_true(g->results[0].num_accepted > 0);
        memcpy(ids[i], g->results[0].ids, sizeof ids[i]);
        for (int32_t r = 1; r < g->num_ranks; r++)
            assert_int_equal(g->draft_kv_bytes[r], g->draft_kv_bytes[0]);
        plait_generation_close(&g);
        plait_engine_close(&e);
    }
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(left_out_settings_have_the_defaults_of_public_heads),
        cmocka_unit_test(configs_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(damaged_heads_are_refused_by_name),
        cmocka_unit_test(names_of_a_llama_layer_are_the_same_head),
        cmocka_unit_test(an_embedding_of_its_own_replaces_the_targets),
        cmocka_unit_test(the_residual_may_be_normalised),
        cmocka_unit_test(uneven_heads_need_a_replicated_cache),
    };
    return cmocka_run_group_tests_name("engine_eagle3", tests, NULL, NULL);
}
