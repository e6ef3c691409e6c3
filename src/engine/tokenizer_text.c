/* SPDX-License-Identifier: Apache-2.0 */
/* From ids to UTF-8 text, at once or as tokens arrive; one path, so both give the same text. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "engine/tokenizer_parts.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Table 3-7 of the Unicode Standard: what may follow each lead byte. */
plait_utf8 plait_utf8_next(const unsigned char *text, size_t n, size_t *length)
{
    const unsigned char lead = text[0];
    const size_t size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    *length = 1;
    if (lead >= 0x80 && (lead < 0xc2 || lead > 0xf4))
        return PLAIT_UTF8_ILL;
    for (; *length < size; ++*length) {
        if (*length == n)
            return PLAIT_UTF8_SHORT;
        if (text[*length] < low || text[*length] > high)
            return PLAIT_UTF8_ILL;
        low = 0x80;
        high = 0xbf;
    }
    return PLAIT_UTF8_VALID;
}

/* Adds one byte; writes what it completes to out and returns its length, at most 12. */
static size_t stream_byte(plait_text_stream *s, unsigned char byte, char *out)
{
    size_t written = 0;
    s->held[s->num_held++] = byte;
    while (s->num_held > 0) {
        size_t length;
        const plait_utf8 kind = plait_utf8_next(s->held, (size_t)s->num_held, &length);
        if (kind == PLAIT_UTF8_SHORT)
            break;
        const bool valid = kind == PLAIT_UTF8_VALID;
        memcpy(out + written, valid ? (const char *)s->held : replacement, valid ? length : 3);
        written += valid ? length : 3;
        s->num_held -= (int32_t)length;
        memmove(s->held, s->held + length, (size_t)s->num_held);
    }
    return written;
}

static const plait_token *token_of(const plait_tokenizer *t, int32_t id, bool skip_special)
{
    if (id < 0 || id >= t->vocab_size || !t->tokens[id].bytes ||
        (skip_special && t->tokens[id].special))
        return NULL;
    return &t->tokens[id];
}

size_t plait_tokenizer_max_push(const plait_tokenizer *tokenizer)
{
    return 3 * (tokenizer->max_length + 3); /* each byte, and each that was held, ill-formed */
}

plait_status plait_text_stream_push(plait_text_stream *stream, const plait_tokenizer *tokenizer,
                                    int32_t id, bool skip_special, char *out, size_t capacity,
                                    size_t *bytes)
{
    *bytes = 0;
    if (capacity < plait_tokenizer_max_push(tokenizer))
        return plait_fail(PLAIT_E_ARG, "room for %zu bytes of text; wanted at least %zu", capacity,
                          plait_tokenizer_max_push(tokenizer));
    const plait_token *token = token_of(tokenizer, id, skip_special);
    for (size_t i = 0; token && i < token->length; i++)
        *bytes += stream_byte(stream, (unsigned char)token->bytes[i], out + *bytes);
    return PLAIT_OK;
}

size_t plait_text_stream_finish(plait_text_stream *stream, char out[3])
{
    const size_t n = stream->num_held > 0 ? 3 : 0;
    memcpy(out, replacement, n);
    stream->num_held = 0;
    return n;
}

plait_status plait_tokenizer_decode(const plait_tokenizer *tokenizer, const int32_t *ids, size_t n,
                                    bool skip_special, char **text, size_t *bytes)
{
    plait_text_stream stream = {{0}, 0};
    size_t room = 3 + 1, used = 0;
    *text = NULL;
    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const plait_token *token = token_of(tokenizer, ids[i], skip_special);
        room += token ? 3 * token->length : 0;
    }
    char *out = malloc(room);
    if (!out)
        return plait_fail(PLAIT_E_NOMEM, "no memory for the text of %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        const plait_token *token = token_of(tokenizer, ids[i], skip_special);
        for (size_t b = 0; token && b < token->length; b++)
            used += stream_byte(&stream, (unsigned char)token->bytes[b], out + used);
    }
    used += plait_text_stream_finish(&stream, out + used);
    out[used] = 0;
    *text = out;
    *bytes = used;
    return PLAIT_OK;
}
