/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait info: what this build and this machine offer, whole or the parts that words name. The
 * support matrix (--markdown) is derived from the table of kernels alone, so that it is the same on
 * every machine.
 */
#include <stdio.h>
#include <string.h>

#include <plait/attn.h>
#include <plait/cpu.h>
#include <plait/cuda.h>
#include <plait/threads.h>
#include <plait/version.h>

#include "kernel/routine.h"
#include "tools/json.h"
#include "tools/options.h"
#include "tools/tools.h"

typedef struct plait_part {
    const char *name;
    int on;
} plait_part;

static const plait_part parts[] = {
    {"engine", PLAIT_HAVE_ENGINE},
    {"mpi", PLAIT_HAVE_MPI},
    {"cuda", PLAIT_HAVE_CUDA},
};
#define N_PARTS (sizeof parts / sizeof *parts)

static const char *op_name(plait_op op)
{
    return op == PLAIT_OP_MLA ? "MLA" : "GQA";
}

/* Where a kernel stands in the support matrix: by the highest feature that it needs. */
static const struct {
    const char *name;
    plait_cpu_features bit;
} levels[] = {
    {"reference", 0},
    {"AVX2", PLAIT_CPU_AVX2},
    {"AVX-512", PLAIT_CPU_AVX512},
    {"AVX-512-BF16", PLAIT_CPU_AVX512BF16},
    {"AMX", PLAIT_CPU_AMX},
};
#define N_LEVELS (sizeof levels / sizeof *levels)

static size_t level_of(const plait_kernel *kernel)
{
    size_t level = N_LEVELS - 1;
    while (level && !(kernel->needs & levels[level].bit))
        level--;
    return level;
}

/* The query dtypes that kernels of a level take for this op and cache dtype, as bits. */
static uint32_t queries_at(size_t level, plait_op op, plait_dtype kv)
{
    uint32_t found = 0;
    for (int32_t k = 0; k < plait_kernel_count(); k++) {
        const plait_kernel *kernel = plait_kernel_get(k);
        if (kernel->device != PLAIT_DEVICE_CPU || level_of(kernel) != level)
            continue;
        for (int32_t i = 0; i < kernel->n_rows; i++) {
            const plait_caps *row = &kernel->rows[i];
            if (row->op == op && (row->kv_dtypes & PLAIT_DTYPE_BIT(kv)))
                found |= row->q_dtypes;
        }
    }
    return found;
}

static void markdown_row(plait_op op, plait_dtype kv)
{
    uint32_t queries[N_LEVELS], any = 0;
    for (size_t l = 0; l < N_LEVELS; l++)
        any |= queries[l] = queries_at(l, op, kv);
    if (!any)
        return;
    printf("| %s | %s |", op_name(op), plait_dtype_name(kv));
    for (size_t l = 0; l < N_LEVELS; l++) {
        for (int q = 0; plait_dtype_bytes((plait_dtype)q); q++)
            if (queries[l] & PLAIT_DTYPE_BIT(q))
                printf(" %s", plait_dtype_name((plait_dtype)q));
        printf(" |");
    }
    printf("\n");
}

/* Each cell: the query dtypes that are taken. */
static void markdown(void)
{
    printf("| attention | cache |");
    for (size_t l = 0; l < N_LEVELS; l++)
        printf(" %s |", levels[l].name);
    printf("\n|---|---|---|---|---|---|\n");
    for (int kv = 0; plait_dtype_bytes((plait_dtype)kv); kv++)
        markdown_row(PLAIT_OP_MLA, (plait_dtype)kv);
    for (int kv = 0; plait_dtype_bytes((plait_dtype)kv); kv++)
        markdown_row(PLAIT_OP_GQA, (plait_dtype)kv);
}

/* 1 if there is a GPU that the library can use. */
static int usable_gpu(void)
{
    plait_cuda_info info = {.size = sizeof info};
    int32_t n = 0;
    if (plait_cuda_count(&n) != PLAIT_OK)
        return 0;
    for (int32_t i = 0; i < n; i++)
        if (plait_cuda_describe(i, &info) == PLAIT_OK && info.usable)
            return 1;
    return 0;
}

static int runs_here(const plait_kernel *k)
{
    if (k->device == PLAIT_DEVICE_CUDA)
        return usable_gpu();
    return !(k->needs & ~plait_cpu_detect());
}

/* The ops beside attention are for CPUs. */
static int routine_runs_here(const plait_routine *r)
{
    return !(r->needs & ~plait_cpu_detect());
}

static const char *needs_of(const plait_kernel *k, char *text, size_t n)
{
    if (k->device == PLAIT_DEVICE_CUDA)
        return "a Hopper GPU";
    return plait_cpu_names(k->needs, text, n);
}

static void text_kernels(void)
{
    char names[128];
    for (int32_t i = 0; i < plait_kernel_count(); i++) {
        const plait_kernel *k = plait_kernel_get(i);
        printf("kernel    %-22s %s, needs %s%s\n", k->name, op_name(k->op),
               needs_of(k, names, sizeof names), runs_here(k) ? "" : ", which this machine lacks");
    }
    for (int32_t i = 0; plait_routine_get(i); i++) {
        const plait_routine *r = plait_routine_get(i);
        printf("kernel    %-22s %s, needs %s%s\n", r->name, plait_routine_op_name(r->op),
               plait_cpu_names(r->needs, names, sizeof names),
               routine_runs_here(r) ? "" : ", which this machine lacks");
    }
}

static void text_gpus(void)
{
    plait_cuda_info info = {.size = sizeof info};
    int32_t n = 0;
    if (plait_cuda_count(&n) != PLAIT_OK) {
        printf("gpu       none: %s\n", plait_last_error());
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        if (plait_cuda_describe(i, &info) != PLAIT_OK)
            continue;
        printf("gpu       %d: %s, %d.%d, %d multiprocessors, %lld MiB, driver CUDA %d.%d%s\n", i,
               info.name, info.version / 10, info.version % 10, info.num_sms,
               (long long)(info.memory_bytes >> 20), info.driver / 1000, info.driver % 1000 / 10,
               info.usable ? "" : ", not usable: kernels are for 9.0 and need a build with nvcc");
    }
}

static void json_gpus(plait_emit *j)
{
    plait_cuda_info info = {.size = sizeof info};
    int32_t n = 0;
    if (plait_cuda_count(&n) != PLAIT_OK)
        n = 0;
    plait_emit_key(j, "gpus");
    plait_emit_open(j, '[');
    for (int32_t i = 0; i < n; i++) {
        if (plait_cuda_describe(i, &info) != PLAIT_OK)
            continue;
        plait_emit_open(j, '{');
        plait_emit_key(j, "name");
        plait_emit_text(j, info.name);
        plait_emit_key(j, "version");
        plait_emit_int(j, info.version);
        plait_emit_key(j, "multiprocessors");
        plait_emit_int(j, info.num_sms);
        plait_emit_key(j, "memory_bytes");
        plait_emit_int(j, info.memory_bytes);
        plait_emit_key(j, "driver");
        plait_emit_int(j, info.driver);
        plait_emit_key(j, "usable");
        plait_emit_bool(j, info.usable);
        plait_emit_close(j, '}');
    }
    plait_emit_close(j, ']');
}

static void json_kernel(plait_emit *j, const char *name, const char *op, const char *needs,
                        int runs)
{
    plait_emit_open(j, '{');
    plait_emit_key(j, "name");
    plait_emit_text(j, name);
    plait_emit_key(j, "op");
    plait_emit_text(j, op);
    plait_emit_key(j, "needs");
    plait_emit_text(j, needs);
    plait_emit_key(j, "runs_here");
    plait_emit_bool(j, runs);
    plait_emit_close(j, '}');
}

static void json_kernels(plait_emit *j)
{
    char names[128];
    plait_emit_key(j, "kernels");
    plait_emit_open(j, '[');
    for (int32_t i = 0; i < plait_kernel_count(); i++) {
        const plait_kernel *k = plait_kernel_get(i);
        json_kernel(j, k->name, k->op == PLAIT_OP_MLA ? "mla" : "gqa",
                    needs_of(k, names, sizeof names), runs_here(k));
    }
    for (int32_t i = 0; plait_routine_get(i); i++) {
        const plait_routine *r = plait_routine_get(i);
        json_kernel(j, r->name, plait_routine_op_name(r->op),
                    plait_cpu_names(r->needs, names, sizeof names), routine_runs_here(r));
    }
    plait_emit_close(j, ']');
}

/* ---- the parts that words choose ------------------------------------------------------------- */

static void text_versions(void)
{
    printf("version   %s\n", plait_version());
}

static void text_features(void)
{
    char names[128];
    printf("cpu       %s, %d threads\n", plait_cpu_names(plait_cpu_detect(), names, sizeof names),
           (int)plait_threads_default(1));
    printf("built     ");
    for (size_t i = 0; i < N_PARTS; i++)
        printf("%s%s %s", i ? ", " : "", parts[i].name, parts[i].on ? "on" : "off");
    printf("\n");
}

static void json_versions(plait_emit *j)
{
    plait_emit_key(j, "version");
    plait_emit_text(j, plait_version());
}

static void json_features(plait_emit *j)
{
    char names[128];
    plait_emit_key(j, "cpu");
    plait_emit_text(j, plait_cpu_names(plait_cpu_detect(), names, sizeof names));
    plait_emit_key(j, "threads");
    plait_emit_int(j, plait_threads_default(1));
    plait_emit_key(j, "built");
    plait_emit_open(j, '{');
    for (size_t i = 0; i < N_PARTS; i++) {
        plait_emit_key(j, parts[i].name);
        plait_emit_bool(j, parts[i].on);
    }
    plait_emit_close(j, '}');
}

/* In the order of the output. */
static const struct {
    const char *word;
    void (*text)(void);
    void (*json)(plait_emit *j);
} topics[] = {
    {"versions", text_versions, json_versions},
    {"features", text_features, json_features},
    {"devices", text_gpus, json_gpus},
    {"kernels", text_kernels, json_kernels},
};
#define N_TOPICS (sizeof topics / sizeof *topics)

/* Moves the words out of argv into a set of topics, all where there are none. 0, or -1 when told.
 */
static int take_words(int *argc, char **argv, unsigned *chosen)
{
    int kept = 1;
    *chosen = 0;
    for (int i = 1; i < *argc; i++) {
        size_t t = 0;
        while (t < N_TOPICS && strcmp(argv[i], topics[t].word))
            t++;
        if (t < N_TOPICS) {
            *chosen |= 1u << t;
        } else if (argv[i][0] == '-') {
            argv[kept++] = argv[i];
        } else {
            fprintf(stderr,
                    "plait info: there is no part '%s'; it takes kernels, devices, features and "
                    "versions\n",
                    argv[i]);
            return -1;
        }
    }
    *argc = kept;
    return 0;
}

static void text(unsigned chosen)
{
    for (size_t t = 0; t < N_TOPICS; t++)
        if (chosen & 1u << t)
            topics[t].text();
}

static void json(unsigned chosen)
{
    plait_emit j = {stdout, 0};
    plait_emit_open(&j, '{');
    for (size_t t = 0; t < N_TOPICS; t++)
        if (chosen & 1u << t)
            topics[t].json(&j);
    plait_emit_close(&j, '}');
    printf("\n");
}

int plait_cmd_info(int argc, char **argv)
{
    int as_json = 0, as_markdown = 0;
    unsigned chosen;
    plait_option options[] = {
        {.name = "--json", .kind = PLAIT_OPTION_FLAG, .to = &as_json, .help = "one JSON object"},
        {.name = "--markdown",
         .kind = PLAIT_OPTION_FLAG,
         .to = &as_markdown,
         .help = "the support matrix"},
    };
    if (take_words(&argc, argv, &chosen))
        return PLAIT_EXIT_USAGE;
    plait_options_result read =
        plait_options_read(options, sizeof options / sizeof *options, argc, argv);
    if (read != PLAIT_OPTIONS_GO)
        return read == PLAIT_OPTIONS_HELP ? PLAIT_EXIT_OK : PLAIT_EXIT_USAGE;
    if (as_markdown && (as_json || chosen)) {
        fprintf(stderr, "plait info: --markdown prints the support matrix alone: give nothing "
                        "beside it\n");
        return PLAIT_EXIT_USAGE;
    }
    if (!chosen)
        chosen = (1u << N_TOPICS) - 1;
    if (as_json)
        json(chosen);
    else if (as_markdown)
        markdown();
    else
        text(chosen);
    return PLAIT_EXIT_OK;
}
