/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/tokenizer.h - tokenizer.json: byte-level BPE with a regular-expression split and added
 * tokens. Immutable after open, so any number of threads may use one.
 */
#ifndef PLAIT_ENGINE_TOKENIZER_H
#define PLAIT_ENGINE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <plait/status.h>

typedef struct plait_tokenizer plait_tokenizer;

/* Reads DIR/tokenizer.json (and add_bos_token, bos_token of DIR/tokenizer_config.json where it is
   there). E_UNSUPPORTED names the part that this tokenizer does not implement. */
plait_status plait_tokenizer_open(const char *dir, plait_tokenizer **out);
void plait_tokenizer_close(plait_tokenizer **tokenizer);

/* Largest token id + 1. */
int32_t plait_tokenizer_vocab_size(const plait_tokenizer *tokenizer);

/* The id of a token by its exact text (an added token or a byte-level BPE token's bytes), -1. */
int32_t plait_tokenizer_find(const plait_tokenizer *tokenizer, const char *text, size_t bytes);

bool plait_tokenizer_is_special(const plait_tokenizer *tokenizer, int32_t id);

/* Encodes any bytes: what is no UTF-8 becomes byte tokens. add_special: with the BOS (and EOS) of
   the post-processor. *ids is the caller's, to be freed with free(); NULL when *n is 0. */
plait_status plait_tokenizer_encode(const plait_tokenizer *tokenizer, const char *text,
                                    size_t bytes, bool add_special, int32_t **ids, size_t *n);

/* Decodes to UTF-8, ended by a NUL that *bytes does not count; each maximal ill-formed part
   becomes U+FFFD. skip_special leaves special tokens out. Ids that are no token give no text
   (models may have more ids than their tokenizer). *text is the caller's, to be freed with free().
 */
plait_status plait_tokenizer_decode(const plait_tokenizer *tokenizer, const int32_t *ids, size_t n,
                                    bool skip_special, char **text, size_t *bytes);

/*
 * Decoding as tokens arrive: what push and finish give, one after the other, is what
 * plait_tokenizer_decode gives for all the ids. A character whose bytes span tokens is held until
 * it is complete. Zero-initialise; does not allocate.
 */
typedef struct plait_text_stream {
    unsigned char held[4];
    int32_t num_held;
} plait_text_stream;

/* Largest number of bytes that one push can give (finish gives at most 3). */
size_t plait_tokenizer_max_push(const plait_tokenizer *tokenizer);

/* Writes the text that `id` completes to out, without a NUL, and its length to *bytes. capacity
   must be at least plait_tokenizer_max_push(). */
plait_status plait_text_stream_push(plait_text_stream *stream, const plait_tokenizer *tokenizer,
                                    int32_t id, bool skip_special, char *out, size_t capacity,
                                    size_t *bytes);

/* Ends the text: an incomplete tail gives one U+FFFD, once. Returns the bytes written, 0 or 3. */
size_t plait_text_stream_finish(plait_text_stream *stream, char out[3]);

#endif
