/* SPDX-License-Identifier: Apache-2.0 */
/* plait explain: which backend a configuration gets, by which strategy, and why not another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <plait/log.h>

#include "tools/explain.h"
#include "tools/options.h"
#include "tools/tools.h"

enum { RAGGED = -1, SPECULATIVE_ROWS = 4, PREFILL_ROWS = 512 };

struct asked {
    const char *attention, *device, *dtype, *kv_dtype, *phase, *draft, *from, *backend, *prefer;
    int32_t heads, kv_heads, page_size, tp, dcp, interleave, q_len;
    plait_option_list packages;
    int64_t memory;
    int json, markdown;
};

static plait_dtype dtype_of(const char *name)
{
    int d = 0;
    while (plait_dtype_bytes((plait_dtype)d) && strcmp(name, plait_dtype_name((plait_dtype)d)))
        d++;
    return (plait_dtype)d;
}

static int read_device(const struct asked *a, plait_backend_config *c)
{
    char *end = NULL;
    if (!strcmp(a->device, "cpu")) {
        c->device = PLAIT_DEVICE_CPU;
        c->features = plait_cpu_detect();
        return 0;
    }
    long version = strncmp(a->device, "sm", 2) ? 0 : strtol(a->device + 2, &end, 10);
    if (version < 10 || version > 999 || *end) {
        fprintf(stderr,
                "plait explain: --device is '%s'; cpu or sm and a version was wanted, as "
                "sm90 or sm100\n",
                a->device);
        return -1;
    }
    c->device = PLAIT_DEVICE_CUDA;
    c->device_version = (int32_t)version;
    return 0;
}

/* Packages that profiles know, and a version in numbers. */
static int check_package(const char *given)
{
    const plait_backend *b;
    size_t n = strcspn(given, "=");
    for (int32_t i = 0; (b = plait_backend_get(i)) != NULL; i++)
        for (int32_t row = 0; b->note && row < b->n_rows; row++) {
            const char *name = b->note[row].package;
            if (name && strlen(name) == n && !memcmp(name, given, n) && given[n] &&
                given[n + 1] >= '0' && given[n + 1] <= '9')
                return 0;
        }
    fprintf(stderr,
            "plait explain: --package is '%s'; NAME=VERSION of a package that a profile "
            "names was wanted, as tokenspeed-mla=0.2.5\n",
            given);
    return -1;
}

static void read_rows(const struct asked *a, plait_backend_config *c)
{
    int prefill = !strcmp(a->phase, "prefill");
    c->phase = prefill ? PLAIT_PHASE_PREFILL : PLAIT_PHASE_DECODE;
    c->q_len = a->q_len;
    if (a->q_len == RAGGED) {
        c->ragged = 1;
        c->lengths = SPECULATIVE_ROWS;
    }
    if (a->q_len <= 0)
        c->q_len = prefill                                 ? PREFILL_ROWS
                   : c->ragged || strcmp(a->draft, "none") ? SPECULATIVE_ROWS
                                                           : 1;
}

static int configure(const struct asked *a, plait_backend_config *c)
{
    int is_mla = !strcmp(a->attention, "mla");
    *c = (plait_backend_config)PLAIT_BACKEND_CONFIG_INIT;
    if (read_device(a, c))
        return -1;
    for (int32_t i = 0; i < a->packages.n; i++)
        if (check_package(a->packages.items[i]))
            return -1;
    c->op = is_mla ? PLAIT_OP_MLA : PLAIT_OP_GQA;
    c->dtype = dtype_of(a->dtype);
    c->kv_dtype = strcmp(a->kv_dtype, "auto") ? dtype_of(a->kv_dtype) : c->dtype;
    c->heads = a->heads;
    c->kv_heads = a->kv_heads ? a->kv_heads : is_mla ? 1 : a->heads;
    if (!is_mla)
        c->d_qk = c->d_v = 128;
    c->page_size = a->page_size;
    c->dcp = a->dcp;
    c->tp = a->tp ? a->tp : a->dcp;
    c->interleave = a->interleave;
    c->packages = a->packages.items;
    c->n_packages = a->packages.n;
    read_rows(a, c);
    return 0;
}

static uint32_t from_of(const char *name)
{
    if (!strcmp(name, "builtin"))
        return PLAIT_FROM_BUILTIN;
    if (!strcmp(name, "plugins"))
        return PLAIT_FROM_PLUGINS;
    if (!strcmp(name, "profiles"))
        return PLAIT_FROM_PROFILES;
    return !strcmp(name, "all") ? PLAIT_FROM_ALL : PLAIT_FROM_BUILTIN | PLAIT_FROM_PLUGINS;
}

static int explain(const struct asked *a)
{
    static plait_explanation e;
    plait_backend_config config;
    if (!a->attention || !a->heads) {
        fprintf(stderr, "plait explain: --attention and --heads are needed\n");
        return PLAIT_EXIT_USAGE;
    }
    if (configure(a, &config))
        return PLAIT_EXIT_USAGE;
    plait_status status = plait_requirement_derive(&config, &e.need);
    if (status != PLAIT_OK) {
        fprintf(stderr, "plait explain: %s\n", plait_last_error());
        return PLAIT_EXIT_USAGE;
    }
    e.memory = a->memory;
    plait_log_set_sink(NULL, NULL, PLAIT_LOG_NOTICE); /* the answer holds its notices */
    status = plait_select(&e.need, from_of(a->from), a->backend, a->prefer, &e.selection);
    if (status == PLAIT_E_ARG)
        return plait_tool_fail("explain", status);
    if (a->json)
        plait_explain_json(&e);
    else
        plait_explain_text(&e);
    if (status != PLAIT_OK)
        fprintf(stderr, "plait explain: %s\n", plait_last_error());
    return status == PLAIT_OK ? PLAIT_EXIT_OK : PLAIT_EXIT_FAILED;
}

#define CHOICE(text, field, words, about)                                                          \
    {                                                                                              \
        .name = (text), .kind = PLAIT_OPTION_CHOICE, .to = &a.field, .value = (words),             \
        .help = (about)                                                                            \
    }
#define NAME(text, field, what, about)                                                             \
    {                                                                                              \
        .name = (text), .kind = PLAIT_OPTION_TEXT, .to = &a.field, .value = (what),                \
        .help = (about)                                                                            \
    }
#define COUNT(text, field, what, bound, about)                                                     \
    {                                                                                              \
        .name = (text), .kind = PLAIT_OPTION_INT, .to = &a.field, .value = (what), .least = 1,     \
        .most = (bound), .help = (about)                                                           \
    }

int plait_cmd_explain(int argc, char **argv)
{
    struct asked a = {.device = "cpu",
                      .dtype = "bf16",
                      .kv_dtype = "auto",
                      .phase = "decode",
                      .draft = "none",
                      .from = "builtin+plugins",
                      .page_size = 64,
                      .dcp = 1,
                      .interleave = 1};
    plait_option options[] = {
        CHOICE("--attention", attention, "mla|gqa", "the kind (needed)"),
        COUNT("--heads", heads, "H", 4096, "the model's query heads (needed)"),
        COUNT("--kv-heads", kv_heads, "K", 4096, "the model's KV heads (mla 1, gqa H)"),
        NAME("--device", device, "cpu|sm90|sm100|...", "what computes (cpu)"),
        CHOICE("--dtype", dtype, "bf16|f16|f32", "the model's (bf16)"),
        CHOICE("--kv-dtype", kv_dtype, "auto|bf16|f16|f32|fp8|fp8_ds656", "the cache's (auto)"),
        COUNT("--page-size", page_size, "P", 65536, "tokens of a page (64)"),
        COUNT("--tp", tp, "W", 4096, "ranks of tensor parallelism (as --dcp)"),
        COUNT("--dcp", dcp, "D", 4096, "ranks that split one KV cache; divides W (1)"),
        COUNT("--interleave", interleave, "I", 65536, "tokens that go to one rank in turn (1)"),
        COUNT("--q-len", q_len, "N|ragged", 65536, "rows of a sequence (1; 4 with drafts)"),
        CHOICE("--phase", phase, "decode|prefill", "of the batch (decode)"),
        CHOICE("--draft", draft, "none|mtp|eagle3", "what proposes tokens (none)"),
        CHOICE("--from", from, "builtin|plugins|profiles|all", "backends (builtin and plugins)"),
        {.name = "--package",
         .kind = PLAIT_OPTION_LIST,
         .to = &a.packages,
         .value = "NAME=VERSION",
         .help = "a version that is installed; others are the newest known"},
        NAME("--backend", backend, "NAME", "this one or an error"),
        NAME("--prefer", prefer, "NAME", "this one if it works"),
        {.name = "--memory",
         .kind = PLAIT_OPTION_BYTES,
         .to = &a.memory,
         .value = "BYTES",
         .least = 1,
         .most = 1e15,
         .help = "a rank's room for one layer's cache: tokens that fit for each D"},
        {.name = "--json", .kind = PLAIT_OPTION_FLAG, .to = &a.json, .help = "one JSON object"},
        {.name = "--markdown",
         .kind = PLAIT_OPTION_FLAG,
         .to = &a.markdown,
         .help = "the table of all backends, alone"},
    };
    const size_t n = sizeof options / sizeof *options;
    for (size_t i = 0; i < n; i++)
        if (options[i].to == &a.q_len) {
            options[i].word = "ragged";
            options[i].word_value = RAGGED;
        }
    plait_options_result read = plait_options_read(options, n, argc, argv);
    if (read != PLAIT_OPTIONS_GO)
        return read == PLAIT_OPTIONS_HELP ? PLAIT_EXIT_OK : PLAIT_EXIT_USAGE;
    if (!a.markdown)
        return explain(&a);
    if (argc > 2) {
        fprintf(stderr, "plait explain: --markdown gives the table of all backends, alone\n");
        return PLAIT_EXIT_USAGE;
    }
    plait_explain_markdown();
    return PLAIT_EXIT_OK;
}
