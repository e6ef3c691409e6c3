/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/eagle3.h - an EAGLE-3 head: one Llama layer over tokens and states of a target.
 *
 * A head is a folder with config.json and safetensors. Its tensors are fc, norm and lm_head, those
 * of `midlayer.` (or `layers.0.`), d2t where it has fewer ids than the target, and its embedding
 * where that is not the target's.
 */
#ifndef PLAIT_ENGINE_EAGLE3_H
#define PLAIT_ENGINE_EAGLE3_H

#include <plait/shard.h>

#include "engine/model.h"

enum { PLAIT_EAGLE3_AUX = 3 };

typedef struct plait_eagle3_config {
    int32_t hidden_size, intermediate_size, vocab_size, draft_vocab_size;
    int32_t num_heads, num_kv_heads, head_dim;
    float rms_norm_eps;
    bool norm_before_residual;     /* the residual is the normalised state */
    int32_t aux[PLAIT_EAGLE3_AUX]; /* the target's layers whose input it takes, ascending */
    plait_rope rope;
} plait_eagle3_config;

/* What the ranks share. */
typedef struct plait_eagle3_head {
    plait_eagle3_config config;
    plait_checkpoint *checkpoint; /* during open only */
    int32_t *target_ids;          /* [draft_vocab_size], distinct */
    float *embedding;             /* [vocab][hidden]; NULL: the target's */
} plait_eagle3_head;

/* A rank's part. */
typedef struct plait_eagle3 {
    const plait_eagle3_head *shared;
    int32_t head_begin, num_heads, kv_begin, num_kv_heads;
    plait_gemm **fc;   /* [slices of hidden] 3 * hidden -> part of hidden */
    plait_gemm **q;    /* [heads] 2 * hidden -> head_dim */
    plait_gemm *k, *v; /* 2 * hidden -> KV heads * head_dim */
    float *hidden_norm, *final_norm;
    plait_layer layer; /* norms, o and a dense MLP */
    plait_head head;
} plait_eagle3;

/* Reads and checks a head for a target. E_IO, E_FORMAT; E_UNSUPPORTED: what this engine does not
   run, or a head of another target. */
plait_status plait_eagle3_config_parse(const char *text, size_t bytes, const char *name,
                                       const plait_config *target, plait_eagle3_config *out);
plait_status plait_eagle3_open(const char *dir, const plait_config *target, plait_eagle3_head *out);
void plait_eagle3_close(plait_eagle3_head *head);

/* The rank's part, with the heads of `heads`, into model->eagle3. */
plait_status plait_eagle3_load(const plait_eagle3_head *head, const plait_heads_rank *heads,
                               plait_gemm_set *gemms, plait_dtype dtype, plait_model *model);

#endif
