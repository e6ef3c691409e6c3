/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tokenizer_file.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"

enum { MAX_TOKENIZER_CONFIG_BYTES = 64 << 20, MAX_PATTERN_BYTES = 1 << 16, MAX_DEPTH = 4 };

static plait_status unsupported(const char *part, const cJSON *type, const char *supported)
{
    char shown[PLAIT_JSON_SHOW];
    return plait_fail(PLAIT_E_UNSUPPORTED,
                      "tokenizer.json: the %s is %s, which is not supported; supported: %s", part,
                      plait_json_show(type, shown), supported);
}

/* --- splits ------------------------------------------------------------------------------------*/

/* Patterns are written for Oniguruma's Ruby syntax, where ^ and $ match at each line. \C, one byte
   of a character, would break the text apart. */
enum {
    REGEX = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
    LITERAL = PCRE2_UTF | PCRE2_LITERAL
};

static plait_status add_split(plait_tokenizer *t, const char *pattern, uint32_t options,
                              bool remove, bool invert)
{
    int error;
    PCRE2_SIZE offset;
    if (t->num_splits == PLAIT_MAX_SPLITS)
        return plait_fail(PLAIT_E_UNSUPPORTED, "tokenizer.json: more than %d splits",
                          PLAIT_MAX_SPLITS);
    if (strlen(pattern) > MAX_PATTERN_BYTES)
        return plait_fail(PLAIT_E_FORMAT, "tokenizer.json: a split pattern of %zu bytes",
                          strlen(pattern));
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &error, &offset, NULL);
    if (!code) {
        PCRE2_UCHAR text[120] = "";
        pcre2_get_error_message(error, text, sizeof text);
        return plait_fail(PLAIT_E_FORMAT, "tokenizer.json: split pattern \"%.80s\": %s at byte %zu",
                          pattern, (const char *)text, (size_t)offset);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it the interpreter runs */
    t->splits[t->num_splits++] = (plait_split){code, invert, remove};
    return PLAIT_OK;
}

static plait_status read_split(plait_tokenizer *t, const cJSON *item)
{
    const cJSON *pattern = plait_json_get(item, "pattern");
    const cJSON *behavior = plait_json_get(item, "behavior");
    const cJSON *regex = plait_json_get(pattern, "Regex");
    const cJSON *literal = plait_json_get(pattern, "String");
    const cJSON *text = regex ? regex : literal;
    if (!plait_json_is(behavior, "Isolated") && !plait_json_is(behavior, "Removed"))
        return unsupported("behavior of a Split", behavior, "Isolated, Removed");
    if (!cJSON_IsString(text) || !*text->valuestring)
        return plait_fail(PLAIT_E_FORMAT, "tokenizer.json: a Split has no pattern");
    return add_split(t, text->valuestring, regex ? REGEX : LITERAL,
                     plait_json_is(behavior, "Removed"),
                     cJSON_IsTrue(plait_json_get(item, "invert")));
}

static plait_status read_byte_level(plait_tokenizer *t, const cJSON *item)
{
    /* GPT-2's split, which ByteLevel makes unless use_regex is false. */
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                               "\\s+(?!\\S)|\\s+";
    const cJSON *prefix = plait_json_get(item, "add_prefix_space");
    if (cJSON_IsTrue(prefix))
        return unsupported("add_prefix_space of ByteLevel", prefix, "false");
    if (cJSON_IsFalse(plait_json_get(item, "use_regex")))
        return PLAIT_OK;
    return add_split(t, gpt2, REGEX, false, false);
}

/* *ended: ByteLevel was met. What follows it would see other characters than the text's. */
static plait_status read_pre_tokenizer(plait_tokenizer *t, const cJSON *item, int depth,
                                       bool *ended)
{
    const cJSON *type = plait_json_get(item, "type"), *child;
    if (*ended)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "tokenizer.json: a pre-tokenizer follows ByteLevel; it must be the last");
    if (plait_json_is(type, "Sequence") && depth < MAX_DEPTH) {
        cJSON_ArrayForEach(child, plait_json_get(item, "pretokenizers"))
            PLAIT_TRY(read_pre_tokenizer(t, child, depth + 1, ended));
        return PLAIT_OK;
    }
    if (plait_json_is(type, "Split"))
        return read_split(t, item);
    if (plait_json_is(type, "Digits"))
        return add_split(
            t, cJSON_IsTrue(plait_json_get(item, "individual_digits")) ? "\\p{N}" : "\\p{N}+",
            REGEX, false, false);
    if (!plait_json_is(type, "ByteLevel"))
        return unsupported("pre_tokenizer", type, "Sequence, Split, Digits, ByteLevel");
    *ended = true;
    return read_byte_level(t, item);
}

/* --- what is put around a text -----------------------------------------------------------------*/

static plait_status push_template(plait_tokenizer *t, bool after, int64_t id)
{
    int32_t *list = after ? t->suffix : t->prefix;
    int32_t *n = after ? &t->num_suffix : &t->num_prefix;
    if (id >= t->vocab_size || !t->tokens[id].bytes)
        return plait_fail(PLAIT_E_FORMAT, "tokenizer.json: the template's id %lld is no token",
                          (long long)id);
    if (*n == PLAIT_MAX_TEMPLATE)
        return plait_fail(PLAIT_E_UNSUPPORTED, "tokenizer.json: more than %d tokens in a template",
                          PLAIT_MAX_TEMPLATE);
    list[(*n)++] = (int32_t)id;
    return PLAIT_OK;
}

static plait_status push_special(plait_tokenizer *t, const cJSON *specials, const cJSON *name,
                                 bool after)
{
    const cJSON *entry = cJSON_IsString(name) ? plait_json_get(specials, name->valuestring) : NULL;
    const cJSON *ids = plait_json_get(entry, "ids"), *item;
    char shown[PLAIT_JSON_SHOW];
    if (!cJSON_IsArray(ids))
        return plait_fail(PLAIT_E_FORMAT, "tokenizer.json: the template's token %s has no ids",
                          plait_json_show(name, shown));
    cJSON_ArrayForEach(item, ids)
    {
        int64_t id;
        if (!plait_json_whole(item, 0, PLAIT_MAX_TOKEN_ID, &id))
            return plait_fail(PLAIT_E_FORMAT, "tokenizer.json: a template's id is %s",
                              plait_json_show(item, shown));
        PLAIT_TRY(push_template(t, after, id));
    }
    return PLAIT_OK;
}

static plait_status read_template(plait_tokenizer *t, const cJSON *item)
{
    const cJSON *specials = plait_json_get(item, "special_tokens"), *entry;
    bool after = false;
    cJSON_ArrayForEach(entry, plait_json_get(item, "single"))
    {
        const cJSON *special = plait_json_get(entry, "SpecialToken");
        if (special)
            PLAIT_TRY(push_special(t, specials, plait_json_get(special, "id"), after));
        else if (plait_json_get(entry, "Sequence") && !after)
            after = true;
        else
            return plait_fail(
                PLAIT_E_FORMAT,
                "tokenizer.json: a template of SpecialToken and one Sequence is wanted");
    }
    if (!after)
        return plait_fail(PLAIT_E_FORMAT, "tokenizer.json: the template has no Sequence");
    return PLAIT_OK;
}

static plait_status read_post_processor(plait_tokenizer *t, const cJSON *item, int depth,
                                        bool *template)
{
    const cJSON *type = plait_json_get(item, "type"), *child;
    if (!item || cJSON_IsNull(item) || plait_json_is(type, "ByteLevel"))
        return PLAIT_OK; /* ByteLevel changes offsets only */
    if (plait_json_is(type, "Sequence") && depth < MAX_DEPTH) {
        cJSON_ArrayForEach(child, plait_json_get(item, "processors"))
            PLAIT_TRY(read_post_processor(t, child, depth + 1, template));
        return PLAIT_OK;
    }
    if (!plait_json_is(type, "TemplateProcessing") || *template)
        return unsupported("post_processor", type, "one TemplateProcessing, ByteLevel, none");
    *template = true;
    return read_template(t, item);
}

static plait_status add_bos(plait_tokenizer *t, const cJSON *root)
{
    const cJSON *bos = plait_json_get(root, "bos_token");
    if (!cJSON_IsTrue(plait_json_get(root, "add_bos_token")))
        return PLAIT_OK;
    if (cJSON_IsObject(bos))
        bos = plait_json_get(bos, "content");
    const int32_t id = cJSON_IsString(bos)
                           ? plait_tokenizer_find(t, bos->valuestring, strlen(bos->valuestring))
                           : -1;
    char shown[PLAIT_JSON_SHOW];
    if (id < 0)
        return plait_fail(
            PLAIT_E_FORMAT,
            "tokenizer_config.json: add_bos_token is true, but bos_token %s is no token",
            plait_json_show(bos, shown));
    return push_template(t, false, id);
}

/* DeepSeek's own tokenizer.json has no template: the BOS is in the configuration beside it. */
static plait_status read_tokenizer_config(plait_tokenizer *t, const char *dir)
{
    char path[PATH_MAX];
    cJSON *root;
    PLAIT_TRY(plait_path_join(path, sizeof path, dir, "tokenizer_config.json"));
    if (access(path, F_OK) != 0)
        return PLAIT_OK;
    PLAIT_TRY(plait_json_load(path, MAX_TOKENIZER_CONFIG_BYTES, &root));
    const plait_status status = add_bos(t, root);
    cJSON_Delete(root);
    return status;
}

plait_status plait_tokenizer_read_parts(plait_tokenizer *tokenizer, const cJSON *root,
                                        const char *dir)
{
    const cJSON *normalizer = plait_json_get(root, "normalizer");
    const cJSON *type = plait_json_get(normalizer, "type");
    const cJSON *list = plait_json_get(normalizer, "normalizers");
    const cJSON *decoder = plait_json_get(plait_json_get(root, "decoder"), "type");
    bool ended = false, template = false;
    if (normalizer && !cJSON_IsNull(normalizer) &&
        !(plait_json_is(type, "Sequence") && cJSON_IsArray(list) && !list->child))
        return unsupported("normalizer", type, "none");
    if (!plait_json_is(decoder, "ByteLevel"))
        return unsupported("decoder", decoder, "ByteLevel");
    PLAIT_TRY(read_pre_tokenizer(tokenizer, plait_json_get(root, "pre_tokenizer"), 0, &ended));
    if (!ended)
        return unsupported("pre_tokenizer without ByteLevel", NULL, "ByteLevel as the last");
    PLAIT_TRY(read_post_processor(tokenizer, plait_json_get(root, "post_processor"), 0, &template));
    return template ? PLAIT_OK : read_tokenizer_config(tokenizer, dir);
}
