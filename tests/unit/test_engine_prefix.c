/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix cache. Pages alone: hit lengths against the formula, and random runs of requests whose
 * every reused value is compared with what its tokens give. With the model: text and hits.
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <plait/engine.h>

#include "engine/kvcache.h"

typedef struct layout {
    int32_t page, interleave, dcp, draft; /* draft: 0 none, 1 sharded, 2 replicated */
} layout;

static const layout layouts[] = {
    {16, 1, 1, 0}, {16, 1, 4, 0},  {16, 1, 4, 1}, {16, 1, 4, 2}, {8, 3, 2, 1}, {8, 3, 2, 2},
    {4, 6, 3, 1},  {64, 16, 1, 1}, {1, 1, 1, 1},  {5, 1, 2, 2},  {6, 4, 1, 2}, {16, 16, 2, 0},
};
#define NUM_LAYOUTS ((int)(sizeof layouts / sizeof *layouts))

enum { TABLES = 4, LONGEST = 400, MAX_RANKS = 4 };

/* The groups of one rank. */
struct caches {
    plait_kv_group target, draft;
    plait_kv_group *drafts; /* NULL: none */
};

static void open_caches(struct caches *c, const layout *l, int32_t rank, int64_t length,
                        int32_t caching)
{
    memset(c, 0, sizeof *c);
    c->target.shard = (plait_shard){l->dcp, rank, l->interleave};
    c->target.num_layers = 2;
    c->target.width = 1;
    c->target.page_size = l->page;
    c->target.dtype = PLAIT_F32;
    c->target.caching = caching;
    assert_int_equal(plait_kv_reserve(&c->target,
                                      plait_shard_pages(c->target.shard, length, l->page), TABLES,
                                      LONGEST),
                     PLAIT_OK);
    if (!l->draft)
        return;
    c->draft.shard = c->target.shard;
    if (l->draft == 2)
        c->draft.shard.d = 1, c->draft.shard.r = 0;
    c->draft.num_layers = 1;
    c->draft.width = 1;
    c->draft.page_size = l->page;
    c->draft.dtype = PLAIT_F32;
    c->draft.caching = caching;
    c->draft.ahead = 1;
    c->drafts = &c->draft;
    assert_int_equal(plait_kv_reserve(&c->draft, plait_shard_pages(c->draft.shard, length, l->page),
                                      TABLES, LONGEST),
                     PLAIT_OK);
}

static void close_caches(struct caches *c)
{
    plait_kv_close(&c->target);
    plait_kv_close(&c->draft);
}

/* What the KV of an index stands for, all tokens up to it and those ahead, as a hash that goes on
   from that of the index before. */
static uint32_t value_next(uint32_t hash, int32_t id)
{
    return hash * 31u + (uint32_t)id * 2654435761u;
}

/* The hash of a layer before the first index. */
static uint32_t value_start(const plait_kv_group *g, int32_t layer, const int32_t *ids)
{
    uint32_t hash = (uint32_t)layer * 77u + 1;
    for (int32_t j = 0; j < g->ahead; j++)
        hash = value_next(hash, ids[j]);
    return hash;
}

static float value_of(uint32_t hash)
{
    return (float)(hash >> 9);
}

static float *place_of(const plait_kv_group *g, int32_t table, int64_t i, int32_t layer)
{
    const int64_t slot = plait_shard_slot(g->shard, i, g->tables + table * g->table_len,
                                          g->requests[table].used, g->page_size);
    return slot < 0 ? NULL : (float *)(void *)plait_kv_layer(g, layer) + slot;
}

static void write_rows(plait_kv_group *g, int32_t table, const int32_t *ids, int64_t begin,
                       int64_t end)
{
    assert_int_equal(plait_kv_resize(g, table, end), PLAIT_OK);
    for (int32_t l = 0; l < g->num_layers; l++) {
        uint32_t hash = value_start(g, l, ids);
        for (int64_t i = 0; i < end; i++) {
            hash = value_next(hash, ids[i + g->ahead]);
            float *at = i < begin ? NULL : place_of(g, table, i, l);
            if (at)
                *at = value_of(hash);
        }
    }
}

static void check_rows(const plait_kv_group *g, int32_t table, const int32_t *ids, int64_t end)
{
    for (int32_t l = 0; l < g->num_layers; l++) {
        uint32_t hash = value_start(g, l, ids);
        for (int64_t i = 0; i < end; i++) {
            hash = value_next(hash, ids[i + g->ahead]);
            if (plait_shard_owner(g->shard, i) != g->shard.r)
                continue;
            const float *at = place_of(g, table, i, l);
            assert_non_null(at);
            if (*at != value_of(hash))
                fail_msg("index %d of table %d holds other tokens' KV (page %d, I %d, D %d)",
                         (int)i, (int)table, (int)g->page_size, (int)g->shard.i, (int)g->shard.d);
        }
    }
}

static int64_t num_renewed; /* hits whose last draft KV was made anew */

/* Admits a prompt and computes it; token ids[num] is then known, too. Returns the hit. */
static int64_t admit(struct caches *c, int32_t table, const int32_t *ids, int64_t num,
                     int64_t length)
{
    int64_t start;
    plait_kv_promise(&c->target, table, length);
    if (c->drafts)
        plait_kv_promise(c->drafts, table, length);
    const int64_t hit = plait_kv_reuse(&c->target, c->drafts, table, ids, num, &start);
    assert_true(hit < num && (start == hit || (c->drafts && start == hit - 1)));
    num_renewed += start < hit;
    check_rows(&c->target, table, ids, start);
    if (c->drafts)
        check_rows(c->drafts, table, ids, start);
    write_rows(&c->target, table, ids, start, num);
    plait_kv_commit(&c->target, table, ids, start, num);
    if (c->drafts) {
        write_rows(c->drafts, table, ids, start, num);
        plait_kv_commit(c->drafts, table, ids, start, num);
    }
    return hit;
}

static void leave(struct caches *c, int32_t table)
{
    plait_kv_leave(&c->target, table);
    if (c->drafts)
        plait_kv_leave(c->drafts, table);
}

/* Prompts of 301 tokens that share exactly 0 .. 260: whole units, with or without drafts; in the
   example of case 12 (P 16, D 4, 150 tokens) 128. */
static void hits_are_whole_units_case12(void **state)
{
    (void)state;
    int32_t ids[LONGEST], other[LONGEST];
    for (int n = 0; n < NUM_LAYOUTS; n++) {
        const layout *l = &layouts[n];
        const plait_shard shard = {l->dcp, 0, l->interleave};
        const int64_t unit = plait_shard_prefix_unit(shard, l->page);
        for (int64_t shared = 0; shared <= 260; shared++) {
            struct caches c;
            open_caches(&c, l, (int32_t)(shared % l->dcp), 3 * LONGEST, 1);
            for (int32_t i = 0; i < LONGEST; i++) {
                ids[i] = 5 + i * 7 % 1000;
                other[i] = i < shared ? ids[i] : ids[i] + 1;
            }
            assert_int_equal(admit(&c, 0, ids, 301, 310), 0);
            assert_int_equal(admit(&c, 1, other, 301, 310), shared / unit * unit);
            if (l->page == 16 && l->dcp == 4 && shared == 150)
                assert_int_equal(shared / unit * unit, 128);
            /* Again, once its own units are there, and for a prompt that ends in a unit's end. */
            leave(&c, 0);
            assert_int_equal(admit(&c, 0, other, 301, 310), 300 / unit * unit);
            leave(&c, 0);
            leave(&c, 1);
            const int64_t whole = 301 / unit * unit;
            if (whole)
                assert_int_equal(admit(&c, 0, ids, whole, whole), whole - unit);
            leave(&c, 0);
            assert_int_equal(c.target.num_held + c.target.num_promised, 0);
            close_caches(&c);
        }
    }
}

/* KV that was written under another layout is never found, whichever part of it differs. */
static void another_layout_never_hits_case12(void **state)
{
    (void)state;
    int32_t ids[LONGEST];
    int64_t start;
    struct caches c;
    for (int32_t i = 0; i < LONGEST; i++)
        ids[i] = 5 + i * 7 % 1000;
    for (int field = 0; field < 6; field++) {
        open_caches(&c, &layouts[1], 0, LONGEST, 1);
        plait_kv_group *g = &c.target;
        assert_int_equal(admit(&c, 0, ids, 301, 310), 0);
        leave(&c, 0);
        const plait_kv_group was = *g;
        g->shard.d += field == 0; /* as --draft-kv changes it, too */
        g->shard.i += field == 1;
        g->page_size += field == 2;
        g->num_layers += field == 3;
        g->width += field == 4;
        g->dtype = field == 5 ? PLAIT_BF16 : g->dtype;
        assert_int_equal(plait_kv_reuse(g, NULL, 0, ids, 301, &start), 0);
        g->shard = was.shard;
        g->page_size = was.page_size;
        g->num_layers = was.num_layers;
        g->width = was.width;
        g->dtype = was.dtype;
        /* The same layout does. */
        assert_int_equal(admit(&c, 0, ids, 301, 310), 256);
        leave(&c, 0);
        close_caches(&c);
    }
}

static void no_hits_when_switched_off(void **state)
{
    (void)state;
    int32_t ids[LONGEST] = {0};
    struct caches c;
    open_caches(&c, &layouts[2], 0, LONGEST, 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(admit(&c, 0, ids, 300, 300), 0);
        leave(&c, 0);
    }
    assert_int_equal(c.target.num_free, c.target.num_pages);
    close_caches(&c);
}

/* A sequence of the random run. */
struct request {
    int32_t ids[LONGEST];
    int64_t known, limit; /* known 0: no request */
};

/* Prompts that begin alike at many lengths, often at a unit's end. */
static void make_prompt(struct request *q, int64_t unit)
{
    static const int32_t families = 3;
    const int32_t family = rand() % families;
    q->known = 2 + rand() % 200;
    q->limit = q->known + 1 + rand() % 60;
    int64_t turn = rand() % 2 ? rand() % 200 : unit * (1 + rand() % 4);
    for (int32_t i = 0; i < LONGEST; i++)
        q->ids[i] = i < turn ? 10 + family * 1000 + i % 90 : 7000 + rand() % 2;
}

/* One step of a request: some drafts, of which some are rejected. */
static void advance(struct caches *c, int32_t table, struct request *q)
{
    int32_t drafted[LONGEST];
    int64_t drafts = rand() % 5, room = q->limit - q->known - 1;
    drafts = drafts < room ? drafts : room;
    const int64_t kept = 1 + (drafts ? rand() % (drafts + 1) : 0), start = q->known - 1;
    /* Rows hold the right tokens up to what is kept, then rejected ones. */
    memcpy(drafted, q->ids, sizeof drafted);
    for (int64_t i = q->known - 1 + kept; i < LONGEST; i++)
        drafted[i] = 9999;
    write_rows(&c->target, table, drafted, start, start + 1 + drafts);
    if (c->drafts && drafts > 1)
        write_rows(c->drafts, table, drafted, start, start + drafts - 1);
    q->known += kept;
    plait_kv_commit(&c->target, table, q->ids, start, q->known - 1);
    assert_int_equal(plait_kv_resize(&c->target, table, q->known - 1), PLAIT_OK);
    if (c->drafts) {
        write_rows(c->drafts, table, q->ids, start, q->known - 1);
        plait_kv_commit(c->drafts, table, q->ids, start, q->known - 1);
    }
    check_rows(&c->target, table, q->ids, q->known - 1);
    if (c->drafts)
        check_rows(c->drafts, table, q->ids, q->known - 1);
}

/* Requests in flight together in a pool that is too small to keep everything: sharing, copies,
   eviction, growth. Rejected drafts never come back. All ranks take the same pages. */
static void random_runs_keep_every_value(void **state)
{
    (void)state;
    int64_t hits = 0, evicted = 0;
    num_renewed = 0;
    srand(11);
    for (int n = 0; n < NUM_LAYOUTS; n++) {
        const layout *l = &layouts[n];
        struct caches c[MAX_RANKS];
        static struct request q[TABLES];
        const plait_shard shard = {l->dcp, 0, l->interleave};
        for (int32_t r = 0; r < l->dcp; r++)
            open_caches(&c[r], l, r, 500, 1);
        memset(q, 0, sizeof q);
        for (int round = 0; round < 1500; round++) {
            const int32_t t = rand() % TABLES;
            if (!q[t].known) {
                make_prompt(&q[t], plait_shard_prefix_unit(shard, l->page));
                if (!plait_kv_fits(&c[0].target, q[t].limit - 1) ||
                    (c[0].drafts && !plait_kv_fits(c[0].drafts, q[t].limit - 1))) {
                    q[t].known = 0;
                    continue;
                }
                const int32_t before = c[0].target.num_free;
                for (int32_t r = 0; r < l->dcp; r++) {
                    const int64_t hit = admit(&c[r], t, q[t].ids, q[t].known, q[t].limit - 1);
                    hits += hit > 0;
                }
                evicted += before == 0;
                q[t].known++;
            } else if (q[t].known >= q[t].limit || rand() % 12 == 0) {
                for (int32_t r = 0; r < l->dcp; r++)
                    leave(&c[r], t);
                q[t].known = 0;
            } else {
                const struct request now = q[t];
                const unsigned seed = (unsigned)rand();
                for (int32_t r = 0; r < l->dcp; r++) {
                    srand(seed);
                    q[t] = now;
                    advance(&c[r], t, &q[t]);
                }
            }
            for (int32_t r = 1; r < l->dcp; r++)
                assert_memory_equal(c[r].target.tables, c[0].target.tables,
                                    (size_t)(TABLES * c[0].target.table_len) * sizeof(int32_t));
        }
        for (int32_t r = 0; r < l->dcp; r++) {
            plait_kv_group *g = &c[r].target;
            for (int32_t t = 0; t < TABLES; t++)
                leave(&c[r], t);
            assert_int_equal(g->num_held + g->num_promised, 0);
            /* A larger pool keeps what the smaller one had. */
            int32_t ids[LONGEST];
            for (int32_t i = 0; i < LONGEST; i++)
                ids[i] = 20000 + i;
            const int64_t whole = 200 / g->prefix.unit_tokens * g->prefix.unit_tokens;
            assert_int_equal(admit(&c[r], 0, ids, 201, 201), 0);
            leave(&c[r], 0);
            assert_int_equal(plait_kv_reserve(g, 3 * g->num_pages, 2 * TABLES, LONGEST), PLAIT_OK);
            assert_int_equal(admit(&c[r], 0, ids, 201, 201), whole);
            leave(&c[r], 0);
            while (plait_kv_evict(g)) {
            }
            assert_int_equal(g->num_free, g->num_pages);
            close_caches(&c[r]);
        }
    }
    print_message("# %lld hits, %lld with a copied page, %lld admissions without a free page\n",
                  (long long)hits, (long long)num_renewed, (long long)evicted);
    assert_true(hits > 500 && num_renewed > 100 && evicted > 100);
}

/* ---- with the model -------------------------------------------------------------------------- */

static plait_engine *open_tiny(plait_engine_options o)
{
    plait_engine *e;
    o.model_dir = PLAIT_SOURCE_DIR "/models/tiny";
    o.dtype = PLAIT_F32;
    if (plait_engine_open(&o, &e) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    return e;
}

enum { SHARED = 200, PROMPT = 210, NEW = 12, REQUESTS = 6 };

/* Requests that share 128, 100, 64, 10 and 200 tokens with the first one. */
static void make_requests(int32_t (*ids)[PROMPT], plait_request *q)
{
    static const int32_t shared[REQUESTS] = {SHARED, 128, 100, 64, 10, SHARED};
    for (int32_t r = 0; r < REQUESTS; r++) {
        for (int32_t i = 0; i < PROMPT; i++)
            ids[r][i] = i < shared[r] ? 3 + i * 37 % 1900 : 3 + (i * 41 + r * 11) % 1900;
        q[r] = (plait_request)PLAIT_REQUEST_INIT;
        q[r].ids = ids[r];
        q[r].num_ids = PROMPT;
        q[r].max_new_tokens = NEW;
        q[r].ignore_eos = 1;
    }
}

static plait_generation *generate(plait_engine *e, const plait_request *q, int32_t n)
{
    plait_generation *g;
    if (plait_engine_generate(e, q, n, NULL, NULL, &g) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    return g;
}

static void text_equals_the_run_without_cache(void **state)
{
    (void)state;
    static const struct {
        int32_t dcp, interleave, page, replicated;
        plait_draft_kind draft;
    } settings[] = {{1, 1, 16, 0, PLAIT_DRAFT_NONE},   {2, 1, 16, 0, PLAIT_DRAFT_MTP},
                    {2, 4, 8, 1, PLAIT_DRAFT_MTP},     {2, 4, 8, 0, PLAIT_DRAFT_EAGLE3},
                    {2, 1, 16, 1, PLAIT_DRAFT_EAGLE3}, {2, 16, 16, 0, PLAIT_DRAFT_ORACLE}};
    const int64_t shared[REQUESTS] = {SHARED, 128, 100, 64, 10, SHARED};
    int32_t ids[REQUESTS][PROMPT];
    plait_request q[REQUESTS];
    make_requests(ids, q);
    for (size_t n = 0; n < sizeof settings / sizeof *settings; n++) {
        plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
        o.dcp = settings[n].dcp;
        o.interleave = settings[n].interleave;
        o.page_size = settings[n].page;
        o.draft = settings[n].draft;
        o.draft_dir = PLAIT_SOURCE_DIR "/models/tiny/eagle3";
        o.draft_kv_replicated = settings[n].replicated;
        o.spec_tokens = 4;
        o.kv_cache_bytes = 64 << 20;
        const plait_shard shard = {o.dcp, 0, o.interleave};
        const int64_t unit = plait_shard_prefix_unit(shard, o.page_size);
        o.prefix_cache = 0;
        plait_engine *plain = open_tiny(o);
        o.prefix_cache = 1;
        plait_engine *e = open_tiny(o);
        plait_generation *want = generate(plain, q, REQUESTS);
        /* The first alone, then the rest, and all once more: their outputs are in the cache, too.
         */
        for (int32_t pass = 0; pass < 2; pass++) {
            plait_generation *first = generate(e, q, 1);
            plait_generation *rest = generate(e, q + 1, REQUESTS - 1);
            for (int32_t r = 0; r < REQUESTS; r++) {
                const plait_result *got = r ? &rest->results[r - 1] : &first->results[0];
                const int64_t hit = pass ? PROMPT - 1 : r ? shared[r] : 0;
                assert_int_equal(want->results[r].num_cached, 0);
                assert_int_equal(got->num_cached, hit / unit * unit);
                assert_int_equal(got->num_new, NEW);
                assert_memory_equal(got->ids, want->results[r].ids, NEW * sizeof(int32_t));
                assert_int_equal(got->num_accepted, want->results[r].num_accepted);
            }
            plait_generation_close(&first);
            plait_generation_close(&rest);
        }
        /* A conversation: prompt and output of the first, then more. */
        int32_t turn[PROMPT + NEW + 4];
        memcpy(turn, ids[0], sizeof ids[0]);
        memcpy(turn + PROMPT, want->results[0].ids, NEW * sizeof *turn);
        for (int32_t i = 0; i < 4; i++)
            turn[PROMPT + NEW + i] = 50 + i;
        plait_request next = q[0];
        next.ids = turn;
        next.num_ids = PROMPT + NEW + 4;
        plait_generation *got = generate(e, &next, 1), *text = generate(plain, &next, 1);
        /* The last token of the output was never computed. */
        assert_int_equal(got->results[0].num_cached, (PROMPT + NEW - 1) / unit * unit);
        assert_memory_equal(got->results[0].ids, text->results[0].ids, NEW * sizeof(int32_t));
        assert_int_equal(got->results[0].num_accepted, text->results[0].num_accepted);
        plait_generation_close(&got);
        plait_generation_close(&text);
        plait_generation_close(&want);
        plait_engine_close(&plain);
        plait_engine_close(&e);
    }
}

/* More requests than a pass reads at once: those behind find what the first one left, in the same
   call; in a pool that holds little more than one of them nothing fails and texts stay. */
static void requests_of_one_call_share(void **state)
{
    (void)state;
    int32_t ids[REQUESTS][PROMPT];
    plait_request q[REQUESTS];
    make_requests(ids, q);
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    o.page_size = 16;
    o.draft = PLAIT_DRAFT_MTP;
    o.prefix_cache = 0;
    plait_engine *plain = open_tiny(o);
    plait_generation *want = generate(plain, q, REQUESTS);
    for (int32_t small = 0; small < 2; small++) {
        o.prefix_cache = 1;
        /* 221 tokens of 7 layers in pages of 16. */
        o.kv_cache_bytes = small ? want->kv_bytes[0] / 4 : 0;
        plait_engine *e = open_tiny(o);
        plait_generation *got = generate(e, q, REQUESTS);
        int64_t cached = 0;
        for (int32_t r = 0; r < REQUESTS; r++) {
            assert_memory_equal(got->results[r].ids, want->results[r].ids, NEW * sizeof(int32_t));
            cached += got->results[r].num_cached;
        }
        assert_true(small || cached >= 96 + 64 + 192);
        plait_generation_close(&got);
        plait_engine_close(&e);
    }
    plait_generation_close(&want);
    plait_engine_close(&plain);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hits_are_whole_units_case12),
        cmocka_unit_test(another_layout_never_hits_case12),
        cmocka_unit_test(no_hits_when_switched_off),
        cmocka_unit_test(random_runs_keep_every_value),
        cmocka_unit_test(text_equals_the_run_without_cache),
        cmocka_unit_test(requests_of_one_call_share),
    };
    return cmocka_run_group_tests_name("engine_prefix", tests, NULL, NULL);
}
