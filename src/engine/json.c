/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"

plait_status plait_path_join(char *path, size_t capacity, const char *dir, const char *file)
{
    const int n = snprintf(path, capacity, "%s/%s", dir, file);
    if (n < 0 || (size_t)n >= capacity)
        return plait_fail(PLAIT_E_ARG, "the path %.40s.../%s is longer than %zu bytes", dir, file,
                          capacity - 1);
    return PLAIT_OK;
}

static plait_status read_open(FILE *file, const char *path, size_t max_bytes, char **text,
                              size_t *bytes)
{
    struct stat info;
    if (fstat(fileno(file), &info) != 0)
        return plait_fail(PLAIT_E_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return plait_fail(PLAIT_E_IO, "%s is not a regular file", path);
    const uint64_t size = (uint64_t)info.st_size;
    if (size > max_bytes)
        return plait_fail(PLAIT_E_FORMAT, "%s has %llu bytes; at most %zu are read", path,
                          (unsigned long long)size, max_bytes);
    char *buffer = malloc((size_t)size + 1);
    if (!buffer)
        return plait_fail(PLAIT_E_NOMEM, "no memory for the %llu bytes of %s",
                          (unsigned long long)size, path);
    if (fread(buffer, 1, (size_t)size, file) != (size_t)size) {
        free(buffer);
        return plait_fail(PLAIT_E_IO, "%s: fewer than its %llu bytes could be read", path,
                          (unsigned long long)size);
    }
    buffer[size] = 0;
    *text = buffer;
    *bytes = (size_t)size;
    return PLAIT_OK;
}

plait_status plait_file_read(const char *path, size_t max_bytes, char **text, size_t *bytes)
{
    *text = NULL;
    *bytes = 0;
    FILE *file = fopen(path, "rbe");
    if (!file)
        return plait_fail(PLAIT_E_IO, "%s: %s", path, strerror(errno));
    const plait_status status = read_open(file, path, max_bytes, text, bytes);
    fclose(file);
    return status;
}

plait_status plait_json_parse(const char *text, size_t bytes, const char *name, cJSON **root)
{
    const char *end = text;
    *root = NULL;
    cJSON *parsed = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
    if (!parsed)
        return plait_fail(PLAIT_E_FORMAT, "%s is not valid JSON: stopped at byte %zu of %zu", name,
                          (size_t)(end - text), bytes);
    for (; end < text + bytes; end++)
        if (!strchr(" \t\r\n", *end) || !*end) {
            cJSON_Delete(parsed);
            return plait_fail(PLAIT_E_FORMAT, "%s has more text after its JSON value, at byte %zu",
                              name, (size_t)(end - text));
        }
    if (!cJSON_IsObject(parsed)) {
        cJSON_Delete(parsed);
        return plait_fail(PLAIT_E_FORMAT, "%s does not hold a JSON object", name);
    }
    *root = parsed;
    return PLAIT_OK;
}

plait_status plait_json_load(const char *path, size_t max_bytes, cJSON **root)
{
    char *text;
    size_t bytes;
    *root = NULL;
    PLAIT_TRY(plait_file_read(path, max_bytes, &text, &bytes));
    const plait_status status = plait_json_parse(text, bytes, path, root);
    free(text);
    return status;
}

bool plait_json_whole(const cJSON *item, int64_t least, int64_t most, int64_t *value)
{
    if (!cJSON_IsNumber(item))
        return false;
    const double x = item->valuedouble;
    if (!(x >= (double)least && x <= (double)most) || floor(x) != x)
        return false;
    *value = (int64_t)x;
    return true;
}

bool plait_json_is(const cJSON *item, const char *text)
{
    return cJSON_IsString(item) && strcmp(item->valuestring, text) == 0;
}

bool plait_json_key(const cJSON *item, const char *key)
{
    return item->string && strcmp(item->string, key) == 0;
}

const cJSON *plait_json_get(const cJSON *object, const char *key)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, object) if (plait_json_key(item, key)) return item;
    return NULL;
}

const char *plait_json_show(const cJSON *item, char text[PLAIT_JSON_SHOW])
{
    if (!item)
        snprintf(text, PLAIT_JSON_SHOW, "nothing");
    else if (cJSON_IsNumber(item))
        snprintf(text, PLAIT_JSON_SHOW, "%.17g", item->valuedouble);
    else if (cJSON_IsString(item))
        snprintf(text, PLAIT_JSON_SHOW, "\"%.48s\"", item->valuestring);
    else if (cJSON_IsBool(item))
        snprintf(text, PLAIT_JSON_SHOW, "%s", cJSON_IsTrue(item) ? "true" : "false");
    else
        snprintf(text, PLAIT_JSON_SHOW, "%s",
                 cJSON_IsArray(item)    ? "a list"
                 : cJSON_IsObject(item) ? "an object"
                                        : "null");
    return text;
}
