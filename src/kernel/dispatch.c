/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table, selection by refusal and cost, and the call itself. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "kernel/kernel.h"

static const plait_kernel *const table[] = {
#define KERNEL(name)     &plait_kernel_##name,
#define KERNEL_X86(name) PLAIT_X86(KERNEL(name))
#include "kernel/kernels.def"
};

enum { n_kernels = sizeof table / sizeof table[0] };

int32_t plait_kernel_count(void)
{
    return n_kernels;
}

const plait_kernel *plait_kernel_get(int32_t i)
{
    return i >= 0 && i < n_kernels ? table[i] : NULL;
}

const plait_kernel *plait_kernel_find(const char *name)
{
    for (int32_t i = 0; name && i < n_kernels; i++)
        if (strcmp(table[i]->name, name) == 0)
            return table[i];
    return NULL;
}

int32_t plait_kernel_match(const char *name, const char *pattern)
{
    const char *star = NULL, *retry = NULL;
    if (!pattern)
        return 1;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            retry = name;
        } else if (*pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++retry;
        } else {
            return 0;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == 0;
}

/* ---- refusals ------------------------------------------------------------------------------- */

static const char *say(char *text, size_t n, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static const char *say(char *text, size_t n, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(text, n, format, list);
    va_end(list);
    return text;
}

static int has_dtype(uint32_t mask, plait_dtype dtype)
{
    return (uint32_t)dtype < 32 && (mask >> dtype & 1u);
}

static const char *dtype_refusal(const char *what, uint32_t mask, plait_dtype dtype, char *text,
                                 size_t n)
{
    char list[64] = "";
    size_t used = 0;
    if (has_dtype(mask, dtype))
        return NULL;
    for (uint32_t d = 0; d < 32 && used < sizeof list; d++)
        if (mask >> d & 1u)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "",
                                     plait_dtype_name((plait_dtype)d));
    return say(text, n, "%s dtype is %s, it takes %s", what, plait_dtype_name(dtype), list);
}

/* NULL if value is in [low, high] (high 0: no limit) and a multiple of `multiple`. */
static const char *size_refusal(const char *what, int32_t value, int32_t low, int32_t high,
                                int32_t multiple, char *text, size_t n)
{
    if (value >= low && (high == 0 || value <= high) && value % multiple == 0)
        return NULL;
    if (high == 0)
        return say(text, n, "%s is %d, it takes multiples of %d from %d", what, value, multiple,
                   low);
    return say(text, n, "%s is %d, it takes multiples of %d from %d to %d", what, value, multiple,
               low, high);
}

/* The largest and smallest number of rows of a sequence. */
static void row_counts(const plait_attn_args *args, int32_t *least, int32_t *most)
{
    *least = INT32_MAX;
    *most = 0;
    for (int32_t s = 0; s < args->num_seqs; s++) {
        int32_t n = args->row_start[s + 1] - args->row_start[s];
        *least = n < *least ? n : *least;
        *most = n > *most ? n : *most;
    }
}

static const char *rows_refusal(const plait_caps *caps, const plait_attn_args *args, char *text,
                                size_t n)
{
    int32_t least, most;
    if (caps->rows == PLAIT_ROWS_RAGGED && caps->rows_max == 0)
        return NULL;
    row_counts(args, &least, &most);
    if (caps->rows_max && most > caps->rows_max)
        return say(text, n, "a sequence has %d rows, it takes %d", most, caps->rows_max);
    if (caps->rows == PLAIT_ROWS_SINGLE && args->num_seqs && (least != 1 || most != 1))
        return say(text, n, "sequences have %d to %d rows, it takes one", least, most);
    if (caps->rows == PLAIT_ROWS_UNIFORM && args->num_seqs && least != most)
        return say(text, n, "sequences have %d to %d rows, it takes equal numbers", least, most);
    return NULL;
}

static const char *caps_refusal(const plait_caps *caps, const plait_attn_args *args, char *text,
                                size_t n)
{
    const char *why = dtype_refusal("q", caps->q_dtypes, args->q_dtype, text, n);
    if (!why)
        why = dtype_refusal("KV", caps->kv_dtypes, args->kv_dtype, text, n);
    if (!why)
        why = dtype_refusal("out", caps->out_dtypes, args->out_dtype, text, n);
    if (!why)
        why = size_refusal("d_qk", args->d_qk, caps->d_qk_min, caps->d_qk_max, caps->d_multiple,
                           text, n);
    if (!why)
        why =
            size_refusal("d_v", args->d_v, caps->d_v_min, caps->d_v_max, caps->d_multiple, text, n);
    if (!why)
        why = size_refusal("page_size", args->page_size, caps->page_min, caps->page_max,
                           caps->page_multiple, text, n);
    if (!why)
        why = rows_refusal(caps, args, text, n);
    if (!why && caps->ranges != PLAIT_RANGES_PER_ROW)
        why = "it has no range for each row";
    if (!why && caps->lse != PLAIT_LSE_BASE_E && (args->lse || args->lse_bases))
        why = "it gives no natural-log LSE";
    if (!why && args->invariant && !caps->invariant)
        why = "its bits depend on the batch, and invariant mode is wanted";
    return why;
}

const char *plait_kernel_refusal(const plait_kernel *kernel, const plait_attn_args *args,
                                 plait_cpu_features features, char *text, size_t n)
{
    char names[64];
    if (kernel->op != args->op)
        return kernel->op == PLAIT_OP_MLA ? "it is for MLA" : "it is for GQA";
    if ((kernel->device == PLAIT_DEVICE_CPU) != (args->device < 0))
        return "it is for another device";
    if (kernel->needs & ~features)
        return say(text, n, "it needs %s, which is absent or masked",
                   plait_cpu_names(kernel->needs & ~features, names, sizeof names));
    const char *why = "it has no capabilities";
    for (int32_t i = 0; i < kernel->n_rows && why; i++)
        why = caps_refusal(&kernel->rows[i], args, text, n);
    return why || !kernel->refuse ? why : kernel->refuse(args);
}

plait_status plait_attn_pick(const plait_attn_args *args, plait_cpu_features features,
                             int32_t n_workers, const char *pattern, const plait_kernel **out)
{
    char reasons[1024] = "", text[128];
    size_t used = 0;
    double best = INFINITY;
    const plait_kernel *found = NULL;
    *out = NULL;
    for (int32_t i = 0; i < n_kernels; i++) {
        if (!plait_kernel_match(table[i]->name, pattern))
            continue;
        const char *why = plait_kernel_refusal(table[i], args, features, text, sizeof text);
        if (!why && table[i]->cost(args, n_workers) < best) {
            found = table[i];
            best = found->cost(args, n_workers);
        } else if (!why && !found) {
            found = table[i]; /* a cost that is no number must not hide a kernel */
        }
        if (why && used < sizeof reasons)
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s: %s",
                                     used ? "; " : "", table[i]->name, why);
    }
    if (!found)
        return plait_fail(PLAIT_E_UNSUPPORTED, "attention: no kernel takes this call (%s)",
                          used ? reasons : "no name matches the pattern");
    *out = found;
    return PLAIT_OK;
}

/* ---- running -------------------------------------------------------------------------------- */

size_t plait_attn_workspace(const plait_kernel *kernel, const plait_attn_args *args,
                            int32_t n_workers)
{
    return args->invariant ? plait_invariant_workspace(kernel, args, n_workers)
                           : kernel->workspace(args, n_workers);
}

struct call {
    const plait_kernel *kernel;
    const plait_attn_args *args;
    plait_status (*fn)(const plait_attn_args *args, int32_t worker, int32_t n_workers);
};

static plait_status call_worker(void *task, int32_t worker, int32_t n_workers)
{
    const struct call *call = task;
    return call->fn(call->args, worker, n_workers);
}

static plait_status call_invariant(void *task, int32_t worker, int32_t n_workers)
{
    const struct call *call = task;
    return plait_invariant_run(call->kernel, call->args, worker, n_workers);
}

static int is_invariant(const plait_kernel *kernel)
{
    int32_t rows = 0;
    for (int32_t i = 0; i < kernel->n_rows; i++)
        rows += kernel->rows[i].invariant != 0;
    return rows == kernel->n_rows;
}

plait_status plait_attn_run(const plait_kernel *kernel, const plait_attn_args *args,
                            const plait_executor *executor)
{
    if (!executor)
        executor = plait_executor_inline();
    if (args->invariant && !is_invariant(kernel))
        return plait_fail(PLAIT_E_UNSUPPORTED, "%s: invariant mode is wanted, it has none",
                          kernel->name);
    size_t need = plait_attn_workspace(kernel, args, executor->n_workers);
    if (args->workspace_bytes < need || (need && !args->workspace))
        return plait_fail(PLAIT_E_NOMEM, "%s: the workspace has %zu bytes, %zu are needed",
                          kernel->name, args->workspace ? args->workspace_bytes : 0, need);
    struct call call = {kernel, args, kernel->run};
    PLAIT_TRY(executor->parallel_for(executor->user, args->invariant ? call_invariant : call_worker,
                                     &call));
    if (args->num_reduce == 0)
        return PLAIT_OK;
    call.fn = kernel->reduce;
    return executor->parallel_for(executor->user, call_worker, &call);
}
