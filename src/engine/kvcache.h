/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/kvcache.h - a KV group of one rank: some layers' latent cache under one geometry.
 *
 * The target's layers are one group, the draft layer is another; each has its own geometry, pages
 * and tables, and nothing of one is used for the other. Page ids are the same on all ranks because
 * every rank takes the same decisions in the same order.
 */
#ifndef PLAIT_ENGINE_KVCACHE_H
#define PLAIT_ENGINE_KVCACHE_H

#include <stddef.h>
#include <stdint.h>

#include <plait/dtype.h>
#include <plait/plan.h>
#include <plait/shard.h>
#include <plait/status.h>

typedef struct plait_kv_group {
    plait_shard shard;
    int32_t num_layers, width, page_size; /* width: values of one token, latent and rope */
    plait_dtype dtype;
    int32_t num_pages;   /* of the pool */
    int32_t num_tables;  /* requests */
    int64_t table_len;   /* entries of one request's table */
    plait_plan *plan;    /* of this group's batches; closed with the group */
    unsigned char *pool; /* [num_layers][num_pages][page_size][width] */
    int32_t *tables;     /* [num_tables][table_len] */
    int32_t *used;       /* [num_tables] pages of each request */
    int32_t *free_pages; /* [num_free] */
    int32_t num_free;
} plait_kv_group;

/* Bytes of one page in all layers of the group. */
int64_t plait_kv_page_bytes(const plait_kv_group *group);

/* Makes room for `pages` pages and `requests` tables of sequences up to max_length; all pages are
   free afterwards. The geometry, layers, width, page size and dtype must be set. */
plait_status plait_kv_reserve(plait_kv_group *group, int64_t pages, int32_t requests,
                              int64_t max_length);
/* Frees pages and tables; reserve may follow. */
void plait_kv_release(plait_kv_group *group);
void plait_kv_close(plait_kv_group *group);

/* Gives request `table` the pages that `length` tokens need: takes more, or gives back the rest. */
plait_status plait_kv_resize(plait_kv_group *group, int32_t table, int64_t length);

/* Bytes in pages that requests hold now. */
int64_t plait_kv_used_bytes(const plait_kv_group *group);

/* First byte of a layer's pages. */
unsigned char *plait_kv_layer(const plait_kv_group *group, int32_t layer);

/* Writes one token's values to `slot` of a layer; -1 writes nothing (another rank holds it). */
void plait_kv_write(const plait_kv_group *group, int32_t layer, int64_t slot, const float *values);

#endif
