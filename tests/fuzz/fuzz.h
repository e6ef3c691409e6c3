/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzz targets share. A target feeds arbitrary bytes to one reader; the sanitizers watch
 * memory, and CHECK what must hold whatever the bytes are. An input may take a second of processor
 * time, no longer.
 */
#ifndef PLAIT_TESTS_FUZZ_H
#define PLAIT_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int fuzz_one(const uint8_t *data, size_t size);                       /* the target, 0 */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size); /* libFuzzer's own */

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #cond);               \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* The bytes of an input, taken from the front; zeros once they are used up. */
typedef struct fuzz_bytes {
    const uint8_t *data;
    size_t size;
} fuzz_bytes;

static inline uint32_t fuzz_byte(fuzz_bytes *b)
{
    if (b->size == 0)
        return 0;
    b->size--;
    return *b->data++;
}

/* A number in [least, most], most - least < 256. */
static inline int32_t fuzz_range(fuzz_bytes *b, int32_t least, int32_t most)
{
    return least + (int32_t)(fuzz_byte(b) % (uint32_t)(most - least + 1));
}

/* For targets that take JSON: changes the text in place, to at most max_size bytes; returns its new
   size. Called by a target's LLVMFuzzerCustomMutator. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t fuzz_mutate_json(uint8_t *data, size_t size, size_t max_size, uint32_t seed);

/* A folder for this process, removed at exit. */
const char *fuzz_folder(void);

/* Writes a file of the folder. */
void fuzz_put(const char *file, const void *data, size_t size);

/* Writes what precedes the first NUL to one file, what follows it to another; without a NUL there
   is no other file. */
void fuzz_put_two(const char *first, const char *second, const uint8_t *data, size_t size);

#endif
