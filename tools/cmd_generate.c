/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait generate: text from a checkpoint. The text streams to stdout and a summary follows; with
 * --json one object is all that stdout gets, with --prompts one object for each line of the file.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <plait/cpu.h>
#include <plait/dcp.h>
#include <plait/engine.h>
#include <plait/log.h>

#include "tools/generate.h"
#include "tools/processes.h"
#include "tools/tools.h"

#if PLAIT_HAVE_ENGINE

#define PROMPT_FILE_MOST ((size_t)64 << 20)

/* ---- options --------------------------------------------------------------------------------- */

static plait_options_result read_options(plait_generate *g, int argc, char **argv)
{
    const double many = INT32_MAX;
    plait_option options[] = {
        {"--model", PLAIT_OPTION_TEXT, &g->model, "DIR", .help = "the checkpoint (needed)"},
        {"--prompt", PLAIT_OPTION_TEXT, &g->prompt, "TEXT", .help = "what to go on from (needed)"},
        {"--prompt-file", PLAIT_OPTION_TEXT, &g->prompt_file, "FILE", .help = "or this, from FILE"},
        {"--prompts", PLAIT_OPTION_TEXT, &g->prompts, "FILE",
         .help = "or many: an object a line of FILE, and one a line of stdout"},
        {"--max-new-tokens", PLAIT_OPTION_INT, &g->max_new_tokens, "N", NULL, 1, many,
         .help = "most tokens to add (128)"},
        {"--draft", PLAIT_OPTION_TEXT, &g->draft, "none|ngram|mtp|DIR",
         .help = "what proposes tokens; DIR: an EAGLE-3 head (none)"},
        {"--spec-tokens", PLAIT_OPTION_INT, &g->spec_tokens, "K|auto", NULL, 1, 16,
         .help = "drafts in each step, or what pays (3)", .word = "auto",
         .word_value = PLAIT_SPEC_AUTO},
        {"--draft-kv", PLAIT_OPTION_CHOICE, &g->draft_kv, "sharded|replicated",
         .help = "how ranks hold the draft's cache (sharded)"},
        {"--tp", PLAIT_OPTION_INT, &g->tp, "W", NULL, 1, 1024,
         .help = "ranks of tensor parallelism (as --dcp)"},
        {"--dcp", PLAIT_OPTION_INT, &g->dcp, "D", NULL, 1, 1024,
         .help = "ranks that split one KV cache; divides W (1)"},
        {"--interleave", PLAIT_OPTION_INT, &g->interleave, "I", NULL, 1, 1 << 20,
         .help = "tokens that go to one rank in turn (1)"},
        {"--comm", PLAIT_OPTION_CHOICE, &g->comm, "threads|mpi",
         .help = "what ranks are; mpi: processes that mpirun starts (threads)"},
        {"--exchange", PLAIT_OPTION_CHOICE, &g->exchange, "auto|ag_rs|a2a",
         .help = "how partial results are merged (auto)"},
        {"--comm-timeout", PLAIT_OPTION_NUMBER, &g->comm_timeout, "S", NULL, 1, 1e6,
         .help = "seconds until a rank counts as lost (30)"},
        {"--dtype", PLAIT_OPTION_CHOICE, &g->dtype, "bf16|f32",
         .help = "of the computation (bf16)"},
        {"--kv-dtype", PLAIT_OPTION_CHOICE, &g->kv_dtype, "auto|bf16|f16|f32", "fp8",
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
        {"--temperature", PLAIT_OPTION_NUMBER, &g->temperature, "T", NULL, 0, 1e6,
         .help = "of sampling; 0: the likeliest token (0)"},
        {"--top-k", PLAIT_OPTION_INT, &g->top_k, "K", NULL, 0, many,
         .help = "sample from the K likeliest tokens; 0: all (0)"},
        {"--top-p", PLAIT_OPTION_NUMBER, &g->top_p, "P", NULL, 1e-9, 1,
         .help = "sample from the fewest tokens with this share (1)"},
        {"--seed", PLAIT_OPTION_INT, &g->seed, "S", NULL, 0, many,
         .help = "of sampling; equal seeds give equal texts (0)"},
        {"--logprobs", PLAIT_OPTION_INT, &g->logprobs, "N", NULL, 1, 20,
         .help = "log-probabilities of tokens and the N likeliest, in JSON"},
        {"--stop", PLAIT_OPTION_LIST, &g->stop, "TEXT",
         .help = "end the output before TEXT; may be given several times"},
        {"--ignore-eos", PLAIT_OPTION_FLAG, &g->ignore_eos, .help = "go on past end tokens"},
        {"--invariant", PLAIT_OPTION_FLAG, &g->invariant,
         .help = "attention whose bits depend on no other request, nor on --threads"},
        {"--trace", PLAIT_OPTION_TEXT, &g->trace, "FILE",
         .help = "write where time went, as a Chrome trace"},
        {"--json", PLAIT_OPTION_FLAG, &g->json, .help = "one JSON object instead of text"},
        {"--backend", PLAIT_OPTION_LATER, .help = "choose kernels with --kernel"},
        {"--prefer", PLAIT_OPTION_LATER, .help = "choose kernels with --kernel"},
        {"--device", PLAIT_OPTION_LATER, .help = "generation runs on the CPU"},
    };
    return plait_options_read(options, sizeof options / sizeof *options, argc, argv);
}

static int usage_error(const char *sentence)
{
    fprintf(stderr, "plait generate: %s\n", sentence);
    return PLAIT_EXIT_USAGE;
}

/* Options of drafts are for drafts; then the ones that were not given get their values. */
static int check_draft(plait_generate *g)
{
    const int none = !strcmp(g->draft, "none");
    if (none && g->spec_tokens)
        return usage_error("--spec-tokens is for drafts, and --draft is none; give --draft too");
    if (none && g->draft_kv)
        return usage_error("--draft-kv is for drafts, and --draft is none; give --draft too");
    if (g->draft_kv && !strcmp(g->draft, "ngram"))
        return usage_error("--draft-kv is for drafts with a cache, and --draft ngram has none");
    if (!g->spec_tokens)
        g->spec_tokens = 3;
    if (!g->draft_kv)
        g->draft_kv = "sharded";
    return 0;
}

/* What one option alone cannot tell. Returns 0 or an exit code. */
static int check_options(plait_generate *g)
{
    if (!g->model)
        return usage_error("--model is missing; it names a checkpoint's directory");
    if ((g->prompt != NULL) + (g->prompt_file != NULL) + (g->prompts != NULL) != 1)
        return usage_error("exactly one of --prompt, --prompt-file and --prompts is wanted");
    return check_draft(g);
}

static plait_status engine_options(const plait_generate *g, plait_engine_options *o)
{
    o->model_dir = g->model;
    o->tp = g->tp;
    o->dcp = g->dcp;
    o->interleave = g->interleave;
    o->dtype = strcmp(g->dtype, "f32") ? PLAIT_BF16 : PLAIT_F32;
    if (strcmp(g->kv_dtype, "auto"))
        o->kv_dtype = !strcmp(g->kv_dtype, "f32")   ? PLAIT_F32
                      : !strcmp(g->kv_dtype, "f16") ? PLAIT_F16
                                                    : PLAIT_BF16;
    o->page_size = g->page_size;
    o->kv_cache_bytes = g->kv_cache;
    o->prefix_cache = !strcmp(g->prefix_cache, "on");
    o->threads = g->threads;
    o->draft = !strcmp(g->draft, "none")    ? PLAIT_DRAFT_NONE
               : !strcmp(g->draft, "mtp")   ? PLAIT_DRAFT_MTP
               : !strcmp(g->draft, "ngram") ? PLAIT_DRAFT_NGRAM
                                            : PLAIT_DRAFT_EAGLE3;
    o->draft_dir = g->draft;
    o->spec_tokens = g->spec_tokens;
    o->draft_kv_replicated = !strcmp(g->draft_kv, "replicated");
    if (strcmp(g->exchange, "auto"))
        o->exchange = strcmp(g->exchange, "a2a") ? PLAIT_EXCHANGE_AG_RS : PLAIT_EXCHANGE_A2A;
    o->invariant = g->invariant;
    o->trace = g->trace != NULL;
    o->comm_timeout_s = g->comm_timeout;
    o->comm = g->ranks;
    o->kernel = g->kernel;
    return g->cpu_mask ? plait_cpu_level(g->cpu_mask, &o->cpu_mask) : PLAIT_OK;
}

/* The whole file, which the caller frees; NULL after a sentence on stderr. */
static char *read_file(const char *option, const char *path, size_t *bytes)
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
    fprintf(stderr, "plait generate: %s %s cannot be read, or has 64 MiB or more\n", option, path);
    free(text);
    return NULL;
}

/* ---- the command ------------------------------------------------------------------------------
 */

static plait_status one_prompt(const plait_generate *g, plait_engine *engine, const char *text,
                               size_t bytes)
{
    plait_generation *all = NULL;
    plait_request request = plait_generate_request(g);
    plait_generate_stream state = {g->json, 0};
    request.text = text;
    request.text_bytes = bytes;
    plait_generate_progress("reading the prompt");
    const plait_status status =
        plait_engine_generate(engine, &request, 1, plait_generate_streamed, &state, &all);
    plait_generate_progress(NULL);
    if (status == PLAIT_OK)
        plait_generate_tell(g, all);
    plait_generation_close(&all);
    return status;
}

static plait_status open_engine(const plait_generate *g, plait_engine **engine)
{
    plait_engine_options options = PLAIT_ENGINE_OPTIONS_INIT;
    plait_status status = engine_options(g, &options);
    plait_generate_progress("loading");
    if (status == PLAIT_OK)
        status = plait_engine_open(&options, engine);
    plait_generate_progress(NULL);
    return status;
}

/* The file is checked before the model is loaded. */
static int run(plait_generate *g, const char *text, size_t bytes)
{
    plait_engine *engine = NULL;
    plait_lines lines;
    if (g->prompts && plait_generate_read_lines(g, text, bytes, &lines)) {
        (void)plait_processes_end("generate", &g->ranks, PLAIT_OK);
        return PLAIT_EXIT_USAGE;
    }
    /* Opened first: hours of work are not to end with a file that cannot be made. */
    const int traces = g->trace && plait_processes_first(g->ranks);
    FILE *trace = traces ? fopen(g->trace, "we") : NULL;
    if (traces && !trace)
        fprintf(stderr, "plait generate: --trace %s cannot be written: %s\n", g->trace,
                strerror(errno));
    if (!plait_processes_all(g->ranks, !traces || trace)) {
        if (g->prompts)
            plait_lines_free(&lines);
        (void)plait_processes_end("generate", &g->ranks, PLAIT_OK);
        return PLAIT_EXIT_FAILED;
    }
    plait_status status = open_engine(g, &engine);
    if (status == PLAIT_OK && g->prompts)
        status = plait_generate_lines(g, engine, &lines);
    else if (status == PLAIT_OK)
        status = one_prompt(g, engine, text, bytes);
    const int traced = trace ? plait_generate_trace(g, engine, trace) : 0;
    plait_engine_close(&engine);
    if (g->prompts)
        plait_lines_free(&lines);
    const int code = plait_processes_end("generate", &g->ranks, status);
    return code == PLAIT_EXIT_OK && traced ? PLAIT_EXIT_FAILED : code;
}

/* The text of --prompt or of a file, which process 0 reads for all, to *file; 0 or an exit code. */
static int read_text(const plait_generate *g, char **file, size_t *bytes)
{
    const char *path = g->prompts ? g->prompts : g->prompt_file;
    *file = NULL;
    *bytes = g->prompt ? strlen(g->prompt) : 0;
    if (!path)
        return 0;
    if (plait_processes_first(g->ranks))
        *file = read_file(g->prompts ? "--prompts" : "--prompt-file", path, bytes);
    *file = plait_processes_share(g->ranks, *file, bytes);
    return *file ? 0 : PLAIT_EXIT_FAILED;
}

int plait_cmd_generate(int argc, char **argv)
{
    plait_generate g = {.draft = "none",
                        .comm = "threads",
                        .exchange = "auto",
                        .dtype = "bf16",
                        .kv_dtype = "auto",
                        .prefix_cache = "on",
                        .max_new_tokens = 128,
                        .dcp = 1,
                        .interleave = 1,
                        .page_size = 64,
                        .top_p = 1,
                        .comm_timeout = 30};
    plait_options_result read = read_options(&g, argc, argv);
    if (read != PLAIT_OPTIONS_GO)
        return read == PLAIT_OPTIONS_HELP ? PLAIT_EXIT_OK : PLAIT_EXIT_USAGE;
    int bad = check_options(&g);
    if (bad)
        return bad;

    if (!strcmp(g.comm, "mpi"))
        bad = plait_processes_open("generate", g.comm_timeout, &g.ranks);
    if (bad)
        return bad;

    char *file;
    size_t bytes;
    int code = read_text(&g, &file, &bytes);
    if (code)
        (void)plait_processes_end("generate", &g.ranks, PLAIT_OK);
    else
        code = run(&g, file ? file : g.prompt, bytes);
    free(file);
    return code;
}

#else

int plait_cmd_generate(int argc, char **argv)
{
    (void)argc;
    fprintf(stderr,
            "plait %s: this build has no engine; install libdnnl-dev, libcjson-dev and "
            "libpcre2-dev (tools/setup) and build again\n",
            argv[0]);
    return PLAIT_EXIT_FAILED;
}

#endif
