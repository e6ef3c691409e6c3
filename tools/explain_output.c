/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of plait explain as text and as JSON. */
#include <stdio.h>

#include "tools/explain.h"
#include "tools/json.h"

int plait_explain_fits(const plait_explanation *e, int32_t dcp, int64_t *tokens)
{
    plait_backend_config config = e->need.config;
    plait_requirement need;
    config.dcp = dcp;
    if (config.tp % dcp || plait_requirement_derive(&config, &need) != PLAIT_OK)
        return 0;
    *tokens = (int64_t)((double)e->memory / plait_backend_token_bytes(&need));
    return 1;
}

static void key_text(plait_emit *j, const char *key, const char *value)
{
    plait_emit_key(j, key);
    plait_emit_text(j, value);
}

static void key_number(plait_emit *j, const char *key, double value)
{
    plait_emit_key(j, key);
    plait_emit_number(j, value);
}

static void key_int(plait_emit *j, const char *key, int64_t value)
{
    plait_emit_key(j, key);
    plait_emit_int(j, value);
}

static void json_refused(plait_emit *j, const plait_selection *s)
{
    plait_emit_key(j, "refused");
    plait_emit_open(j, '[');
    for (int32_t i = 0; i < s->n_refused; i++) {
        plait_emit_open(j, '{');
        key_text(j, "backend", s->refused[i].backend->name);
        plait_emit_key(j, "reasons");
        plait_emit_open(j, '[');
        for (int32_t k = 0; k < s->refused[i].n; k++)
            plait_emit_text(j, s->refused[i].reasons[k]);
        plait_emit_close(j, ']');
        plait_emit_close(j, '}');
    }
    plait_emit_close(j, ']');
}

static void json_alternatives(plait_emit *j, const plait_selection *s)
{
    plait_emit_key(j, "alternatives");
    plait_emit_open(j, '[');
    for (int32_t i = 0; i < s->n_alternatives; i++) {
        const plait_choice *c = &s->alternatives[i];
        plait_emit_open(j, '{');
        key_text(j, "backend", c->backend->name);
        key_text(j, "strategy", plait_strategy_name(c->strategy));
        key_int(j, "decode_threshold", c->decode_threshold);
        key_number(j, "relative_cost", c->relative_cost);
        key_number(j, "estimated_us", c->us);
        plait_emit_close(j, '}');
    }
    plait_emit_close(j, ']');
}

static void json_memory(plait_emit *j, const plait_explanation *e)
{
    int64_t tokens;
    plait_emit_key(j, "tokens_that_fit");
    plait_emit_open(j, '[');
    for (int32_t d = 1; d <= e->need.config.tp; d++) {
        if (!plait_explain_fits(e, d, &tokens))
            continue;
        plait_emit_open(j, '{');
        key_int(j, "dcp", d);
        key_int(j, "tokens", tokens);
        plait_emit_close(j, '}');
    }
    plait_emit_close(j, ']');
}

void plait_explain_json(const plait_explanation *e)
{
    const plait_selection *s = &e->selection;
    const plait_choice *c = &s->choice;
    plait_emit j = {stdout, 0};
    double dcp_us, replicated_us;
    int32_t pays = plait_dcp_pays(c, &e->need, &dcp_us, &replicated_us);
    plait_emit_open(&j, '{');
    key_text(&j, "backend", c->backend ? c->backend->name : "");
    key_text(&j, "strategy", plait_strategy_name(c->strategy));
    key_int(&j, "decode_threshold", c->decode_threshold);
    key_int(&j, "decode_rows", c->decode_rows);
    key_int(&j, "calls", c->calls);
    key_number(&j, "relative_cost", c->relative_cost);
    key_number(&j, "estimated_us", c->us);
    key_int(&j, "workspace_bytes", plait_backend_workspace(c, &e->need));
    key_number(&j, "kv_bytes_per_token", plait_backend_token_bytes(&e->need));
    plait_emit_key(&j, "dcp_pays");
    plait_emit_bool(&j, pays);
    key_number(&j, "dcp_us", dcp_us);
    key_number(&j, "replicated_us", replicated_us);
    json_refused(&j, s);
    json_alternatives(&j, s);
    if (e->memory)
        json_memory(&j, e);
    plait_emit_key(&j, "notices");
    plait_emit_open(&j, '[');
    for (int32_t i = 0; i < s->n_notices; i++)
        plait_emit_text(&j, s->notices[i]);
    plait_emit_close(&j, ']');
    plait_emit_close(&j, '}');
    printf("\n");
}

static void text_choice(const plait_explanation *e)
{
    const plait_choice *c = &e->selection.choice;
    double dcp_us, replicated_us;
    int32_t pays = plait_dcp_pays(c, &e->need, &dcp_us, &replicated_us);
    if (!c->backend) {
        printf("backend     none\n");
        return;
    }
    printf("backend     %s, %s, %d call%s\n", c->backend->name, plait_strategy_name(c->strategy),
           c->calls, c->calls == 1 ? "" : "s");
    printf("cost        %.2f x direct, %.1f us a layer (%s)\n", c->relative_cost, c->us,
           c->backend->cost_source);
    printf("decodes     up to %d rows; the kernel alone up to %d\n", c->decode_rows,
           c->decode_threshold);
    printf("memory      %.0f KV bytes a token and layer, %lld bytes of partials\n",
           plait_backend_token_bytes(&e->need), (long long)plait_backend_workspace(c, &e->need));
    if (e->need.config.dcp > 1)
        printf("dcp         %s: %.1f us a layer, %.1f with the cache on every rank (estimates)\n",
               pays ? "pays" : "does not pay", dcp_us, replicated_us);
}

void plait_explain_text(const plait_explanation *e)
{
    const plait_selection *s = &e->selection;
    int64_t tokens;
    text_choice(e);
    for (int32_t d = 1; e->memory && d <= e->need.config.tp; d++)
        if (plait_explain_fits(e, d, &tokens))
            printf("fits        %lld tokens of one layer with dcp %d\n", (long long)tokens, d);
    for (int32_t i = 0; i < s->n_notices; i++)
        printf("notice      %s\n", s->notices[i]);
    for (int32_t i = 0; i < s->n_alternatives; i++)
        printf("also        %s, %s, %.1f us\n", s->alternatives[i].backend->name,
               plait_strategy_name(s->alternatives[i].strategy), s->alternatives[i].us);
    for (int32_t i = 0; i < s->n_refused; i++)
        for (int32_t k = 0; k < s->refused[i].n; k++)
            printf("%s %s: %s\n", k ? "           " : "not direct ", s->refused[i].backend->name,
                   s->refused[i].reasons[k]);
}
