/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/gemm.h - products with fixed weight matrices: C[m, n] = A[m, k] * W[k, n].
 *
 * A and C are float32; with bf16 weights A is rounded to bf16 and products accumulate in float32.
 * Without AVX-512, where oneDNN multiplies no bf16, float32 holds the rounded values: twice the
 * bytes, the same values.
 * oneDNN does the work on the calling thread only: parallelism is the caller's, who gives each
 * worker its own matrices or slices of n. Weights are laid out once; m goes up to the next bucket,
 * so that the primitives of all shapes exist before the first run and running allocates nothing.
 */
#ifndef PLAIT_ENGINE_GEMM_H
#define PLAIT_ENGINE_GEMM_H

#include <stddef.h>
#include <stdint.h>

#include <plait/dtype.h>
#include <plait/memory.h>
#include <plait/status.h>

typedef struct plait_gemm_set plait_gemm_set; /* primitives, and scratch memory of each worker */
typedef struct plait_gemm plait_gemm;         /* one weight matrix */

/* max_m: most rows of a call. The set's limits for k and n grow as matrices are opened, and with
   them the workers' memory, which is the allocator's (NULL: libc). */
plait_status plait_gemm_set_open(int32_t n_workers, int32_t max_m, const plait_allocator *allocator,
                                 plait_gemm_set **out);
void plait_gemm_set_close(plait_gemm_set **set);

/*
 * A copy of W, element (i, j) at w[i * k_stride + j * n_stride], in `dtype` (f32 or bf16). The set
 * owns it. Not while a run is in progress.
 */
plait_status plait_gemm_open(plait_gemm_set *set, plait_dtype dtype, const float *w, int64_t k,
                             int64_t n, int64_t k_stride, int64_t n_stride, plait_gemm **out);

/* Rows of A at stride lda, of C at stride ldc. One call at a time for each worker and matrix. */
plait_status plait_gemm_run(const plait_gemm *gemm, int32_t worker, int32_t m, const float *a,
                            int64_t lda, float *c, int64_t ldc);

/* A task for every thread that will run products, before the first one: after it no call of the
   thread allocates, apart from the short list of arguments that oneDNN makes of each product and
   drops. PLAIT_E_NOMEM when the process has no memory left for those. */
plait_status plait_gemm_ready(void *unused, int32_t worker, int32_t n_workers);

int64_t plait_gemm_n(const plait_gemm *gemm);

#endif
