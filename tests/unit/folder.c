/* SPDX-License-Identifier: Apache-2.0 */
#include "folder.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

void plait_test_folder_make(char root[PLAIT_TEST_PATH])
{
    strcpy(root, "/tmp/plait-test-XXXXXX");
    assert_non_null(mkdtemp(root));
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info, (void)kind, (void)ftw;
    return remove(path);
}

void plait_test_folder_remove(const char *root)
{
    assert_int_equal(nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void plait_test_put(const char *root, const char *file, const void *data, size_t bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

void plait_test_put_text(const char *root, const char *file, const char *text)
{
    plait_test_put(root, file, text, strlen(text));
}

void plait_test_put_header(const char *root, const char *file, const char *header, const void *data,
                           size_t bytes)
{
    const size_t length = strlen(header);
    unsigned char *all = malloc(8 + length + bytes);
    assert_non_null(all);
    for (int i = 0; i < 8; i++)
        all[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(all + 8, header, length);
    if (bytes)
        memcpy(all + 8 + length, data, bytes);
    plait_test_put(root, file, all, 8 + length + bytes);
    free(all);
}

void plait_test_put_safetensors(const char *root, const char *file,
                                const plait_test_tensor *tensors, size_t n)
{
    size_t room = 64, bytes = 0, used;
    for (size_t i = 0; i < n; i++) {
        room += strlen(tensors[i].name) + strlen(tensors[i].shape) + 128;
        bytes += tensors[i].bytes;
    }
    char *header = malloc(room);
    unsigned char *data = malloc(bytes + 1);
    assert_true(header && data);
    used = (size_t)snprintf(header, room, "{\"__metadata__\":{\"format\":\"pt\"}");
    bytes = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(data + bytes, tensors[i].data, tensors[i].bytes);
        used += (size_t)snprintf(header + used, room - used,
                                 ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":"
                                 "[%zu,%zu]}",
                                 tensors[i].name, tensors[i].dtype, tensors[i].shape, bytes,
                                 bytes + tensors[i].bytes);
        bytes += tensors[i].bytes;
    }
    snprintf(header + used, room - used, "}  ");
    plait_test_put_header(root, file, header, data, bytes);
    free(header);
    free(data);
}
