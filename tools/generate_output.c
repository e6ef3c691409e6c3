/* SPDX-License-Identifier: Apache-2.0 */
/* generate_output.c: what plait generate tells: streaming text, JSON, summaries, progress. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <plait/log.h>

#include "tools/generate.h"

#if PLAIT_HAVE_ENGINE

void plait_generate_progress(const char *text)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%s", text ? text : "");
}

int32_t plait_generate_streamed(void *user, const plait_stream_event *event)
{
    plait_generate_stream *s = user;
    if (!s->n)
        plait_generate_progress(NULL);
    s->n += event->num_ids;
    if (s->json) {
        char line[64];
        snprintf(line, sizeof line, "%d tokens", (int)s->n);
        plait_generate_progress(line);
    } else {
        fwrite(event->text, 1, event->text_bytes, stdout);
        fflush(stdout);
    }
    return 0;
}

plait_request plait_generate_request(const plait_generate *g)
{
    plait_request request = PLAIT_REQUEST_INIT;
    request.max_new_tokens = g->max_new_tokens;
    request.ignore_eos = g->ignore_eos;
    request.temperature = g->temperature;
    request.top_k = g->top_k;
    request.top_p = g->top_p;
    request.seed = (uint64_t)g->seed;
    request.num_logprobs = g->logprobs;
    request.stop_texts = g->stop.items;
    request.num_stop_texts = g->stop.n;
    return request;
}

/* Tokens per step after the first; not a number without steps. */
static double gained(const plait_result *r)
{
    return (r->num_new > 1 ? r->num_new - 1 : 0) / (double)r->steps;
}

static int32_t spec_tokens(const plait_generate *g)
{
    return strcmp(g->draft, "none") ? g->spec_tokens : 0;
}

static const char *comm_name(const plait_generate *g, const plait_generation *all)
{
    return all->num_ranks > 1 ? g->comm : "self";
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

/* For each token: its log-probability, and [id, log-probability] of the likeliest. */
static void logprobs_list(plait_emit *j, const plait_result *r)
{
    plait_emit_key(j, "logprobs");
    plait_emit_open(j, '[');
    for (int32_t i = 0; i < r->num_new; i++) {
        plait_emit_open(j, '{');
        key_number(j, "logprob", (double)r->logprobs[i]);
        plait_emit_key(j, "top");
        plait_emit_open(j, '[');
        for (int32_t t = i * r->num_top; t < (i + 1) * r->num_top; t++) {
            plait_emit_open(j, '[');
            plait_emit_int(j, r->top_ids[t]);
            plait_emit_number(j, (double)r->top_logprobs[t]);
            plait_emit_close(j, ']');
        }
        plait_emit_close(j, ']');
        plait_emit_close(j, '}');
    }
    plait_emit_close(j, ']');
}

void plait_generate_emit_result(plait_emit *j, const plait_result *r)
{
    plait_emit_key(j, "text");
    plait_emit_text_n(j, r->text, r->text_bytes);
    plait_emit_key(j, "token_ids");
    plait_emit_open(j, '[');
    for (int32_t i = 0; i < r->num_new; i++)
        plait_emit_int(j, r->ids[i]);
    plait_emit_close(j, ']');
    if (r->num_top)
        logprobs_list(j, r);
    key_text(j, "finish_reason", plait_finish_name(r->finish));
    key_int(j, "prompt_tokens", r->num_prompt);
    key_int(j, "cached_tokens", r->num_cached);
    key_int(j, "new_tokens", r->num_new);
    key_number(j, "prefill_tokens_per_s", (double)r->num_prompt / r->prefill_s);
    key_number(j, "decode_tokens_per_s", (r->num_new - 1) / r->decode_s);
    key_int(j, "steps", r->steps);
    key_number(j, "accepted_per_step", gained(r));
}

static void print_json(const plait_generate *g, const plait_generation *all)
{
    plait_emit j = {stdout, 0};
    plait_emit_open(&j, '{');
    plait_generate_emit_result(&j, &all->results[0]);
    key_text(&j, "draft", g->draft);
    if (spec_tokens(g) == PLAIT_SPEC_AUTO)
        key_text(&j, "spec_tokens", "auto");
    else
        key_int(&j, "spec_tokens", spec_tokens(g));
    key_int(&j, "tp", all->num_ranks);
    key_int(&j, "dcp", g->dcp);
    key_int(&j, "interleave", g->interleave);
    key_text(&j, "comm", comm_name(g, all));
    int_list(&j, "kv_bytes_per_rank", all->kv_bytes, all->num_ranks);
    int_list(&j, "draft_kv_bytes_per_rank", all->draft_kv_bytes, all->num_ranks);
    key_text(&j, "attention_kernel", all->kernel);
    plait_emit_key(&j, "notices");
    plait_emit_open(&j, '[');
    for (size_t i = 0; i < plait_notice_count(); i++)
        plait_emit_text(&j, plait_notice_get(i, NULL));
    plait_emit_close(&j, ']');
    plait_emit_close(&j, '}');
    printf("\n");
}

static void row_bytes(FILE *to, const char *label, const int64_t *values, int32_t n)
{
    fprintf(to, "%-14s", label);
    for (int32_t i = 0; i < n; i++)
        fprintf(to, " %lld", (long long)values[i]);
    fprintf(to, " bytes\n");
}

void plait_generate_tell_setting(FILE *to, const plait_generate *g, const plait_generation *all)
{
    int64_t drafted = 0, accepted = 0;
    for (int32_t i = 0; i < all->num_results; i++) {
        drafted += all->results[i].num_drafted;
        accepted += all->results[i].num_accepted;
    }
    fprintf(to, "draft          %s", g->draft);
    if (spec_tokens(g) == PLAIT_SPEC_AUTO)
        fprintf(to, ", as many as pay");
    else if (spec_tokens(g))
        fprintf(to, ", %d a step", (int)spec_tokens(g));
    if (spec_tokens(g))
        fprintf(to, ", %lld of %lld accepted", (long long)accepted, (long long)drafted);
    fprintf(to, "\nranks          tp %d, dcp %d, interleave %d, comm %s, exchange %s\n",
            (int)all->num_ranks, (int)g->dcp, (int)g->interleave, comm_name(g, all), all->exchange);
    row_bytes(to, "KV per rank", all->kv_bytes, all->num_ranks);
    if (spec_tokens(g))
        row_bytes(to, "draft KV", all->draft_kv_bytes, all->num_ranks);
    fprintf(to, "attention      %s\n", all->kernel);
    for (size_t i = 0; i < plait_notice_count(); i++)
        fprintf(to, "notice         %s\n", plait_notice_get(i, NULL));
}

static void print_summary(const plait_generate *g, const plait_generation *all)
{
    const int colour = isatty(STDOUT_FILENO);
    const plait_result *r = &all->results[0];
    printf("\n\n%s", colour ? "\033[2m" : "");
    printf("tokens         %lld in the prompt, %d new\n", (long long)r->num_prompt,
           (int)r->num_new);
    printf("speed          prefill %.1f", (double)r->num_prompt / r->prefill_s);
    /* A single new token comes from the prefill: there is no decoding to measure. */
    if (r->steps)
        printf(", decode %.1f tokens/s\nsteps          %lld, %.2f tokens gained in each\n",
               (r->num_new - 1) / r->decode_s, (long long)r->steps, gained(r));
    else
        printf(" tokens/s\nsteps          0\n");
    plait_generate_tell_setting(stdout, g, all);
    printf("%s", colour ? "\033[0m" : "");
}

void plait_generate_tell(const plait_generate *g, const plait_generation *all)
{
    if (g->json)
        print_json(g, all);
    else
        print_summary(g, all);
}

#endif
