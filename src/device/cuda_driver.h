/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/cuda_driver.h - the part of the CUDA driver's interface that is used, with prototypes of
 * our own, so that no CUDA header is needed to build. Values and layouts are pinned by its ABI.
 */
#ifndef PLAIT_DEVICE_CUDA_DRIVER_H
#define PLAIT_DEVICE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_SUCCESS = 0,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_SM_COUNT = 16, /* device attributes */
    CUDA_MAJOR = 75,
    CUDA_MINOR = 76,
    CUDA_FUNC_MAX_DYNAMIC_SMEM = 8,
    CUDA_FUNC_CARVEOUT = 9, /* percent of shared memory that is preferred */
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_ATTRIBUTE_OVERLAP = 6, /* programmatic stream serialization */
    CUDA_MAP_F16 = 6,
    CUDA_MAP_BF16 = 9,
    CUDA_MAP_SWIZZLE_128B = 3,
    CUDA_MAP_PROMOTE_256B = 3
};

typedef struct plait_cu_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int value;
    } u;
} plait_cu_attribute;

typedef struct plait_cu_config {
    unsigned grid[3], block[3], smem;
    void *stream;
    plait_cu_attribute *attributes;
    unsigned num_attributes;
} plait_cu_config;

/* CALL(name in the driver, arguments): every function is int name(arguments), looked up as the
   CUDA 12.0 version. Devices are ints; contexts, modules, functions, streams and events pointers;
   device addresses 64-bit numbers. */
#define PLAIT_CU_CALLS                                                                             \
    CALL(cuInit, (unsigned flags))                                                                 \
    CALL(cuGetErrorName, (int error, const char **name))                                           \
    CALL(cuDeviceGetCount, (int *n))                                                               \
    CALL(cuDeviceGet, (int *device, int ordinal))                                                  \
    CALL(cuDeviceGetName, (char *name, int n, int device))                                         \
    CALL(cuDeviceGetAttribute, (int *value, int attribute, int device))                            \
    CALL(cuDeviceTotalMem, (size_t * bytes, int device))                                           \
    CALL(cuDevicePrimaryCtxRetain, (void **context, int device))                                   \
    CALL(cuDevicePrimaryCtxRelease, (int device))                                                  \
    CALL(cuCtxGetCurrent, (void **context))                                                        \
    CALL(cuCtxGetDevice, (int *device))                                                            \
    CALL(cuCtxPushCurrent, (void *context))                                                        \
    CALL(cuCtxPopCurrent, (void **context))                                                        \
    CALL(cuModuleLoadData, (void **module, const void *image))                                     \
    CALL(cuModuleUnload, (void *module))                                                           \
    CALL(cuModuleGetFunction, (void **function, void *module, const char *name))                   \
    CALL(cuFuncSetAttribute, (void *function, int attribute, int value))                           \
    CALL(cuLaunchKernelEx,                                                                         \
         (const plait_cu_config *config, void *function, void **params, void **extra))             \
    CALL(cuTensorMapEncodeTiled,                                                                   \
         (void *map, int dtype, uint32_t rank, void *base, const uint64_t *dims,                   \
          const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,     \
          int swizzle, int promotion, int fill))                                                   \
    CALL(cuMemAlloc, (uint64_t * address, size_t bytes))                                           \
    CALL(cuMemFree, (uint64_t address))                                                            \
    CALL(cuMemcpyAsync, (uint64_t to, uint64_t from, size_t bytes, void *stream))                  \
    CALL(cuMemsetD8Async, (uint64_t to, unsigned char byte, size_t bytes, void *stream))           \
    CALL(cuStreamCreate, (void **stream, unsigned flags))                                          \
    CALL(cuStreamDestroy, (void *stream))                                                          \
    CALL(cuStreamSynchronize, (void *stream))                                                      \
    CALL(cuEventCreate, (void **event, unsigned flags))                                            \
    CALL(cuEventDestroy, (void *event))                                                            \
    CALL(cuEventRecord, (void *event, void *stream))                                               \
    CALL(cuEventSynchronize, (void *event))                                                        \
    CALL(cuEventElapsedTime, (float *ms, void *begin, void *end))

typedef struct plait_cu {
#define CALL(name, arguments) int(*name) arguments;
    PLAIT_CU_CALLS
#undef CALL
} plait_cu;

#endif
