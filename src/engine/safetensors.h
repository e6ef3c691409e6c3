/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/safetensors.h - one safetensors file: 8 bytes of header length (little endian), a JSON
 * header, tensor data. The header is checked fully before anything relies on it.
 */
#ifndef PLAIT_ENGINE_SAFETENSORS_H
#define PLAIT_ENGINE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include <plait/status.h>

typedef enum plait_tensor_type {
    PLAIT_TENSOR_F32,
    PLAIT_TENSOR_BF16,
    PLAIT_TENSOR_F16,
    PLAIT_TENSOR_E4M3,
    PLAIT_TENSOR_OTHER /* known size, not loadable */
} plait_tensor_type;

typedef struct plait_tensor {
    char *name;
    const char *dtype; /* as the file says, a static string */
    plait_tensor_type type;
    int32_t rank;
    int64_t shape[8];
    const unsigned char *data; /* in the map, of any alignment */
    size_t bytes;
    size_t file; /* for whoever joins several files */
} plait_tensor;

typedef struct plait_safetensors {
    void *map;
    size_t map_bytes;
    plait_tensor *tensors;
    size_t count;
} plait_safetensors;

/* Maps and checks a file. E_IO: cannot be mapped, shorter than its header says; E_FORMAT: a header
   that is nonsense; E_UNSUPPORTED: a dtype without a known size. *out is zeroed on failure. */
plait_status plait_safetensors_open(const char *path, plait_safetensors *out);
void plait_safetensors_close(plait_safetensors *file);

/* The same for a header and data in memory: fills tensors and count. */
plait_status plait_safetensors_parse(const char *header, size_t header_bytes,
                                     const unsigned char *data, size_t data_bytes, const char *name,
                                     plait_safetensors *out);

#endif
