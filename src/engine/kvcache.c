/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache.c: pools of pages, page tables, promises, writes. */
#include "engine/kvcache.h"

#include <assert.h>
#include <string.h>

#include <plait/kv.h>

#include "core/status.h"

static size_t token_bytes(const plait_kv_group *g)
{
    return (size_t)g->width * plait_dtype_bytes(g->dtype);
}

int64_t plait_kv_page_bytes(const plait_kv_group *g)
{
    return (int64_t)g->num_layers * g->page_size * (int64_t)token_bytes(g);
}

/* ---- the pool -------------------------------------------------------------------------------- */

static void free_memory(plait_kv_group *g)
{
    plait_mem_free(g->allocator, g->pool, g->pool_bytes);
    plait_arena_free(&g->arena, g->allocator);
}

void plait_kv_close(plait_kv_group *g)
{
    free_memory(g);
    plait_plan_close(&g->plan);
    memset(g, 0, sizeof *g);
}

static void lay_out(plait_arena *arena, plait_kv_group *g)
{
    const size_t pages = (size_t)g->num_pages, tables = (size_t)g->num_tables;
    g->requests = plait_arena_take(arena, tables, sizeof *g->requests);
    g->tables = plait_arena_take(arena, tables, (size_t)g->table_len * sizeof *g->tables);
    g->held = plait_arena_take(arena, pages, sizeof *g->held);
    g->listed = plait_arena_take(arena, pages, sizeof *g->listed);
    g->free_pages = plait_arena_take(arena, pages, sizeof *g->free_pages);
    plait_kv_prefix_lay_out(arena, g);
}

static plait_status allocate(plait_kv_group *g)
{
    g->arena = (plait_arena){0};
    g->pool = NULL;
    g->pool_bytes = (size_t)g->num_pages * (size_t)plait_kv_page_bytes(g);
    lay_out(&g->arena, g);
    PLAIT_TRY(plait_arena_reserve(&g->arena, g->allocator, "page tables"));
    lay_out(&g->arena, g);
    if (g->pool_bytes == 0)
        return PLAIT_OK;
    const plait_status status =
        plait_mem_alloc(g->allocator, g->pool_bytes, "KV cache", (void **)&g->pool);
    if (status == PLAIT_OK)
        return PLAIT_OK;
    plait_arena_free(&g->arena, g->allocator);
    return plait_fail(status, "no memory for a KV cache of %d pages of %lld bytes: %zu bytes",
                      (int)g->num_pages, (long long)plait_kv_page_bytes(g), g->pool_bytes);
}

/* Moves the pages and units of `old` to the larger pool. */
static void take_over(plait_kv_group *g, const plait_kv_group *old)
{
    const size_t page = (size_t)g->page_size * token_bytes(g);
    const int32_t first = old->num_pages;
    for (int32_t l = 0; l < g->num_layers && first > 0; l++)
        memcpy(plait_kv_layer(g, l), plait_kv_layer(old, l), (size_t)first * page);
    memset(g->held, 0, (size_t)g->num_pages * sizeof *g->held);
    memset(g->listed, 0, (size_t)g->num_pages * sizeof *g->listed);
    g->num_free = 0;
    /* Taken from the end: what was free before goes first, then new pages from the lowest on. */
    for (int32_t i = g->num_pages - 1; i >= first; i--)
        g->free_pages[g->num_free++] = i;
    for (int32_t i = 0; i < old->num_free; i++)
        g->free_pages[g->num_free++] = old->free_pages[i];
    if (first > 0)
        memcpy(g->listed, old->listed, (size_t)first * sizeof *g->listed);
    for (int32_t i = 0; i < g->num_tables; i++)
        g->requests[i] = (plait_kv_table){.last_unit = -1};
    memset(g->tables, 0xff, (size_t)(g->table_len * g->num_tables) * sizeof *g->tables);
    plait_kv_prefix_fill(g, &old->prefix);
}

plait_status plait_kv_reserve(plait_kv_group *g, int64_t pages, int32_t requests,
                              int64_t max_length)
{
    const int64_t table_len = plait_shard_pages(g->shard, max_length, g->page_size);
    assert(g->num_held == 0 && g->num_promised == 0);
    if (pages <= g->num_pages && requests <= g->num_tables && table_len <= g->table_len)
        return PLAIT_OK;
    if (pages > INT32_MAX)
        return plait_fail(PLAIT_E_NOMEM, "%lld pages in one cache, at most 2^31 - 1 are possible",
                          (long long)pages);
    plait_kv_group more = *g;
    more.num_pages = pages > g->num_pages ? (int32_t)pages : g->num_pages;
    more.num_tables = requests > g->num_tables ? requests : g->num_tables;
    more.table_len = table_len > g->table_len ? table_len : g->table_len;
    plait_kv_prefix_size(&more);
    PLAIT_TRY(allocate(&more));
    take_over(&more, g);
    free_memory(g);
    *g = more;
    return PLAIT_OK;
}

/* ---- tables ---------------------------------------------------------------------------------- */

void plait_kv_hold(plait_kv_group *g, int32_t page)
{
    g->num_held += g->held[page]++ == 0;
}

void plait_kv_drop(plait_kv_group *g, int32_t page)
{
    if (--g->held[page] > 0)
        return;
    g->num_held--;
    if (g->listed[page] == 0)
        g->free_pages[g->num_free++] = page;
}

int32_t plait_kv_take(plait_kv_group *g)
{
    while (g->num_free == 0 && plait_kv_evict(g)) {
    }
    assert(g->num_free > 0);
    return g->free_pages[--g->num_free];
}

/* Pages that nobody holds or may still take; those of units without users count. */
static int64_t unpromised(const plait_kv_group *g)
{
    return g->num_pages - g->num_held - g->num_promised;
}

int plait_kv_fits(const plait_kv_group *g, int64_t length)
{
    return plait_shard_pages(g->shard, length, g->page_size) <= unpromised(g);
}

void plait_kv_promise(plait_kv_group *g, int32_t table, int64_t length)
{
    plait_kv_table *t = &g->requests[table];
    assert(t->used == 0 && t->promised == 0 && plait_kv_fits(g, length));
    t->promised = (int32_t)plait_shard_pages(g->shard, length, g->page_size);
    g->num_promised += t->promised;
}

plait_status plait_kv_resize(plait_kv_group *g, int32_t table, int64_t length)
{
    const int64_t want = plait_shard_pages(g->shard, length, g->page_size);
    plait_kv_table *t = &g->requests[table];
    int32_t *pages = g->tables + table * g->table_len;
    if (want > g->table_len || want - t->used > t->promised + unpromised(g))
        return plait_fail(PLAIT_E_NOMEM, "%lld tokens need %lld pages, %lld are free",
                          (long long)length, (long long)want,
                          (long long)(t->promised + unpromised(g)));
    while (t->used < want) {
        const int32_t kept = t->promised > 0;
        pages[t->used] = plait_kv_take(g);
        plait_kv_hold(g, pages[t->used++]);
        t->promised -= kept;
        g->num_promised -= kept;
    }
    while (t->used > want) {
        plait_kv_drop(g, pages[--t->used]);
        pages[t->used] = -1;
        t->promised++;
        g->num_promised++;
    }
    return PLAIT_OK;
}

void plait_kv_leave(plait_kv_group *g, int32_t table)
{
    plait_kv_table *t = &g->requests[table];
    int32_t *pages = g->tables + table * g->table_len;
    plait_kv_prefix_leave(g, table);
    while (t->used > 0) {
        plait_kv_drop(g, pages[--t->used]);
        pages[t->used] = -1;
    }
    g->num_promised -= t->promised;
    *t = (plait_kv_table){.last_unit = -1};
}

int64_t plait_kv_used_bytes(const plait_kv_group *g)
{
    return g->num_held * plait_kv_page_bytes(g);
}

/* ---- values ---------------------------------------------------------------------------------- */

unsigned char *plait_kv_layer(const plait_kv_group *g, int32_t layer)
{
    return g->pool + (size_t)layer * (size_t)g->num_pages * (size_t)g->page_size * token_bytes(g);
}

plait_status plait_kv_write(const plait_kv_group *g, int32_t layer, const int64_t *slot,
                            const float *values, int32_t n)
{
    plait_kv_append_args args = PLAIT_KV_APPEND_ARGS_INIT;
    args.num_rows = n;
    args.d_qk = g->width;
    args.page_size = g->page_size;
    args.num_pages = g->num_pages;
    args.slot = slot;
    args.k = values;
    args.k_row_stride = g->width;
    args.k_cache = plait_kv_layer(g, layer);
    args.kv_dtype = g->dtype;
    args.k_token_stride = g->width;
    args.k_page_stride = (int64_t)g->page_size * g->width;
    return plait_kv_append(&args);
}
