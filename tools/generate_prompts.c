/* SPDX-License-Identifier: Apache-2.0 */
/* generate_prompts.c: plait generate --prompts, JSON Lines in and out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/generate.h"
#include "tools/processes.h"

#if PLAIT_HAVE_ENGINE

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int plait_generate_read_lines(const plait_generate *g, const char *text, size_t bytes,
                              plait_lines *lines)
{
    const plait_line defaults = {.max_new_tokens = g->max_new_tokens,
                                 .stops = (const char **)(uintptr_t)g->stop.items,
                                 .num_stops = g->stop.n,
                                 .temperature = g->temperature,
                                 .top_k = g->top_k,
                                 .top_p = g->top_p,
                                 .seed = (uint64_t)g->seed};
    return plait_lines_read(text, bytes, g->prompts, &defaults, stderr, lines);
}

/* Results wait for those before them. */
typedef struct lines_output {
    const plait_result **done; /* [num] */
    int32_t num, num_done, next;
} lines_output;

static void print_line(int32_t index, const plait_result *r)
{
    plait_emit j = {stdout, 0};
    plait_emit_open(&j, '{');
    plait_emit_key(&j, "index");
    plait_emit_int(&j, index);
    plait_generate_emit_result(&j, r);
    plait_emit_close(&j, '}');
    printf("\n");
    fflush(stdout);
}

static int32_t take_event(void *user, const plait_stream_event *event)
{
    lines_output *out = user;
    char text[64];
    if (!event->result)
        return 0;
    out->done[event->request] = event->result;
    out->num_done++;
    plait_generate_progress(NULL);
    for (; out->next < out->num && out->done[out->next]; out->next++)
        print_line(out->next, out->done[out->next]);
    snprintf(text, sizeof text, "%d of %d prompts done", (int)out->num_done, (int)out->num);
    plait_generate_progress(text);
    return 0;
}

static void tell(const plait_generate *g, const plait_generation *all, double seconds)
{
    int64_t prompt = 0, added = 0, steps = 0;
    for (int32_t i = 0; i < all->num_results; i++) {
        prompt += all->results[i].num_prompt;
        added += all->results[i].num_new;
        steps += all->results[i].steps;
    }
    fprintf(stderr, "prompts        %d, %lld tokens in them, %lld new\n", (int)all->num_results,
            (long long)prompt, (long long)added);
    fprintf(stderr, "speed          %.1f new tokens/s, %.3f s in all\n", (double)added / seconds,
            seconds);
    if (steps)
        fprintf(stderr, "steps          %.2f tokens gained in each of a prompt\n",
                (double)(added - all->num_results) / (double)steps);
    plait_generate_tell_setting(stderr, g, all);
}

/* Says which line the sentence about a request is of. */
static void tell_line(const plait_generate *g, const plait_lines *lines)
{
    int index;
    if (sscanf(plait_last_error(), "request %d:", &index) == 1 && index >= 0 && index < lines->n)
        fprintf(stderr, "plait generate: %s line %lld:\n", g->prompts,
                (long long)lines->lines[index].number);
}

plait_status plait_generate_lines(const plait_generate *g, plait_engine *engine,
                                  const plait_lines *lines)
{
    const size_t n = (size_t)lines->n;
    plait_request *requests = malloc(n * sizeof *requests);
    lines_output out = {calloc(n, sizeof *out.done), lines->n, 0, 0};
    plait_generation *all = NULL;
    plait_status status = requests && out.done ? PLAIT_OK : PLAIT_E_NOMEM;
    for (size_t i = 0; i < n && status == PLAIT_OK; i++) {
        const plait_line *l = &lines->lines[i];
        requests[i] = plait_generate_request(g);
        requests[i].text = l->prompt;
        requests[i].text_bytes = l->prompt_bytes;
        requests[i].max_new_tokens = l->max_new_tokens;
        requests[i].stop_texts = l->stops;
        requests[i].num_stop_texts = l->num_stops;
        requests[i].temperature = l->temperature;
        requests[i].top_k = l->top_k;
        requests[i].top_p = l->top_p;
        requests[i].seed = l->seed;
    }
    const double begin = now_s();
    if (status == PLAIT_OK)
        status = plait_engine_generate(engine, requests, lines->n, take_event, &out, &all);
    plait_generate_progress(NULL);
    if (status == PLAIT_OK && plait_processes_first(g->ranks))
        tell(g, all, now_s() - begin);
    else if (status != PLAIT_OK && plait_processes_first(g->ranks))
        tell_line(g, lines);
    plait_generation_close(&all);
    free(out.done);
    free(requests);
    return status;
}

#endif
