/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/stop.h - text of a sequence as its tokens become known, and the stop texts that end it.
 *
 * Text is matched byte by byte, so that it does not matter how tokens arrive or where they end.
 * The stop text that is complete first ends the output, of several the longest; the cut is where it
 * begins. A token is final once its text begins before bytes that no stop text can take back;
 * tokens that begin at the cut or after it are dropped.
 */
#ifndef PLAIT_ENGINE_STOP_H
#define PLAIT_ENGINE_STOP_H

#include "engine/tokenizer.h"

enum { PLAIT_STOP_TEXTS = 64, PLAIT_STOP_BYTES = 4096 };

/* Stop texts of one request, read only. The texts stay the caller's. */
typedef struct plait_stops {
    int32_t num;
    const char *const *texts;
    int32_t *lengths; /* [num] */
    int32_t **border; /* [num][length] of each prefix: its longest proper prefix that ends it too */
} plait_stops;

/* PLAIT_E_ARG names `request` and the text that is empty, too long or no UTF-8. */
plait_status plait_stops_open(const char *const *texts, int32_t num, int32_t request,
                              plait_stops *stops);
void plait_stops_close(plait_stops *stops);

/* Zero-initialise. */
typedef struct plait_reader {
    plait_text_stream ahead, behind;   /* of the tokens that were read, of those that are final */
    int64_t num_read, num_final;       /* tokens */
    int64_t text_bytes;                /* that are final */
    int64_t behind_bytes;              /* of text before the token after the final ones */
    int32_t matched[PLAIT_STOP_TEXTS]; /* bytes of each stop text that the text ends with */
    int32_t held, holder;              /* the most of them, and whose */
} plait_reader;

/* Text that became final. */
typedef struct plait_text_buffer {
    char *text;    /* plait_reader_room bytes for all tokens that are pushed until it is emptied */
    char *scratch; /* plait_tokenizer_max_push bytes */
    size_t bytes;
} plait_text_buffer;

size_t plait_reader_room(const plait_tokenizer *tokenizer, int32_t num_tokens);

/* Reads ids[num_read]. Adds the text that becomes final to out. *cut: 1 when a stop text is
   complete; nothing is to be read after it. */
plait_status plait_reader_push(plait_reader *reader, const plait_stops *stops,
                               const plait_tokenizer *tokenizer, const int32_t *ids,
                               plait_text_buffer *out, int32_t *cut);

/* No more tokens come: the rest is final, unless its last character completes a stop text. */
plait_status plait_reader_finish(plait_reader *reader, const plait_stops *stops,
                                 const plait_tokenizer *tokenizer, const int32_t *ids,
                                 plait_text_buffer *out, int32_t *cut);

#endif
