/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache.c: pools of pages, page tables, writes. */
#include "engine/kvcache.h"

#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "core/status.h"

static size_t token_bytes(const plait_kv_group *g)
{
    return (size_t)g->width * plait_dtype_bytes(g->dtype);
}

int64_t plait_kv_page_bytes(const plait_kv_group *g)
{
    return (int64_t)g->num_layers * g->page_size * (int64_t)token_bytes(g);
}

void plait_kv_release(plait_kv_group *g)
{
    free(g->pool);
    free(g->tables);
    free(g->used);
    free(g->free_pages);
    g->pool = NULL;
    g->tables = g->used = g->free_pages = NULL;
    g->num_pages = g->num_tables = g->num_free = 0;
}

void plait_kv_close(plait_kv_group *g)
{
    plait_kv_release(g);
    plait_plan_close(&g->plan);
}

plait_status plait_kv_reserve(plait_kv_group *g, int64_t pages, int32_t requests,
                              int64_t max_length)
{
    plait_kv_release(g);
    if (pages > INT32_MAX)
        return plait_fail(PLAIT_E_NOMEM, "%lld pages in one cache, at most 2^31 - 1 are possible",
                          (long long)pages);
    g->table_len = plait_shard_pages(g->shard, max_length, g->page_size);
    g->pool = aligned_alloc(64, ((size_t)pages * (size_t)plait_kv_page_bytes(g) + 127) / 64 * 64);
    g->tables = malloc((size_t)(g->table_len * requests + 1) * sizeof *g->tables);
    g->used = calloc((size_t)requests, sizeof *g->used);
    g->free_pages = malloc((size_t)(pages + 1) * sizeof *g->free_pages);
    if (!g->pool || !g->tables || !g->used || !g->free_pages) {
        plait_kv_release(g);
        return plait_fail(PLAIT_E_NOMEM, "no memory for a KV cache of %lld bytes",
                          (long long)(pages * plait_kv_page_bytes(g)));
    }
    g->num_pages = g->num_free = (int32_t)pages;
    g->num_tables = requests;
    memset(g->tables, 0xff, (size_t)(g->table_len * requests) * sizeof *g->tables);
    /* Taken from the end: page 0 goes first. */
    for (int32_t i = 0; i < g->num_free; i++)
        g->free_pages[i] = g->num_free - 1 - i;
    return PLAIT_OK;
}

plait_status plait_kv_resize(plait_kv_group *g, int32_t table, int64_t length)
{
    const int64_t want = plait_shard_pages(g->shard, length, g->page_size);
    int32_t *pages = g->tables + table * g->table_len;
    if (want > g->table_len || want - g->used[table] > g->num_free)
        return plait_fail(PLAIT_E_NOMEM, "%lld tokens need %lld pages, %d are free",
                          (long long)length, (long long)want, (int)g->num_free);
    while (g->used[table] < want)
        pages[g->used[table]++] = g->free_pages[--g->num_free];
    while (g->used[table] > want) {
        g->free_pages[g->num_free++] = pages[--g->used[table]];
        pages[g->used[table]] = -1;
    }
    return PLAIT_OK;
}

int64_t plait_kv_used_bytes(const plait_kv_group *g)
{
    return (int64_t)(g->num_pages - g->num_free) * plait_kv_page_bytes(g);
}

unsigned char *plait_kv_layer(const plait_kv_group *g, int32_t layer)
{
    return g->pool + (size_t)layer * (size_t)g->num_pages * (size_t)g->page_size * token_bytes(g);
}

void plait_kv_write(const plait_kv_group *g, int32_t layer, int64_t slot, const float *values)
{
    if (slot < 0)
        return;
    unsigned char *to = plait_kv_layer(g, layer) + (size_t)slot * token_bytes(g);
    if (g->dtype == PLAIT_F32) {
        memcpy(to, values, token_bytes(g));
        return;
    }
    for (int32_t i = 0; i < g->width; i++)
        ((uint16_t *)(void *)to)[i] = plait_bf16_from_f32(values[i]);
}
