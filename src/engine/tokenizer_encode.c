/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From text to ids: added tokens are cut out first (those that match text as it is written, then
 * those that match normalised text, which is the same text here), the rest is split by regular
 * expressions one after the other, and each piece is merged alone.
 */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "engine/tokenizer_parts.h"

enum { JIT_STACK_START = 32 << 10, JIT_STACK_MOST = 16 << 20 };

typedef struct encoding {
    const plait_tokenizer *t;
    plait_ids out;
    pcre2_match_data *match[PLAIT_MAX_SPLITS]; /* one for each, since splits nest */
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} encoding;

/* --- splits ------------------------------------------------------------------------------------*/

static plait_status split_from(encoding *e, int32_t stage, const unsigned char *text, size_t n);

static plait_status emit(encoding *e, int32_t stage, const unsigned char *text, size_t n,
                         bool is_match)
{
    const plait_split *s = &e->t->splits[stage];
    if (n == 0 || (s->remove && is_match != s->invert))
        return PLAIT_OK;
    return split_from(e, stage + 1, text, n);
}

static size_t character_at(const unsigned char *text, size_t n, size_t at)
{
    size_t length = 1;
    if (at < n)
        plait_utf8_next(text + at, n - at, &length);
    return length;
}

static plait_status split_from(encoding *e, int32_t stage, const unsigned char *text, size_t n)
{
    size_t done = 0, search = 0;
    if (stage == e->t->num_splits)
        return plait_bpe_encode(&e->t->bpe, e->t->tokens, text, n, &e->out);
    while (search <= n) {
        const int rc = pcre2_match(e->t->splits[stage].code, text, n, search, PCRE2_NO_UTF_CHECK,
                                   e->match[stage], e->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return plait_fail(PLAIT_E_UNSUPPORTED,
                              "the tokenizer's split %d failed on %zu bytes of text (PCRE2 %d)",
                              (int)stage, n, rc);
        const size_t *offsets = pcre2_get_ovector_pointer(e->match[stage]);
        const size_t begin = offsets[0], end = offsets[1];
        if (begin < done || end < begin || end > n)
            return plait_fail(PLAIT_E_UNSUPPORTED,
                              "the tokenizer's split %d moves its match backwards", (int)stage);
        PLAIT_TRY(emit(e, stage, text + done, begin - done, false));
        PLAIT_TRY(emit(e, stage, text + begin, end - begin, true));
        done = end;
        search = end > begin ? end : end + character_at(text, n, end);
    }
    return emit(e, stage, text + done, n - done, false);
}

/* Runs of well-formed text are split; a byte that is none is a token of its own. */
static plait_status encode_plain(encoding *e, const unsigned char *text, size_t n)
{
    size_t begin = 0, at = 0, length;
    while (at < n) {
        if (plait_utf8_next(text + at, n - at, &length) == PLAIT_UTF8_VALID) {
            at += length;
            continue;
        }
        if (at > begin)
            PLAIT_TRY(split_from(e, 0, text + begin, at - begin));
        for (size_t i = 0; i < length; i++)
            PLAIT_TRY(plait_ids_push(&e->out, e->t->bpe.byte_id[text[at + i]]));
        begin = at += length;
    }
    return at > begin ? split_from(e, 0, text + begin, at - begin) : PLAIT_OK;
}

/* --- added tokens ------------------------------------------------------------------------------*/

/* Bytes of the white space character (Unicode White_Space) at text, 0 if it is none. */
static size_t space_at(const unsigned char *text, size_t n)
{
    static const char *const wide[] = {
        "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
        "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
        "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
        "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};
    if (n == 0)
        return 0;
    if (text[0] == ' ' || (text[0] >= 9 && text[0] <= 13))
        return 1;
    for (size_t i = 0; text[0] >= 0xc2 && i < sizeof wide / sizeof *wide; i++) {
        const size_t length = strlen(wide[i]);
        if (length <= n && memcmp(text, wide[i], length) == 0)
            return length;
    }
    return 0;
}

/* Where the white space that ends text[0, end) begins, not before `least`. */
static size_t skip_back(const unsigned char *text, size_t least, size_t end)
{
    while (end > least) {
        size_t begin = end - 1;
        while (begin > least && end - begin < 3 && (text[begin] & 0xc0) == 0x80)
            begin--;
        if (space_at(text + begin, end - begin) != end - begin)
            break;
        end = begin;
    }
    return end;
}

static size_t skip_forward(const unsigned char *text, size_t at, size_t n)
{
    for (size_t length; (length = space_at(text + at, n - at)) > 0;)
        at += length;
    return at;
}

/* The longest added token of this pass that begins at text, NULL if none does. */
static const plait_added *added_at(const plait_tokenizer *t, int pass, const unsigned char *text,
                                   size_t n)
{
    const size_t *first = t->added_first[pass];
    for (size_t i = first[text[0]]; i < first[text[0] + 1]; i++)
        if (t->added[i].length <= n && memcmp(t->added[i].text, text, t->added[i].length) == 0)
            return &t->added[i];
    return NULL;
}

static plait_status encode_pass(encoding *e, int pass, const unsigned char *text, size_t n)
{
    size_t done = 0, at = 0;
    if (pass == 2)
        return encode_plain(e, text, n);
    while (at < n) {
        const plait_added *a = added_at(e->t, pass, text + at, n - at);
        if (!a) {
            at++;
            continue;
        }
        const size_t begin = a->lstrip ? skip_back(text, done, at) : at;
        PLAIT_TRY(encode_pass(e, pass + 1, text + done, begin - done));
        PLAIT_TRY(plait_ids_push(&e->out, a->id));
        done = at + a->length;
        done = at = a->rstrip ? skip_forward(text, done, n) : done;
    }
    return encode_pass(e, pass + 1, text + done, n - done);
}

/* --- the call ----------------------------------------------------------------------------------*/

static plait_status encoding_open(encoding *e, const plait_tokenizer *t)
{
    e->t = t;
    e->context = pcre2_match_context_create(NULL);
    e->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MOST, NULL);
    bool ok = e->context != NULL; /* no stack: no JIT in this build of PCRE2 */
    for (int32_t i = 0; i < t->num_splits; i++)
        ok = (e->match[i] = pcre2_match_data_create(1, NULL)) != NULL && ok;
    if (!ok)
        return plait_fail(PLAIT_E_NOMEM, "no memory to encode a text");
    if (e->stack)
        pcre2_jit_stack_assign(e->context, NULL, e->stack);
    return PLAIT_OK;
}

static void encoding_close(encoding *e)
{
    for (int32_t i = 0; i < e->t->num_splits; i++)
        pcre2_match_data_free(e->match[i]);
    pcre2_jit_stack_free(e->stack);
    pcre2_match_context_free(e->context);
    plait_ids_free_work(&e->out);
}

static plait_status encode_all(encoding *e, const unsigned char *text, size_t n, bool add_special)
{
    const plait_tokenizer *t = e->t;
    for (int32_t i = 0; add_special && i < t->num_prefix; i++)
        PLAIT_TRY(plait_ids_push(&e->out, t->prefix[i]));
    PLAIT_TRY(encode_pass(e, 0, text, n));
    for (int32_t i = 0; add_special && i < t->num_suffix; i++)
        PLAIT_TRY(plait_ids_push(&e->out, t->suffix[i]));
    return PLAIT_OK;
}

plait_status plait_tokenizer_encode(const plait_tokenizer *tokenizer, const char *text,
                                    size_t bytes, bool add_special, int32_t **ids, size_t *n)
{
    encoding e = {0};
    *ids = NULL;
    *n = 0;
    if (bytes > INT32_MAX / 2)
        return plait_fail(PLAIT_E_ARG, "a text of %zu bytes; at most %d can be encoded at once",
                          bytes, INT32_MAX / 2);
    plait_status status = encoding_open(&e, tokenizer);
    if (status == PLAIT_OK)
        status = encode_all(&e, (const unsigned char *)text, bytes, add_special);
    encoding_close(&e);
    if (status != PLAIT_OK) {
        free(e.out.ids);
        return status;
    }
    *ids = e.out.ids;
    *n = e.out.count;
    return PLAIT_OK;
}
