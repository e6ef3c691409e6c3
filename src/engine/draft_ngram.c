/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft_ngram.c: prompt look-up. Where the last tokens stood before, what followed then is drafted.
 *
 * An index of all pairs of tokens holds for each pair its last place and, for each place, the one
 * before it (hash chains, as LZ77 has them). It grows with the sequence. A proposal walks the chain
 * of the last pair, newest first, and takes the place with the longest equal past; without a pair
 * nothing is drafted. Walk and comparison are bounded, so that a long context costs no more than a
 * short one. No weights, no KV: any checkpoint has it.
 */
#include <string.h>

#include "core/status.h"
#include "engine/session.h"

enum {
    MIN_MATCH = 2,   /* tokens of a pair, the shortest match */
    MAX_MATCH = 32,  /* a longer equal past is as good */
    MAX_PLACES = 128 /* of one chain that are looked at */
};

/* Of one place of the batch. */
struct index {
    int32_t *heads; /* [num_heads] last position of a pair with this hash, -1: none */
    int32_t *older; /* [max_position] the position before with the same hash */
};

typedef struct plait_ngram {
    int32_t num_heads; /* a power of two */
    plait_arena arena; /* of this and of what it points to */
    struct index index[PLAIT_SESSION_BATCH];
} plait_ngram;

static void close_index(plait_session *s)
{
    plait_ngram *g = s->drafter_data;
    plait_arena arena = {0};
    if (g)
        arena = g->arena;
    plait_arena_free(&arena, s->allocator);
    s->drafter_data = NULL;
}

static plait_ngram *lay_out(plait_arena *arena, size_t heads, size_t length)
{
    plait_ngram measured, *g = plait_arena_take(arena, 1, sizeof *g);
    plait_ngram *to = g ? g : &measured;
    to->num_heads = (int32_t)heads;
    for (size_t i = 0; i < PLAIT_SESSION_BATCH; i++) {
        to->index[i].heads = plait_arena_take(arena, heads, sizeof *to->index[i].heads);
        to->index[i].older = plait_arena_take(arena, length, sizeof *to->index[i].older);
    }
    return g;
}

static plait_status open_index(plait_session *s)
{
    const size_t length = (size_t)s->pass->model->config->max_position;
    plait_arena arena = {0};
    size_t heads = 1;
    while (heads < length)
        heads *= 2;
    lay_out(&arena, heads, length);
    PLAIT_TRY(plait_arena_reserve(&arena, s->allocator, "an index of pairs"));
    plait_ngram *g = lay_out(&arena, heads, length);
    g->arena = arena;
    s->drafter_data = g;
    return PLAIT_OK;
}

/* The head of the pair that ends at `at`. */
static int32_t *head_of(const plait_ngram *g, const struct index *x, const int32_t *ids, int64_t at)
{
    const uint64_t pair = (uint64_t)(uint32_t)ids[at - 1] << 32 | (uint32_t)ids[at];
    const uint64_t hash = (pair ^ pair >> 29) * UINT64_C(0x9e3779b97f4a7c15);
    return &x->heads[hash >> 32 & (uint64_t)(g->num_heads - 1)];
}

/* Adds the pairs before the last one, which is looked up first. */
static void grow(const plait_ngram *g, const struct index *x, plait_sequence *q)
{
    if (q->num_indexed == 0) {
        memset(x->heads, 0xff, (size_t)g->num_heads * sizeof *x->heads);
        q->num_indexed = 1;
    }
    for (; q->num_indexed < q->num_known - 1; q->num_indexed++) {
        int32_t *head = head_of(g, x, q->ids, q->num_indexed);
        x->older[q->num_indexed] = *head;
        *head = (int32_t)q->num_indexed;
    }
}

/* Tokens up to `a` that equal those up to `b`, a < b. */
static int32_t match(const int32_t *ids, int32_t a, int64_t b)
{
    int32_t n = 0;
    while (n <= a && n < MAX_MATCH && ids[a - n] == ids[b - n])
        n++;
    return n;
}

/* Where the longest match of the last tokens ends, the newest of equals; -1: nowhere. */
static int32_t find(const plait_ngram *g, const struct index *x, const plait_sequence *q)
{
    const int64_t last = q->num_known - 1;
    int32_t best = -1, longest = MIN_MATCH - 1;
    if (last < 1)
        return -1;
    int32_t at = *head_of(g, x, q->ids, last);
    for (int32_t i = 0; at >= 0 && i < MAX_PLACES && longest < MAX_MATCH; i++) {
        const int32_t n = match(q->ids, at, last);
        if (n > longest) {
            longest = n;
            best = at;
        }
        at = x->older[at];
    }
    return best;
}

static plait_status propose(plait_session *s, int32_t num, const int32_t *list)
{
    const plait_ngram *g = s->drafter_data;
    for (int32_t i = 0; i < num; i++) {
        plait_sequence *q = &s->sequences[list[i]];
        const struct index *x = &g->index[list[i]];
        const int32_t room = plait_session_room(s, q);
        grow(g, x, q);
        const int32_t end = find(g, x, q);
        if (end < 0)
            continue;
        /* A match that reaches the end goes on with the drafts themselves: a period repeats. */
        for (int64_t at = end + 1; q->num_drafts < room; at++)
            q->drafts[q->num_drafts++] =
                at < q->num_known ? q->ids[at] : q->drafts[at - q->num_known];
    }
    return PLAIT_OK;
}

const plait_drafter plait_drafter_ngram = {
    .name = "ngram",
    .open = open_index,
    .close = close_index,
    .propose = propose,
};
