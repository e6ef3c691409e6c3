/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: the input is model.safetensors, or (first byte odd) an index over two good shards.
 * A checkpoint that opens has tensors whose bytes lie in the file: all of them are loaded.
 */
#include <unistd.h>

#include "core/convert.h"
#include "engine/checkpoint.h"
#include "engine/safetensors.h"
#include "fuzz.h"

enum { MOST = 1 << 16 };

static const char shard_a[] =
    "\x3b\0\0\0\0\0\0\0"
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}  "
    "\0\0\0\0\0\0\200?\0\0\0@\0\0@@";
static const char shard_b[] = "\x39\0\0\0\0\0\0\0"
                              "{\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]}}  "
                              "\200?\0@@@\200@";

/* Loads all of a tensor that the file describes, or finds out why not. */
static void load(plait_checkpoint *c, const plait_tensor *t)
{
    static float values[MOST];
    static uint16_t halves[MOST];
    const bool matrix = t->rank == 2;
    if (t->rank < 1 || t->rank > 2)
        return;
    const int64_t rows = matrix ? t->shape[0] : 1, cols = t->shape[matrix];
    if (rows > MOST || cols > MOST || rows * cols > MOST)
        return;
    const plait_slice all = matrix ? PLAIT_SLICE_MATRIX(rows, cols) : PLAIT_SLICE_VECTOR(cols);
    if (plait_checkpoint_load(c, t->name, &all, PLAIT_F32, values, cols) != PLAIT_OK) {
        CHECK(*plait_last_error());
        return;
    }
    for (int64_t i = 0; i < rows * cols; i++)
        CHECK(values[i] - values[i] == 0);
    if (plait_checkpoint_load(c, t->name, &all, PLAIT_BF16, halves, cols) == PLAIT_OK)
        for (int64_t i = 0; i < rows * cols; i++)
            CHECK(halves[i] == plait_bf16_from_f32(values[i]));
}

static void load_file(plait_checkpoint *c, const char *file)
{
    char path[256];
    plait_safetensors s;
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), file);
    if (plait_safetensors_open(path, &s) != PLAIT_OK)
        return;
    for (size_t i = 0; i < s.count && i < 64; i++)
        if (plait_checkpoint_has(c, s.tensors[i].name))
            load(c, &s.tensors[i]);
    plait_safetensors_close(&s);
}

/* Changes the index or the header, whose length stays right most of the time. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    uint64_t header = 0;
    for (size_t i = 8; i > 0 && size > 8; i--)
        header = header << 8 | data[i];
    if (size == 0 || data[0] % 2)
        return size == 0 ? 0 : 1 + fuzz_mutate_json(data + 1, size - 1, max_size - 1, seed);
    if (size <= 9 || header > size - 9 || seed % 8 == 0 || max_size > MOST)
        return LLVMFuzzerMutate(data, size, max_size);
    uint8_t text[MOST];
    const size_t rest = size - 9 - (size_t)header;
    memcpy(text, data + 9, (size_t)header);
    const size_t length = fuzz_mutate_json(text, (size_t)header, max_size - 9 - rest, seed / 8);
    memmove(data + 9 + length, data + 9 + header, rest);
    memcpy(data + 9, text, length);
    for (size_t i = 0; i < 8; i++)
        data[1 + i] = (uint8_t)((uint64_t)length >> 8 * i);
    return 9 + length + rest;
}

int fuzz_one(const uint8_t *data, size_t size)
{
    static const char index[] = "model.safetensors.index.json";
    plait_checkpoint *c;
    if (size == 0)
        return 0;
    const bool indexed = data[0] % 2;
    if (indexed) {
        fuzz_put("a.safetensors", shard_a, sizeof shard_a - 1);
        fuzz_put("b.safetensors", shard_b, sizeof shard_b - 1);
        fuzz_put(index, data + 1, size - 1);
    } else {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", fuzz_folder(), index);
        unlink(path);
        fuzz_put("model.safetensors", data + 1, size - 1);
    }
    const plait_config config = {.num_layers = 1, .block_rows = 128, .block_cols = 128};
    if (plait_checkpoint_open(fuzz_folder(), &config, &c) != PLAIT_OK) {
        CHECK(!c && *plait_last_error());
        return 0;
    }
    load_file(c, indexed ? "a.safetensors" : "model.safetensors");
    if (indexed)
        load_file(c, "b.safetensors");
    plait_checkpoint_finish(c, &config);
    plait_checkpoint_close(&c);
    return 0;
}
