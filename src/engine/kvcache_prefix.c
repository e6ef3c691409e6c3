/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache_prefix.c: units of tokens with their pages, found by what led to them. */
#include <assert.h>
#include <string.h>

#include "engine/kvcache.h"

/* ---- keys ------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

/* Where a chain of hashes begins: KV of another layout is other KV. */
static uint64_t layout_hash(const plait_kv_group *g)
{
    const int32_t fields[] = {g->shard.d, g->shard.i, g->page_size,      g->num_layers,
                              g->width,   g->ahead,   (int32_t)g->dtype, 1};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        hash = mix(hash, (uint32_t)fields[i]);
    return hash;
}

/* The hash of a unit from that of its parent; the tokens ahead of it do not count. */
static uint64_t unit_hash(const plait_kv_group *g, int32_t parent, const int32_t *ids)
{
    uint64_t hash = parent < 0 ? layout_hash(g) : g->prefix.units[parent].hash;
    for (int64_t i = 0; i < g->prefix.unit_tokens; i++)
        hash = mix(hash, (uint32_t)ids[i]);
    return hash;
}

static int32_t *tokens_of(const plait_kv_group *g, int32_t unit)
{
    return g->prefix.tokens + unit * (g->prefix.unit_tokens + g->ahead);
}

static int32_t *pages_of(const plait_kv_group *g, int32_t unit)
{
    return g->prefix.pages + (int64_t)unit * g->prefix.unit_pages;
}

static int32_t *bucket_of(const plait_kv_group *g, uint64_t hash)
{
    return &g->prefix.buckets[hash & (uint64_t)(g->prefix.num_buckets - 1)];
}

/* The unit after `parent` with these tokens, the first `same` of which must be equal. Parents are
   compared as such, not by hash, so that by induction all tokens are compared. */
static int32_t find(const plait_kv_group *g, int32_t parent, const int32_t *ids, int64_t same)
{
    const uint64_t hash = unit_hash(g, parent, ids);
    for (int32_t u = *bucket_of(g, hash); u >= 0; u = g->prefix.units[u].next) {
        const plait_kv_unit *unit = &g->prefix.units[u];
        if (unit->hash == hash && unit->parent == parent &&
            !memcmp(tokens_of(g, u), ids, (size_t)same * sizeof *ids))
            return u;
    }
    return -1;
}

/* ---- units without users, by age ------------------------------------------------------------- */

static void retire(plait_kv_group *g, int32_t u)
{
    plait_kv_prefix *p = &g->prefix;
    p->units[u].older = p->newest;
    p->units[u].newer = -1;
    if (p->newest >= 0)
        p->units[p->newest].newer = u;
    else
        p->oldest = u;
    p->newest = u;
}

static void recall(plait_kv_group *g, int32_t u)
{
    plait_kv_prefix *p = &g->prefix;
    const plait_kv_unit *unit = &p->units[u];
    if (unit->older >= 0)
        p->units[unit->older].newer = unit->newer;
    else
        p->oldest = unit->newer;
    if (unit->newer >= 0)
        p->units[unit->newer].older = unit->older;
    else
        p->newest = unit->older;
}

int plait_kv_evict(plait_kv_group *g)
{
    plait_kv_prefix *p = &g->prefix;
    const int32_t u = p->oldest;
    if (p->num_units == 0 || u < 0)
        return 0;
    int32_t *at = bucket_of(g, p->units[u].hash);
    recall(g, u);
    while (*at != u)
        at = &p->units[*at].next;
    *at = p->units[u].next;
    p->units[u].next = p->free_unit;
    p->free_unit = u;
    for (int32_t i = 0; i < p->unit_pages; i++) {
        const int32_t page = pages_of(g, u)[i];
        if (--g->listed[page] == 0 && g->held[page] == 0)
            g->free_pages[g->num_free++] = page;
    }
    return 1;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void plait_kv_prefix_size(plait_kv_group *g)
{
    plait_kv_prefix *p = &g->prefix;
    p->unit_tokens = plait_shard_prefix_unit(g->shard, g->page_size);
    p->unit_pages = (int32_t)plait_shard_pages(g->shard, p->unit_tokens, g->page_size);
    p->num_units = g->caching ? g->num_pages / p->unit_pages : 0;
    for (p->num_buckets = 1; p->num_buckets < p->num_units;)
        p->num_buckets *= 2;
}

void plait_kv_prefix_lay_out(plait_arena *arena, plait_kv_group *g)
{
    plait_kv_prefix *p = &g->prefix;
    const size_t units = (size_t)p->num_units;
    p->units = plait_arena_take(arena, units, sizeof *p->units);
    p->tokens =
        plait_arena_take(arena, units, (size_t)(p->unit_tokens + g->ahead) * sizeof *p->tokens);
    p->pages = plait_arena_take(arena, units, (size_t)p->unit_pages * sizeof *p->pages);
    p->buckets = plait_arena_take(arena, (size_t)p->num_buckets, sizeof *p->buckets);
}

void plait_kv_prefix_fill(plait_kv_group *g, const plait_kv_prefix *old)
{
    plait_kv_prefix *p = &g->prefix;
    const int32_t kept = old->units ? old->num_units : 0;
    memset(p->buckets, 0xff, (size_t)p->num_buckets * sizeof *p->buckets);
    p->free_unit = kept ? old->free_unit : -1;
    p->oldest = kept ? old->oldest : -1;
    p->newest = kept ? old->newest : -1;
    if (kept) {
        memcpy(p->units, old->units, (size_t)kept * sizeof *p->units);
        memcpy(p->tokens, old->tokens,
               (size_t)kept * (size_t)(p->unit_tokens + g->ahead) * sizeof *p->tokens);
        memcpy(p->pages, old->pages, (size_t)kept * (size_t)p->unit_pages * sizeof *p->pages);
    }
    /* Between calls no unit has users: those in use are those that have an age. */
    for (int32_t u = p->oldest; u >= 0; u = p->units[u].newer) {
        int32_t *bucket = bucket_of(g, p->units[u].hash);
        p->units[u].next = *bucket;
        *bucket = u;
    }
    for (int32_t u = p->num_units - 1; u >= kept; u--) {
        p->units[u].next = p->free_unit;
        p->free_unit = u;
    }
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void use(plait_kv_group *g, int32_t table, int32_t u)
{
    plait_kv_table *t = &g->requests[table];
    if (g->prefix.units[u].users++ == 0)
        recall(g, u);
    t->last_unit = u;
    t->num_units++;
}

void plait_kv_prefix_leave(plait_kv_group *g, int32_t table)
{
    /* From the last to the first: parents are newer than their children. */
    for (int32_t u = g->requests[table].last_unit; u >= 0; u = g->prefix.units[u].parent) {
        if (--g->prefix.units[u].users == 0)
            retire(g, u);
    }
}

static void add_page(plait_kv_group *g, int32_t table, int32_t page)
{
    plait_kv_table *t = &g->requests[table];
    g->tables[table * g->table_len + t->used++] = page;
    t->promised--;
    g->num_promised--;
}

/* Adds a copy of a page; where no other page is left, the page itself, whose unit was given up. */
static void add_copy(plait_kv_group *g, int32_t table, int32_t page)
{
    plait_kv_hold(g, page);
    while (g->num_free == 0 && g->listed[page] > 0 && plait_kv_evict(g)) {
    }
    if (g->num_free > 0) {
        const size_t bytes = (size_t)(plait_kv_page_bytes(g) / g->num_layers);
        const int32_t copy = plait_kv_take(g);
        plait_kv_hold(g, copy);
        for (int32_t l = 0; l < g->num_layers; l++)
            memcpy(plait_kv_layer(g, l) + (size_t)copy * bytes,
                   plait_kv_layer(g, l) + (size_t)page * bytes, bytes);
        plait_kv_drop(g, page);
        page = copy;
    }
    add_page(g, table, page);
}

/* The units from the root on that ids [num] have in full. *last: the last of them. */
static int32_t match(const plait_kv_group *g, const int32_t *ids, int64_t num, int32_t *last)
{
    const int64_t tokens = g->prefix.unit_tokens;
    int32_t count = 0;
    *last = -1;
    while (g->prefix.num_units > 0 && (count + 1) * tokens + g->ahead <= num) {
        const int32_t u = find(g, *last, ids + count * tokens, tokens + g->ahead);
        if (u < 0)
            break;
        *last = u;
        count++;
    }
    return count;
}

/* Gives the table the units up to token `length`: found ones down from `last`, number `count`. The
   page of the last index is a copy if `renew`; then `after` is its unit. */
static void attach(plait_kv_group *g, int32_t table, int64_t length, int32_t count, int32_t last,
                   int32_t after, int renew)
{
    const int32_t want = (int32_t)(length / g->prefix.unit_tokens) - renew;
    int32_t *pages = g->tables + table * g->table_len;
    const int32_t n = g->prefix.unit_pages;
    for (; count > want; count--) {
        after = last;
        last = g->prefix.units[last].parent;
    }
    /* Held from the end on; used in order from the first. */
    for (int32_t u = last, i = want; u >= 0; u = g->prefix.units[u].parent) {
        i--;
        memcpy(pages + (int64_t)i * n, pages_of(g, u), (size_t)n * sizeof *pages);
        if (g->prefix.units[u].users++ == 0)
            recall(g, u);
    }
    plait_kv_table *t = &g->requests[table];
    t->last_unit = last;
    t->num_units = want;
    for (int32_t i = 0; i < want * n; i++) {
        plait_kv_hold(g, pages[i]);
        add_page(g, table, pages[i]);
    }
    for (int32_t i = 0; renew && i < n - 1; i++) {
        plait_kv_hold(g, pages_of(g, after)[i]);
        add_page(g, table, pages_of(g, after)[i]);
    }
    if (renew)
        add_copy(g, table, pages_of(g, after)[n - 1]);
    t->num_final = length - renew;
}

int64_t plait_kv_reuse(plait_kv_group *target, plait_kv_group *draft, int32_t table,
                       const int32_t *ids, int64_t num, int64_t *start)
{
    int32_t last, draft_last = -1, after = -1, draft_count = 0;
    int32_t count = match(target, ids, num - 1, &last);
    *start = 0;
    if (draft && count > 0) {
        const int64_t tokens = draft->prefix.unit_tokens;
        draft_count = match(draft, ids, num, &draft_last);
        if ((draft_count + 1) * tokens < num)
            after = find(draft, draft_last, ids + draft_count * tokens, tokens);
    }
    for (int32_t k = count; k > 0; k--) {
        const int64_t length = k * target->prefix.unit_tokens;
        const int64_t units = draft ? length / draft->prefix.unit_tokens : 0;
        const int renew = draft && units == draft_count + 1 && after >= 0;
        if (draft && (length % draft->prefix.unit_tokens || (units > draft_count && !renew)))
            continue;
        attach(target, table, length, count, last, -1, renew);
        if (draft)
            attach(draft, table, length, draft_count, draft_last, after, renew);
        *start = length - renew;
        return length;
    }
    return 0;
}

/* A unit for these tokens with the table's pages, or -1. */
static int32_t add_unit(plait_kv_group *g, int32_t table, const int32_t *ids)
{
    plait_kv_prefix *p = &g->prefix;
    const plait_kv_table *t = &g->requests[table];
    if (p->free_unit < 0 && !plait_kv_evict(g))
        return -1;
    const int32_t u = p->free_unit;
    plait_kv_unit *unit = &p->units[u];
    p->free_unit = unit->next;
    *unit = (plait_kv_unit){.hash = unit_hash(g, t->last_unit, ids), .parent = t->last_unit};
    int32_t *bucket = bucket_of(g, unit->hash);
    unit->next = *bucket;
    *bucket = u;
    memcpy(tokens_of(g, u), ids, (size_t)(p->unit_tokens + g->ahead) * sizeof *ids);
    memcpy(pages_of(g, u), g->tables + table * g->table_len + (int64_t)t->num_units * p->unit_pages,
           (size_t)p->unit_pages * sizeof(int32_t));
    for (int32_t i = 0; i < p->unit_pages; i++)
        g->listed[pages_of(g, u)[i]]++;
    retire(g, u);
    return u;
}

/* Another request had the same tokens first: its pages serve both. */
static void share(plait_kv_group *g, int32_t table, int32_t u)
{
    int32_t *pages = g->tables + table * g->table_len +
                     (int64_t)g->requests[table].num_units * g->prefix.unit_pages;
    for (int32_t i = 0; i < g->prefix.unit_pages; i++) {
        const int32_t own = pages[i];
        plait_kv_hold(g, pages_of(g, u)[i]);
        pages[i] = pages_of(g, u)[i];
        plait_kv_drop(g, own);
    }
}

int plait_kv_reaches(const plait_kv_group *g, int32_t table, int64_t end)
{
    return g->prefix.num_units > 0 &&
           (g->requests[table].num_units + 1) * g->prefix.unit_tokens <= end;
}

void plait_kv_commit(plait_kv_group *g, int32_t table, const int32_t *ids, int64_t begin,
                     int64_t end)
{
    plait_kv_table *t = &g->requests[table];
    /* After a gap nothing more of this request is kept. */
    if (begin <= t->num_final && end > t->num_final)
        t->num_final = end;
    while (plait_kv_reaches(g, table, t->num_final)) {
        const int32_t *at = ids + t->num_units * g->prefix.unit_tokens;
        int32_t u = find(g, t->last_unit, at, g->prefix.unit_tokens + g->ahead);
        if (u >= 0)
            share(g, table, u);
        else
            u = add_unit(g, table, at);
        if (u < 0)
            return;
        use(g, table, u);
    }
}
