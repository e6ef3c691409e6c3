/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/cuda.h - attention on NVIDIA GPUs of the Hopper generation (compute capability 9.0).
 *
 * The library holds its GPU kernels and finds the driver (libcuda.so.1) when a device is opened, so
 * that one library runs with and without a GPU. Typical use, once:
 *
 *     plait_cuda_open(0, &cuda);          loads the kernels; never later, so that calls of an open
 *                                         device can be captured in a graph
 *   and for each step, with every pointer of args in device memory, args.device = 0 and
 * args.stream: plait_cuda_schedule(&args, buffer, bytes);     once for all layers
 *     plait_attn_pick(&args, 0, 1, NULL, &kernel);   then plait_attn_run(kernel, &args, NULL)
 *
 * With args.device >= 0 all pointers of plait_attn_args are device memory: q, k, out, lse, ranges,
 * tables, scales, schedule and workspace, and also the entries of out_bases and lse_bases. The
 * library does not read them on the host, so plait_attn_check looks at scalar fields only.
 * Nothing here waits for the device unless it says so. All functions are thread-safe.
 */
#ifndef PLAIT_CUDA_H
#define PLAIT_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include <plait/attn.h>
#include <plait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct plait_cuda plait_cuda;

/*
 * Opens a device by its number: in the calling thread's current context if that belongs to it, else
 * in its primary context, which is kept until close. A device that is open already is shared.
 * PLAIT_E_UNSUPPORTED: this build has no GPU kernels, or the device is not of compute capability
 * 9.0. PLAIT_E_DEVICE: there is no driver, it is too old, it finds no such device, or it fails.
 * The sentence says which, with the numbers found and wanted. On failure *out is NULL.
 */
PLAIT_API plait_status plait_cuda_open(int32_t ordinal, plait_cuda **out);

/* Gives the device back and sets *cuda to NULL; NULL is accepted. Its work must have ended. */
PLAIT_API void plait_cuda_close(plait_cuda **cuda);

/* Devices that the driver finds, opened or not; failures as for plait_cuda_open. */
PLAIT_API plait_status plait_cuda_count(int32_t *out);

typedef struct plait_cuda_info {
    size_t size; /* sizeof(plait_cuda_info) */
    char name[128];
    int32_t version; /* 10 * major + minor of the compute capability */
    int32_t num_sms;
    int64_t memory_bytes;
    int32_t driver; /* 1000 * major + 10 * minor of the CUDA version that the driver offers */
    int32_t usable; /* 1 if plait_cuda_open would take it */
} plait_cuda_info;

/* Facts about a device, opened or not. */
PLAIT_API plait_status plait_cuda_describe(int32_t ordinal, plait_cuda_info *out);

/* ---- the schedule --------------------------------------------------------------------------- */

/* Bytes of device memory for plait_cuda_schedule of calls with at most these sequences and rows. */
PLAIT_API size_t plait_cuda_schedule_bytes(const plait_cuda *cuda, int32_t max_seqs,
                                           int32_t max_rows, int32_t h_q);

/*
 * Cuts the call's work into even shares for the device's multiprocessors. Reads row_start, kv_begin
 * and kv_end on the device, in stream order, so it can be captured: a replay cuts again. Sets work,
 * num_work, worker_start, num_workers, reduce, num_reduce and num_partials of *args: pointers into
 * `buffer` (device memory, aligned to 64), and counts that depend on num_seqs, num_rows and h_q
 * alone, so that the workspace does too. PLAIT_E_NOMEM: the buffer is too small.
 */
PLAIT_API plait_status plait_cuda_schedule(plait_attn_args *args, void *buffer, size_t bytes);

/* ---- memory, streams, time: for callers without the CUDA runtime ----------------------------- */

/* bytes > 0 of device memory, aligned to 256; PLAIT_E_NOMEM with the bytes if there is none. */
PLAIT_API plait_status plait_cuda_alloc(plait_cuda *cuda, size_t bytes, void **out);
PLAIT_API void plait_cuda_free(plait_cuda *cuda, void *ptr);

/* Copies between host and device or within the device, and fills with a byte, in stream order
   (stream NULL: the default one). Host memory must stay until the stream has got there. */
PLAIT_API plait_status plait_cuda_copy(plait_cuda *cuda, void *to, const void *from, size_t bytes,
                                       void *stream);
PLAIT_API plait_status plait_cuda_fill(plait_cuda *cuda, void *to, int32_t byte, size_t bytes,
                                       void *stream);

/* A stream that does not wait for the default one. sync waits until all its work has ended. */
PLAIT_API plait_status plait_cuda_stream_open(plait_cuda *cuda, void **out);
PLAIT_API void plait_cuda_stream_close(plait_cuda *cuda, void *stream);
PLAIT_API plait_status plait_cuda_stream_sync(plait_cuda *cuda, void *stream);

/* Events record a moment of a stream; elapsed waits for `end` and gives microseconds. */
PLAIT_API plait_status plait_cuda_event_open(plait_cuda *cuda, void **out);
PLAIT_API void plait_cuda_event_close(plait_cuda *cuda, void *event);
PLAIT_API plait_status plait_cuda_event_record(plait_cuda *cuda, void *event, void *stream);
PLAIT_API plait_status plait_cuda_event_elapsed(plait_cuda *cuda, void *begin, void *end,
                                                double *us);

#ifdef __cplusplus
}
#endif
#endif
