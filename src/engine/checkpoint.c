/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint is one table of tensors, sorted by name, over one or more mapped files. With an
 * index, the index decides: every tensor that it names must be in the file that it names, and what
 * it does not name is not there.
 */
#include "engine/checkpoint.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/status.h"
#include "engine/checkpoint_table.h"
#include "engine/json.h"

enum { MAX_INDEX_BYTES = 256 << 20 };

typedef struct index_entry {
    const char *tensor, *file; /* in the JSON tree */
} index_entry;

static int by_file(const void *a, const void *b)
{
    return strcmp(((const index_entry *)a)->file, ((const index_entry *)b)->file);
}

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const index_entry *)a)->tensor, ((const index_entry *)b)->tensor);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const plait_tensor *)a)->name, ((const plait_tensor *)b)->name);
}

/* --- the index ---------------------------------------------------------------------------------*/

static plait_status read_entries(const cJSON *map, const char *path, index_entry **entries,
                                 size_t *count)
{
    const cJSON *item;
    size_t n = 0;
    cJSON_ArrayForEach(item, map) n++;
    if (n == 0)
        return plait_fail(PLAIT_E_FORMAT, "%s: the weight_map names no tensors", path);
    *entries = malloc(n * sizeof **entries);
    if (!*entries)
        return plait_fail(PLAIT_E_NOMEM, "no memory for the %zu entries of %s", n, path);
    cJSON_ArrayForEach(item, map)
    {
        char shown[PLAIT_JSON_SHOW];
        /* A file of the same folder: an index must not lead anywhere else. */
        if (!cJSON_IsString(item) || !*item->valuestring || strchr(item->valuestring, '/'))
            return plait_fail(PLAIT_E_FORMAT, "%s: tensor %.200s is in %s; wanted a file name",
                              path, item->string, plait_json_show(item, shown));
        (*entries)[(*count)++] = (index_entry){item->string, item->valuestring};
    }
    qsort(*entries, n, sizeof **entries, by_tensor);
    for (size_t i = 1; i < n; i++)
        if (by_tensor(&(*entries)[i - 1], &(*entries)[i]) == 0)
            return plait_fail(PLAIT_E_FORMAT, "%s: tensor %.200s is there twice", path,
                              (*entries)[i].tensor);
    return PLAIT_OK;
}

/* entries are sorted by file. Copies the distinct file names into the checkpoint. */
static plait_status collect_files(plait_checkpoint *c, const index_entry *entries, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        n += i == 0 || by_file(&entries[i - 1], &entries[i]) != 0;
    c->names = calloc(n, sizeof *c->names);
    c->files = calloc(n, sizeof *c->files);
    if (!c->names || !c->files)
        return plait_fail(PLAIT_E_NOMEM, "no memory for %zu shards", n);
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && by_file(&entries[i - 1], &entries[i]) == 0)
            continue;
        c->names[c->num_files] = strdup(entries[i].file);
        if (!c->names[c->num_files])
            return plait_fail(PLAIT_E_NOMEM, "no memory for %zu shards", n);
        c->num_files++;
    }
    return PLAIT_OK;
}

/* Lists what is missing before anything is opened, so that one download completes the folder. */
static plait_status check_missing(const plait_checkpoint *c, const char *dir)
{
    char path[PATH_MAX], list[640] = "";
    size_t missing = 0, used = 0;
    for (size_t i = 0; i < c->num_files; i++) {
        PLAIT_TRY(plait_path_join(path, sizeof path, dir, c->names[i]));
        if (access(path, F_OK) == 0)
            continue;
        missing++;
        const int n =
            snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", c->names[i]);
        if (n > 0 && (size_t)n < sizeof list - used)
            used += (size_t)n;
        else
            list[used] = 0; /* the count still tells */
    }
    if (missing)
        return plait_fail(PLAIT_E_IO, "%.400s: %zu of %zu shards are missing: %s", dir, missing,
                          c->num_files, list);
    return PLAIT_OK;
}

/* --- joining the files -------------------------------------------------------------------------*/

static plait_status open_files(plait_checkpoint *c, const char *dir)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < c->num_files; i++) {
        PLAIT_TRY(plait_path_join(path, sizeof path, dir, c->names[i]));
        PLAIT_TRY(plait_safetensors_open(path, &c->files[i]));
    }
    return PLAIT_OK;
}

static plait_status build_table(plait_checkpoint *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->num_files; i++)
        n += c->files[i].count;
    c->tensors = malloc((n + 1) * sizeof *c->tensors);
    if (!c->tensors)
        return plait_fail(PLAIT_E_NOMEM, "no memory for the table of %zu tensors", n);
    for (size_t i = 0; i < c->num_files; i++)
        for (size_t t = 0; t < c->files[i].count; t++) {
            c->tensors[c->count] = c->files[i].tensors[t];
            c->tensors[c->count++].file = i;
        }
    qsort(c->tensors, c->count, sizeof *c->tensors, by_name);
    for (size_t i = 1; i < c->count; i++)
        if (by_name(&c->tensors[i - 1], &c->tensors[i]) == 0)
            return plait_fail(PLAIT_E_FORMAT, "tensor %.200s is there twice: in %.100s and %.100s",
                              c->tensors[i].name, c->names[c->tensors[i - 1].file],
                              c->names[c->tensors[i].file]);
    return PLAIT_OK;
}

/* Keeps the tensors that the index names; entries are sorted by tensor. */
static plait_status apply_index(plait_checkpoint *c, const index_entry *entries, size_t count)
{
    size_t kept = 0, t = 0;
    for (size_t i = 0; i < count; i++) {
        while (t < c->count && strcmp(c->tensors[t].name, entries[i].tensor) < 0)
            t++;
        if (t == c->count || strcmp(c->tensors[t].name, entries[i].tensor) != 0)
            return plait_fail(PLAIT_E_FORMAT,
                              "the index says that tensor %.200s is in %.100s, which lacks it",
                              entries[i].tensor, entries[i].file);
        if (strcmp(c->names[c->tensors[t].file], entries[i].file) != 0)
            return plait_fail(PLAIT_E_FORMAT,
                              "the index says that tensor %.200s is in %.100s; it is in %.100s",
                              entries[i].tensor, entries[i].file, c->names[c->tensors[t].file]);
        c->tensors[kept++] = c->tensors[t++];
    }
    if (kept < c->count)
        plait_notice("tensors that are in the checkpoint's files but not in its index are ignored");
    c->count = kept;
    return PLAIT_OK;
}

static plait_status open_indexed(plait_checkpoint *c, const char *dir, const char *path,
                                 const cJSON *root)
{
    const cJSON *map = plait_json_get(root, "weight_map");
    index_entry *entries = NULL;
    size_t count = 0;
    if (!cJSON_IsObject(map))
        return plait_fail(PLAIT_E_FORMAT, "%s has no weight_map object", path);
    plait_status status = read_entries(map, path, &entries, &count);
    if (status == PLAIT_OK) {
        qsort(entries, count, sizeof *entries, by_file);
        status = collect_files(c, entries, count);
        qsort(entries, count, sizeof *entries, by_tensor);
    }
    if (status == PLAIT_OK)
        status = check_missing(c, dir);
    if (status == PLAIT_OK)
        status = open_files(c, dir);
    if (status == PLAIT_OK)
        status = build_table(c);
    if (status == PLAIT_OK)
        status = apply_index(c, entries, count);
    free(entries);
    return status;
}

static plait_status open_single(plait_checkpoint *c, const char *dir)
{
    static const index_entry single = {"", "model.safetensors"};
    char path[PATH_MAX];
    PLAIT_TRY(plait_path_join(path, sizeof path, dir, single.file));
    if (access(path, F_OK) != 0)
        return plait_fail(PLAIT_E_IO,
                          "%.400s has neither model.safetensors.index.json nor model.safetensors",
                          dir);
    PLAIT_TRY(collect_files(c, &single, 1));
    PLAIT_TRY(open_files(c, dir));
    return build_table(c);
}

static plait_status open_all(plait_checkpoint *c, const char *dir)
{
    char path[PATH_MAX];
    cJSON *root;
    PLAIT_TRY(plait_path_join(path, sizeof path, dir, "model.safetensors.index.json"));
    if (access(path, F_OK) != 0)
        return open_single(c, dir);
    PLAIT_TRY(plait_json_load(path, MAX_INDEX_BYTES, &root));
    const plait_status status = open_indexed(c, dir, path, root);
    cJSON_Delete(root);
    return status;
}

plait_status plait_checkpoint_open(const char *dir, const plait_config *config,
                                   plait_checkpoint **out)
{
    *out = NULL;
    plait_checkpoint *c = calloc(1, sizeof *c);
    if (!c)
        return plait_fail(PLAIT_E_NOMEM, "no memory for a checkpoint");
    c->block_rows = config ? config->block_rows : 128;
    c->block_cols = config ? config->block_cols : 128;
    plait_status status = open_all(c, dir);
    if (status == PLAIT_OK) {
        c->used = calloc(c->count + 1, sizeof *c->used);
        if (!c->used)
            status = plait_fail(PLAIT_E_NOMEM, "no memory for a checkpoint");
    }
    if (status != PLAIT_OK)
        plait_checkpoint_close(&c);
    *out = c;
    return status;
}

void plait_checkpoint_close(plait_checkpoint **checkpoint)
{
    plait_checkpoint *c = *checkpoint;
    if (!c)
        return;
    for (size_t i = 0; i < c->num_files; i++) {
        plait_safetensors_close(&c->files[i]);
        free(c->names[i]);
    }
    free(c->names);
    free(c->files);
    free(c->tensors);
    free(c->used);
    free(c);
    *checkpoint = NULL;
}

/* --- look-up -----------------------------------------------------------------------------------*/

const plait_tensor *plait_checkpoint_find(const plait_checkpoint *c, const char *name)
{
    size_t low = 0, high = c->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, c->tensors[middle].name);
        if (order == 0)
            return &c->tensors[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

bool plait_checkpoint_has(const plait_checkpoint *checkpoint, const char *name)
{
    return plait_checkpoint_find(checkpoint, name) != NULL;
}

size_t plait_checkpoint_count(const plait_checkpoint *checkpoint)
{
    return checkpoint->count;
}

/* The layer in "model.layers.N.rest", -1 for other names. */
static long layer_of(const char *name)
{
    static const char prefix[] = "model.layers.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return -1;
    char *end;
    const long layer = strtol(name + sizeof prefix - 1, &end, 10);
    return *end == '.' ? layer : -1;
}

void plait_checkpoint_finish(const plait_checkpoint *c, const plait_config *config)
{
    const plait_tensor *other = NULL;
    size_t beyond = 0, others = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (atomic_load_explicit(&c->used[i], memory_order_relaxed))
            continue;
        const long layer = layer_of(c->tensors[i].name);
        if (layer >= config->num_layers + config->num_mtp_layers) {
            beyond++;
        } else if (layer < config->num_layers) {
            other = other ? other : &c->tensors[i];
            others++;
        }
    }
    if (beyond)
        plait_notice("%zu tensors of layers beyond the %d layers and %d MTP layers of config.json "
                     "are ignored",
                     beyond, (int)config->num_layers, (int)config->num_mtp_layers);
    if (others)
        plait_notice("%zu tensors of the checkpoint are not used, the first is %.200s", others,
                     other->name);
}
