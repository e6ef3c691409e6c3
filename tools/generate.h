/* SPDX-License-Identifier: Apache-2.0 */
/* tools/generate.h - the parts of plait generate: options, one prompt, many prompts, output. */
#ifndef PLAIT_TOOLS_GENERATE_H
#define PLAIT_TOOLS_GENERATE_H

#include <stdint.h>

#include <plait/engine.h>

#include "tools/json.h"
#include "tools/jsonl.h"
#include "tools/options.h"

typedef struct plait_generate {
    const char *model, *prompt, *prompt_file, *prompts;
    const char *draft, *draft_kv, *comm, *exchange, *dtype, *kv_dtype, *kernel, *cpu_mask;
    const char *prefix_cache, *trace;
    int32_t max_new_tokens, spec_tokens, tp, dcp, interleave, page_size, threads;
    int64_t kv_cache;
    double comm_timeout, temperature, top_p;
    int32_t top_k, seed, logprobs;
    int ignore_eos, json, invariant;

    plait_option_list stop;
    plait_comm *ranks; /* --comm mpi: this process is one of them; else NULL */
} plait_generate;

/* ---- generate_output.c ------------------------------------------------------------------------
 */

/* Progress is one line on stderr that the next one overwrites, on a terminal only; NULL wipes it.
 */
void plait_generate_progress(const char *text);

/* The stream function of one prompt: text to stdout, or with json progress. */
typedef struct plait_generate_stream {
    int json;
    int32_t n;
} plait_generate_stream;

int32_t plait_generate_streamed(void *user, const plait_stream_event *event);

/* Options of the command as every request starts from them. */
plait_request plait_generate_request(const plait_generate *g);

/* The fields of one result, into an object that is open. */
void plait_generate_emit_result(plait_emit *j, const plait_result *result);

/* One prompt's JSON object, or the summary after its text. */
void plait_generate_tell(const plait_generate *g, const plait_generation *all);

/* Drafts, ranks, memory and notices. */
void plait_generate_tell_setting(FILE *to, const plait_generate *g, const plait_generation *all);

/* ---- generate_trace.c --------------------------------------------------------------------------
 */

/* Writes the engine's spans as a Chrome trace, a row for each rank; engine NULL: an empty one.
   0, or -1 after a sentence on stderr. Closes the file. */
int plait_generate_trace(const plait_generate *g, const plait_engine *engine, FILE *file);

/* ---- generate_prompts.c -----------------------------------------------------------------------
 */

/* The requests of a JSON Lines text. 0, or -1 after sentences on stderr. */
int plait_generate_read_lines(const plait_generate *g, const char *text, size_t bytes,
                              plait_lines *lines);

/* All of them in one batch: a line of stdout for each, in their order, as soon as it and all before
   it are done. A summary goes to stderr. */
plait_status plait_generate_lines(const plait_generate *g, plait_engine *engine,
                                  const plait_lines *lines);

#endif
