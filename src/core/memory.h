/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core/memory.h - allocation through the caller's allocator, and arenas.
 *
 * An arena lays out many arrays in one block. The same layout function runs twice: over a measuring
 * arena, which only adds up, and over the block that was reserved for the sum:
 *
 *     plait_arena arena = {0};
 *     lay_out(&arena, self);
 *     PLAIT_TRY(plait_arena_reserve(&arena, allocator, "plan"));
 *     lay_out(&arena, self);
 */
#ifndef PLAIT_CORE_MEMORY_H
#define PLAIT_CORE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include <plait/memory.h>
#include <plait/status.h>

/* Alignment of everything that these functions give: a cache line and an AVX-512 register. */
enum { PLAIT_ALIGN = 64 };

/* bytes > 0 from the allocator (NULL: the C library's), or PLAIT_E_NOMEM, which names `what` and
   the bytes, with *out = NULL. The content is not zeroed. */
plait_status plait_mem_alloc(const plait_allocator *allocator, size_t bytes, const char *what,
                             void **out);

/* The same, zeroed. */
plait_status plait_mem_zalloc(const plait_allocator *allocator, size_t bytes, const char *what,
                              void **out);

/* Gives back what plait_mem_alloc gave; ptr NULL is accepted. */
void plait_mem_free(const plait_allocator *allocator, void *ptr, size_t bytes);

/* All zero: a measuring arena. */
typedef struct plait_arena {
    unsigned char *base; /* NULL while measuring */
    size_t used, capacity;
    bool overflow; /* the sum does not fit size_t, or more was taken than reserved */
} plait_arena;

/* An arena over memory that the caller owns, aligned to PLAIT_ALIGN. */
plait_arena plait_arena_over(void *base, size_t bytes);

/* The next n elements of `bytes` each, aligned to PLAIT_ALIGN; NULL while measuring, when n or
   bytes is 0, and once the arena overflowed. The content is not zeroed. */
void *plait_arena_take(plait_arena *arena, size_t n, size_t bytes);

/* Turns a measuring arena into one over a new block of the measured size, ready to be laid out
   again. Sanitizer builds leave poisoned gaps between what is taken from it. */
plait_status plait_arena_reserve(plait_arena *arena, const plait_allocator *allocator,
                                 const char *what);

/* Frees the block of plait_arena_reserve and zeroes the arena; a zeroed arena is accepted. */
void plait_arena_free(plait_arena *arena, const plait_allocator *allocator);

#endif
