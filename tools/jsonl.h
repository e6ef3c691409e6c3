/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/jsonl.h - reads requests from JSON Lines: an object a line with
 *     prompt (text, needed), max_new_tokens, stop (text or list of texts), temperature, top_k,
 *     top_p, seed
 * What a line does not give has the default. Blank lines are skipped. A file with a line that is
 * wrong is refused whole, so that nothing runs by half; the sentences name line, key and value.
 */
#ifndef PLAIT_TOOLS_JSONL_H
#define PLAIT_TOOLS_JSONL_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { PLAIT_LINE_STOPS = 64 };

typedef struct plait_line {
    int64_t number; /* of the line, from 1 */
    char *prompt;   /* may hold NUL bytes */
    size_t prompt_bytes;
    int32_t max_new_tokens;
    const char **stops; /* [num_stops] */
    int32_t num_stops;
    int own_stops; /* 1: of the line, 0: the defaults' */
    double temperature, top_p;
    int32_t top_k;
    uint64_t seed;
} plait_line;

typedef struct plait_lines {
    plait_line *lines;
    int32_t n;
} plait_lines;

/* Reads `bytes` of text. Returns 0, or -1 after at most ten sentences on `errors`, each begun with
   `name` and the line. defaults: what lines do not give; its prompt is not used. */
int plait_lines_read(const char *text, size_t bytes, const char *name, const plait_line *defaults,
                     FILE *errors, plait_lines *out);
void plait_lines_free(plait_lines *lines);

#endif
