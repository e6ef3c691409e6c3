/* SPDX-License-Identifier: Apache-2.0 */
/* stop.c: matches stop texts as text comes, and says which text and tokens are final. */
#include "engine/stop.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "engine/tokenizer_parts.h"

/* ---- stop texts ------------------------------------------------------------------------------ */

static int is_utf8(const char *text, size_t n)
{
    size_t length = 0;
    for (size_t i = 0; i < n; i += length) {
        if (plait_utf8_next((const unsigned char *)text + i, n - i, &length) != PLAIT_UTF8_VALID)
            return 0;
    }
    return 1;
}

/* Bytes that stay matched when `byte` follows `matched` bytes of text t. */
static int32_t advance(const plait_stops *s, int32_t t, int32_t matched, char byte)
{
    while (matched && s->texts[t][matched] != byte)
        matched = s->border[t][matched - 1];
    return matched + (s->texts[t][matched] == byte);
}

static plait_status add_text(plait_stops *s, int32_t t, int32_t request)
{
    const char *text = s->texts[t];
    const size_t n = text ? strlen(text) : 0;
    if (n == 0 || n > PLAIT_STOP_BYTES)
        return plait_fail(PLAIT_E_ARG, "request %d: stop text %d has %zu bytes, wanted 1 to %d",
                          (int)request, (int)t, n, PLAIT_STOP_BYTES);
    if (!is_utf8(text, n))
        return plait_fail(PLAIT_E_ARG, "request %d: stop text %d is no UTF-8", (int)request,
                          (int)t);
    s->border[t] = calloc(n, sizeof **s->border);
    if (!s->border[t])
        return plait_fail(PLAIT_E_NOMEM, "no memory for stop texts");
    s->lengths[t] = (int32_t)n;
    for (size_t i = 1; i < n; i++)
        s->border[t][i] = advance(s, t, s->border[t][i - 1], text[i]);
    return PLAIT_OK;
}

plait_status plait_stops_open(const char *const *texts, int32_t num, int32_t request,
                              plait_stops *s)
{
    memset(s, 0, sizeof *s);
    if (num == 0)
        return PLAIT_OK;
    if (num < 0 || num > PLAIT_STOP_TEXTS || !texts)
        return plait_fail(PLAIT_E_ARG, "request %d: %d stop texts, at most %d are possible",
                          (int)request, (int)num, PLAIT_STOP_TEXTS);
    s->texts = texts;
    s->lengths = calloc((size_t)num, sizeof *s->lengths);
    s->border = calloc((size_t)num, sizeof *s->border);
    s->num = s->border ? num : 0;
    plait_status status = PLAIT_OK;
    if (!s->lengths || !s->border)
        status = plait_fail(PLAIT_E_NOMEM, "no memory for stop texts");
    for (int32_t t = 0; t < num && status == PLAIT_OK; t++)
        status = add_text(s, t, request);
    if (status != PLAIT_OK)
        plait_stops_close(s);
    return status;
}

void plait_stops_close(plait_stops *s)
{
    for (int32_t t = 0; t < s->num; t++)
        free(s->border[t]);
    free(s->border);
    free(s->lengths);
    memset(s, 0, sizeof *s);
}

/* ---- reading --------------------------------------------------------------------------------- */

size_t plait_reader_room(const plait_tokenizer *tokenizer, int32_t num_tokens)
{
    return plait_tokenizer_max_push(tokenizer) * (size_t)num_tokens + PLAIT_STOP_BYTES + 3;
}

static void put(plait_reader *r, plait_text_buffer *out, const char *text, int32_t n)
{
    memcpy(out->text + out->bytes, text, (size_t)n);
    out->bytes += (size_t)n;
    r->text_bytes += n;
}

/* One byte of text. What was held and can be part of no stop text any more is final. */
static int32_t read_byte(plait_reader *r, const plait_stops *s, char byte, plait_text_buffer *out)
{
    int32_t complete = 0, held = 0, holder = 0;
    for (int32_t t = 0; t < s->num; t++) {
        const int32_t matched = r->matched[t] = advance(s, t, r->matched[t], byte);
        if (matched == s->lengths[t] && matched > complete)
            complete = matched;
        if (matched > held) {
            held = matched;
            holder = t;
        }
    }
    /* The text ended with r->held bytes that begin the old holder; then comes this byte. */
    held = complete ? complete : held;
    const int32_t gone = r->held + 1 - held;
    if (gone > 0 && r->held > 0)
        put(r, out, s->texts[r->holder], gone < r->held ? gone : r->held);
    if (gone > r->held)
        put(r, out, &byte, 1);
    r->held = held;
    r->holder = holder;
    return complete > 0;
}

/* Counts the tokens whose text begins before the end of what is final. */
static plait_status count_finals(plait_reader *r, const plait_stops *s,
                                 const plait_tokenizer *tokenizer, const int32_t *ids,
                                 char *scratch)
{
    if (s->num == 0)
        r->num_final = r->num_read;
    while (r->num_final < r->num_read && r->behind_bytes < r->text_bytes) {
        size_t n;
        PLAIT_TRY(plait_text_stream_push(&r->behind, tokenizer, ids[r->num_final], true, scratch,
                                         plait_tokenizer_max_push(tokenizer), &n));
        r->behind_bytes += (int64_t)n;
        r->num_final++;
    }
    return PLAIT_OK;
}

/* The n bytes of out's scratch become text. */
static plait_status read_text(plait_reader *r, const plait_stops *s,
                              const plait_tokenizer *tokenizer, const int32_t *ids, size_t n,
                              plait_text_buffer *out, int32_t *cut)
{
    *cut = 0;
    for (size_t i = 0; i < n && !*cut; i++)
        *cut = read_byte(r, s, out->scratch[i], out);
    return count_finals(r, s, tokenizer, ids, out->scratch);
}

plait_status plait_reader_push(plait_reader *r, const plait_stops *s,
                               const plait_tokenizer *tokenizer, const int32_t *ids,
                               plait_text_buffer *out, int32_t *cut)
{
    size_t n;
    PLAIT_TRY(plait_text_stream_push(&r->ahead, tokenizer, ids[r->num_read++], true, out->scratch,
                                     plait_tokenizer_max_push(tokenizer), &n));
    return read_text(r, s, tokenizer, ids, n, out, cut);
}

plait_status plait_reader_finish(plait_reader *r, const plait_stops *s,
                                 const plait_tokenizer *tokenizer, const int32_t *ids,
                                 plait_text_buffer *out, int32_t *cut)
{
    const size_t n = plait_text_stream_finish(&r->ahead, out->scratch);
    PLAIT_TRY(read_text(r, s, tokenizer, ids, n, out, cut));
    if (*cut)
        return PLAIT_OK;
    if (r->held)
        put(r, out, s->texts[r->holder], r->held);
    r->held = 0;
    r->num_final = r->num_read;
    return PLAIT_OK;
}
