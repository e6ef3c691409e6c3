/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/kvcache.h - a KV group of one rank: some layers' latent cache under one geometry.
 *
 * The target's layers are one group, the draft layer is another; each has its own geometry, pages
 * and tables, and nothing of one is used for the other. Page ids are the same on all ranks because
 * every rank takes the same decisions in the same order.
 *
 * The pool outlives requests. A page may be in the tables of several requests, and in units of the
 * prefix cache: a unit is plait_shard_prefix_unit tokens with final KV, found again by the tokens
 * up to its end. Units make a tree by their parents. A request that has a unit has all units before
 * it, too, so that a unit that nobody has has no child that somebody has; such units are given up
 * oldest first, children before parents, when pages run out.
 *
 * KV at index i of a draft layer depends on token i + 1 as well (`ahead`). A unit of such a group
 * therefore holds one token more, and one that differs in this token alone still serves, if the KV
 * of its last index is computed anew: in a copy of the page.
 */
#ifndef PLAIT_ENGINE_KVCACHE_H
#define PLAIT_ENGINE_KVCACHE_H

#include <stddef.h>
#include <stdint.h>

#include <plait/dtype.h>
#include <plait/plan.h>
#include <plait/shard.h>
#include <plait/status.h>

#include "core/memory.h"

typedef struct plait_kv_unit {
    uint64_t hash;        /* of all tokens up to its end and the group's layout */
    int32_t parent;       /* the unit before it, -1: it is the first */
    int32_t users;        /* tables that have it */
    int32_t next;         /* in its bucket, or among free units; -1: none */
    int32_t older, newer; /* among units without users; -1: none */
} plait_kv_unit;

typedef struct plait_kv_prefix {
    int64_t unit_tokens;
    int32_t unit_pages;
    int32_t num_units; /* capacity; 0: no prefix cache */
    plait_kv_unit *units;
    int32_t *tokens;  /* [num_units][unit_tokens + ahead] */
    int32_t *pages;   /* [num_units][unit_pages] */
    int32_t *buckets; /* [num_buckets], a power of two */
    int32_t num_buckets, free_unit, oldest, newest;
} plait_kv_prefix;

/* One request's pages. */
typedef struct plait_kv_table {
    int32_t used;      /* pages in its table */
    int32_t promised;  /* pages that it may still take */
    int32_t num_units; /* units of the prefix cache that it has, the last of them, */
    int32_t last_unit; /* -1: none */
    int64_t num_final; /* indices from 0 on whose KV is final */
} plait_kv_table;

typedef struct plait_kv_group {
    plait_shard shard;
    int32_t num_layers, width, page_size; /* width: values of one token, latent and rope */
    plait_dtype dtype;
    int32_t ahead;   /* tokens after index i that its KV depends on: 0, or 1 for drafts */
    int32_t caching; /* 1: with a prefix cache */
    const plait_allocator *allocator;
    plait_plan *plan; /* of this group's batches; closed with the group */

    int32_t num_pages;   /* of the pool */
    int32_t num_tables;  /* requests */
    int64_t table_len;   /* entries of one request's table */
    unsigned char *pool; /* [num_layers][num_pages][page_size][width] */
    plait_kv_table *requests;
    int32_t *tables;      /* [num_tables][table_len] */
    int32_t *held;        /* [num_pages] tables that have the page */
    int32_t *listed;      /* [num_pages] units that have it */
    int32_t *free_pages;  /* [num_free] */
    int32_t num_free;     /* pages that neither a table nor a unit has */
    int32_t num_held;     /* pages that a table has */
    int64_t num_promised; /* pages that tables may still take */
    plait_kv_prefix prefix;
    plait_arena arena;
    size_t pool_bytes;
} plait_kv_group;

/* Bytes of one page in all layers of the group. */
int64_t plait_kv_page_bytes(const plait_kv_group *group);

/* Makes room for at least `pages` pages and `requests` tables of sequences up to max_length. What
   the prefix cache holds stays. No table may have pages. The fields up to allocator must be set. */
plait_status plait_kv_reserve(plait_kv_group *group, int64_t pages, int32_t requests,
                              int64_t max_length);
void plait_kv_close(plait_kv_group *group);

/* Whether the pages of `length` tokens are promised to nobody. */
int plait_kv_fits(const plait_kv_group *group, int64_t length);

/* Promises table the pages of `length` tokens, which must fit: taking them cannot fail later. */
void plait_kv_promise(plait_kv_group *group, int32_t table, int64_t length);

/* Gives request `table` the pages that `length` tokens need: takes more, or gives back the rest. */
plait_status plait_kv_resize(plait_kv_group *group, int32_t table, int64_t length);

/* Takes back all pages, units and promises of a table. */
void plait_kv_leave(plait_kv_group *group, int32_t table);

/* Bytes in pages that requests hold now. */
int64_t plait_kv_used_bytes(const plait_kv_group *group);

/* First byte of a layer's pages. */
unsigned char *plait_kv_layer(const plait_kv_group *group, int32_t layer);

/* Writes the values of n tokens [n][width] to their slots of a layer; -1: another rank holds it. */
plait_status plait_kv_write(const plait_kv_group *group, int32_t layer, const int64_t *slot,
                            const float *values, int32_t n);

/* ---- kvcache_prefix.c ------------------------------------------------------------------------ */

/*
 * Gives the empty table of a prompt `ids` [num] the longest prefix whose KV both groups have
 * (draft may be NULL), less than the prompt itself. Returns its length in tokens; *start is the
 * first index to compute: that length, or one less where a draft's last KV has to be made anew.
 */
int64_t plait_kv_reuse(plait_kv_group *target, plait_kv_group *draft, int32_t table,
                       const int32_t *ids, int64_t num, int64_t *start);

/* Says that the KV of indices [begin, end) of a table is final, so that whole units of it can be
   found from now on. ids [end + ahead] are the sequence's tokens. */
void plait_kv_commit(plait_kv_group *group, int32_t table, const int32_t *ids, int64_t begin,
                     int64_t end);

/* Whether final KV up to index `end` would complete a unit that the table does not have yet. */
int plait_kv_reaches(const plait_kv_group *group, int32_t table, int64_t end);

/* Gives up the oldest unit that no table has. Returns 0 if there is none. */
int plait_kv_evict(plait_kv_group *group);

/* Between kvcache.c and kvcache_prefix.c: the size of the prefix cache of a pool, its arrays, empty
   or with the units of a smaller one, and the end of a table's use of its units. */
void plait_kv_prefix_size(plait_kv_group *group);
void plait_kv_prefix_lay_out(plait_arena *arena, plait_kv_group *group);
void plait_kv_prefix_fill(plait_kv_group *group, const plait_kv_prefix *old);
void plait_kv_prefix_leave(plait_kv_group *group, int32_t table);

/* A page more or less in a table: kvcache.c. */
void plait_kv_hold(plait_kv_group *group, int32_t page);
void plait_kv_drop(plait_kv_group *group, int32_t page);
/* A page that no table has, from the free ones or the oldest unit. There must be one. */
int32_t plait_kv_take(plait_kv_group *group);

#endif
