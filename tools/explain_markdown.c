/* SPDX-License-Identifier: Apache-2.0 */
/* docs/backends.md: every capability row of every backend, from the same data that selection has.
 */
#include <stdio.h>

#include "tools/explain.h"

static void dtypes(uint32_t mask)
{
    for (int d = 0; plait_dtype_bytes((plait_dtype)d); d++)
        if (mask & PLAIT_DTYPE_BIT(d))
            printf(" %s", plait_dtype_name((plait_dtype)d));
    printf(" |");
}

static void device(const plait_backend *b, const plait_caps *row)
{
    char names[64];
    if (row->device == PLAIT_DEVICE_CPU)
        printf(" cpu, needs %s |", plait_cpu_names(b->kernel ? b->kernel->needs : 0, names, 64));
    else if (row->device_min == row->device_max)
        printf(" sm%d |", row->device_min);
    else
        printf(" sm%d to sm%d |", row->device_min, row->device_max);
}

static void range(int32_t least, int32_t most, int32_t multiple)
{
    if (least == most)
        printf(" %d", least);
    else if (most)
        printf(" %d to %d", least, most);
    else
        printf(" from %d", least);
    if (multiple > 1 && least != most)
        printf(" by %d", multiple);
    printf(" |");
}

static const char *speculation(const plait_caps *row)
{
    if (row->lse == PLAIT_LSE_NONE)
        return "no";
    if (row->ranges == PLAIT_RANGES_PER_ROW)
        return "direct";
    return "window, flatten";
}

static void line(const plait_backend *b, int32_t i)
{
    static const char *const rows[] = {"one", "equal", "any"};
    static const char *const lse[] = {"none", "base e", "base 2"};
    const plait_caps *row = &b->rows[i];
    const plait_row_note *note = b->note ? &b->note[i] : NULL;
    printf("| %s%s%s | %s |", b->name, note && note->mode ? ", " : "",
           note && note->mode ? note->mode : "", row->op == PLAIT_OP_MLA ? "mla" : "gqa");
    printf(" %s%s%s |", row->phases & PLAIT_PHASE_DECODE ? "decode" : "",
           row->phases == (PLAIT_PHASE_DECODE | PLAIT_PHASE_PREFILL) ? ", " : "",
           row->phases & PLAIT_PHASE_PREFILL ? "prefill" : "");
    device(b, row);
    dtypes(row->q_dtypes);
    dtypes(row->kv_dtypes);
    range(row->page_min, row->page_max, row->page_multiple);
    if (note && note->heads_max)
        printf(" up to %d |", note->heads_max);
    else
        printf(" any |");
    printf(" %s | %s | %s | %s |", rows[row->rows], lse[row->lse],
           row->lse == PLAIT_LSE_NONE ? "no" : "yes", speculation(row));
    if (row->ranges == PLAIT_RANGES_PER_ROW && row->interleave_max)
        printf(" up to %d |", row->interleave_max);
    else
        printf(" any |");
    printf(" %s%s%s |\n", note && note->since ? note->since : "",
           note && note->since ? " on: " : "", note && note->source ? note->source : "its rows");
}

void plait_explain_markdown(void)
{
    const plait_backend *b;
    printf(
        "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
        "<!-- Written by plait explain --markdown; a test compares them. -->\n"
        "# Backends\n\n"
        "What each mode of a backend takes. Names with a dot or without an instruction set are\n"
        "profiles of other projects' kernels: data for `plait explain`, nothing that runs here.\n"
        "Query lengths are those of one call. *Speculation* says how several rows of a sequence\n"
        "are computed under DCP; the interleave limit holds for several rows taken directly.\n\n"
        "| backend | attention | phase | device | query | cache | page sizes | heads | query "
        "lengths | LSE | DCP | speculation under DCP | interleave | source |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int32_t i = 0; (b = plait_backend_get(i)) != NULL; i++)
        for (int32_t row = 0; row < b->n_rows; row++)
            line(b, row);
}
