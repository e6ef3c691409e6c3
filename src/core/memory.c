/* SPDX-License-Identifier: Apache-2.0 */
#include "core/memory.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

#if defined(__SANITIZE_ADDRESS__)
#define PLAIT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PLAIT_ASAN 1
#endif
#endif

#ifdef PLAIT_ASAN
#include <sanitizer/asan_interface.h>
enum { RED_ZONE = PLAIT_ALIGN };
#else
#define ASAN_POISON_MEMORY_REGION(base, bytes)   ((void)(base), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(base, bytes) ((void)(base), (void)(bytes))
enum { RED_ZONE = 0 };
#endif

static bool round_up(size_t bytes, size_t align, size_t *out)
{
    if (bytes > SIZE_MAX - (align - 1))
        return false;
    *out = (bytes + align - 1) & ~(align - 1);
    return true;
}

static void *default_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    /* aligned_alloc wants a multiple of the alignment. */
    size_t rounded;
    return round_up(bytes, align, &rounded) ? aligned_alloc(align, rounded) : NULL;
}

static void default_free(void *user, void *ptr, size_t bytes)
{
    (void)user, (void)bytes;
    free(ptr);
}

const plait_allocator *plait_allocator_default(void)
{
    static const plait_allocator allocator = {sizeof allocator, NULL, default_alloc, default_free};
    return &allocator;
}

plait_status plait_mem_alloc(const plait_allocator *allocator, size_t bytes, const char *what,
                             void **out)
{
    if (!allocator)
        allocator = plait_allocator_default();
    *out = NULL;
    if (allocator->size < sizeof *allocator || !allocator->alloc || !allocator->free)
        return plait_fail(PLAIT_E_ARG,
                          "%s: the allocator's size field is %zu, wanted %zu, with alloc and free",
                          what, allocator->size, sizeof *allocator);
    *out = allocator->alloc(allocator->user, bytes, PLAIT_ALIGN);
    if (!*out)
        return plait_fail(PLAIT_E_NOMEM, "%s: the allocator has no %zu bytes", what, bytes);
    return PLAIT_OK;
}

plait_status plait_mem_zalloc(const plait_allocator *allocator, size_t bytes, const char *what,
                              void **out)
{
    PLAIT_TRY(plait_mem_alloc(allocator, bytes, what, out));
    memset(*out, 0, bytes);
    return PLAIT_OK;
}

void plait_mem_free(const plait_allocator *allocator, void *ptr, size_t bytes)
{
    if (!allocator)
        allocator = plait_allocator_default();
    if (ptr)
        allocator->free(allocator->user, ptr, bytes);
}

plait_arena plait_arena_over(void *base, size_t bytes)
{
    assert((uintptr_t)base % PLAIT_ALIGN == 0);
    return (plait_arena){.base = base, .capacity = bytes};
}

void *plait_arena_take(plait_arena *arena, size_t n, size_t bytes)
{
    if (n == 0 || bytes == 0 || arena->overflow)
        return NULL;
    size_t total;
    const size_t limit = arena->base ? arena->capacity : SIZE_MAX;
    if (n > (SIZE_MAX - RED_ZONE) / bytes || !round_up(n * bytes + RED_ZONE, PLAIT_ALIGN, &total) ||
        total > limit - arena->used) {
        arena->overflow = true;
        return NULL;
    }
    unsigned char *at = arena->base ? arena->base + arena->used : NULL;
    arena->used += total;
    if (at)
        ASAN_UNPOISON_MEMORY_REGION(at, n * bytes);
    return at;
}

plait_status plait_arena_reserve(plait_arena *arena, const plait_allocator *allocator,
                                 const char *what)
{
    assert(!arena->base);
    if (arena->overflow)
        return plait_fail(PLAIT_E_NOMEM, "%s: the bytes needed do not fit 64 bits", what);
    if (arena->used == 0)
        return PLAIT_OK;
    void *base;
    PLAIT_TRY(plait_mem_alloc(allocator, arena->used, what, &base));
    ASAN_POISON_MEMORY_REGION(base, arena->used);
    *arena = plait_arena_over(base, arena->used);
    return PLAIT_OK;
}

void plait_arena_free(plait_arena *arena, const plait_allocator *allocator)
{
    if (arena->base) {
        ASAN_UNPOISON_MEMORY_REGION(arena->base, arena->capacity);
        plait_mem_free(allocator, arena->base, arena->capacity);
    }
    *arena = (plait_arena){0};
}
