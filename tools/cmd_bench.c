/* SPDX-License-Identifier: Apache-2.0 */
/* plait bench: times a kernel and says how near it comes to what the machine can do. */
#include <stdio.h>
#include <string.h>

#include "tools/bench.h"
#include "tools/json.h"
#include "tools/options.h"
#include "tools/tools.h"

static void print_json(const plait_bench_machine *m, int32_t threads, const plait_bench_result *r)
{
    plait_emit j = {stdout, 0};
    plait_emit_open(&j, '{');
    plait_emit_key(&j, "machine");
    plait_emit_open(&j, '{');
    plait_emit_key(&j, "threads");
    plait_emit_int(&j, threads);
    plait_emit_key(&j, "dram_read_gbps");
    plait_emit_number(&j, m->read_gbps);
    plait_emit_key(&j, "peak_gflops");
    plait_emit_open(&j, '{');
    for (int32_t i = 0; i < m->n_peaks; i++) {
        plait_emit_key(&j, m->peak_name[i]);
        plait_emit_number(&j, m->peak_gflops[i]);
    }
    plait_emit_close(&j, '}');
    plait_emit_close(&j, '}');
    plait_emit_key(&j, "cases");
    plait_emit_open(&j, '[');
    plait_emit_open(&j, '{');
    plait_emit_key(&j, "kernel");
    plait_emit_text(&j, r->kernel);
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"us", r->us},
                   {"us_low", r->us_low},
                   {"us_high", r->us_high},
                   {"warm_us", r->warm_us},
                   {"gbps", 1e-3 * r->bytes / r->us},
                   {"gflops", 1e-3 * r->flops / r->us},
                   {"fraction_of_limit", r->fraction_of_limit}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        plait_emit_key(&j, numbers[i].key);
        plait_emit_number(&j, numbers[i].value);
    }
    plait_emit_key(&j, "limit");
    plait_emit_text(&j, r->arithmetic ? "arithmetic" : "bandwidth");
    plait_emit_close(&j, '}');
    plait_emit_close(&j, ']');
    plait_emit_close(&j, '}');
    printf("\n");
}

static void print_text(const plait_bench_machine *m, int32_t threads, const plait_bench_result *r)
{
    printf("machine: %d threads, DRAM read %.1f GB/s", threads, m->read_gbps);
    for (int32_t i = 0; i < m->n_peaks; i++)
        printf(", %s %.0f GFLOP/s", m->peak_name[i], m->peak_gflops[i]);
    printf("\n%s: cold %.1f us (%.1f to %.1f), warm %.1f us, %.1f GB/s, %.1f GFLOP/s, %.2f of the "
           "%s limit\n",
           r->kernel, r->us, r->us_low, r->us_high, r->warm_us, 1e-3 * r->bytes / r->us,
           1e-3 * r->flops / r->us, r->fraction_of_limit,
           r->arithmetic ? "arithmetic" : "bandwidth");
}

/* What is timed. Prefill is attention of unabsorbed MLA: 192/128, each head with its own K and V.
 */
enum bench_op { MLA, GQA, PREFILL, MERGE, APPEND };

static int refuse(const char *what)
{
    fprintf(stderr, "plait bench: %s\n", what);
    return PLAIT_EXIT_USAGE;
}

/* 0, or the exit code once the sentence is said. */
static int choose_op(int argc, char **argv, enum bench_op *op)
{
    static const char *const names[] = {"mla", "gqa", "prefill", "merge", "append"};
    static const char *const later[] = {"exchange", "step", "suite"};
    const char *name = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) {
            *op = (enum bench_op)i;
            return 0;
        }
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (!strcmp(name, later[i])) {
            fprintf(stderr, "plait bench: bench %s is not in this release step\n", name);
            return PLAIT_EXIT_USAGE;
        }
    if (!*name || *name == '-')
        return refuse("bench needs an operation first: mla, gqa, prefill, merge or append");
    fprintf(
        stderr,
        "plait bench: bench has no operation '%s'; it takes mla, gqa, prefill, merge or append\n",
        name);
    return PLAIT_EXIT_USAGE;
}

/* What the options together must satisfy. */
static int check_shape(const plait_bench_shape *s, enum bench_op op)
{
    char text[128] = "";
    if (s->op == PLAIT_OP_GQA && s->heads % s->kv_heads)
        snprintf(text, sizeof text, "--kv-heads is %d, wanted a divisor of --heads %d", s->kv_heads,
                 s->heads);
    if (op != MERGE && op != APPEND && s->q_len > s->context)
        snprintf(text, sizeof text, "--q-len is %d, wanted at most --context %d", s->q_len,
                 s->context);
    if (s->rank >= s->dcp)
        snprintf(text, sizeof text, "--rank is %d, wanted less than --dcp %d", s->rank, s->dcp);
    return *text ? refuse(text) : 0;
}

/* What the operation decides: dims, KV heads, and rows where they are not given. */
static void choose_dims(plait_bench_shape *s, enum bench_op op)
{
    const int latent = op != GQA && op != PREFILL;
    s->op = latent ? PLAIT_OP_MLA : PLAIT_OP_GQA;
    s->d_qk = latent ? 576 : op == GQA ? 128 : 192;
    s->d_v = latent ? 512 : 128;
    s->kv_heads = latent ? 1 : op == GQA ? s->kv_heads : s->heads;
    if (op == MERGE && s->dcp < 2)
        s->dcp = 2;
    if (s->q_len == 0)
        s->q_len = op == PREFILL ? s->context : 1;
}

static void choose_dtypes(plait_bench_shape *s, const char *kv)
{
    s->kv_dtype = !strcmp(kv, "f32")   ? PLAIT_F32
                  : !strcmp(kv, "f16") ? PLAIT_F16
                  : !strcmp(kv, "fp8") ? PLAIT_FP8_E4M3
                                       : PLAIT_BF16;
    s->q_dtype = s->kv_dtype == PLAIT_FP8_E4M3 ? PLAIT_BF16 : s->kv_dtype;
}

static int bench(enum bench_op op, const plait_bench_shape *shape, int32_t threads,
                 const char *pattern, plait_cpu_features features, int as_json)
{
    plait_bench_machine machine = {0};
    plait_bench_result result = {0};
    plait_pool_options o = PLAIT_POOL_OPTIONS_INIT;
    plait_pool *pool;
    o.n_threads = threads;
    o.pin = 1;
    plait_status status = plait_pool_open(&o, &pool);
    if (status != PLAIT_OK)
        return plait_tool_fail("bench", status);
    const plait_executor *executor = plait_pool_executor(pool);
    if (op == MERGE || op == APPEND)
        status = plait_bench_rows(op == MERGE ? PLAIT_ROUTINE_MERGE : PLAIT_ROUTINE_APPEND, shape,
                                  executor, features, pattern, &machine, &result);
    else
        status = plait_bench_attn(shape, executor, features, pattern, &machine, &result);
    if (status == PLAIT_OK)
        (as_json ? print_json : print_text)(&machine, executor->n_workers, &result);
    plait_pool_close(&pool);
    return status == PLAIT_OK ? PLAIT_EXIT_OK : plait_tool_fail("bench", status);
}

int plait_cmd_bench(int argc, char **argv)
{
    const char *pattern = NULL, *mask = "all", *kv = "bf16";
    plait_bench_shape s = {.heads = 128,
                           .kv_heads = 8,
                           .batch = 1,
                           .context = 4096,
                           .page_size = 64,
                           .dcp = 1,
                           .interleave = 1};
    enum bench_op op = MLA;
    int32_t threads = 0;
    int as_json = 0;
    int code = argc > 1 && !strcmp(argv[1], "--help") ? 0 : choose_op(argc, argv, &op);
    if (code)
        return code;
#define NUMBER(option, variable, low, high, text)                                                  \
    {.name = option,                                                                               \
     .kind = PLAIT_OPTION_INT,                                                                     \
     .to = &(variable),                                                                            \
     .value = "N",                                                                                 \
     .least = low,                                                                                 \
     .most = high,                                                                                 \
     .help = text}
    plait_option options[] = {
        NUMBER("--heads", s.heads, 1, 4096, "query heads (128)"),
        NUMBER("--kv-heads", s.kv_heads, 1, 4096, "KV heads of gqa (8)"),
        NUMBER("--q-len", s.q_len, 1, 4096, "query tokens of a sequence (1; prefill: all)"),
        NUMBER("--batch", s.batch, 1, 4096, "sequences (1)"),
        NUMBER("--context", s.context, 1, 1 << 24, "tokens of a sequence, queries included (4096)"),
        NUMBER("--page-size", s.page_size, 1, 1 << 20, "tokens of a page (64)"),
        NUMBER("--threads", threads, 1, 1024, "threads (all)"),
        NUMBER("--dcp", s.dcp, 1, PLAIT_MERGE_MAX,
               "ranks that the context is split across (1); of merge, states (2)"),
        NUMBER("--rank", s.rank, 0, PLAIT_MERGE_MAX - 1, "the rank whose share is timed (0)"),
        {.name = "--kv-dtype",
         .kind = PLAIT_OPTION_CHOICE,
         .to = &kv,
         .value = "bf16|f16|f32|fp8",
         .help = "the cache's type (bf16)"},
        {.name = "--kernel",
         .kind = PLAIT_OPTION_TEXT,
         .to = &pattern,
         .value = "PATTERN",
         .help = "kernels to select from; * stands for any text"},
        {.name = "--cpu-mask",
         .kind = PLAIT_OPTION_TEXT,
         .to = &mask,
         .value = "LEVEL",
         .help = "use no more than none, avx2, avx512, avx512bf16, amx or all"},
        {.name = "--invariant",
         .kind = PLAIT_OPTION_FLAG,
         .to = &s.invariant,
         .help = "attention whose bits depend on no other sequence, nor on --threads"},
        {.name = "--json", .kind = PLAIT_OPTION_FLAG, .to = &as_json, .help = "one JSON object"},
    };
#undef NUMBER
    const int given = argv[1][0] != '-';
    argv[given] = argv[0]; /* the name in messages */
    plait_options_result read =
        plait_options_read(options, sizeof options / sizeof *options, argc - given, argv + given);
    if (read != PLAIT_OPTIONS_GO)
        return read == PLAIT_OPTIONS_HELP ? PLAIT_EXIT_OK : PLAIT_EXIT_USAGE;
    plait_cpu_features level;
    plait_status status = plait_cpu_level(mask, &level);
    if (status != PLAIT_OK)
        return plait_tool_fail("bench", status);
    choose_dims(&s, op);
    choose_dtypes(&s, kv);
    code = check_shape(&s, op);
    return code ? code : bench(op, &s, threads, pattern, level & plait_cpu_detect(), as_json);
}
