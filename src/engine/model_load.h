/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model_load.h - steps of loading that the target and EAGLE-3 heads share. */
#ifndef PLAIT_ENGINE_MODEL_LOAD_H
#define PLAIT_ENGINE_MODEL_LOAD_H

#include "engine/model.h"

typedef struct plait_loader {
    plait_checkpoint *checkpoint;
    const plait_config *config; /* of the target */
    plait_gemm_set *gemms;
    plait_dtype dtype;
    plait_model *model;
    float *buffer; /* of the weights that are being laid out; to be freed */
    size_t buffer_floats;
} plait_loader;

/* Zeroed memory that is freed with the model. */
plait_status plait_load_own(plait_model *model, size_t count, size_t bytes, void *out);

/* Room in the buffer. */
plait_status plait_load_reserve(plait_loader *loader, int64_t floats);

/* A part of tensor prefix + name as float32. */
plait_status plait_load_tensor(plait_loader *loader, const char *prefix, const char *name,
                               plait_slice slice, float *dst, int64_t stride);
plait_status plait_load_vector(plait_loader *loader, const char *prefix, const char *name,
                               int64_t n, float **out);

/* Rows [first, first + n) of a [rows, cols] weight, cut into `slices` products. */
plait_status plait_load_rows(plait_loader *loader, const char *prefix, const char *name,
                             int64_t rows, int64_t cols, int32_t first, int32_t n, int32_t slices,
                             plait_gemm ***out);

/* Columns [first, first + width) of self_attn.o_proj, hidden x total: one product for each slice of
   hidden. */
plait_status plait_load_output(plait_loader *loader, const char *prefix, int64_t total,
                               int64_t first, int64_t width, plait_gemm ***out);

/* Columns [begin, end) of the intermediate width `total` of one MLP. */
plait_status plait_load_unit(plait_loader *loader, const char *prefix, int64_t total, int32_t begin,
                             int32_t end, plait_mlp_unit *unit);

/* The rank's part of a dense MLP, a unit for each worker. */
plait_status plait_load_dense(plait_loader *loader, const char *prefix, int32_t total,
                              plait_layer *layer);

/* The rank's rows of a head over `vocab` ids. */
plait_status plait_load_head(plait_loader *loader, const char *name, int32_t vocab,
                             plait_head *head);

#endif
