/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/attn.h - attention over a paged KV cache: the argument struct, kernels and dispatch.
 *
 * A row is one query token. Row i of sequence s sees the contiguous keys [kv_begin[i], kv_end[i])
 * of that sequence's local cache and nothing else; ranks, positions and drafts are no business of
 * a kernel. With value(x) = stored(x) * scale(x):
 *
 *     score(c) = softmax_scale * sum_d q[d] * k[c][d]
 *     lse      = log(sum_c exp(score(c)))                     natural log, float32
 *     out[d]   = out_scale * sum_c exp(score(c) - lse) * v[c][d]
 *
 * A row with an empty range gives out = 0 and lse = -inf, exactly. Nothing outside a row's range
 * reaches its result: page tails, unused pages and unused table entries may hold NaN or garbage.
 *
 * Prefill of unabsorbed MLA (192/128, say), and any ragged call on rows of K and V that lie one
 * after another, takes no pages: one page of page_size = all tokens, page_table {0} for each
 * sequence (page_table_stride 1), and the keys of a sequence that begins at token t are the range
 * [t, t + n) of its rows. op is GQA, with h_kv = h_q where each head has its own K and V.
 *
 * Typical use: fill plait_attn_args (plait_plan_bind fills the metadata), plait_attn_pick once for
 * a plan, then plait_attn_run in each layer. All functions here are thread-safe for distinct
 * outputs and workspaces; none allocates.
 */
#ifndef PLAIT_ATTN_H
#define PLAIT_ATTN_H

#include <stddef.h>
#include <stdint.h>

#include <plait/caps.h>
#include <plait/cpu.h>
#include <plait/dtype.h>
#include <plait/status.h>
#include <plait/threads.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * One piece of work: rows x heads of one sequence over its keys [kv_begin, kv_end), intersected
 * with each row's own range. Row and head numbers are those of the call, rows within the sequence
 * `seq`. The items of a schedule must cover every row and head of the sequences: directly by one
 * item, or by the items of one plait_attn_reduce.
 */
typedef struct plait_attn_work {
    int32_t seq;
    int32_t row_begin, row_end;
    int32_t head_begin, head_end;
    int32_t kv_begin, kv_end;
    /* -1: written to the output, and the item must cover all keys of its rows. Else an index into
       the float32 partials of the workspace: row r, head h goes to
       partial + (r - row_begin) * (head_end - head_begin) + (h - head_begin). */
    int32_t partial;
} plait_attn_work;

/*
 * Merges n_splits partials of rows x heads into the output, in order. Split s of row r, head h is
 * partial first_partial + s * rows * heads + (r - row_begin) * heads + (h - head_begin), where rows
 * and heads are the extents of this entry.
 */
typedef struct plait_attn_reduce {
    int32_t row_begin, row_end;
    int32_t head_begin, head_end;
    int32_t first_partial;
    int32_t n_splits; /* 1 .. PLAIT_ATTN_MAX_SPLITS */
} plait_attn_reduce;

#define PLAIT_ATTN_MAX_SPLITS 256

/*
 * The arguments of one attention call. The caller owns everything; the library keeps no pointer
 * after the call. Strides count elements (for PLAIT_FP8_DS656 an element is a 656-byte row, and
 * head strides are ignored); the innermost dimension is contiguous. Start from
 * PLAIT_ATTN_ARGS_INIT.
 */
typedef struct plait_attn_args {
    size_t size; /* sizeof(plait_attn_args) */
    plait_op op;
    int32_t num_seqs;  /* >= 0 */
    int32_t num_rows;  /* >= row_start[num_seqs] */
    int32_t h_q;       /* query heads of this call, >= 1 */
    int32_t h_kv;      /* KV heads in the cache; MLA: 1 */
    int32_t d_qk, d_v; /* MLA: d_v <= d_qk */
    int32_t page_size; /* tokens in a page, >= 1 */

    /* [num_seqs + 1], from 0, non-decreasing: sequence s has rows row_start[s] .. row_start[s+1]-1.
       Rows from row_start[num_seqs] on are padding: they are written empty, their q and ranges
       are not read. */
    const int32_t *row_start;
    const int32_t *kv_begin; /* [num_rows] local key index, or NULL for all 0 */
    const int32_t *kv_end;   /* [num_rows], >= kv_begin; both non-decreasing in a sequence */

    /* [num_seqs][page_table_stride] page ids: key c of sequence s is in page
       page_table[s * page_table_stride + c / page_size] at offset c % page_size. Only the entries
       of keys in some row's range are read. */
    const int32_t *page_table;
    int64_t page_table_stride;
    int32_t num_pages; /* pages in the pool, for plait_attn_check; 0: unknown */

    const void *q; /* [num_rows][h_q][d_qk] */
    plait_dtype q_dtype;
    int64_t q_row_stride, q_head_stride;

    const void *k; /* [pages][page_size][h_kv][d_qk] in the strides below */
    const void *v; /* [pages][page_size][h_kv][d_v]; MLA: NULL, v is the first d_v values of k */
    plait_dtype kv_dtype;
    int64_t k_page_stride, k_token_stride, k_head_stride;
    int64_t v_page_stride, v_token_stride, v_head_stride;

    void *out; /* [num_rows][h_q][d_v] */
    plait_dtype out_dtype;
    int64_t out_row_stride, out_head_stride;
    float *lse; /* [num_rows][h_q], or NULL */
    int64_t lse_row_stride, lse_head_stride;

    /* Optional table of outputs: head h is head h % heads_per_base of out_bases[h /
       heads_per_base] (and lse_bases, which may be NULL), with the strides above. NULL: out and
       lse. */
    void *const *out_bases;
    float *const *lse_bases;
    int32_t heads_per_base;

    /* KV head of local head h: (q_head0 + h) / q_per_kv, where q_head0 is the global number of
       head 0 less the query heads before the cache's first KV head. q_per_kv 0: h_q / h_kv.
       MLA ignores both. */
    int32_t q_head0, q_per_kv;

    float softmax_scale;
    /* value = stored * scale. n = 0: 1.0; 1: one for the tensor; else one for each query head
       (q_scale_n = h_q) or KV head (h_kv). MLA takes v from the scaled k, so v_scale_n is 0;
       PLAIT_FP8_DS656 holds its scales, so k_scale_n is 0 too. */
    const float *q_scale, *k_scale, *v_scale;
    int32_t q_scale_n, k_scale_n, v_scale_n;
    float out_scale; /* out = result * out_scale */

    /* The schedule. work NULL: one item for each sequence, and num_partials 0. Item i belongs to
       worker i % n_workers, so the plan orders them for balance. */
    const plait_attn_work *work;
    int32_t num_work;
    const plait_attn_reduce *reduce;
    int32_t num_reduce;
    int32_t num_partials; /* float32 partials (row, head) of all split items */

    void *workspace; /* aligned to 64; content on entry does not matter */
    size_t workspace_bytes;

    int32_t device; /* -1: CPU; else a CUDA device: see plait/cuda.h */
    void *stream;

    /* Devices only. [num_workers + 1]: worker w takes items worker_start[w] ..
       worker_start[w + 1] - 1. NULL: items are dealt in turn. An entry of `reduce` with n_splits 0
       is not used. */
    const int32_t *worker_start;
    int32_t num_workers;

    /*
     * 1: a row's bits do not depend on the batch, the other rows, the workers or the schedule. Each
     * row's keys are attended in splits of plait_attn_split_keys(kv_end) keys, counted from key 0,
     * and the splits' states are merged one by one in order. The rows of an item with partials have
     * splits of one length, its kv_begin and kv_end lie between splits (or past all keys), and it
     * writes a partial for each split, one after another; n_splits of a reduction counts splits.
     * Kernels without plait_caps.invariant refuse. Needs a CPU kernel.
     */
    int32_t invariant;
} plait_attn_args;

#define PLAIT_ATTN_ARGS_INIT                                                                       \
    {                                                                                              \
        sizeof(plait_attn_args), PLAIT_OP_MLA, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 0, 0,  \
            NULL, PLAIT_F32, 0, 0, NULL, NULL, PLAIT_F32, 0, 0, 0, 0, 0, 0, NULL, PLAIT_F32, 0, 0, \
            NULL, 0, 0, NULL, NULL, 0, 0, 0, 1.0f, NULL, NULL, NULL, 0, 0, 0, 1.0f, NULL, 0, NULL, \
            0, 0, NULL, 0, -1, NULL, NULL, 0, 0                                                    \
    }

/* Keys of a split of a row that sees keys up to kv_end, when args->invariant: a power of two from
   512 on, so that a row has at most 16 splits. */
static inline int32_t plait_attn_split_keys(int32_t kv_end)
{
    int32_t keys = 512;
    while (kv_end / 16 > keys || (kv_end / 16 == keys && kv_end % 16))
        keys *= 2;
    return keys;
}

/* ---- kernels -------------------------------------------------------------------------------- */

/*
 * A kernel: a pure function of its arguments. It does not allocate, log, read globals or start
 * threads. Descriptors are static objects.
 */
typedef struct plait_kernel {
    const char *name; /* <op>_<isa>[_<trait>] */
    plait_op op;
    plait_cpu_features needs;
    plait_device_kind device;
    const plait_caps *rows; /* what it can do; it takes a batch if one row does */
    int32_t n_rows;
    /* What the rows cannot say: NULL, or why these arguments are refused. May be NULL. */
    const char *(*refuse)(const plait_attn_args *args);
    /* Estimated time of the call in microseconds. */
    double (*cost)(const plait_attn_args *args, int32_t n_workers);
    /* Exact bytes of workspace; depends on dims, num_partials and n_workers only. */
    size_t (*workspace)(const plait_attn_args *args, int32_t n_workers);
    plait_status (*run)(const plait_attn_args *args, int32_t worker, int32_t n_workers);
    /* Called after all workers' run returned, when num_reduce > 0. */
    plait_status (*reduce)(const plait_attn_args *args, int32_t worker, int32_t n_workers);
} plait_kernel;

/* The built-in kernels in order of preference. get: NULL when i is out of range; find: NULL when no
   kernel has that name. */
PLAIT_API int32_t plait_kernel_count(void);
PLAIT_API const plait_kernel *plait_kernel_get(int32_t i);
PLAIT_API const plait_kernel *plait_kernel_find(const char *name);

/* 1 if `name` matches `pattern`, in which * stands for any text; a NULL pattern matches all. */
PLAIT_API int32_t plait_kernel_match(const char *name, const char *pattern);

/* NULL if the kernel takes these arguments with these features, else the reason, written into text
   (n bytes, 128 are enough). */
PLAIT_API const char *plait_kernel_refusal(const plait_kernel *kernel, const plait_attn_args *args,
                                           plait_cpu_features features, char *text, size_t n);

/*
 * The cheapest built-in kernel that takes these arguments; table order breaks ties. Reads shapes,
 * dtypes and row ranges, not q, k, v or the workspace. pattern: names allowed, NULL for all.
 * PLAIT_E_UNSUPPORTED: none does; the sentence holds the reason of every kernel that matches.
 */
PLAIT_API plait_status plait_attn_pick(const plait_attn_args *args, plait_cpu_features features,
                                       int32_t n_workers, const char *pattern,
                                       const plait_kernel **out);

/*
 * The checked mode: validates everything that can be validated without reading q, k and v: fields,
 * dims, strides, scales, ranges, the schedule's bounds, and that each page id in use is in
 * [0, num_pages). PLAIT_E_ARG names the field, or the sequence and the table entry.
 */
PLAIT_API plait_status plait_attn_check(const plait_attn_args *args);

/* Bytes of workspace that this call needs with n_workers workers. */
PLAIT_API size_t plait_attn_workspace(const plait_kernel *kernel, const plait_attn_args *args,
                                      int32_t n_workers);

/*
 * Runs the kernel on the executor (NULL: inline). Arguments are trusted (plait_attn_check is for
 * doubts), except for the workspace: one that is too small is PLAIT_E_NOMEM with both sizes.
 */
PLAIT_API plait_status plait_attn_run(const plait_kernel *kernel, const plait_attn_args *args,
                                      const plait_executor *executor);

#ifdef __cplusplus
}
#endif
#endif
