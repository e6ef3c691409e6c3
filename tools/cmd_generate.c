/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait generate: text from a checkpoint. The text streams to stdout and a
 * summary follows; with
 * --json one object is all that stdout gets. Progress goes to stderr, on a
 * terminal only.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <plait/cpu.h>
#include <plait/dcp.h>
#include <plait/engine.h>
#include <plait/log.h>

#include "tools/json.h"
#include "tools/options.h"
#include "tools/tools.h"

#if PLAIT_HAVE_ENGINE

#define PROMPT_FILE_MOST ((size_t)64 << 20)

typedef struct plait_generate {
    const char *model, *prompt, *prompt_file;
    const char *draft, *draft_kv, *comm, *exchange, *dtype, *kv_dtype, *kernel, *cpu_mask;
    const char *prefix_cache;
    int32_t max_new_tokens, spec_tokens, tp, dcp, interleave, page_size, threads;
    int64_t kv_cache;
    double comm_timeout;
    int ignore_eos, json;
    plait_option_list stop;
} plait_generate;

/* ---- options
 * ------------------------------------------------------------------------------
 */

static plait_options_result read_options(plait_generate *g, int argc, char **argv)
{
    const double many = INT32_MAX;
    plait_option options[] = {
        {"--model", PLAIT_OPTION_TEXT, &g->model, "DIR", .help = "the checkpoint (needed)"},
        {"--prompt", PLAIT_OPTION_TEXT, &g->prompt, "TEXT", .help = "what to go on from (needed)"},
        {"--prompt-file", PLAIT_OPTION_TEXT, &g->prompt_file, "FILE", .help = "or this, from FILE"},
        {"--max-new-tokens", PLAIT_OPTION_INT, &g->max_new_tokens, "N", NULL, 1, many,
         .help = "most tokens to add (128)"},
        {"--draft", PLAIT_OPTION_TEXT, &g->draft, "none|ngram|mtp",
         .help = "what proposes tokens (none)"},
        {"--spec-tokens", PLAIT_OPTION_INT, &g->spec_tokens, "K", NULL, 1, 16,
         .help = "drafts in each step (3)"},
        {"--draft-kv", PLAIT_OPTION_CHOICE, &g->draft_kv, "sharded|replicated",
         .help = "how ranks hold the draft's cache (sharded)"},
        {"--tp", PLAIT_OPTION_INT, &g->tp, "W", NULL, 1, 1024,
         .help = "ranks of tensor parallelism (as --dcp)"},
        {"--dcp", PLAIT_OPTION_INT, &g->dcp, "D", NULL, 1, 1024,
         .help = "ranks that split one KV cache; divides W (1)"},
        {"--interleave", PLAIT_OPTION_INT, &g->interleave, "I", NULL, 1, 1 << 20,
         .help = "tokens that go to one rank in turn (1)"},
        {"--comm", PLAIT_OPTION_CHOICE, &g->comm, "threads", "mpi",
         .help = "what ranks are (threads)"},
        {"--exchange", PLAIT_OPTION_CHOICE, &g->exchange, "auto|ag_rs|a2a",
         .help = "how partial results are merged (auto)"},
        {"--comm-timeout", PLAIT_OPTION_NUMBER, &g->comm_timeout, "S", NULL, 1, 1e6,
         .help = "seconds until a rank counts as lost (30)"},
        {"--dtype", PLAIT_OPTION_CHOICE, &g->dtype, "bf16|f32",
         .help = "of the computation (bf16)"},
        {"--kv-dtype", PLAIT_OPTION_CHOICE, &g->kv_dtype, "auto|bf16|f32", "f16|fp8",
         .help = "of the cache (auto: as --dtype)"},
        {"--page-size", PLAIT_OPTION_INT, &g->page_size, "P", NULL, 1, 1 << 16,
         .help = "tokens in a page of the cache (64)"},
        {"--kv-cache", PLAIT_OPTION_BYTES, &g->kv_cache, "SIZE", NULL, 1, 1e15,
         .help = "most bytes of cache on a rank (as needed)"},
        {"--prefix-cache", PLAIT_OPTION_CHOICE, &g->prefix_cache, "on|off",
         .help = "keep KV for prompts that begin alike (on)"},
        {"--threads", PLAIT_OPTION_INT, &g->threads, "N", NULL, 1, 4096,
         .help = "of all ranks together (what the machine allows)"},
        {"--kernel", PLAIT_OPTION_TEXT, &g->kernel, "PATTERN",
         .help = "attention kernels whose name matches; * stands for any text"},
        {"--cpu-mask", PLAIT_OPTION_TEXT, &g->cpu_mask, "LEVEL",
         .help = "use no more than none, avx2, avx512, avx512bf16, amx or all"},
        {"--stop", PLAIT_OPTION_LIST, &g->stop, "TEXT",
         .help = "end the output before TEXT; may be given several times"},
        {"--ignore-eos", PLAIT_OPTION_FLAG, &g->ignore_eos, .help = "go on past end tokens"},
        {"--json", PLAIT_OPTION_FLAG, &g->json, .help = "one JSON object instead of text"},
        {"--prompts", PLAIT_OPTION_LATER, .help = "give one prompt with --prompt or --prompt-file"},
        {"--temperature", PLAIT_OPTION_LATER, .help = "decoding is greedy"},
        {"--top-k", PLAIT_OPTION_LATER, .help = "decoding is greedy"},
        {"--top-p", PLAIT_OPTION_LATER, .help = "decoding is greedy"},
        {"--seed", PLAIT_OPTION_LATER, .help = "decoding is greedy"},
        {"--logprobs", PLAIT_OPTION_LATER, .help = "only tokens are given"},
        {"--backend", PLAIT_OPTION_LATER, .help = "choose kernels with --kernel"},
        {"--prefer", PLAIT_OPTION_LATER, .help = "choose kernels with --kernel"},
        {"--invariant", PLAIT_OPTION_LATER, .help = "bits may depend on the batch"},
        {"--trace", PLAIT_OPTION_LATER, .help = "the summary gives times"},
        {"--device", PLAIT_OPTION_LATER, .help = "generation runs on the CPU"},
    };
    return plait_options_read(options, sizeof options / sizeof *options, argc, argv);
}

static int usage_error(const char *sentence)
{
    fprintf(stderr, "plait generate: %s\n", sentence);
    return PLAIT_EXIT_USAGE;
}

/* What one option alone cannot tell. Returns 0 or an exit code. */
static int check_options(const plait_generate *g)
{
    if (!g->model)
        return usage_error("--model is missing; it names a checkpoint's directory");
    if (!g->prompt == !g->prompt_file)
        return usage_error("exactly one of --prompt and --prompt-file is wanted");
    if (strcmp(g->draft, "none") && strcmp(g->draft, "mtp") && strcmp(g->draft, "ngram"))
        return usage_error("--draft DIR (an EAGLE-3 head) is not in this release step; --draft "
                           "takes none|ngram|mtp");
    return 0;
}

static plait_status engine_options(const plait_generate *g, plait_engine_options *o)
{
    o->model_dir = g->model;
    o->tp = g->tp;
    o->dcp = g->dcp;
    o->interleave = g->interleave;
    o->dtype = strcmp(g->dtype, "f32") ? PLAIT_BF16 : PLAIT_F32;
    if (strcmp(g->kv_dtype, "auto"))
        o->kv_dtype = strcmp(g->kv_dtype, "f32") ? PLAIT_BF16 : PLAIT_F32;
    o->page_size = g->page_size;
    o->kv_cache_bytes = g->kv_cache;
    o->prefix_cache = !strcmp(g->prefix_cache, "on");
    o->threads = g->threads;
    o->draft = !strcmp(g->draft, "mtp")     ? PLAIT_DRAFT_MTP
               : !strcmp(g->draft, "ngram") ? PLAIT_DRAFT_NGRAM
                                            : PLAIT_DRAFT_NONE;
    o->spec_tokens = g->spec_tokens;
    o->draft_kv_replicated = !strcmp(g->draft_kv, "replicated");
    if (strcmp(g->exchange, "auto"))
        o->exchange = strcmp(g->exchange, "a2a") ? PLAIT_EXCHANGE_AG_RS : PLAIT_EXCHANGE_A2A;
    o->comm_timeout_s = g->comm_timeout;
    o->kernel = g->kernel;
    return g->cpu_mask ? plait_cpu_level(g->cpu_mask, &o->cpu_mask) : PLAIT_OK;
}

/* The whole file, which the caller frees; NULL after a sentence on stderr. */
static char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0;
    *bytes = 0;
    while (file && *bytes == size && size < PROMPT_FILE_MOST) {
        size = size ? 2 * size : 1 << 16;
        char *more = realloc(text, size);
        if (!more)
            break;
        text = more;
        *bytes += fread(text + *bytes, 1, size - *bytes, file);
    }
    int good = file && text && *bytes < size && !ferror(file);
    if (file)
        fclose(file);
    if (good)
        return text;
    fprintf(stderr,
            "plait generate: --prompt-file %s cannot be read, or has 64 MiB or "
            "more\n",
            path);
    free(text);
    return NULL;
}

/* ---- output
 * -------------------------------------------------------------------------------
 */

/* Progress is one line on stderr that the next one overwrites; text NULL wipes
 * it. */
static void progress(const char *text)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%s", text ? text : "");
}

typedef struct plait_stream {
    int json;
    int32_t n;
} plait_stream;

static int32_t stream(void *user, const plait_stream_event *event)
{
    plait_stream *s = user;
    if (!s->n)
        progress(NULL);
    s->n += event->num_ids;
    if (s->json) {
        char line[64];
        snprintf(line, sizeof line, "%d tokens", (int)s->n);
        progress(line);
    } else {
        fwrite(event->text, 1, event->text_bytes, stdout);
        fflush(stdout);
    }
    return 0;
}

/* What both outputs tell of a generation, computed once. */
typedef struct plait_figures {
    const plait_result *r;
    const plait_generation *all;
    double prefill_per_s, decode_per_s, accepted;
    int32_t spec_tokens, tp;
    const char *comm;
} plait_figures;

static plait_figures figures(const plait_generate *g, const plait_generation *all)
{
    plait_figures f = {.r = &all->results[0], .all = all, .tp = all->num_ranks};
    f.prefill_per_s = (double)f.r->num_prompt / f.r->prefill_s;
    f.decode_per_s = (f.r->num_new - 1) / f.r->decode_s;
    f.accepted = (f.r->num_new - 1) / (double)f.r->steps;
    f.spec_tokens = strcmp(g->draft, "none") ? g->spec_tokens : 0;
    f.comm = f.tp > 1 ? g->comm : "self";
    return f;
}

static void int_list(plait_emit *j, const char *key, const int64_t *values, int32_t n)
{
    plait_emit_key(j, key);
    plait_emit_open(j, '[');
    for (int32_t i = 0; i < n; i++)
        plait_emit_int(j, values[i]);
    plait_emit_close(j, ']');
}

static void key_text(plait_emit *j, const char *key, const char *value)
{
    plait_emit_key(j, key);
    plait_emit_text(j, value);
}

static void key_int(plait_emit *j, const char *key, int64_t value)
{
    plait_emit_key(j, key);
    plait_emit_int(j, value);
}

static void key_number(plait_emit *j, const char *key, double value)
{
    plait_emit_key(j, key);
    plait_emit_number(j, value);
}

static void print_json(const plait_generate *g, const plait_figures *f)
{
    plait_emit j = {stdout, 0};
    plait_emit_open(&j, '{');
    plait_emit_key(&j, "text");
    plait_emit_text_n(&j, f->r->text, f->r->text_bytes);
    plait_emit_key(&j, "token_ids");
    plait_emit_open(&j, '[');
    for (int32_t i = 0; i < f->r->num_new; i++)
        plait_emit_int(&j, f->r->ids[i]);
    plait_emit_close(&j, ']');
    key_text(&j, "finish_reason", plait_finish_name(f->r->finish));
    key_int(&j, "prompt_tokens", f->r->num_prompt);
    key_int(&j, "cached_tokens", f->r->num_cached);
    key_int(&j, "new_tokens", f->r->num_new);
    key_number(&j, "prefill_tokens_per_s", f->prefill_per_s);
    key_number(&j, "decode_tokens_per_s", f->decode_per_s);
    key_int(&j, "steps", f->r->steps);
    key_number(&j, "accepted_per_step", f->accepted);
    key_text(&j, "draft", g->draft);
    key_int(&j, "spec_tokens", f->spec_tokens);
    key_int(&j, "tp", f->tp);
    key_int(&j, "dcp", g->dcp);
    key_int(&j, "interleave", g->interleave);
    key_text(&j, "comm", f->comm);
    int_list(&j, "kv_bytes_per_rank", f->all->kv_bytes, f->tp);
    int_list(&j, "draft_kv_bytes_per_rank", f->all->draft_kv_bytes, f->tp);
    key_text(&j, "attention_kernel", f->all->kernel);
    plait_emit_key(&j, "notices");
    plait_emit_open(&j, '[');
    for (size_t i = 0; i < plait_notice_count(); i++)
        plait_emit_text(&j, plait_notice_get(i, NULL));
    plait_emit_close(&j, ']');
    plait_emit_close(&j, '}');
    printf("\n");
}

static void row_bytes(const char *label, const int64_t *values, int32_t n)
{
    printf("%-14s", label);
    for (int32_t i = 0; i < n; i++)
        printf(" %lld", (long long)values[i]);
    printf(" bytes\n");
}

static void print_summary(const plait_generate *g, const plait_figures *f)
{
    int colour = isatty(STDOUT_FILENO);
    printf("\n\n%s", colour ? "\033[2m" : "");
    printf("tokens         %lld in the prompt, %d new\n", (long long)f->r->num_prompt,
           (int)f->r->num_new);
    printf("speed          prefill %.1f", f->prefill_per_s);
    /* A single new token comes from the prefill: there is no decoding to measure. */
    if (f->r->steps)
        printf(", decode %.1f tokens/s\nsteps          %lld, %.2f tokens gained in each\n",
               f->decode_per_s, (long long)f->r->steps, f->accepted);
    else
        printf(" tokens/s\nsteps          0\n");
    printf("draft          %s", g->draft);
    if (f->spec_tokens)
        printf(", %d a step, %lld of %lld accepted", (int)f->spec_tokens,
               (long long)f->r->num_accepted, (long long)f->r->num_drafted);
    printf("\nranks          tp %d, dcp %d, interleave %d, comm %s, exchange %s\n", (int)f->tp,
           (int)g->dcp, (int)g->interleave, f->comm, f->all->exchange);
    row_bytes("KV per rank", f->all->kv_bytes, f->tp);
    if (f->spec_tokens)
        row_bytes("draft KV", f->all->draft_kv_bytes, f->tp);
    printf("attention      %s\n", f->all->kernel);
    for (size_t i = 0; i < plait_notice_count(); i++)
        printf("notice         %s\n", plait_notice_get(i, NULL));
    printf("%s", colour ? "\033[0m" : "");
}

/* ---- the command
 * -------------------------------------------------------------------------- */

static plait_status generate(const plait_generate *g, const char *text, size_t bytes)
{
    plait_engine *engine = NULL;
    plait_generation *all = NULL;
    plait_engine_options options = PLAIT_ENGINE_OPTIONS_INIT;
    plait_request request = PLAIT_REQUEST_INIT;
    plait_stream state = {g->json, 0};
    request.text = text;
    request.text_bytes = bytes;
    request.max_new_tokens = g->max_new_tokens;
    request.ignore_eos = g->ignore_eos;
    request.stop_texts = g->stop.items;
    request.num_stop_texts = g->stop.n;

    plait_status status = engine_options(g, &options);
    progress("loading");
    if (status == PLAIT_OK)
        status = plait_engine_open(&options, &engine);
    if (status == PLAIT_OK) {
        progress("reading the prompt");
        status = plait_engine_generate(engine, &request, 1, stream, &state, &all);
    }
    progress(NULL);
    if (status == PLAIT_OK) {
        plait_figures f = figures(g, all);
        if (g->json)
            print_json(g, &f);
        else
            print_summary(g, &f);
    }
    plait_generation_close(&all);
    plait_engine_close(&engine);
    return status;
}

int plait_cmd_generate(int argc, char **argv)
{
    plait_generate g = {.draft = "none",
                        .draft_kv = "sharded",
                        .comm = "threads",
                        .exchange = "auto",
                        .dtype = "bf16",
                        .kv_dtype = "auto",
                        .prefix_cache = "on",
                        .max_new_tokens = 128,
                        .spec_tokens = 3,
                        .dcp = 1,
                        .interleave = 1,
                        .page_size = 64,
                        .comm_timeout = 30};
    plait_options_result read = read_options(&g, argc, argv);
    if (read != PLAIT_OPTIONS_GO)
        return read == PLAIT_OPTIONS_HELP ? PLAIT_EXIT_OK : PLAIT_EXIT_USAGE;
    int bad = check_options(&g);
    if (bad)
        return bad;

    char *file = NULL;
    size_t bytes = g.prompt ? strlen(g.prompt) : 0;
    if (g.prompt_file && !(file = read_file(g.prompt_file, &bytes)))
        return PLAIT_EXIT_FAILED;
    plait_status status = generate(&g, file ? file : g.prompt, bytes);
    free(file);
    return status == PLAIT_OK ? PLAIT_EXIT_OK : plait_tool_fail("generate", status);
}

#else

int plait_cmd_generate(int argc, char **argv)
{
    (void)argc;
    fprintf(stderr,
            "plait %s: this build has no engine; install libdnnl-dev, "
            "libcjson-dev and "
            "libpcre2-dev (tools/setup) and build again\n",
            argv[0]);
    return PLAIT_EXIT_FAILED;
}

#endif
