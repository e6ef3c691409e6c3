/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver, found at run time, and the devices that are open. A device's functions are
 * loaded when it is opened. Each call makes the device's context current and restores the caller's.
 */
#include "device/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"
#include "device/cuda_driver.h"

enum { MAX_DEVICES = 64, OLDEST_DRIVER = 12000, HOPPER = 90 };

struct plait_cuda {
    int32_t ordinal, users, num_sms;
    int device;
    int primary; /* the context is the device's primary one, which was retained */
    void *context;
    void *modules[PLAIT_CUDA_FUNCTIONS]; /* one for each image in use */
    void *functions[PLAIT_CUDA_FUNCTIONS];
};

static const struct {
    const char *name, *image;
    uint32_t threads, smem;
} functions[] = {
#define FUNCTION(name, file, threads, smem) {#name, #file, threads, smem},
#include "device/cuda.def"
#undef FUNCTION
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static plait_cuda *open_devices[MAX_DEVICES];
static plait_cu cu;
static int driver_version; /* 0: not loaded yet */

/* ---- the driver ----------------------------------------------------------------------------- */

static plait_status failed(const char *what, int error)
{
    const char *name = NULL;
    if (!cu.cuGetErrorName || cu.cuGetErrorName(error, &name) != CUDA_SUCCESS)
        name = NULL;
    return plait_fail(error == CUDA_OUT_OF_MEMORY ? PLAIT_E_NOMEM : PLAIT_E_DEVICE,
                      "cuda: %s gave error %d (%s)", what, error, name ? name : "unknown");
}

/* Calls the driver, and returns a failure from the calling function. */
#define CU(name, ...)                                                                              \
    do {                                                                                           \
        int cu_error = cu.name(__VA_ARGS__);                                                       \
        if (cu_error != CUDA_SUCCESS)                                                              \
            return failed(#name, cu_error);                                                        \
    } while (0)

/* A function pointer from the data pointer that the dynamic linker gives. */
static void set_call(void *call, void *found)
{
    memcpy(call, &found, sizeof found);
}

static plait_status find_calls(void *library)
{
    int (*get)(const char *, void **, int, uint64_t, int *) = NULL;
    set_call((void *)&get, dlsym(library, "cuGetProcAddress_v2"));
    if (!get)
        return plait_fail(PLAIT_E_DEVICE,
                          "cuda: the driver is older than CUDA %d.%d, which is wanted",
                          OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10);
#define CALL(name, arguments)                                                                      \
    {                                                                                              \
        void *found = NULL;                                                                        \
        int query;                                                                                 \
        if (get(#name, &found, OLDEST_DRIVER, 0, &query) != CUDA_SUCCESS || !found)                \
            return plait_fail(PLAIT_E_DEVICE, "cuda: the driver has no " #name);                   \
        set_call((void *)&cu.name, found);                                                         \
    }
    PLAIT_CU_CALLS
#undef CALL
    return PLAIT_OK;
}

/* Loads the driver once; under the lock. */
static plait_status load_driver(void)
{
    int (*version)(int *) = NULL;
    int found = 0;
    if (driver_version)
        return PLAIT_OK;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return plait_fail(PLAIT_E_DEVICE, "cuda: there is no NVIDIA driver here (%s)", dlerror());
    set_call((void *)&version, dlsym(library, "cuDriverGetVersion"));
    plait_status status = PLAIT_OK;
    if (!version || version(&found) != CUDA_SUCCESS)
        status = plait_fail(PLAIT_E_DEVICE, "cuda: the driver tells no version");
    else if (found < OLDEST_DRIVER)
        status = plait_fail(
            PLAIT_E_DEVICE, "cuda: the driver offers CUDA %d.%d, at least %d.%d is wanted",
            found / 1000, found % 1000 / 10, OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10);
    if (status == PLAIT_OK)
        status = find_calls(library);
    if (status == PLAIT_OK) {
        int error = cu.cuInit(0);
        status = error == CUDA_SUCCESS ? PLAIT_OK : failed("cuInit", error);
    }
    if (status == PLAIT_OK)
        driver_version = found;
    else
        dlclose(library);
    return status;
}

static plait_status load_driver_locked(void)
{
    pthread_mutex_lock(&lock);
    plait_status status = load_driver();
    pthread_mutex_unlock(&lock);
    return status;
}

plait_status plait_cuda_count(int32_t *out)
{
    int n = 0;
    *out = 0;
    PLAIT_TRY(load_driver_locked());
    CU(cuDeviceGetCount, &n);
    *out = n;
    return PLAIT_OK;
}

static plait_status find_device(int32_t ordinal, int *device)
{
    int n = 0;
    CU(cuDeviceGetCount, &n);
    if (ordinal < 0 || ordinal >= n || ordinal >= MAX_DEVICES)
        return plait_fail(PLAIT_E_DEVICE, "cuda: device %d was asked for, the driver has %d",
                          ordinal, n);
    CU(cuDeviceGet, device, ordinal);
    return PLAIT_OK;
}

static plait_status describe(int32_t ordinal, plait_cuda_info *out)
{
    int device, major = 0, minor = 0, sms = 0;
    size_t bytes = 0;
    PLAIT_TRY(find_device(ordinal, &device));
    CU(cuDeviceGetName, out->name, (int)sizeof out->name, device);
    CU(cuDeviceGetAttribute, &major, CUDA_MAJOR, device);
    CU(cuDeviceGetAttribute, &minor, CUDA_MINOR, device);
    CU(cuDeviceGetAttribute, &sms, CUDA_SM_COUNT, device);
    CU(cuDeviceTotalMem, &bytes, device);
    out->version = 10 * major + minor;
    out->num_sms = sms;
    out->memory_bytes = (int64_t)bytes;
    out->driver = driver_version;
    out->usable = out->version == HOPPER && plait_cuda_images[0].name;
    return PLAIT_OK;
}

plait_status plait_cuda_describe(int32_t ordinal, plait_cuda_info *out)
{
    if (out->size != sizeof *out)
        return plait_fail(PLAIT_E_ARG, "cuda: info has size %zu, wanted %zu", out->size,
                          sizeof *out);
    PLAIT_TRY(load_driver_locked());
    return describe(ordinal, out);
}

/* ---- open devices --------------------------------------------------------------------------- */

static plait_status enter(plait_cuda *cuda)
{
    CU(cuCtxPushCurrent, cuda->context);
    return PLAIT_OK;
}

/* Restores the caller's context and returns the status of what was done between. */
static plait_status leave(const char *what, int error)
{
    void *ours;
    cu.cuCtxPopCurrent(&ours);
    return error == CUDA_SUCCESS ? PLAIT_OK : failed(what, error);
}

/* The context that is current if it belongs to the device, else the primary one. */
static plait_status choose_context(plait_cuda *cuda)
{
    int device = -1;
    if (cu.cuCtxGetCurrent(&cuda->context) == CUDA_SUCCESS && cuda->context &&
        cu.cuCtxGetDevice(&device) == CUDA_SUCCESS && device == cuda->device)
        return PLAIT_OK;
    cuda->context = NULL;
    CU(cuDevicePrimaryCtxRetain, &cuda->context, cuda->device);
    cuda->primary = 1;
    return PLAIT_OK;
}

/* The module of an image, loaded on first use; slot i is that of image i. */
static plait_status module_of(plait_cuda *cuda, const char *image, void **out)
{
    for (int i = 0; plait_cuda_images[i].name; i++) {
        if (strcmp(plait_cuda_images[i].name, image) != 0)
            continue;
        if (!cuda->modules[i]) {
            int error = cu.cuModuleLoadData(&cuda->modules[i], plait_cuda_images[i].code);
            if (error != CUDA_SUCCESS)
                return plait_fail(PLAIT_E_DEVICE,
                                  "cuda: the driver (CUDA %d.%d) does not load the kernels of %s: "
                                  "error %d; a newer driver may",
                                  driver_version / 1000, driver_version % 1000 / 10, image, error);
        }
        *out = cuda->modules[i];
        return PLAIT_OK;
    }
    return plait_fail(PLAIT_E_UNSUPPORTED, "cuda: this build has no GPU code for %s", image);
}

static plait_status load_functions(plait_cuda *cuda)
{
    for (int i = 0; i < PLAIT_CUDA_FUNCTIONS; i++) {
        void *module = NULL;
        PLAIT_TRY(module_of(cuda, functions[i].image, &module));
        CU(cuModuleGetFunction, &cuda->functions[i], module, functions[i].name);
        CU(cuFuncSetAttribute, cuda->functions[i], CUDA_FUNC_MAX_DYNAMIC_SMEM,
           (int)functions[i].smem);
        /* One carve-out for all: a multiprocessor must be idle to change it. */
        CU(cuFuncSetAttribute, cuda->functions[i], CUDA_FUNC_CARVEOUT, 100);
    }
    return PLAIT_OK;
}

static void destroy(plait_cuda *cuda)
{
    void *ours;
    if (cuda->context && cu.cuCtxPushCurrent(cuda->context) == CUDA_SUCCESS) {
        for (int i = 0; i < PLAIT_CUDA_FUNCTIONS; i++)
            if (cuda->modules[i])
                cu.cuModuleUnload(cuda->modules[i]);
        cu.cuCtxPopCurrent(&ours);
    }
    if (cuda->primary)
        cu.cuDevicePrimaryCtxRelease(cuda->device);
    plait_mem_free(NULL, cuda, sizeof *cuda);
}

static plait_status open_device(int32_t ordinal, plait_cuda **out)
{
    plait_cuda_info info = {.size = sizeof info};
    int device;
    PLAIT_TRY(find_device(ordinal, &device));
    if (open_devices[ordinal]) {
        *out = open_devices[ordinal];
        (*out)->users++;
        return PLAIT_OK;
    }
    PLAIT_TRY(describe(ordinal, &info));
    if (info.version != HOPPER)
        return plait_fail(
            PLAIT_E_UNSUPPORTED, "cuda: device %d (%s) has compute capability %d.%d, wanted %d.%d",
            ordinal, info.name, info.version / 10, info.version % 10, HOPPER / 10, HOPPER % 10);
    void *block;
    PLAIT_TRY(plait_mem_zalloc(NULL, sizeof(plait_cuda), "cuda device", &block));
    plait_cuda *cuda = block;
    *cuda = (plait_cuda){.ordinal = ordinal, .users = 1, .num_sms = info.num_sms, .device = device};
    plait_status status = choose_context(cuda);
    if (status == PLAIT_OK)
        status = enter(cuda);
    if (status == PLAIT_OK) {
        status = load_functions(cuda);
        leave("", CUDA_SUCCESS);
    }
    if (status != PLAIT_OK) {
        destroy(cuda);
        return status;
    }
    *out = open_devices[ordinal] = cuda;
    return PLAIT_OK;
}

plait_status plait_cuda_open(int32_t ordinal, plait_cuda **out)
{
    *out = NULL;
    if (!plait_cuda_images[0].name)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "cuda: this build has no GPU kernels; build it where nvcc is");
    pthread_mutex_lock(&lock);
    plait_status status = load_driver();
    if (status == PLAIT_OK)
        status = open_device(ordinal, out);
    pthread_mutex_unlock(&lock);
    return status;
}

void plait_cuda_close(plait_cuda **cuda)
{
    if (!cuda || !*cuda)
        return;
    pthread_mutex_lock(&lock);
    if (--(*cuda)->users == 0) {
        open_devices[(*cuda)->ordinal] = NULL;
        destroy(*cuda);
    }
    pthread_mutex_unlock(&lock);
    *cuda = NULL;
}

plait_cuda *plait_cuda_find(int32_t ordinal)
{
    plait_cuda *found = NULL;
    pthread_mutex_lock(&lock);
    if (ordinal >= 0 && ordinal < MAX_DEVICES)
        found = open_devices[ordinal];
    pthread_mutex_unlock(&lock);
    return found;
}

int32_t plait_cuda_sms(const plait_cuda *cuda)
{
    return cuda->num_sms;
}

/* ---- launches ------------------------------------------------------------------------------- */

plait_status plait_cuda_launch(plait_cuda *cuda, plait_cuda_function function, uint32_t grid,
                               int overlap, void *stream, void **params)
{
    plait_cu_attribute attribute = {.id = CUDA_ATTRIBUTE_OVERLAP, .u.value = 1};
    plait_cu_config config = {.grid = {grid, 1, 1},
                              .block = {functions[function].threads, 1, 1},
                              .smem = functions[function].smem,
                              .stream = stream,
                              .attributes = &attribute,
                              .num_attributes = overlap ? 1 : 0};
    PLAIT_TRY(enter(cuda));
    return leave(functions[function].name,
                 cu.cuLaunchKernelEx(&config, cuda->functions[function], params, NULL));
}

plait_status plait_cuda_map_pages(plait_cuda *cuda, plait_cuda_map *map, plait_dtype dtype,
                                  const void *base, int32_t columns, int32_t tokens, int64_t pages,
                                  int64_t token_stride, int64_t page_stride, int32_t box)
{
    const uint64_t dims[3] = {(uint64_t)columns, (uint64_t)tokens, (uint64_t)pages};
    const uint64_t strides[2] = {2 * (uint64_t)token_stride, 2 * (uint64_t)page_stride};
    const uint32_t boxes[3] = {64, (uint32_t)box, 1}, steps[3] = {1, 1, 1};
    union {
        const void *in;
        void *out;
    } address = {base}; /* the driver takes it without const and does not write */
    PLAIT_TRY(enter(cuda));
    return leave("cuTensorMapEncodeTiled",
                 cu.cuTensorMapEncodeTiled(map, dtype == PLAIT_F16 ? CUDA_MAP_F16 : CUDA_MAP_BF16,
                                           3, address.out, dims, strides, boxes, steps, 0,
                                           CUDA_MAP_SWIZZLE_128B, CUDA_MAP_PROMOTE_256B, 0));
}

/* ---- memory, streams, events ---------------------------------------------------------------- */

plait_status plait_cuda_alloc(plait_cuda *cuda, size_t bytes, void **out)
{
    uint64_t address = 0;
    *out = NULL;
    PLAIT_TRY(enter(cuda));
    int error = cu.cuMemAlloc(&address, bytes);
    PLAIT_TRY(leave("cuMemAlloc", error));
    *out = (void *)(uintptr_t)address;
    return PLAIT_OK;
}

void plait_cuda_free(plait_cuda *cuda, void *ptr)
{
    if (ptr && enter(cuda) == PLAIT_OK)
        leave("cuMemFree", cu.cuMemFree((uintptr_t)ptr));
}

plait_status plait_cuda_copy(plait_cuda *cuda, void *to, const void *from, size_t bytes,
                             void *stream)
{
    if (bytes == 0)
        return PLAIT_OK;
    PLAIT_TRY(enter(cuda));
    return leave("cuMemcpyAsync", cu.cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, bytes, stream));
}

plait_status plait_cuda_fill(plait_cuda *cuda, void *to, int32_t byte, size_t bytes, void *stream)
{
    if (bytes == 0)
        return PLAIT_OK;
    PLAIT_TRY(enter(cuda));
    return leave("cuMemsetD8Async",
                 cu.cuMemsetD8Async((uintptr_t)to, (unsigned char)byte, bytes, stream));
}

plait_status plait_cuda_stream_open(plait_cuda *cuda, void **out)
{
    *out = NULL;
    PLAIT_TRY(enter(cuda));
    return leave("cuStreamCreate", cu.cuStreamCreate(out, CUDA_STREAM_NON_BLOCKING));
}

void plait_cuda_stream_close(plait_cuda *cuda, void *stream)
{
    if (stream && enter(cuda) == PLAIT_OK)
        leave("cuStreamDestroy", cu.cuStreamDestroy(stream));
}

plait_status plait_cuda_stream_sync(plait_cuda *cuda, void *stream)
{
    PLAIT_TRY(enter(cuda));
    return leave("cuStreamSynchronize", cu.cuStreamSynchronize(stream));
}

plait_status plait_cuda_event_open(plait_cuda *cuda, void **out)
{
    *out = NULL;
    PLAIT_TRY(enter(cuda));
    return leave("cuEventCreate", cu.cuEventCreate(out, 0));
}

void plait_cuda_event_close(plait_cuda *cuda, void *event)
{
    if (event && enter(cuda) == PLAIT_OK)
        leave("cuEventDestroy", cu.cuEventDestroy(event));
}

plait_status plait_cuda_event_record(plait_cuda *cuda, void *event, void *stream)
{
    PLAIT_TRY(enter(cuda));
    return leave("cuEventRecord", cu.cuEventRecord(event, stream));
}

plait_status plait_cuda_event_elapsed(plait_cuda *cuda, void *begin, void *end, double *us)
{
    float ms = 0;
    PLAIT_TRY(enter(cuda));
    int error = cu.cuEventSynchronize(end);
    if (error == CUDA_SUCCESS)
        error = cu.cuEventElapsedTime(&ms, begin, end);
    *us = 1000.0 * (double)ms;
    return leave("cuEventElapsedTime", error);
}
