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

typedef struct plait_json {
    FILE *to;
    int need_comma;
} plait_json;

void plait_json_open(plait_json *j, char bracket); /* '{' or '[' */
void plait_json_close(plait_json *j, char bracket);
void plait_json_key(plait_json *j, const char *key);
void plait_json_text(plait_json *j, const char *text);
void plait_json_text_n(plait_json *j, const char *text, size_t n);
void plait_json_int(plait_json *j, int64_t value);
void plait_json_number(plait_json *j, double value);
void plait_json_bool(plait_json *j, int value);

/* Bytes of the UTF-8 character at text (n > 0 bytes), or -k when its first k bytes are no
   character: a wrong, overlong, surrogate or cut sequence. */
int plait_utf8_next(const char *text, size_t n);

#endif
