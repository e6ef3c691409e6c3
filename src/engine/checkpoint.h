/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/checkpoint.h - the tensors of a folder of safetensors files, read as float32 or bf16.
 *
 * Open validates every header and maps the files; no tensor data is touched until it is loaded.
 * Loading dequantises, takes the slice that a rank needs, and refuses NaN and infinity.
 */
#ifndef PLAIT_ENGINE_CHECKPOINT_H
#define PLAIT_ENGINE_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <plait/dtype.h>
#include <plait/status.h>

#include "engine/config.h"

typedef struct plait_checkpoint plait_checkpoint;

/* A part of a tensor. shape is what the model wants; the file must agree with it. A vector has
   rows == 0 and length cols; row0 and n_rows are ignored then. */
typedef struct plait_slice {
    int64_t rows, cols;   /* of the whole tensor */
    int64_t row0, n_rows; /* the part to load */
    int64_t col0, n_cols;
} plait_slice;

#define PLAIT_SLICE_MATRIX(r, c)         ((plait_slice){(r), (c), 0, (r), 0, (c)})
#define PLAIT_SLICE_ROWS(r, c, first, n) ((plait_slice){(r), (c), (first), (n), 0, (c)})
#define PLAIT_SLICE_COLS(r, c, first, n) ((plait_slice){(r), (c), 0, (r), (first), (n)})
#define PLAIT_SLICE_VECTOR(n)            ((plait_slice){0, (n), 0, 0, 0, (n)})

/* Opens DIR/model.safetensors.index.json with the shards that it names, else
   DIR/model.safetensors. config (may be NULL: 128 x 128) gives the block shape of fp8 scales.
   E_IO: files missing (all listed), truncated; E_FORMAT: a header or index that contradicts
   itself or the files; E_UNSUPPORTED: a dtype without a known size. */
plait_status plait_checkpoint_open(const char *dir, const plait_config *config,
                                   plait_checkpoint **out);

/* Unmaps everything; NULL is fine. */
void plait_checkpoint_close(plait_checkpoint **checkpoint);

/* Whether a tensor of this name exists. Does not mark it as used. */
bool plait_checkpoint_has(const plait_checkpoint *checkpoint, const char *name);

/* Number of tensors. */
size_t plait_checkpoint_count(const plait_checkpoint *checkpoint);

/* Loads a slice of tensor `name` into dst [n_rows, dst_stride] (elements of dtype, PLAIT_F32 or
   PLAIT_BF16) and marks it, and its scale, as used. Several threads may load at once.
   E_FORMAT: no such tensor, another shape, NaN or infinity, fp8 without scale; the sentence names
   the tensor. dst is unspecified after a failure. */
plait_status plait_checkpoint_load(plait_checkpoint *checkpoint, const char *name,
                                   const plait_slice *slice, plait_dtype dtype, void *dst,
                                   int64_t dst_stride);

/* Call once after everything is loaded: tells of tensors that nothing used, in one notice for
   layers beyond the declared ones and one for the others. MTP layers are never told of. */
void plait_checkpoint_finish(const plait_checkpoint *checkpoint, const plait_config *config);

#endif
