/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda.h - what the GPU kernels' host halves need of an open device. */
#ifndef PLAIT_DEVICE_CUDA_H
#define PLAIT_DEVICE_CUDA_H

#include <plait/cuda.h>

/* The code of one source file, as nvcc made it. The table is written by the build and ends with a
   NULL name; without nvcc it is empty. */
typedef struct plait_cuda_image {
    const char *name;
    const unsigned char *code;
} plait_cuda_image;

extern const plait_cuda_image plait_cuda_images[];

/* The functions of cuda.def by name. */
typedef enum plait_cuda_function {
#define FUNCTION(name, file, threads, smem) PLAIT_CUDA_##name,
#include "device/cuda.def"
#undef FUNCTION
    PLAIT_CUDA_FUNCTIONS
} plait_cuda_function;

/* The description of a tensor for bulk copies, made by the driver. */
typedef struct plait_cuda_map {
    _Alignas(64) uint64_t word[16];
} plait_cuda_map;

/* The open device of this number, or NULL. */
plait_cuda *plait_cuda_find(int32_t ordinal);

int32_t plait_cuda_sms(const plait_cuda *cuda);

/*
 * Launches a function on `grid` blocks. overlap: it may start before the kernel in front of it has
 * ended, and waits for that itself. params: as cuLaunchKernel takes them.
 */
plait_status plait_cuda_launch(plait_cuda *cuda, plait_cuda_function function, uint32_t grid,
                               int overlap, void *stream, void **params);

/*
 * Describes a paged cache [pages][tokens][columns] of 2-byte elements (bf16 or f16) at `base`,
 * copied in boxes of 64 columns x box tokens with 128-byte swizzle. Strides count elements.
 */
plait_status plait_cuda_map_pages(plait_cuda *cuda, plait_cuda_map *map, plait_dtype dtype,
                                  const void *base, int32_t columns, int32_t tokens, int64_t pages,
                                  int64_t token_stride, int64_t page_stride, int32_t box);

#endif
