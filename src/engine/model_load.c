/* SPDX-License-Identifier: Apache-2.0 */
/* model_load.c: a rank's parts of weights, laid out for its products. */
#include "engine/model_load.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/status.h"

enum { MLP_BYTES = 80, NAME_BYTES = 160 }; /* a prefix with "mlp.", a tensor's full name */

plait_status plait_load_own(plait_model *model, size_t count, size_t bytes, void *out)
{
    if (model->num_owned == model->cap_owned) {
        const int32_t cap = model->cap_owned * 2 + 64;
        void **more = realloc(model->owned, (size_t)cap * sizeof *more);
        if (!more)
            return plait_fail(PLAIT_E_NOMEM, "no memory for the model");
        model->owned = more;
        model->cap_owned = cap;
    }
    void *p = calloc(count ? count : 1, bytes);
    if (!p)
        return plait_fail(PLAIT_E_NOMEM, "no memory for the model");
    model->owned[model->num_owned++] = p;
    *(void **)out = p;
    return PLAIT_OK;
}

plait_status plait_load_reserve(plait_loader *l, int64_t floats)
{
    if ((size_t)floats <= l->buffer_floats)
        return PLAIT_OK;
    free(l->buffer);
    l->buffer_floats = 0;
    l->buffer = malloc((size_t)floats * sizeof(float));
    if (!l->buffer)
        return plait_fail(PLAIT_E_NOMEM, "no memory for %lld weights", (long long)floats);
    l->buffer_floats = (size_t)floats;
    return PLAIT_OK;
}

plait_status plait_load_tensor(plait_loader *l, const char *prefix, const char *name,
                               plait_slice slice, float *dst, int64_t stride)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return plait_checkpoint_load(l->checkpoint, full, &slice, PLAIT_F32, dst, stride);
}

plait_status plait_load_vector(plait_loader *l, const char *prefix, const char *name, int64_t n,
                               float **out)
{
    PLAIT_TRY(plait_load_own(l->model, (size_t)n, sizeof(float), out));
    return plait_load_tensor(l, prefix, name, PLAIT_SLICE_VECTOR(n), *out, n);
}

plait_status plait_load_rows(plait_loader *l, const char *prefix, const char *name, int64_t rows,
                             int64_t cols, int32_t first, int32_t n, int32_t slices,
                             plait_gemm ***out)
{
    PLAIT_TRY(plait_load_own(l->model, (size_t)slices, sizeof **out, out));
    PLAIT_TRY(plait_load_reserve(l, (int64_t)n * cols));
    PLAIT_TRY(plait_load_tensor(l, prefix, name, PLAIT_SLICE_ROWS(rows, cols, first, n), l->buffer,
                                cols));
    for (int32_t s = 0; s < slices; s++) {
        const int32_t at = plait_part(n, s, slices), end = plait_part(n, s + 1, slices);
        if (end > at)
            PLAIT_TRY(plait_gemm_open(l->gemms, l->dtype, l->buffer + at * cols, cols, end - at, 1,
                                      cols, &(*out)[s]));
    }
    return PLAIT_OK;
}

plait_status plait_load_unit(plait_loader *l, const char *prefix, int64_t total, int32_t begin,
                             int32_t end, plait_mlp_unit *unit)
{
    const int64_t hidden = l->config->hidden_size, width = end - begin;
    unit->width = end - begin;
    if (width == 0)
        return PLAIT_OK;
    PLAIT_TRY(plait_load_reserve(l, 2 * width * hidden));
    const plait_slice rows = PLAIT_SLICE_ROWS(total, hidden, begin, width);
    PLAIT_TRY(plait_load_tensor(l, prefix, "gate_proj.weight", rows, l->buffer, hidden));
    PLAIT_TRY(
        plait_load_tensor(l, prefix, "up_proj.weight", rows, l->buffer + width * hidden, hidden));
    PLAIT_TRY(plait_gemm_open(l->gemms, l->dtype, l->buffer, hidden, 2 * width, 1, hidden,
                              &unit->gate_up));
    PLAIT_TRY(plait_load_tensor(l, prefix, "down_proj.weight",
                                PLAIT_SLICE_COLS(hidden, total, begin, width), l->buffer, width));
    return plait_gemm_open(l->gemms, l->dtype, l->buffer, width, hidden, 1, width, &unit->down);
}

plait_status plait_load_dense(plait_loader *l, const char *prefix, int32_t total,
                              plait_layer *layer)
{
    const plait_model *m = l->model;
    const int32_t begin = plait_part(total, m->rank, m->n_ranks);
    const int32_t count = plait_part(total, m->rank + 1, m->n_ranks) - begin;
    char mlp[MLP_BYTES];
    snprintf(mlp, sizeof mlp, "%smlp.", prefix);
    layer->num_units = m->n_slices;
    PLAIT_TRY(
        plait_load_own(l->model, (size_t)layer->num_units, sizeof *layer->units, &layer->units));
    for (int32_t s = 0; s < m->n_slices; s++)
        PLAIT_TRY(plait_load_unit(l, mlp, total, begin + plait_part(count, s, m->n_slices),
                                  begin + plait_part(count, s + 1, m->n_slices), &layer->units[s]));
    return PLAIT_OK;
}

plait_status plait_load_output(plait_loader *l, const char *prefix, int64_t total, int64_t first,
                               int64_t width, plait_gemm ***out)
{
    const plait_model *m = l->model;
    const int32_t hidden = l->config->hidden_size;
    PLAIT_TRY(plait_load_own(l->model, (size_t)m->n_slices, sizeof **out, out));
    PLAIT_TRY(plait_load_reserve(l, hidden * width));
    PLAIT_TRY(plait_load_tensor(l, prefix, "self_attn.o_proj.weight",
                                PLAIT_SLICE_COLS(hidden, total, first, width), l->buffer, width));
    for (int32_t s = 0; s < m->n_slices; s++) {
        const int32_t at = plait_part(hidden, s, m->n_slices);
        const int32_t end = plait_part(hidden, s + 1, m->n_slices);
        if (end > at)
            PLAIT_TRY(plait_gemm_open(l->gemms, l->dtype, l->buffer + at * width, width, end - at,
                                      1, width, &(*out)[s]));
    }
    return PLAIT_OK;
}

plait_status plait_load_head(plait_loader *l, const char *name, int32_t vocab, plait_head *head)
{
    const plait_model *m = l->model;
    head->stride = (vocab + m->n_ranks - 1) / m->n_ranks;
    head->begin = plait_part(vocab, m->rank, m->n_ranks);
    head->count = plait_part(vocab, m->rank + 1, m->n_ranks) - head->begin;
    return plait_load_rows(l, "", name, vocab, l->config->hidden_size, head->begin, head->count,
                           m->n_slices, &head->products);
}
