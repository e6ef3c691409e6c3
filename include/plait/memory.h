/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/memory.h - the caller's allocator.
 *
 * The library allocates only in functions named open, create or reserve; run paths never do.
 * Every such function takes an allocator or options that hold one; NULL means the C library.
 */
#ifndef PLAIT_MEMORY_H
#define PLAIT_MEMORY_H

#include <stddef.h>

#include <plait/version.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct plait_allocator {
    size_t size; /* sizeof(plait_allocator) */
    void *user;
    /* Returns bytes > 0 of memory aligned to `align` (a power of two, at least 64), or NULL.
       The content need not be zero. Must be thread-safe. */
    void *(*alloc)(void *user, size_t bytes, size_t align);
    /* Takes back what alloc gave, with the same byte count. ptr is never NULL. Thread-safe. */
    void (*free)(void *user, void *ptr, size_t bytes);
} plait_allocator;

/* The C library's allocator (aligned_alloc and free). A static object. */
PLAIT_API const plait_allocator *plait_allocator_default(void);

#ifdef __cplusplus
}
#endif
#endif
