/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the ops beside attention, and the choice of a variant. */
#include "kernel/routine.h"

#include <stdatomic.h>
#include <stddef.h>

#include "kernel/kernel.h"

#define ROUTINE(name)     extern const plait_routine plait_kernel_##name;
#define ROUTINE_X86(name) PLAIT_X86(ROUTINE(name))
#include "kernel/kernels.def"

static const plait_routine *const table[] = {
#define ROUTINE(name)     &plait_kernel_##name,
#define ROUTINE_X86(name) PLAIT_X86(ROUTINE(name))
#include "kernel/kernels.def"
};

const plait_routine *plait_routine_get(int32_t i)
{
    return i >= 0 && i < (int32_t)(sizeof table / sizeof *table) ? table[i] : NULL;
}

const char *plait_routine_op_name(plait_routine_op op)
{
    static const char *const names[] = {"merge", "append", "gather"};
    return names[op];
}

const plait_routine *plait_routine_pick(plait_routine_op op, plait_cpu_features features)
{
    int32_t i = 0;
    while (table[i]->op != op || (table[i]->needs & ~features))
        i++;
    return table[i];
}

/* Asking the processor takes far longer than a small merge, so its answer is kept. It is the same
   for whoever asks first. */
const plait_routine *plait_routine_best(plait_routine_op op)
{
    static const plait_routine *_Atomic best[PLAIT_ROUTINE_OPS];
    const plait_routine *found = atomic_load_explicit(&best[op], memory_order_relaxed);
    if (!found) {
        found = plait_routine_pick(op, plait_cpu_detect());
        atomic_store_explicit(&best[op], found, memory_order_relaxed);
    }
    return found;
}
