/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"
#include "engine/json.h"

enum { MAX_HEADER_BYTES = 100 << 20, MAX_RANK = 8, MAX_TENSORS = 1 << 22 };

/* Offsets are read from JSON numbers, which are doubles: exact up to here. */
static const int64_t max_offset = INT64_C(1) << 53;

typedef struct dtype_row {
    const char *name;
    size_t bytes;
    plait_tensor_type type;
} dtype_row;

static const dtype_row dtypes[] = {
    {"F32", 4, PLAIT_TENSOR_F32},       {"BF16", 2, PLAIT_TENSOR_BF16},
    {"F16", 2, PLAIT_TENSOR_F16},       {"F8_E4M3", 1, PLAIT_TENSOR_E4M3},
    {"F8_E5M2", 1, PLAIT_TENSOR_OTHER}, {"F8_E8M0", 1, PLAIT_TENSOR_OTHER},
    {"BOOL", 1, PLAIT_TENSOR_OTHER},    {"U8", 1, PLAIT_TENSOR_OTHER},
    {"I8", 1, PLAIT_TENSOR_OTHER},      {"U16", 2, PLAIT_TENSOR_OTHER},
    {"I16", 2, PLAIT_TENSOR_OTHER},     {"U32", 4, PLAIT_TENSOR_OTHER},
    {"I32", 4, PLAIT_TENSOR_OTHER},     {"U64", 8, PLAIT_TENSOR_OTHER},
    {"I64", 8, PLAIT_TENSOR_OTHER},     {"F64", 8, PLAIT_TENSOR_OTHER},
};

static plait_status parse_dtype(const char *name, const cJSON *tensor, const cJSON *item,
                                const dtype_row **row)
{
    char shown[PLAIT_JSON_SHOW];
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (plait_json_is(item, dtypes[i].name)) {
            *row = &dtypes[i];
            return PLAIT_OK;
        }
    return plait_fail(PLAIT_E_UNSUPPORTED,
                      "%s: tensor %.200s has dtype %s, which is not supported; supported: BF16, "
                      "F16, F32, F8_E4M3",
                      name, tensor->string, plait_json_show(item, shown));
}

/* Reads the shape and multiplies it into *elements. */
static plait_status parse_shape(const char *name, const cJSON *list, plait_tensor *t,
                                int64_t *elements)
{
    const cJSON *item;
    char shown[PLAIT_JSON_SHOW];
    int64_t n = 1;
    if (!cJSON_IsArray(list))
        return plait_fail(PLAIT_E_FORMAT, "%s: tensor %.200s has no shape list", name, t->name);
    cJSON_ArrayForEach(item, list)
    {
        int64_t dim;
        if (t->rank == MAX_RANK)
            return plait_fail(PLAIT_E_FORMAT, "%s: tensor %.200s has more than %d dimensions", name,
                              t->name, MAX_RANK);
        if (!plait_json_whole(item, 0, max_offset, &dim))
            return plait_fail(PLAIT_E_FORMAT,
                              "%s: tensor %.200s has a dimension of %s; wanted a whole number",
                              name, t->name, plait_json_show(item, shown));
        if (dim != 0 && n > max_offset / dim)
            return plait_fail(PLAIT_E_FORMAT, "%s: the shape of tensor %.200s overflows", name,
                              t->name);
        n *= dim;
        t->shape[t->rank++] = dim;
    }
    *elements = n;
    return PLAIT_OK;
}

static plait_status parse_offsets(const char *name, const cJSON *list, const char *tensor,
                                  int64_t *begin, int64_t *end)
{
    const cJSON *first = cJSON_IsArray(list) ? list->child : NULL;
    if (!first || !first->next || first->next->next ||
        !plait_json_whole(first, 0, max_offset, begin) ||
        !plait_json_whole(first->next, 0, max_offset, end) || *begin > *end)
        return plait_fail(
            PLAIT_E_FORMAT,
            "%s: data_offsets of tensor %.200s are not [begin, end] with begin <= end", name,
            tensor);
    return PLAIT_OK;
}

static plait_status parse_tensor(const char *name, const cJSON *item, const unsigned char *data,
                                 size_t data_bytes, plait_tensor *t)
{
    const cJSON *dtype = NULL, *shape = NULL, *offsets = NULL, *field;
    const dtype_row *row = NULL;
    int64_t elements = 0, begin = 0, end = 0;
    t->name = strdup(item->string);
    if (!t->name)
        return plait_fail(PLAIT_E_NOMEM, "no memory for the tensors of %s", name);
    cJSON_ArrayForEach(field, item)
    {
        if (plait_json_key(field, "dtype"))
            dtype = field;
        else if (plait_json_key(field, "shape"))
            shape = field;
        else if (plait_json_key(field, "data_offsets"))
            offsets = field;
    }
    PLAIT_TRY(parse_dtype(name, item, dtype, &row));
    PLAIT_TRY(parse_shape(name, shape, t, &elements));
    PLAIT_TRY(parse_offsets(name, offsets, t->name, &begin, &end));
    if (elements > max_offset / 8 || elements * (int64_t)row->bytes != end - begin)
        return plait_fail(PLAIT_E_FORMAT,
                          "%s: tensor %.200s has %lld bytes of data; its shape and %s want "
                          "%lld elements of %zu bytes",
                          name, t->name, (long long)(end - begin), row->name, (long long)elements,
                          row->bytes);
    if ((uint64_t)end > data_bytes)
        return plait_fail(PLAIT_E_IO,
                          "%s is truncated: tensor %.200s ends at byte %lld of the data, the file "
                          "has %zu",
                          name, t->name, (long long)end, data_bytes);
    t->dtype = row->name;
    t->type = row->type;
    t->bytes = (size_t)(end - begin);
    t->data = data + begin;
    return PLAIT_OK;
}

static int by_data(const void *a, const void *b)
{
    const plait_tensor *x = *(const plait_tensor *const *)a, *y = *(const plait_tensor *const *)b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* the empty one first */
}

static plait_status check_overlap(const char *name, const plait_safetensors *file)
{
    const plait_tensor **order = malloc((file->count + 1) * sizeof *order);
    plait_status status = PLAIT_OK;
    if (!order)
        return plait_fail(PLAIT_E_NOMEM, "no memory for the tensors of %s", name);
    for (size_t i = 0; i < file->count; i++)
        order[i] = &file->tensors[i];
    qsort(order, file->count, sizeof *order, by_data);
    for (size_t i = 1; i < file->count && status == PLAIT_OK; i++)
        if (order[i - 1]->data + order[i - 1]->bytes > order[i]->data)
            status = plait_fail(PLAIT_E_FORMAT, "%s: tensors %.100s and %.100s share bytes", name,
                                order[i - 1]->name, order[i]->name);
    free(order);
    return status;
}

static void free_tensors(plait_safetensors *file)
{
    for (size_t i = 0; i < file->count; i++)
        free(file->tensors[i].name);
    free(file->tensors);
    file->tensors = NULL;
    file->count = 0;
}

static plait_status parse_all(const cJSON *root, const unsigned char *data, size_t data_bytes,
                              const char *name, plait_safetensors *out)
{
    const cJSON *item;
    size_t n = 0;
    cJSON_ArrayForEach(item, root) n++;
    if (n > MAX_TENSORS)
        return plait_fail(PLAIT_E_FORMAT, "%s names %zu tensors; at most %d are read", name, n,
                          MAX_TENSORS);
    out->tensors = calloc(n + 1, sizeof *out->tensors);
    if (!out->tensors)
        return plait_fail(PLAIT_E_NOMEM, "no memory for the tensors of %s", name);
    cJSON_ArrayForEach(item, root)
    {
        if (plait_json_key(item, "__metadata__"))
            continue;
        PLAIT_TRY(parse_tensor(name, item, data, data_bytes, &out->tensors[out->count++]));
    }
    return check_overlap(name, out);
}

plait_status plait_safetensors_parse(const char *header, size_t header_bytes,
                                     const unsigned char *data, size_t data_bytes, const char *name,
                                     plait_safetensors *out)
{
    cJSON *root;
    out->tensors = NULL;
    out->count = 0;
    PLAIT_TRY(plait_json_parse(header, header_bytes, name, &root));
    const plait_status status = parse_all(root, data, data_bytes, name, out);
    cJSON_Delete(root);
    if (status != PLAIT_OK)
        free_tensors(out);
    return status;
}

static plait_status map_file(int fd, const char *path, plait_safetensors *out)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return plait_fail(PLAIT_E_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return plait_fail(PLAIT_E_IO, "%s is not a regular file", path);
    if (info.st_size < 8)
        return plait_fail(PLAIT_E_IO, "%s is truncated: %lld bytes; the header alone has over 8",
                          path, (long long)info.st_size);
    void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return plait_fail(PLAIT_E_IO, "%s cannot be mapped: %s", path, strerror(errno));
    out->map = map;
    out->map_bytes = (size_t)info.st_size;
    return PLAIT_OK;
}

static plait_status parse_map(const char *path, plait_safetensors *out)
{
    const unsigned char *map = out->map;
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--)
        header = header << 8 | map[i];
    if (header > MAX_HEADER_BYTES)
        return plait_fail(PLAIT_E_FORMAT,
                          "%s: the header length is %llu; wanted at most %d (no safetensors file?)",
                          path, (unsigned long long)header, MAX_HEADER_BYTES);
    if (header > out->map_bytes - 8)
        return plait_fail(PLAIT_E_IO, "%s is truncated: %zu bytes, its header ends at byte %llu",
                          path, out->map_bytes, (unsigned long long)header + 8);
    return plait_safetensors_parse((const char *)map + 8, (size_t)header, map + 8 + header,
                                   out->map_bytes - 8 - (size_t)header, path, out);
}

plait_status plait_safetensors_open(const char *path, plait_safetensors *out)
{
    memset(out, 0, sizeof *out);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return plait_fail(PLAIT_E_IO, "%s: %s", path, strerror(errno));
    plait_status status = map_file(fd, path, out);
    close(fd); /* the map stays */
    if (status == PLAIT_OK)
        status = parse_map(path, out);
    if (status != PLAIT_OK)
        plait_safetensors_close(out);
    return status;
}

void plait_safetensors_close(plait_safetensors *file)
{
    free_tensors(file);
    if (file->map)
        munmap(file->map, file->map_bytes);
    memset(file, 0, sizeof *file);
}
