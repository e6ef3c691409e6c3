/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/strategy.h - attention carried out on a kernel that lacks what the call needs.
 *
 * plait_attn_run trusts that a kernel keeps the whole contract of plait/attn.h. Kernels from
 * elsewhere keep parts of it: no range for each row, an LSE in base 2, anything in empty rows. Here
 * a strategy brings the call to such a kernel, and what it writes is converted once, at that edge:
 *
 *   - rows with an empty range, and padding, become out 0 and lse -inf, whatever was written;
 *   - an LSE in base 2 is multiplied by ln 2, one laid out [heads][rows] is transposed;
 *   - an LSE of NaN or +inf in a row that has keys is counted, noticed once, and is NaN then.
 *
 * The kernel's capability rows say what it has. Its arguments are those of plait/attn.h: a kernel
 * whose ranges are PLAIT_RANGES_NONE or _END_ALIGNED reads only the kv_end of a sequence's last
 * row. A kernel that takes equal numbers of rows gets the sequences of each number in a call of
 * their own. For a window, a kernel that aligns ranges to the end, or takes fewer rows, gets a
 * sequence's q rows of h_q heads as one row of q * h_q heads, ordered [KV head][row][head]; the
 * newest keys and the history are merged in float32 where the kernel writes it. CPU memory only.
 * Nothing here allocates. Thread-safe for distinct outputs and workspaces.
 */
#ifndef PLAIT_STRATEGY_H
#define PLAIT_STRATEGY_H

#include <stddef.h>
#include <stdint.h>

#include <plait/attn.h>
#include <plait/backend.h>
#include <plait/status.h>
#include <plait/threads.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a call is carried out. Start from PLAIT_STRATEGY_CALL_INIT. */
typedef struct plait_strategy_call {
    size_t size;                /* sizeof(plait_strategy_call) */
    plait_strategy strategy;    /* DIRECT, WINDOW or FLATTEN */
    const plait_kernel *kernel; /* static, as its rows */
    /* WINDOW: for the keys that not all rows of a sequence see; a kernel with a range for each row,
       a natural-log LSE and exact empty rows, such as a built-in one. Else ignored. */
    const plait_kernel *newest;
    int32_t lse_heads_first; /* 1: the kernel lays the LSE out [h_q][num_rows], strides ignored */
    int32_t heads_max;       /* heads of a call that the kernel takes; 0: any */
} plait_strategy_call;

#define PLAIT_STRATEGY_CALL_INIT                                                                   \
    {                                                                                              \
        sizeof(plait_strategy_call), PLAIT_STRATEGY_DIRECT, NULL, NULL, 0, 0                       \
    }

/*
 * The call of a choice of plait_select. PLAIT_E_UNSUPPORTED: nothing was chosen, the backend is a
 * profile, or the strategy is prefill, which src/cp carries out.
 */
PLAIT_API plait_status plait_strategy_call_of(const plait_choice *choice,
                                              const plait_requirement *need,
                                              plait_strategy_call *out);

/*
 * NULL if the strategy brings these arguments to the kernel rightly, else the reason, written into
 * text (n bytes, 128 are enough). Compares what strategies bridge: rows, ranges, LSE; for dtypes
 * and dims see plait_kernel_refusal. Reads row_start and the ranges.
 */
PLAIT_API const char *plait_strategy_refusal(const plait_strategy_call *call,
                                             const plait_attn_args *args, char *text, size_t n);

/* Exact bytes of args->workspace with n_workers workers. Depends on the strategy, dims, dtypes,
   row_start, num_rows, page_table_stride, num_partials and whether args->lse is NULL. */
PLAIT_API size_t plait_strategy_workspace(const plait_strategy_call *call,
                                          const plait_attn_args *args, int32_t n_workers);

/*
 * Runs the call on the executor (NULL: inline). *bad (may be NULL) receives the number of row-heads
 * that have keys and whose LSE came as NaN or +inf. PLAIT_E_UNSUPPORTED: the reason of
 * plait_strategy_refusal, nothing has run; PLAIT_E_NOMEM: the workspace is too small.
 */
PLAIT_API plait_status plait_strategy_run(const plait_strategy_call *call,
                                          const plait_attn_args *args,
                                          const plait_executor *executor, int64_t *bad);

#ifdef __cplusplus
}
#endif
#endif
