/* SPDX-License-Identifier: Apache-2.0 */
/* engine/engine_ranks.h - the engine's parts: what ranks share, and what each of them has. */
#ifndef PLAIT_ENGINE_ENGINE_RANKS_H
#define PLAIT_ENGINE_ENGINE_RANKS_H

#include <pthread.h>

#include <plait/engine.h>

#include "engine/eagle3.h"
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
    plait_heads_rank heads, draft_heads; /* draft_heads: of an EAGLE-3 head */
    int32_t dcp_heads[PLAIT_COMM_MAX_RANKS];
    plait_pool *pool;
    plait_comm *ranks, *dcp_ranks;
    plait_gemm_set *gemms;
    plait_model model;
    plait_attend attend, draft_attend; /* draft_attend: of an EAGLE-3 head */
    plait_pass pass;
    plait_kv_group target, draft;
    plait_session session;
    plait_trace trace; /* empty unless the options want one */
    /* Of the call in progress. */
    plait_rank_fn fn;
    void *arg;
    pthread_t thread;
    plait_status status;
    int32_t agreed; /* the failure is the same on all ranks, which stay together */
    char error[PLAIT_ENGINE_ERROR_BYTES];
};

struct plait_engine {
    plait_engine_options options;
    plait_config config;
    plait_tokenizer *tokenizer;
    plait_checkpoint *checkpoint; /* during open only */
    plait_rope_table rope, draft_rope;
    plait_eagle3_head eagle3; /* of draft_dir */
    float *embedding;
    int32_t num_ranks, threads_per_rank;
    int32_t num_local;           /* ranks of this process: all, or one of options.comm */
    int32_t pin_rank, pin_ranks; /* which share of this process's CPUs is ours, of how many */
    int32_t failed;    /* a call failed half way: ranks may disagree, nothing more is run */
    plait_rank *ranks; /* [num_local] */
};

/* Calls fn for every rank, each on its own thread (rank 0 on the calling one). The first failure
   that is no mere echo of another rank's is returned with its sentence. */
plait_status plait_engine_run(plait_engine *engine, plait_rank_fn fn, void *arg);

/* ---- engine_draft.c -------------------------------------------------------------------------- */

/* A KV group's shape; pages come with the requests. */
void plait_rank_set_group(const plait_rank *rank, int32_t d, int32_t layers, int32_t width,
                          plait_kv_group *group);

/* The drafter's files; refuses a draft that the model has not. */
plait_status plait_engine_open_draft(plait_engine *engine);

/* The rank's heads and weights of an EAGLE-3 head, if there is one. */
plait_status plait_rank_layout_draft(plait_rank *rank);
plait_status plait_rank_load_draft(plait_rank *rank);

/* The drafter's attention and KV group, after the target's. Collective over the DCP group. */
plait_status plait_rank_open_draft(plait_rank *rank);

/* ---- engine_agree.c: ranks of a caller's group; without one each returns `status`. Collective;
   all ranks return the same. ----------------------------------------------------------------- */

/* Refuses options that differ, naming the rank and the option. `status` is what this rank's own
   check said. */
plait_status plait_engine_agree_options(const plait_engine_options *options, plait_status status);

/* Refuses models that differ. Sets threads_per_rank and what is pinned from the CPUs that the ranks
   of this machine share. */
plait_status plait_engine_agree_model(plait_engine *engine, plait_status status);

/* Refuses requests that differ; `hash` is over what they ask for. */
plait_status plait_engine_agree_requests(const plait_engine *engine, uint64_t hash,
                                         plait_status status);

/* After work that may take one rank minutes longer than another: all go on, or all return the
   status of the first that cannot, with its sentence after its number and `what`. A rank alone
   keeps its own sentence. */
plait_status plait_rank_agree(plait_rank *rank, const char *what, plait_status status);

/* A hash of bytes, going on from `hash` (0 at first). */
uint64_t plait_engine_hash(uint64_t hash, const void *data, size_t bytes);

#endif
