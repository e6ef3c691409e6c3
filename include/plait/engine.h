/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/engine.h - text from a DeepSeek V2 or V3 checkpoint, its KV cache split over ranks.
 *
 * An engine holds one model for W ranks of this process (one thread each, every rank with its own
 * workers), or one rank of a group that the caller opened (`comm`). Each DCP group of D ranks
 * splits the latent cache; drafts are verified several tokens at a time. Decoding is greedy (every
 * rank takes the highest of the same float32 logits, the lowest id on ties) or sampled; drafts
 * change the distribution of neither. A seed gives the same sampled tokens again with the same
 * options, but not with PLAIT_SPEC_AUTO: how many drafts it takes depends on measured times, and
 * with them which random number decides a token.
 *
 *     plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
 *     o.model_dir = "models/tiny";
 *     o.dcp = o.tp = 2;
 *     plait_engine_open(&o, &engine);
 *     plait_request r = PLAIT_REQUEST_INIT;
 *     r.text = "The read() function"; r.text_bytes = strlen(r.text);
 *     plait_engine_generate(engine, &r, 1, NULL, NULL, &generation);
 *     ... generation->results[0].text ...
 *     plait_generation_close(&generation);
 *     plait_engine_close(&engine);
 */
#ifndef PLAIT_ENGINE_H
#define PLAIT_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include <plait/comm.h>
#include <plait/cpu.h>
#include <plait/dtype.h>
#include <plait/memory.h>
#include <plait/status.h>
#include <plait/trace.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct plait_engine plait_engine;

typedef enum plait_draft_kind {
    PLAIT_DRAFT_NONE = 0,
    PLAIT_DRAFT_MTP = 1,    /* the checkpoint's multi-token-prediction layer */
    PLAIT_DRAFT_ORACLE = 2, /* for tests: the target itself, decoded ahead and rolled back */
    PLAIT_DRAFT_NGRAM = 3,  /* what followed where the last tokens stood before: no weights */
    PLAIT_DRAFT_EAGLE3 = 4  /* an EAGLE-3 head: draft_dir */
} plait_draft_kind;

#define PLAIT_KV_DTYPE_AUTO (-1) /* the compute dtype */
#define PLAIT_SPEC_AUTO     (-1)

typedef struct plait_engine_options {
    size_t size;            /* sizeof(plait_engine_options) */
    const char *model_dir;  /* config.json, safetensors, tokenizer.json */
    int32_t tp;             /* W, ranks of tensor parallelism; 0: dcp */
    int32_t dcp;            /* D, divides W */
    int32_t interleave;     /* I, tokens */
    plait_dtype dtype;      /* PLAIT_F32 or PLAIT_BF16: weights and GEMM inputs */
    int32_t kv_dtype;       /* a plait_dtype (f32, bf16, f16) or PLAIT_KV_DTYPE_AUTO */
    int32_t page_size;      /* P, tokens of one page on one rank */
    int64_t kv_cache_bytes; /* of pages per rank, drafts included; 0: what the largest call needs */
    int32_t threads;        /* of all ranks together, at least W are used; 0: by affinity, quota */
    plait_draft_kind draft;
    int32_t spec_tokens; /* K, drafts per step, 1..16; or PLAIT_SPEC_AUTO: for each request what
                            pays, by measured acceptance and cost, 0..8 */
    int32_t draft_kv_replicated; /* 0: the draft's cache is split as the target's; 1: D = 1 */
    int32_t exchange;            /* a plait_exchange of plait/dcp.h; 0: auto */
    double comm_timeout_s;       /* until a rank counts as lost; at least 1: ranks of a healthy
                                    group come apart by much of a pass */
    plait_cpu_features cpu_mask; /* features that kernels may use */
    const char *kernel;          /* pattern of attention kernels to choose from; NULL: all. A draft
                                    of another kind whose kernels it does not name takes any */
    plait_comm *comm;            /* one rank for each handle, see below; NULL: threads */
    int32_t prefix_cache; /* 1: KV of prompts and outputs stays for requests that begin alike */
    const plait_allocator *allocator; /* of caches and step buffers, kept until close; NULL: libc.
                                         Weights, tables, requests and results are libc's */
    int32_t debug_ranks;   /* 1: all ranks compare a hash of their tokens at every step, and fail
                              with PLAIT_E_COMM and the rank's number where one differs */
    const char *draft_dir; /* PLAIT_DRAFT_EAGLE3: the head's config.json and safetensors */
    int32_t trace;         /* 1: keep spans for plait_engine_trace */
    int32_t invariant;     /* 1: attention gives a row the same bits whatever else is in the batch
                              and however many threads there are (plait/attn.h); not exchange ag_rs.
                              Products with weights may still depend on the batch */
} plait_engine_options;
#define PLAIT_ENGINE_OPTIONS_INIT                                                                  \
    {                                                                                              \
        sizeof(plait_engine_options), NULL, 0, 1, 1, PLAIT_BF16, PLAIT_KV_DTYPE_AUTO, 64, 0, 0,    \
            PLAIT_DRAFT_NONE, 3, 0, 0, 30.0, PLAIT_CPU_ALL, NULL, NULL, 1, NULL, 0, NULL, 0, 0     \
    }

/*
 * Loads the model. With `comm` this engine is one rank of comm's group, whose other ranks open
 * theirs elsewhere, in other processes say: opening, generating and logits are then collective. W
 * is the group's size, its deadline holds instead of comm_timeout_s, `threads` are those of all
 * ranks together (0: what the machine allows, shared among the ranks on it), and every call uses
 * the handle on the thread that calls. Options, requests and models that differ between ranks are
 * refused on all of them. A failure is either the same on all ranks, and the group stays usable, or
 * it aborts the group. comm stays the caller's and must live until the engine is closed.
 *
 * Refuses by name what is wrong in the options, a checkpoint that is incomplete or
 * of another architecture, and W or D that do not fit its head count. On failure *out is NULL.
 */
PLAIT_API plait_status plait_engine_open(const plait_engine_options *options, plait_engine **out);

/* Frees everything and sets *engine to NULL; NULL is accepted. */
PLAIT_API void plait_engine_close(plait_engine **engine);

typedef struct plait_engine_info {
    int32_t vocab_size, num_layers, hidden_size, num_heads;
    int64_t max_length; /* longest sequence, prompt and new tokens */
    int32_t tp, dcp, threads;
    int32_t has_mtp;
    int64_t kv_token_bytes; /* bytes of one token in the target's cache, all layers, one copy */
} plait_engine_info;

PLAIT_API plait_status plait_engine_get_info(const plait_engine *engine, plait_engine_info *out);

/* The spans of one rank since open, also of calls that failed, up to 2^20 of them; *dropped counts
   the rest. NULL without option trace and for a rank of another process. Valid until close. */
PLAIT_API const plait_trace_span *plait_engine_trace(const plait_engine *engine, int32_t rank,
                                                     int64_t *num, int64_t *dropped);

/* ---- generation ------------------------------------------------------------------------------ */

typedef struct plait_request {
    size_t size;        /* sizeof(plait_request) */
    const int32_t *ids; /* the prompt as token ids, taken as they are; or NULL: text */
    int64_t num_ids;
    const char *text; /* the prompt as UTF-8, tokenized (the model's first token is prepended) */
    size_t text_bytes;
    int32_t max_new_tokens;
    int32_t ignore_eos;      /* 1: go on past the model's end tokens (stop_ids still count) */
    const int32_t *stop_ids; /* tokens that end the output, beside the model's */
    int32_t num_stop_ids;
    const char *const *stop_texts; /* texts that end the output, UTF-8, at most 64 of 4096 bytes */
    int32_t num_stop_texts;
    /* See plait_sampling in plait/spec.h. Sampled tokens depend on these, the prompt, the drafter
       and spec_tokens; not on other requests of the call. */
    double temperature;    /* 0: greedy */
    int32_t top_k;         /* 0: all */
    double top_p;          /* (0, 1] */
    uint64_t seed;         /* equal requests with equal seeds give equal tokens */
    uint64_t seed_request; /* plait_sampling.request: a second part of the seed */
    int32_t num_logprobs;  /* 1 .. 20: log-probabilities of each token and of so many of the most
                              likely ones; 0: none */
} plait_request;
#define PLAIT_REQUEST_INIT                                                                         \
    {                                                                                              \
        sizeof(plait_request), NULL, 0, NULL, 0, 128, 0, NULL, 0, NULL, 0, 0, 0, 1, 0, 0, 0        \
    }

typedef enum plait_finish {
    PLAIT_FINISH_LENGTH = 0,   /* max_new_tokens, or the model's length */
    PLAIT_FINISH_STOP = 1,     /* a stop token, which is the last of ids and not in text; or a stop
                                  text: text ends before it, and ids with the last token whose text
                                  begins before it */
    PLAIT_FINISH_CANCELLED = 2 /* the caller's stream function wanted no more */
} plait_finish;

/* "length", "stop" or "cancelled". */
PLAIT_API const char *plait_finish_name(plait_finish finish);

typedef struct plait_result {
    int32_t *ids; /* the new tokens */
    int32_t num_new;
    int64_t num_prompt;
    int64_t num_cached; /* tokens of the prompt whose KV was in the prefix cache */
    char *text;         /* ends with a 0 that text_bytes does not count */
    size_t text_bytes;
    plait_finish finish;
    int64_t steps; /* target passes after the prefill that this request was in */
    int64_t num_drafted, num_accepted; /* draft tokens proposed and kept */
    double prefill_s;                  /* its admission to its first token */
    double decode_s;                   /* first token to the last, drafting included */
    int32_t num_top;                   /* the request's num_logprobs; 0: the next three are NULL */
    float *logprobs;     /* [num_new] of each token: natural, before temperature and filters */
    int32_t *top_ids;    /* [num_new][num_top] most likely first */
    float *top_logprobs; /* [num_new][num_top] */
} plait_result;

/* What a request gained in a step. Pointers are valid during the call. */
typedef struct plait_stream_event {
    int32_t request;    /* its number in the call */
    const int32_t *ids; /* new tokens */
    int32_t num_ids;    /* may be 0 */
    const char *text;   /* whole UTF-8 characters; one that is spread over tokens comes with its
                           last token */
    size_t text_bytes;
    const plait_result *result; /* NULL; in the request's last event all of it, valid until the
                                   generation is closed */
} plait_stream_event;

/* Called as tokens are final, by one thread at a time; requests in any order. What it was given is
   what the result holds. Returns 0 to go on; anything else gives up this request: it gains no more
   and ends in one more event. */
typedef int32_t (*plait_stream_fn)(void *user, const plait_stream_event *event);

typedef struct plait_generation {
    int32_t num_results;
    plait_result *results;
    int32_t num_ranks;       /* W */
    int64_t *kv_bytes;       /* [W] bytes of the target's pages, the most in use at one time */
    int64_t *draft_kv_bytes; /* [W] the same for the draft's cache */
    const char *kernel;      /* the attention kernel of the last decoding step */
    const char *exchange;    /* "none" (D = 1), "ag_rs" or "a2a" */
} plait_generation;

/*
 * Generates for `num` >= 1 requests together: they are admitted in order as soon as the pages of
 * all their tokens fit, prompts are read in chunks beside the steps of others, and a request that
 * ends makes room at once. fn may be NULL. Fails before anything ran when a prompt is empty or
 * longer than the model allows, an id is outside the vocabulary, or the cache is too small for one
 * of them alone (bytes needed and available, and the longest length that fits). Logits that are not
 * finite fail. On failure *out is NULL. One call at a time.
 */
PLAIT_API plait_status plait_engine_generate(plait_engine *engine, const plait_request *requests,
                                             int32_t num, plait_stream_fn fn, void *user,
                                             plait_generation **out);

/* Frees it and sets *generation to NULL; NULL is accepted. */
PLAIT_API void plait_generation_close(plait_generation **generation);

/*
 * Teacher-forced logits of num_ids tokens through the same path as generation (chunks, cache,
 * DCP). chunk: rows per pass, 0 for the default. Any output may be NULL:
 *   logits        [num_ids][vocab]
 *   router_margin [num_ids] the smallest gap, over layers, between what the router chose and the
 *                 best of what it left out (groups and experts), +inf for a model without MoE
 *   draft_logits    [num_ids - 1 + more_drafts][vocab], row i: state of token i and token i+1; the
 *                 further rows take the draft chosen by the row before and the state it gave
 *                 (needs draft mtp or eagle3; -inf at tokens that the draft's head has not)
 */
PLAIT_API plait_status plait_engine_logits(plait_engine *engine, const int32_t *ids,
                                           int64_t num_ids, int32_t chunk, float *logits,
                                           float *router_margin, float *draft_logits,
                                           int32_t more_drafts);

#ifdef __cplusplus
}
#endif
#endif
