/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/json.h - writes JSON to a stream, one value after the other.
 *
 * Commas and nesting are kept here; a key precedes each value inside an object. Text that is not
 * UTF-8 comes out as U+FFFD for each maximal invalid part, numbers that JSON cannot hold as null.
 */
#ifndef PLAIT_TOOLS_JSON_H
#define PLAIT_TOOLS_JSON_H

#include <stdint.h>
#include <stdio.h>

typedef struct plait_emit {
    FILE *to;
    int need_comma;
} plait_emit;

void plait_emit_open(plait_emit *j, char bracket); /* '{' or '[' */
void plait_emit_close(plait_emit *j, char bracket);
void plait_emit_key(plait_emit *j, const char *key);
void plait_emit_text(plait_emit *j, const char *text);
void plait_emit_text_n(plait_emit *j, const char *text, size_t n);
void plait_emit_int(plait_emit *j, int64_t value);
void plait_emit_number(plait_emit *j, double value);
void plait_emit_bool(plait_emit *j, int value);

/* Bytes of the UTF-8 character at text (n > 0 bytes), or -k when its first k bytes are no
   character: a wrong, overlong, surrogate or cut sequence. */
int plait_json_character(const char *text, size_t n);

#endif
