/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte-pair merges. A piece is a linked list of parts; a heap ordered by (rank, position) gives
 * the next merge, so a piece of n bytes takes n log n steps however long it is.
 */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "engine/tokenizer_parts.h"

plait_status plait_ids_push(plait_ids *out, int32_t id)
{
    if (out->count == out->capacity) {
        const size_t capacity = out->capacity ? 2 * out->capacity : 64;
        int32_t *ids = realloc(out->ids, capacity * sizeof *ids);
        if (!ids)
            return plait_fail(PLAIT_E_NOMEM, "no memory for %zu token ids", capacity);
        out->ids = ids;
        out->capacity = capacity;
    }
    out->ids[out->count++] = id;
    return PLAIT_OK;
}

void plait_ids_free_work(plait_ids *out)
{
    free(out->part);
    free(out->prev);
    free(out->next);
    free(out->heap);
    out->part = out->prev = out->next = NULL;
    out->heap = NULL;
    out->work = 0;
}

static plait_status reserve_work(plait_ids *out, size_t n)
{
    if (n <= out->work)
        return PLAIT_OK;
    const size_t work = n < 64 ? 64 : n + n / 2;
    plait_ids_free_work(out);
    out->part = malloc(work * sizeof *out->part);
    out->prev = malloc(work * sizeof *out->prev);
    out->next = malloc(work * sizeof *out->next);
    out->heap = malloc(2 * work * sizeof *out->heap); /* a merge takes one out, puts at most two */
    if (!out->part || !out->prev || !out->next || !out->heap)
        return plait_fail(PLAIT_E_NOMEM, "no memory to encode a piece of %zu bytes", n);
    out->work = work;
    return PLAIT_OK;
}

/* --- the tables --------------------------------------------------------------------------------*/

static size_t slots_for(size_t n)
{
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    return slots;
}

plait_status plait_bpe_reserve(plait_bpe *bpe, size_t tokens, size_t merges)
{
    bpe->num_slots = slots_for(tokens);
    bpe->num_pair_slots = slots_for(merges);
    bpe->slots = malloc(bpe->num_slots * sizeof *bpe->slots);
    bpe->pairs = malloc(bpe->num_pair_slots * sizeof *bpe->pairs);
    if (!bpe->slots || !bpe->pairs)
        return plait_fail(PLAIT_E_NOMEM, "no memory for %zu tokens and %zu merges", tokens, merges);
    for (size_t i = 0; i < bpe->num_slots; i++)
        bpe->slots[i] = -1;
    for (size_t i = 0; i < bpe->num_pair_slots; i++)
        bpe->pairs[i].left = -1;
    return PLAIT_OK;
}

void plait_bpe_free(plait_bpe *bpe)
{
    free(bpe->slots);
    free(bpe->pairs);
    bpe->slots = NULL;
    bpe->pairs = NULL;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

/* The slot that holds the bytes, or the free one where they belong. */
static size_t token_slot(const plait_bpe *bpe, const plait_token *tokens, const char *bytes,
                         size_t length)
{
    uint64_t h = UINT64_C(14695981039346656037); /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)bytes[i]) * UINT64_C(1099511628211);
    size_t at = (size_t)mix(h) & (bpe->num_slots - 1);
    for (; bpe->slots[at] >= 0; at = (at + 1) & (bpe->num_slots - 1)) {
        const plait_token *t = &tokens[bpe->slots[at]];
        if (t->length == length && memcmp(t->bytes, bytes, length) == 0)
            break;
    }
    return at;
}

int32_t plait_bpe_find(const plait_bpe *bpe, const plait_token *tokens, const char *bytes,
                       size_t length)
{
    return bpe->slots[token_slot(bpe, tokens, bytes, length)];
}

plait_status plait_bpe_add(plait_bpe *bpe, const plait_token *tokens, int32_t id)
{
    const size_t at = token_slot(bpe, tokens, tokens[id].bytes, tokens[id].length);
    if (bpe->slots[at] >= 0)
        return plait_fail(PLAIT_E_FORMAT, "tokens %d and %d of the vocabulary are the same",
                          (int)bpe->slots[at], (int)id);
    bpe->slots[at] = id;
    return PLAIT_OK;
}

static plait_merge_pair *pair_slot(const plait_bpe *bpe, int32_t left, int32_t right)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t at = (size_t)mix(key) & (bpe->num_pair_slots - 1);
    while (bpe->pairs[at].left >= 0 &&
           !(bpe->pairs[at].left == left && bpe->pairs[at].right == right))
        at = (at + 1) & (bpe->num_pair_slots - 1);
    return &bpe->pairs[at];
}

void plait_bpe_add_merge(plait_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    *pair_slot(bpe, left, right) = (plait_merge_pair){left, right, rank, id};
}

/* --- merging -----------------------------------------------------------------------------------*/

static void heap_push(uint64_t *heap, size_t *n, uint64_t key)
{
    size_t at = (*n)++;
    for (; at > 0 && heap[(at - 1) / 2] > key; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    const uint64_t top = heap[0], last = heap[--*n];
    size_t at = 0;
    for (size_t child = 1; child < *n; child = 2 * at + 1) {
        if (child + 1 < *n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* Offers the merge of the part at `at` with the one after it. */
static void offer(const plait_bpe *bpe, plait_ids *w, size_t *heap_n, int32_t at)
{
    if (at < 0 || w->next[at] < 0)
        return;
    const plait_merge_pair *pair = pair_slot(bpe, w->part[at], w->part[w->next[at]]);
    if (pair->left >= 0)
        heap_push(w->heap, heap_n, (uint64_t)pair->rank << 32 | (uint32_t)at);
}

static void merge_all(const plait_bpe *bpe, plait_ids *w, size_t n)
{
    size_t heap_n = 0;
    for (size_t i = 0; i + 1 < n; i++)
        offer(bpe, w, &heap_n, (int32_t)i);
    while (heap_n > 0) {
        const uint64_t top = heap_pop(w->heap, &heap_n);
        const int32_t at = (int32_t)(top & 0xffffffffu), right = w->next[at];
        if (w->part[at] < 0 || right < 0)
            continue;
        const plait_merge_pair *pair = pair_slot(bpe, w->part[at], w->part[right]);
        if (pair->left < 0 || (uint64_t)pair->rank != top >> 32)
            continue; /* one of the two has been merged since the offer */
        w->part[at] = pair->id;
        w->part[right] = -1;
        w->next[at] = w->next[right];
        if (w->next[at] >= 0)
            w->prev[w->next[at]] = at;
        offer(bpe, w, &heap_n, w->prev[at]);
        offer(bpe, w, &heap_n, at);
    }
}

plait_status plait_bpe_encode(const plait_bpe *bpe, const plait_token *tokens,
                              const unsigned char *piece, size_t n, plait_ids *out)
{
    if (n == 0)
        return PLAIT_OK;
    if (bpe->ignore_merges) {
        const int32_t id = plait_bpe_find(bpe, tokens, (const char *)piece, n);
        if (id >= 0)
            return plait_ids_push(out, id);
    }
    PLAIT_TRY(reserve_work(out, n));
    for (size_t i = 0; i < n; i++) {
        out->part[i] = bpe->byte_id[piece[i]];
        out->prev[i] = (int32_t)i - 1;
        out->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    merge_all(bpe, out, n);
    for (int32_t at = 0; at >= 0; at = out->next[at])
        PLAIT_TRY(plait_ids_push(out, out->part[at]));
    return PLAIT_OK;
}
