/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/tokenizer_parts.h - what the files of the tokenizer share: tokenizer.c reads the file,
 * tokenizer_bpe.c merges, tokenizer_encode.c splits text, tokenizer_text.c turns ids to text.
 *
 * Byte-level BPE writes each byte as one printable character. Here tokens are plain bytes: the
 * mapping is undone once, when the file is read.
 */
#ifndef PLAIT_ENGINE_TOKENIZER_PARTS_H
#define PLAIT_ENGINE_TOKENIZER_PARTS_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/tokenizer.h"

enum { PLAIT_MAX_SPLITS = 16, PLAIT_MAX_TEMPLATE = 8, PLAIT_MAX_TOKEN_ID = 1 << 22 };

typedef struct plait_token {
    char *bytes; /* NULL: no token has this id */
    size_t length;
    bool special;
} plait_token;

/* A token that is found in the text before anything is split. */
typedef struct plait_added {
    char *text; /* as written, not as decoded */
    size_t length;
    int32_t id;
    bool lstrip, rstrip, normalized;
} plait_added;

typedef struct plait_merge_pair {
    int32_t left, right; /* left < 0: a free slot */
    int32_t rank, id;
} plait_merge_pair;

typedef struct plait_bpe {
    plait_merge_pair *pairs; /* open addressing, a power of two of slots */
    size_t num_pair_slots;
    int32_t *slots; /* by bytes of the token; -1: free */
    size_t num_slots;
    int32_t byte_id[256];
    bool ignore_merges; /* a piece that is a token is not merged */
} plait_bpe;

typedef struct plait_split {
    pcre2_code *code;
    bool invert, remove; /* which pieces are matches; whether matches are dropped */
} plait_split;

struct plait_tokenizer {
    plait_token *tokens;
    int32_t vocab_size;
    size_t max_length; /* of a token, in bytes */
    plait_bpe bpe;
    plait_added *added; /* sorted by pass, first byte, then longest first */
    size_t num_added;
    size_t added_first[2][257]; /* [normalized][byte]: where its tokens begin */
    plait_split splits[PLAIT_MAX_SPLITS];
    int32_t num_splits;
    int32_t prefix[PLAIT_MAX_TEMPLATE], num_prefix, suffix[PLAIT_MAX_TEMPLATE], num_suffix;
};

/* Ids that grow, and the memory of one call's merges. Zero-initialise. */
typedef struct plait_ids {
    int32_t *ids;
    size_t count, capacity;
    int32_t *part, *prev, *next;
    uint64_t *heap;
    size_t work;
} plait_ids;

plait_status plait_ids_push(plait_ids *out, int32_t id);
void plait_ids_free_work(plait_ids *out);

/* Empty tables for so many tokens and merges. */
plait_status plait_bpe_reserve(plait_bpe *bpe, size_t tokens, size_t merges);
void plait_bpe_free(plait_bpe *bpe);
int32_t plait_bpe_find(const plait_bpe *bpe, const plait_token *tokens, const char *bytes,
                       size_t length);
/* Adds tokens[id]; E_FORMAT if another token has the same bytes. */
plait_status plait_bpe_add(plait_bpe *bpe, const plait_token *tokens, int32_t id);
/* Adds a merge; a later one of the same pair replaces an earlier one, as in `tokenizers`. */
void plait_bpe_add_merge(plait_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id);
/* Merges a piece of text and appends its ids. */
plait_status plait_bpe_encode(const plait_bpe *bpe, const plait_token *tokens,
                              const unsigned char *piece, size_t n, plait_ids *out);

typedef enum plait_utf8 { PLAIT_UTF8_VALID, PLAIT_UTF8_ILL, PLAIT_UTF8_SHORT } plait_utf8;

/* Looks at the character that begins at text, n > 0. *length: bytes of the character, of its
   maximal ill-formed part, or n when all of it may begin a character. */
plait_utf8 plait_utf8_next(const unsigned char *text, size_t n, size_t *length);

#endif
