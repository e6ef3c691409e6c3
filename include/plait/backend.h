/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/backend.h - which backend computes a batch, by which strategy, and why not another.
 *
 * A backend is a kernel family with capability rows. A requirement says what a batch needs. A row
 * fits if nothing is missing; every missing point is kept as text with both values, from the
 * nearest row of the backend. Where a row lacks something, a strategy may bridge it.
 *
 * Typical use: plait_requirement_derive from a configuration, then plait_select. No function here
 * allocates. Selection is thread-safe; so is the registry.
 */
#ifndef PLAIT_BACKEND_H
#define PLAIT_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include <plait/attn.h>
#include <plait/caps.h>
#include <plait/cpu.h>
#include <plait/dtype.h>
#include <plait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a batch is brought to a kernel. */
typedef enum plait_strategy {
    PLAIT_STRATEGY_DIRECT = 0,  /* as it is; uniform groups one call each */
    PLAIT_STRATEGY_WINDOW = 1,  /* history as one range for all rows, the newest keys apart; LSE */
    PLAIT_STRATEGY_FLATTEN = 2, /* each row a sequence of its own: the cache is read q times */
    PLAIT_STRATEGY_PREFILL = 3, /* the context is gathered and the prefill kernel run; LSE */
    PLAIT_STRATEGY_REFUSE = 4
} plait_strategy;

/* "direct", "window", "flatten", "prefill", "refuse". */
PLAIT_API const char *plait_strategy_name(plait_strategy strategy);

/* ---- backends ------------------------------------------------------------------------------- */

/* Where a backend comes from, as bits. */
#define PLAIT_FROM_BUILTIN  (1u << 0)
#define PLAIT_FROM_PLUGINS  (1u << 1) /* and whatever else is registered */
#define PLAIT_FROM_PROFILES (1u << 2) /* data only: nothing here can run */
#define PLAIT_FROM_ALL      7u

/* What a capability row cannot say, beside row i of a backend. Texts may be NULL. */
typedef struct plait_row_note {
    const char *mode;    /* of the family, as "decode" */
    const char *package; /* that has the row, and the first version that has it */
    const char *since;
    const char *source;      /* of the row's facts */
    int32_t q_in_kv_dtype;   /* 1: the query is quantised to the cache's dtype at the edge */
    int32_t heads_max;       /* gathered heads of a call; 0: any */
    int32_t sinks, windows;  /* 1: the kernel itself knows them */
    int32_t lse_heads_first; /* 1: the LSE is laid out [h_q][num_rows], strides ignored */
} plait_row_note;

/* A static object of its owner. */
typedef struct plait_backend {
    size_t size; /* sizeof(plait_backend) */
    const char *name;
    uint32_t from;              /* one bit */
    const plait_caps *rows;     /* [n_rows], >= 1 */
    const plait_row_note *note; /* [n_rows], or NULL */
    int32_t n_rows;
    double cost;                /* time of a direct call relative to the machine's limit, >= 1 */
    const char *cost_source;    /* "estimate", or what measured it */
    const plait_kernel *kernel; /* NULL: a profile */
} plait_backend;

/* Built-in kernels first, in their order, then what was registered, then profiles. */
PLAIT_API int32_t plait_backend_count(void);
PLAIT_API const plait_backend *plait_backend_get(int32_t i); /* NULL: out of range */
PLAIT_API const plait_backend *plait_backend_find(const char *name);

/* Adds a backend, which must outlive its registration. PLAIT_E_ARG: a field is wrong or the name is
   taken; PLAIT_E_NOMEM: PLAIT_BACKEND_MAX are registered. */
PLAIT_API plait_status plait_backend_register(const plait_backend *backend);
PLAIT_API void plait_backend_unregister(const plait_backend *backend);
#define PLAIT_BACKEND_MAX 16

/* ---- requirements --------------------------------------------------------------------------- */

/* What a user configures. Start from PLAIT_BACKEND_CONFIG_INIT. Counts are 1 to 2^24. */
typedef struct plait_backend_config {
    size_t size;
    plait_op op;
    uint32_t phase; /* PLAIT_PHASE_DECODE or PLAIT_PHASE_PREFILL */
    plait_device_kind device;
    int32_t device_version;      /* 90: sm90; ignored for the CPU */
    plait_cpu_features features; /* of the CPU */
    plait_dtype dtype, kv_dtype; /* of the model, of the cache */
    int32_t heads, kv_heads;     /* the model's; MLA: 1 KV head */
    int32_t d_qk, d_v;
    int32_t page_size;
    int32_t tp, dcp, interleave; /* W, D, I */
    int32_t q_len;               /* rows of a sequence, the most of them when ragged */
    int32_t ragged;              /* 1: lengths differ */
    int32_t lengths;             /* distinct lengths of a ragged batch, >= 1 */
    int32_t batch, context;      /* sequences and keys of one, for costs */
    int32_t capture, invariant, sinks, window;
    const char *const *packages; /* [n_packages] "NAME=VERSION"; others: the newest known */
    int32_t n_packages;
} plait_backend_config;

#define PLAIT_BACKEND_CONFIG_INIT                                                                  \
    {                                                                                              \
        sizeof(plait_backend_config), PLAIT_OP_MLA, PLAIT_PHASE_DECODE, PLAIT_DEVICE_CPU, 0,       \
            PLAIT_CPU_ALL, PLAIT_BF16, PLAIT_BF16, 128, 1, 576, 512, 64, 1, 1, 1, 1, 0, 1, 16,     \
            8192, 0, 0, 0, 0, NULL, 0                                                              \
    }

/* What one call on one rank needs. */
typedef struct plait_requirement {
    plait_backend_config config;
    int32_t heads, kv_heads; /* of the call: gathered in the DCP group */
    plait_rows_mode rows;
    plait_ranges_mode ranges; /* the least that direct needs */
    int32_t needs_lse;        /* for direct: DCP > 1, or sinks */
} plait_requirement;

/* PLAIT_E_ARG, PLAIT_E_UNSUPPORTED: the limit that is broken, with both values. */
PLAIT_API plait_status plait_requirement_derive(const plait_backend_config *config,
                                                plait_requirement *out);

/* ---- selection ------------------------------------------------------------------------------ */

#define PLAIT_REASONS_MAX    12
#define PLAIT_REASON_BYTES   128
#define PLAIT_SELECTION_MAX  64
#define PLAIT_SELECTION_TEXT 256

/* All that keeps one backend from a batch; n 0: nothing does. */
typedef struct plait_refusal {
    const plait_backend *backend;
    int32_t row; /* the nearest one */
    int32_t n;
    char reasons[PLAIT_REASONS_MAX][PLAIT_REASON_BYTES];
} plait_refusal;

/* What the row of a backend lacks for a strategy; returns the number of reasons. */
PLAIT_API int32_t plait_backend_missing(const plait_backend *backend, int32_t row,
                                        const plait_requirement *need, plait_strategy strategy,
                                        plait_refusal *out);

/* Microseconds of one layer's call, from bytes, operations and launches. An estimate. */
PLAIT_API double plait_backend_cost(const plait_backend *backend, const plait_requirement *need,
                                    plait_strategy strategy);

typedef struct plait_choice {
    const plait_backend *backend; /* NULL: all refused */
    int32_t row;
    plait_strategy strategy;
    int32_t calls;        /* of the kernel: uniform groups of a ragged batch run one by one */
    double us;            /* estimate */
    double relative_cost; /* to direct on the same backend */
    /* Most rows that this kernel alone takes as decodes: 1 under DCP without ranges per row, as
       vLLM clamps it. */
    int32_t decode_threshold;
    /* Most rows that stay decodes with the strategy. */
    int32_t decode_rows;
} plait_choice;

typedef struct plait_selection {
    plait_choice choice;
    int32_t n_alternatives; /* that would work, cheapest first, without the choice */
    plait_choice alternatives[PLAIT_SELECTION_MAX];
    int32_t n_refused; /* for direct; a strategy may bridge what they lack */
    plait_refusal refused[PLAIT_SELECTION_MAX];
    int32_t n_notices; /* also sent to the log's sink, once per process */
    char notices[4][PLAIT_SELECTION_TEXT];
} plait_selection;

/*
 * The cheapest backend and strategy among those of `from` (PLAIT_FROM_*). force: no other backend;
 * prefer: this one if some strategy works, else another and one notice. Names or NULL.
 * PLAIT_E_ARG: no backend has that name. PLAIT_E_UNSUPPORTED: the sentence has the reasons and,
 * with force, names what would work; `out` is filled all the same. out: about 110 KB of the caller.
 */
PLAIT_API plait_status plait_select(const plait_requirement *need, uint32_t from, const char *force,
                                    const char *prefer, plait_selection *out);

/* ---- what it takes, all estimates but the bytes ---------------------------------------------- */

/* Bytes of one token of a sequence on one rank, for one layer: 1 / dcp of a token's KV heads. */
PLAIT_API double plait_backend_token_bytes(const plait_requirement *need);

/* Bytes of float32 partials (out and LSE) of all rows and gathered heads of a step. */
PLAIT_API int64_t plait_backend_workspace(const plait_choice *choice,
                                          const plait_requirement *need);

/* 1 if a layer with its exchange takes less time than with the whole cache on every rank. */
PLAIT_API int32_t plait_dcp_pays(const plait_choice *choice, const plait_requirement *need,
                                 double *dcp_us, double *replicated_us);

#ifdef __cplusplus
}
#endif
#endif
