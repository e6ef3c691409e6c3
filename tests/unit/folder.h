/* SPDX-License-Identifier: Apache-2.0 */
/* Files that tests make: a temporary folder and a writer of safetensors. */
#ifndef PLAIT_TESTS_FOLDER_H
#define PLAIT_TESTS_FOLDER_H

#include <stddef.h>

typedef struct plait_test_tensor {
    const char *name, *dtype, *shape; /* shape: what stands between the brackets */
    const void *data;
    size_t bytes;
} plait_test_tensor;

enum { PLAIT_TEST_PATH = 64 };

void plait_test_folder_make(char root[PLAIT_TEST_PATH]);
void plait_test_folder_remove(const char *root);

/* Writes root/file. */
void plait_test_put(const char *root, const char *file, const void *data, size_t bytes);
void plait_test_put_text(const char *root, const char *file, const char *text);

/* A header (its length is put before it) and the data that follows. */
void plait_test_put_header(const char *root, const char *file, const char *header, const void *data,
                           size_t bytes);
void plait_test_put_safetensors(const char *root, const char *file,
                                const plait_test_tensor *tensors, size_t n);

#endif
