/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/check - the proof of every kernel behind `plait check`.
 *
 * Every row of kernels.def runs every case, whether dispatch would pick it or not. A case is one
 * shape with its data (attn_case.c), in buffers between guard pages (guard.c), run (attn.c) and
 * compared with a direct softmax in double over the logical values (oracle.c). merge.c and rows.c
 * do the same for the ops beside attention; items.c lists all rows.
 */
#ifndef PLAIT_TESTS_CHECK_H
#define PLAIT_TESTS_CHECK_H

#include <stdint.h>
#include <stdio.h>

#include <plait/attn.h>
#include <plait/backend.h>
#include <plait/cuda.h>

#include "kernel/routine.h"

/* ---- guarded buffers ------------------------------------------------------------------------ */

/* `bytes` of memory between two PROT_NONE pages, touching one of them. */
typedef struct plait_guard {
    unsigned char *data;
    size_t bytes;
    void *map;
    size_t map_bytes;
} plait_guard;

/* at_end: the data end at the guard page behind it, else they start at the one before; rounded
   so that data are aligned to `align`. Filled with `fill`. Returns 0 without memory. */
int plait_guard_open(plait_guard *g, size_t bytes, size_t align, int at_end, int fill);
void plait_guard_read_only(plait_guard *g);
void plait_guard_close(plait_guard *g);

/* 1 if what lies between the data and the pages around still is `fill`. */
int plait_guard_clean(const plait_guard *g, int fill);

/* `bytes` of zeros that take memory only where they are touched. */
int plait_guard_open_sparse(plait_guard *g, size_t bytes);

/* Calls fn(arg) and returns its result, a status; or PLAIT_GUARD_SIGNAL - signal if it died of a
   signal or took longer than plait_guard_seconds, or what else it did to its caller. */
enum { PLAIT_GUARD_SIGNAL = -1000, PLAIT_GUARD_MXCSR = -901, PLAIT_GUARD_REGISTERS = -902 };
extern int plait_guard_seconds;
int plait_guard_call(int (*fn)(void *arg), void *arg);

/* NULL if such a result is PLAIT_OK, else what is wrong. */
const char *plait_guard_reason(int result);

/* ---- random numbers ------------------------------------------------------------------------- */

typedef struct plait_random {
    uint64_t state;
} plait_random;

uint64_t plait_random_next(plait_random *r);
int32_t plait_random_int(plait_random *r, int32_t least, int32_t most);
double plait_random_real(plait_random *r); /* in [-1, 1) */

/* ---- an attention case ---------------------------------------------------------------------- */

enum {
    PLAIT_BUF_Q,
    PLAIT_BUF_K,
    PLAIT_BUF_V,
    PLAIT_BUF_TABLE,
    PLAIT_BUF_ROW_START,
    PLAIT_BUF_BEGIN,
    PLAIT_BUF_END,
    PLAIT_BUF_WORK,
    PLAIT_BUF_REDUCE,
    PLAIT_BUF_SCALES,
    PLAIT_BUF_INPUTS, /* those before it are read-only during the call */
    PLAIT_BUF_OUT = PLAIT_BUF_INPUTS,
    PLAIT_BUF_OUT2, /* the second block of heads with a table of bases */
    PLAIT_BUF_LSE,
    PLAIT_BUF_LSE2,
    PLAIT_BUF_WORKSPACE,
    PLAIT_BUFS
};

typedef struct plait_attn_case {
    plait_attn_args args;
    plait_guard buf[PLAIT_BUFS];
    void *out_bases[2];
    float *lse_bases[2];
    int32_t n_workers, number;
    int flat;          /* all sequences share one page */
    int sparse;        /* the cache lies beyond 2^31 elements */
    double *q, *k, *v; /* the logical values, decoded and scaled */
    int64_t *key_base; /* [num_seqs]: first logical key of each sequence */
    char text[200];    /* what the case is */
} plait_attn_case;

/* Builds case `number` for a capability row. Returns 0 without memory. */
int plait_attn_case_open(plait_attn_case *c, const plait_caps *caps, uint64_t seed, int32_t number);
void plait_attn_case_close(plait_attn_case *c);

/* A row and head from the definition, and how far a kernel may be off. */
typedef struct plait_expected {
    double lse, lse_slack;
    double out[512], out_slack[512], out_round[512]; /* round: half an ulp of out's type */
} plait_expected;

/* seq < 0: a padding row. */
void plait_expect(const plait_attn_case *c, int32_t seq, int32_t row, int32_t head,
                  plait_expected *e);

/*
 * Runs the case on the CUDA device: copies its buffers there, between bands that must stay as they
 * are, runs the kernel on a stream of its own, and copies the outputs back. Half of the cases
 * without a schedule get the device's. outputs, workspace: what these are filled with before.
 * Returns NULL or what is wrong.
 */
const char *plait_check_cuda(plait_cuda *cuda, const plait_kernel *kernel, plait_attn_case *c,
                             int outputs, int workspace);

/* Invariant mode on batch `number`, for a kernel that declares it: NULL or what is wrong. */
const char *plait_check_invariant(const plait_kernel *kernel, uint64_t seed, int32_t number);

/* ---- values ---------------------------------------------------------------------------------- */

/* Element `offset` of an array of f32, bf16, f16 or fp8. */
double plait_value_at(const void *base, plait_dtype dtype, int64_t offset);

/* Half of the distance between the numbers of a type around x. */
double plait_half_ulp(plait_dtype dtype, double x);

/* The code of f32, bf16, f16 or fp8 that is nearest to x, found by comparing with its neighbours;
   ties to the even code; what is too large is infinite, or 448 in fp8. */
uint32_t plait_nearest_code(plait_dtype dtype, float x);

/* ---- the whole check ------------------------------------------------------------------------ */

enum { PLAIT_CHECK_CASES = 160 };

typedef struct plait_check_counts {
    int64_t passed, failed, skipped;
    double worst; /* largest error as a share of its tolerance */
} plait_check_counts;

/* A row of kernels.def: one of the two is not NULL. */
typedef struct plait_check_item {
    const char *name;
    plait_cpu_features needs;
    const plait_kernel *kernel;
    const plait_routine *routine;
} plait_check_item;

/* Row i; 0 past the last. */
int plait_check_item_get(int32_t i, plait_check_item *item);

/* The first `cases` cases of one row; failures are told on `to`. */
plait_check_counts plait_check_run(const plait_check_item *item, plait_cpu_features features,
                                   uint64_t seed, int32_t cases, FILE *to);

/* The backend of a plug-in: by the whole contract if a row declares it, else by the first strategy
   that takes the case. A failure is told with the declaration that explains it. */
plait_check_counts plait_check_backend(const plait_backend *backend, plait_cpu_features features,
                                       uint64_t seed, int32_t cases, FILE *to);

/* Its parts: attention, and one case of another op: NULL or what is wrong. `text` (200 bytes) says
   what the case is. */
plait_check_counts plait_check_kernel(const plait_kernel *kernel, plait_cpu_features features,
                                      uint64_t seed, int32_t cases, FILE *to);
const char *plait_check_merge(const plait_routine *routine, plait_random *r, int32_t number,
                              double *worst, char *text);
const char *plait_check_append(const plait_routine *routine, plait_random *r, int32_t number,
                               char *text);
const char *plait_check_gather(const plait_routine *routine, plait_random *r, int32_t number,
                               char *text);

#endif
