/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/model.h - one rank's part of the weights, laid out for its products.
 *
 * A rank of W holds its heads, its part of every MLP's intermediate width (experts included, so
 * that the ranks share each expert's work evenly) and its part of the vocabulary's head. The latent
 * projection, the router and the norms are whole on every rank.
 */
#ifndef PLAIT_ENGINE_MODEL_H
#define PLAIT_ENGINE_MODEL_H

#include "engine/checkpoint.h"
#include "engine/config.h"
#include "engine/gemm.h"

/* down(silu(gate x) * up x) over a part of the intermediate width; gate and up are one product. */
typedef struct plait_mlp_unit {
    plait_gemm *gate_up, *down;
    int32_t width; /* 0: this rank has no part of it */
} plait_mlp_unit;

typedef struct plait_layer {
    float *input_norm, *post_norm, *kv_norm;
    plait_gemm **q_a;   /* [slices of q_lora_rank] hidden -> part of it; NULL without q_lora_rank */
    float *q_norm;      /* of q_a's result */
    plait_gemm **q;     /* [heads of this rank] hidden, or q_a's result normalised -> nope + rope */
    plait_gemm *kv_a;   /* hidden -> latent + rope */
    plait_gemm **k_up;  /* [heads] nope -> latent: a query absorbed */
    plait_gemm **v_up;  /* [heads] latent -> v */
    plait_gemm **o;     /* [slices of hidden] heads * v -> part of hidden */
    plait_gemm *router; /* NULL: a dense layer */
    float *router_bias; /* may be NULL */
    /* Dense: parts of the MLP. MoE: num_experts routed ones, then the shared one. */
    plait_mlp_unit *units;
    int32_t num_units;
} plait_layer;

typedef struct plait_mtp {
    float *enorm, *hnorm, *head_norm;
    plait_gemm **join; /* [slices of hidden] eh_proj, 2 * hidden -> part of hidden */
    plait_layer layer;
} plait_mtp;

/* A rank's part of the product that gives logits. */
typedef struct plait_head {
    plait_gemm **products;        /* [slices of count] */
    int32_t begin, count, stride; /* ids of this rank; stride: of the largest rank */
} plait_head;

struct plait_eagle3;

typedef struct plait_model {
    const plait_config *config;
    int32_t rank, n_ranks, n_slices; /* slices: one for each worker */
    int32_t head_begin, num_heads;   /* this rank's query heads */
    plait_layer *layers;
    float *final_norm;
    plait_head head;
    plait_mtp *mtp;              /* NULL: not loaded */
    struct plait_eagle3 *eagle3; /* NULL: no such head */
    void **owned;                /* small arrays to free */
    int32_t num_owned, cap_owned;
} plait_model;

/* First item of part i when `total` items are cut into `parts`, as even as can be. */
static inline int32_t plait_part(int32_t total, int32_t i, int32_t parts)
{
    return (int32_t)((int64_t)total * i / parts);
}

/* Loads the rank's part with products in `dtype` (the router's stay float32). The products belong
   to `gemms`. head_begin and num_heads must be set by the heads' layout. */
plait_status plait_model_load(plait_checkpoint *checkpoint, const plait_config *config,
                              plait_gemm_set *gemms, plait_dtype dtype, int32_t with_mtp,
                              plait_model *model);
void plait_model_close(plait_model *model);

#endif
