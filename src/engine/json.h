/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/json.h - reading JSON files: bounded, checked, by iteration. cJSON parses; looking a key
 * up in a large object would be a linear search each time, so objects are walked once.
 */
#ifndef PLAIT_ENGINE_JSON_H
#define PLAIT_ENGINE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include <plait/status.h>

/* "DIR/file" into path; E_ARG when it does not fit. */
plait_status plait_path_join(char *path, size_t capacity, const char *dir, const char *file);

/* Reads a whole regular file of at most max_bytes. *text ends with a NUL that *bytes does not
   count and is to be freed with free(). */
plait_status plait_file_read(const char *path, size_t max_bytes, char **text, size_t *bytes);

/* Parses an object that fills the text; `name` is for error sentences. cJSON_Delete(*root). */
plait_status plait_json_parse(const char *text, size_t bytes, const char *name, cJSON **root);

/* plait_file_read, then plait_json_parse. */
plait_status plait_json_load(const char *path, size_t max_bytes, cJSON **root);

/* Whether item is a whole number in [least, most]; most is at most 2^53. */
bool plait_json_whole(const cJSON *item, int64_t least, int64_t most, int64_t *value);

/* Whether item is a string that equals `text`. */
bool plait_json_is(const cJSON *item, const char *text);

/* Whether item stands under `key` in its object. */
bool plait_json_key(const cJSON *item, const char *key);

/* The value under a key of a SMALL object, NULL if there is none. */
const cJSON *plait_json_get(const cJSON *object, const char *key);

/* A short form of a value for error sentences, in text. */
enum { PLAIT_JSON_SHOW = 64 };
const char *plait_json_show(const cJSON *item, char text[PLAIT_JSON_SHOW]);

#endif
