/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json: the vocabulary, merges and added tokens. */
#include "engine/tokenizer.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "engine/json.h"
#include "engine/tokenizer_file.h"

enum { MAX_TOKENIZER_BYTES = 256 << 20, MAX_ADDED_BYTES = 1 << 16 };

/* --- byte-level text ---------------------------------------------------------------------------*/

/* Printable Latin-1 characters stand for themselves; the other bytes, in order, for U+0100.. */
static bool stands_for_itself(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

static void byte_characters(int16_t byte_of[324])
{
    int next = 256;
    for (int i = 0; i < 324; i++)
        byte_of[i] = -1;
    for (int b = 0; b < 256; b++)
        byte_of[stands_for_itself(b) ? b : next++] = (int16_t)b;
}

/* The bytes that a token's text stands for, in out (as long as text); false if a character of it
   stands for no byte. */
static bool to_bytes(const int16_t byte_of[324], const char *text, char *out, size_t *length)
{
    const unsigned char *at = (const unsigned char *)text;
    *length = 0;
    while (*at) {
        unsigned code = at[0];
        if (code >= 0x80) {
            if ((code & 0xe0) != 0xc0 || (at[1] & 0xc0) != 0x80)
                return false;
            code = (code & 0x1f) << 6 | (at[1] & 0x3fu);
        }
        if (code >= 324 || byte_of[code] < 0)
            return false;
        out[(*length)++] = (char)byte_of[code];
        at += at[0] < 0x80 ? 1 : 2;
    }
    return true;
}

/* A token's bytes in new memory: what its characters stand for if all of them do, else the text
   itself (which no merge can give). */
static plait_status make_token(plait_tokenizer *t, const int16_t byte_of[324], const char *text,
                               int32_t id, bool *mapped)
{
    plait_token *token = &t->tokens[id];
    const size_t size = strlen(text);
    token->bytes = malloc(size + 1);
    if (!token->bytes)
        return plait_fail(PLAIT_E_NOMEM, "no memory for the tokenizer's vocabulary");
    *mapped = to_bytes(byte_of, text, token->bytes, &token->length);
    if (!*mapped) {
        memcpy(token->bytes, text, size);
        token->length = size;
    }
    token->bytes[token->length] = 0;
    if (token->length > t->max_length)
        t->max_length = token->length;
    return PLAIT_OK;
}

/* --- vocabulary --------------------------------------------------------------------------------*/

static plait_status count_ids(const cJSON *vocab, const cJSON *added, size_t *tokens, int32_t *size)
{
    const cJSON *item;
    char shown[PLAIT_JSON_SHOW];
    int64_t id, most = -1;
    cJSON_ArrayForEach(item, vocab)
    {
        if (!plait_json_whole(item, 0, PLAIT_MAX_TOKEN_ID, &id))
            return plait_fail(PLAIT_E_FORMAT,
                              "tokenizer.json: token %.80s has id %s; wanted 0 to %d", item->string,
                              plait_json_show(item, shown), PLAIT_MAX_TOKEN_ID);
        most = id > most ? id : most;
        ++*tokens;
    }
    cJSON_ArrayForEach(item, added)
    {
        if (!plait_json_whole(plait_json_get(item, "id"), 0, PLAIT_MAX_TOKEN_ID, &id))
            return plait_fail(
                PLAIT_E_FORMAT, "tokenizer.json: an added token has id %s; wanted 0 to %d",
                plait_json_show(plait_json_get(item, "id"), shown), PLAIT_MAX_TOKEN_ID);
        most = id > most ? id : most;
    }
    *size = (int32_t)(most + 1);
    return PLAIT_OK;
}

static plait_status read_vocab(plait_tokenizer *t, const int16_t byte_of[324], const cJSON *vocab)
{
    const cJSON *item;
    bool mapped;
    cJSON_ArrayForEach(item, vocab)
    {
        const int32_t id = (int32_t)item->valuedouble;
        if (t->tokens[id].bytes)
            return plait_fail(PLAIT_E_FORMAT, "tokenizer.json: two tokens have id %d", (int)id);
        PLAIT_TRY(make_token(t, byte_of, item->string, id, &mapped));
        if (mapped)
            PLAIT_TRY(plait_bpe_add(&t->bpe, t->tokens, id));
    }
    for (int b = 0; b < 256; b++) {
        const char byte = (char)b;
        t->bpe.byte_id[b] = plait_bpe_find(&t->bpe, t->tokens, &byte, 1);
        if (t->bpe.byte_id[b] < 0)
            return plait_fail(
                PLAIT_E_UNSUPPORTED,
                "tokenizer.json: no token for byte 0x%02x; wanted byte-level BPE with "
                "all 256",
                (unsigned)b);
    }
    return PLAIT_OK;
}

/* --- merges ------------------------------------------------------------------------------------*/

/* The two texts of a merge: ["a", "b"] or "a b". The second form is cut in place. */
static bool merge_parts(const cJSON *item, const char **left, const char **right)
{
    if (cJSON_IsArray(item)) {
        const cJSON *first = item->child;
        if (!first || !first->next || first->next->next || !cJSON_IsString(first) ||
            !cJSON_IsString(first->next))
            return false;
        *left = first->valuestring;
        *right = first->next->valuestring;
        return true;
    }
    char *space = cJSON_IsString(item) ? strchr(item->valuestring, ' ') : NULL;
    if (!space || strchr(space + 1, ' '))
        return false;
    *space = 0;
    *left = item->valuestring;
    *right = space + 1;
    return true;
}

static plait_status add_merge(plait_tokenizer *t, const int16_t byte_of[324], const char *left,
                              const char *right, int32_t rank, char *joined)
{
    size_t n_left, n_right;
    if (!to_bytes(byte_of, left, joined, &n_left) ||
        !to_bytes(byte_of, right, joined + n_left, &n_right))
        return plait_fail(PLAIT_E_FORMAT, "tokenizer.json: merge %d is not in byte-level text",
                          (int)rank);
    const int32_t a = plait_bpe_find(&t->bpe, t->tokens, joined, n_left);
    const int32_t b = plait_bpe_find(&t->bpe, t->tokens, joined + n_left, n_right);
    const int32_t id = plait_bpe_find(&t->bpe, t->tokens, joined, n_left + n_right);
    if (a < 0 || b < 0 || id < 0)
        return plait_fail(
            PLAIT_E_FORMAT,
            "tokenizer.json: merge %d (\"%.40s\", \"%.40s\") needs tokens that are not "
            "in the vocabulary",
            (int)rank, left, right);
    plait_bpe_add_merge(&t->bpe, a, b, rank, id);
    return PLAIT_OK;
}

static plait_status read_merges(plait_tokenizer *t, const int16_t byte_of[324], const cJSON *merges)
{
    const cJSON *item;
    int32_t rank = 0;
    cJSON_ArrayForEach(item, merges)
    {
        const char *left, *right;
        if (!merge_parts(item, &left, &right))
            return plait_fail(PLAIT_E_FORMAT,
                              "tokenizer.json: merge %d is neither \"a b\" nor [\"a\", \"b\"]",
                              (int)rank);
        char *joined = malloc(strlen(left) + strlen(right) + 1);
        if (!joined)
            return plait_fail(PLAIT_E_NOMEM, "no memory for the tokenizer's merges");
        const plait_status status = add_merge(t, byte_of, left, right, rank++, joined);
        free(joined);
        PLAIT_TRY(status);
    }
    return PLAIT_OK;
}

static plait_status check_model(plait_tokenizer *t, const cJSON *model)
{
    const cJSON *item;
    char shown[PLAIT_JSON_SHOW];
    cJSON_ArrayForEach(item, model)
    {
        const bool empty = cJSON_IsNull(item) || cJSON_IsFalse(item) || plait_json_is(item, "");
        if (plait_json_key(item, "ignore_merges"))
            t->bpe.ignore_merges = cJSON_IsTrue(item);
        if ((plait_json_key(item, "type") && !plait_json_is(item, "BPE")) ||
            (!empty && (plait_json_key(item, "dropout") || plait_json_key(item, "byte_fallback") ||
                        plait_json_key(item, "continuing_subword_prefix") ||
                        plait_json_key(item, "end_of_word_suffix"))))
            return plait_fail(PLAIT_E_UNSUPPORTED,
                              "tokenizer.json: the model's %s is %s, which is not supported; "
                              "supported: byte-level BPE without it",
                              item->string, plait_json_show(item, shown));
    }
    return PLAIT_OK;
}

static plait_status read_model(plait_tokenizer *t, const int16_t byte_of[324], const cJSON *model,
                               const cJSON *added)
{
    const cJSON *vocab = plait_json_get(model, "vocab"), *merges = plait_json_get(model, "merges");
    size_t tokens = 0;
    if (!cJSON_IsObject(vocab) || !cJSON_IsArray(merges))
        return plait_fail(PLAIT_E_FORMAT, "tokenizer.json: the model lacks a vocab or merges");
    PLAIT_TRY(check_model(t, model));
    PLAIT_TRY(count_ids(vocab, added, &tokens, &t->vocab_size));
    t->tokens = calloc((size_t)t->vocab_size + 1, sizeof *t->tokens);
    if (!t->tokens)
        return plait_fail(PLAIT_E_NOMEM, "no memory for %d tokens", (int)t->vocab_size);
    PLAIT_TRY(plait_bpe_reserve(&t->bpe, tokens, (size_t)cJSON_GetArraySize(merges)));
    PLAIT_TRY(read_vocab(t, byte_of, vocab));
    return read_merges(t, byte_of, merges);
}

/* --- added tokens ------------------------------------------------------------------------------*/

static plait_status add_added(plait_tokenizer *t, const int16_t byte_of[324], const cJSON *item)
{
    const cJSON *content = plait_json_get(item, "content");
    const int32_t id = (int32_t)plait_json_get(item, "id")->valuedouble; /* seen by count_ids */
    plait_added *a = &t->added[t->num_added];
    plait_token *token = &t->tokens[id];
    bool mapped;
    if (!cJSON_IsString(content) || !*content->valuestring ||
        strlen(content->valuestring) > MAX_ADDED_BYTES)
        return plait_fail(PLAIT_E_FORMAT, "tokenizer.json: added token %d has no usable content",
                          (int)id);
    if (cJSON_IsTrue(plait_json_get(item, "single_word")))
        return plait_fail(
            PLAIT_E_UNSUPPORTED,
            "tokenizer.json: added token %.80s is single_word, which is not supported",
            content->valuestring);
    a->text = strdup(content->valuestring);
    if (!a->text)
        return plait_fail(PLAIT_E_NOMEM, "no memory for the added tokens");
    t->num_added++;
    a->length = strlen(a->text);
    a->id = id;
    a->lstrip = cJSON_IsTrue(plait_json_get(item, "lstrip"));
    a->rstrip = cJSON_IsTrue(plait_json_get(item, "rstrip"));
    a->normalized = cJSON_IsTrue(plait_json_get(item, "normalized"));
    char *before = token->bytes; /* the vocabulary may name it as well */
    const size_t length = token->length;
    const plait_status status = make_token(t, byte_of, a->text, id, &mapped);
    const bool same =
        status == PLAIT_OK &&
        (!before || (length == token->length && memcmp(before, token->bytes, length) == 0));
    const int32_t other =
        same && mapped ? plait_bpe_find(&t->bpe, t->tokens, token->bytes, token->length) : -1;
    free(before);
    PLAIT_TRY(status);
    token->special = cJSON_IsTrue(plait_json_get(item, "special"));
    if (!same || (other >= 0 && other != id))
        return plait_fail(PLAIT_E_FORMAT,
                          "tokenizer.json: added token %.80s, id %d, contradicts the vocabulary",
                          a->text, (int)id);
    return PLAIT_OK;
}

static int by_pass_and_byte(const void *x, const void *y)
{
    const plait_added *a = x, *b = y;
    if (a->normalized != b->normalized)
        return a->normalized ? 1 : -1;
    if (a->text[0] != b->text[0])
        return (unsigned char)a->text[0] < (unsigned char)b->text[0] ? -1 : 1;
    if (a->length != b->length)
        return a->length > b->length ? -1 : 1;
    return strcmp(a->text, b->text);
}

static plait_status read_added(plait_tokenizer *t, const int16_t byte_of[324], const cJSON *added)
{
    const cJSON *item;
    t->added = calloc((size_t)cJSON_GetArraySize(added) + 1, sizeof *t->added);
    if (!t->added)
        return plait_fail(PLAIT_E_NOMEM, "no memory for the added tokens");
    cJSON_ArrayForEach(item, added) PLAIT_TRY(add_added(t, byte_of, item));
    qsort(t->added, t->num_added, sizeof *t->added, by_pass_and_byte);
    size_t at = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int byte = 0; byte <= 256; byte++) {
            while (at < t->num_added && t->added[at].normalized == pass && byte < 256 &&
                   (unsigned char)t->added[at].text[0] < byte)
                at++;
            if (byte == 256)
                while (at < t->num_added && t->added[at].normalized == pass)
                    at++;
            t->added_first[pass][byte] = at;
        }
    return PLAIT_OK;
}

/* --- open and close ----------------------------------------------------------------------------*/

static plait_status read_root(plait_tokenizer *t, const cJSON *root, const char *dir)
{
    int16_t byte_of[324];
    const cJSON *model = plait_json_get(root, "model");
    const cJSON *added = plait_json_get(root, "added_tokens");
    if (!cJSON_IsObject(model))
        return plait_fail(PLAIT_E_FORMAT, "tokenizer.json has no model");
    if (added && !cJSON_IsArray(added) && !cJSON_IsNull(added))
        return plait_fail(PLAIT_E_FORMAT, "tokenizer.json: added_tokens is not a list");
    byte_characters(byte_of);
    PLAIT_TRY(read_model(t, byte_of, model, added));
    PLAIT_TRY(read_added(t, byte_of, added));
    return plait_tokenizer_read_parts(t, root, dir);
}

plait_status plait_tokenizer_open(const char *dir, plait_tokenizer **out)
{
    char path[PATH_MAX];
    cJSON *root;
    *out = NULL;
    PLAIT_TRY(plait_path_join(path, sizeof path, dir, "tokenizer.json"));
    PLAIT_TRY(plait_json_load(path, MAX_TOKENIZER_BYTES, &root));
    plait_tokenizer *t = calloc(1, sizeof *t);
    plait_status status =
        t ? read_root(t, root, dir) : plait_fail(PLAIT_E_NOMEM, "no memory for a tokenizer");
    cJSON_Delete(root);
    if (status != PLAIT_OK)
        plait_tokenizer_close(&t);
    *out = t;
    return status;
}

void plait_tokenizer_close(plait_tokenizer **tokenizer)
{
    plait_tokenizer *t = *tokenizer;
    if (!t)
        return;
    for (int32_t i = 0; t->tokens && i < t->vocab_size; i++)
        free(t->tokens[i].bytes);
    for (size_t i = 0; i < t->num_added; i++)
        free(t->added[i].text);
    for (int32_t i = 0; i < t->num_splits; i++)
        pcre2_code_free(t->splits[i].code);
    plait_bpe_free(&t->bpe);
    free(t->tokens);
    free(t->added);
    free(t);
    *tokenizer = NULL;
}

int32_t plait_tokenizer_vocab_size(const plait_tokenizer *tokenizer)
{
    return tokenizer->vocab_size;
}

int32_t plait_tokenizer_find(const plait_tokenizer *tokenizer, const char *text, size_t bytes)
{
    for (size_t i = 0; i < tokenizer->num_added; i++)
        if (tokenizer->added[i].length == bytes &&
            memcmp(tokenizer->added[i].text, text, bytes) == 0)
            return tokenizer->added[i].id;
    return plait_bpe_find(&tokenizer->bpe, tokenizer->tokens, text, bytes);
}

bool plait_tokenizer_is_special(const plait_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && id < tokenizer->vocab_size && tokenizer->tokens[id].special;
}
