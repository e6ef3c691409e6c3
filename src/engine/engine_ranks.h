/* SPDX-License-Identifier: Apache-2.0 */
/* engine/engine_ranks.h - the engine's parts: what ranks share, and what each of them has. */
#ifndef PLAIT_ENGINE_ENGINE_RANKS_H
#define PLAIT_ENGINE_ENGINE_RANKS_H

#include <pthread.h>

#include <plait/engine.h>

#include "engine/session.h"

enum {
    PLAIT_ENGINE_ROWS = 256,      /* most rows of a pass: the chunk of a prefill */
    PLAIT_ENGINE_LOGIT_ROWS = 64, /* rows of logits at a time */
    PLAIT_ENGINE_ERROR_BYTES = 512
};

typedef struct plait_rank plait_rank;
typedef plait_status (*plait_rank_fn)(plait_rank *rank, void *arg);

struct plait_rank {
    plait_engine *engine;
    int32_t rank;
    plait_heads_rank heads;
    int32_t dcp_heads[PLAIT_COMM_MAX_RANKS];
    plait_pool *pool;
    plait_comm *ranks, *dcp_ranks;
    plait_gemm_set *gemms;
    plait_model model;
    plait_attend attend;
    plait_pass pass;
    plait_kv_group target, draft;
    plait_session session;
    /* Of the call in progress. */
    plait_rank_fn fn;
    void *arg;
    pthread_t thread;
    plait_status status;
    char error[PLAIT_ENGINE_ERROR_BYTES];
};

struct plait_engine {
    plait_engine_options options;
    plait_config config;
    plait_tokenizer *tokenizer;
    plait_checkpoint *checkpoint; /* during open only */
    plait_rope_table rope;
    float *embedding;
    int32_t num_ranks, threads_per_rank;
    int32_t failed; /* a call failed half way: ranks may disagree, nothing more is run */
    plait_rank *ranks;
};

/* Calls fn for every rank, each on its own thread (rank 0 on the calling one). The first failure
   that is no mere echo of another rank's is returned with its sentence. */
plait_status plait_engine_run(plait_engine *engine, plait_rank_fn fn, void *arg);

#endif
