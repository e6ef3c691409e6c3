/* SPDX-License-Identifier: Apache-2.0 */
/* The choice: every backend is tried by every strategy, the cheapest is taken, reasons are kept. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "core/log.h"
#include "core/status.h"

const char *plait_strategy_name(plait_strategy strategy)
{
    static const char *const names[] = {"direct", "window", "flatten", "prefill", "refuse"};
    return (unsigned)strategy < 5 ? names[strategy] : "?";
}

/* Reasons of a wrong attention kind, device or phase count for more than any other. */
static int32_t distance(const plait_backend *b, int32_t row, const plait_requirement *need,
                        int32_t reasons)
{
    const plait_caps *caps = &b->rows[row];
    const plait_backend_config *c = &need->config;
    int32_t far = (caps->op != c->op) + (caps->device != c->device);
    if (caps->device == c->device && c->device != PLAIT_DEVICE_CPU)
        far += c->device_version < caps->device_min ||
               (caps->device_max && c->device_version > caps->device_max);
    far += !(caps->phases & c->phase);
    return far * PLAIT_REASONS_MAX + reasons;
}

/* The reasons of the nearest row for direct; equal rows: the later one. 0: one fits. */
static int32_t nearest(const plait_backend *b, const plait_requirement *need, plait_refusal *out)
{
    int32_t best = INT32_MAX, row = 0;
    for (int32_t i = 0; i < b->n_rows && best; i++) {
        int32_t n = plait_backend_missing(b, i, need, PLAIT_STRATEGY_DIRECT, out);
        n = n ? distance(b, i, need, n) : 0;
        if (n <= best) {
            best = n;
            row = i;
        }
    }
    return plait_backend_missing(b, row, need, PLAIT_STRATEGY_DIRECT, out);
}

/* Kernel calls of one step: a kernel of equal rows takes the groups of a ragged batch in turn. */
static int32_t calls_of(const plait_backend *b, int32_t row, const plait_requirement *need,
                        plait_strategy strategy)
{
    char text[PLAIT_REASON_BYTES];
    struct plait_bridge_rows rows = plait_backend_rows(need, plait_backend_note(b, row)->heads_max);
    if (need->rows != PLAIT_ROWS_RAGGED)
        return 1;
    if (strategy == PLAIT_STRATEGY_PREFILL)
        strategy = PLAIT_STRATEGY_DIRECT;
    return plait_bridge_of(&b->rows[row], strategy, &rows, text, sizeof text) > PLAIT_BRIDGE_WHOLE
               ? need->config.lengths
               : 1;
}

static int32_t threshold_of(const plait_caps *caps, const plait_requirement *need)
{
    const plait_backend_config *c = &need->config;
    int varlen = caps->ranges == PLAIT_RANGES_PER_ROW &&
                 (!caps->interleave_max || c->interleave <= caps->interleave_max);
    if (caps->rows == PLAIT_ROWS_SINGLE || (c->dcp > 1 && !varlen))
        return 1;
    return caps->rows_max && caps->rows_max < c->q_len ? caps->rows_max : c->q_len;
}

/* The cheapest row and strategy of one backend; backend NULL: none works. */
static plait_choice best_of(const plait_backend *b, const plait_requirement *need)
{
    plait_choice best = {.backend = NULL, .strategy = PLAIT_STRATEGY_REFUSE};
    plait_refusal scratch;
    for (int32_t i = 0; i < b->n_rows; i++) {
        for (int s = PLAIT_STRATEGY_DIRECT; s < PLAIT_STRATEGY_REFUSE; s++) {
            plait_strategy strategy = (plait_strategy)s;
            if (plait_backend_missing(b, i, need, strategy, &scratch))
                continue;
            int32_t calls = calls_of(b, i, need, strategy);
            double us =
                plait_backend_cost(b, need, strategy) + (calls - 1) * plait_backend_launch_us(need);
            if (best.backend && us >= best.us)
                continue;
            int decodes = need->config.phase == PLAIT_PHASE_DECODE && s != PLAIT_STRATEGY_PREFILL;
            best = (plait_choice){.backend = b,
                                  .row = i,
                                  .strategy = strategy,
                                  .calls = calls,
                                  .us = us,
                                  .relative_cost =
                                      us / plait_backend_cost(b, need, PLAIT_STRATEGY_DIRECT),
                                  .decode_threshold = threshold_of(&b->rows[i], need),
                                  .decode_rows = decodes ? need->config.q_len : 1};
        }
    }
    return best;
}

static void notice(plait_selection *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void notice(plait_selection *out, const char *format, ...)
{
    va_list list;
    if (out->n_notices == sizeof out->notices / sizeof *out->notices)
        return;
    char *text = out->notices[out->n_notices++];
    va_start(list, format);
    vsnprintf(text, PLAIT_SELECTION_TEXT, format, list);
    va_end(list);
    plait_notice("%s", text);
}

static const plait_refusal *refusal_of(const plait_selection *out, const plait_backend *b)
{
    for (int32_t i = 0; i < out->n_refused; i++)
        if (out->refused[i].backend == b)
            return &out->refused[i];
    return NULL;
}

/* Keeps the alternatives in the order of their time; equal ones in that of the registry. */
static void insert(plait_selection *out, plait_choice c)
{
    int32_t at = out->n_alternatives;
    if (at == PLAIT_SELECTION_MAX)
        return;
    for (; at > 0 && out->alternatives[at - 1].us > c.us; at--)
        out->alternatives[at] = out->alternatives[at - 1];
    out->alternatives[at] = c;
    out->n_alternatives++;
}

static void take(plait_selection *out, int32_t i)
{
    out->choice = out->alternatives[i];
    out->n_alternatives--;
    for (; i < out->n_alternatives; i++)
        out->alternatives[i] = out->alternatives[i + 1];
}

/* A backend that this batch would get on one rank with all keys, but not under DCP: one notice. */
static void notice_lost(plait_selection *out, const plait_requirement *need, uint32_t from)
{
    plait_backend_config config = need->config;
    plait_requirement one;
    const plait_backend *b, *lost = NULL;
    double us = 0;
    config.dcp = 1;
    if (need->config.dcp == 1 || plait_requirement_derive(&config, &one) != PLAIT_OK)
        return;
    for (int32_t i = 0; (b = plait_backend_get(i)) != NULL; i++) {
        plait_choice c = b->from & from ? best_of(b, &one) : (plait_choice){.backend = NULL};
        if (c.backend && (!lost || c.us < us)) {
            lost = b;
            us = c.us;
        }
    }
    const plait_refusal *why = lost ? refusal_of(out, lost) : NULL;
    if (lost != out->choice.backend && why && !best_of(lost, need).backend)
        notice(out, "%s is refused under dcp %d (%s); %s is used", lost->name, need->config.dcp,
               why->reasons[0], out->choice.backend->name);
}

static plait_status refuse_all(const plait_selection *out, const plait_backend *forced)
{
    char text[1400] = "";
    size_t used = 0;
    for (int32_t i = 0; i < out->n_refused && used < sizeof text; i++) {
        const plait_refusal *r = &out->refused[i];
        if (forced && r->backend != forced)
            continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s:", used ? "; " : "",
                                 r->backend->name);
        for (int32_t k = 0; k < r->n && used < sizeof text; k++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s %s", k ? "," : "",
                                     r->reasons[k]);
    }
    if (!forced)
        return plait_fail(PLAIT_E_UNSUPPORTED, "no backend takes this batch (%s)",
                          used ? text : "none was asked");
    used = used < sizeof text ? used : sizeof text - 1;
    for (int32_t i = 0; i < out->n_alternatives && used < sizeof text; i++)
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s%s",
                             i ? ", " : "; what would work: ", out->alternatives[i].backend->name);
    if (out->n_alternatives == 0 && used < sizeof text)
        snprintf(text + used, sizeof text - used, "; nothing else works either");
    return plait_fail(PLAIT_E_UNSUPPORTED, "backend %s", text);
}

/* The name's backend; NULL without a name. */
static plait_status named(const char *name, const plait_backend **out)
{
    char list[900] = "";
    size_t used = 0;
    const plait_backend *b;
    *out = plait_backend_find(name);
    if (!name || *out)
        return PLAIT_OK;
    for (int32_t i = 0; (b = plait_backend_get(i)) != NULL && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", b->name);
    return plait_fail(PLAIT_E_ARG, "no backend is named '%s'; there are %s", name, list);
}

static void notice_choice(plait_selection *out, const plait_requirement *need, uint32_t from,
                          const plait_backend *wanted)
{
    const plait_backend *b = out->choice.backend;
    const plait_refusal *why = refusal_of(out, wanted ? wanted : b);
    if (wanted && wanted != b)
        notice(out, "%s was preferred but is refused (%s); %s is used", wanted->name,
               why ? why->reasons[0] : "it is not among the backends asked", b->name);
    else if (out->choice.strategy != PLAIT_STRATEGY_DIRECT && why)
        notice(out, "%s takes this batch by %s, not directly (%s)", b->name,
               plait_strategy_name(out->choice.strategy), why->reasons[0]);
    if (!out->n_notices && !wanted)
        notice_lost(out, need, from);
}

plait_status plait_select(const plait_requirement *need, uint32_t from, const char *force,
                          const char *prefer, plait_selection *out)
{
    const plait_backend *b, *forced, *wanted;
    memset(out, 0, sizeof *out);
    out->choice.strategy = PLAIT_STRATEGY_REFUSE;
    PLAIT_TRY(named(force, &forced));
    PLAIT_TRY(named(prefer, &wanted));
    if (forced)
        from |= forced->from;
    for (int32_t i = 0; (b = plait_backend_get(i)) != NULL; i++) {
        if (!(b->from & from))
            continue;
        plait_choice c = best_of(b, need);
        if (c.backend)
            insert(out, c);
        if (out->n_refused < PLAIT_SELECTION_MAX && nearest(b, need, &out->refused[out->n_refused]))
            out->n_refused++;
    }
    int32_t at = 0;
    const plait_backend *only = forced ? forced : wanted;
    while (only && at < out->n_alternatives && out->alternatives[at].backend != only)
        at++;
    if (!forced && at == out->n_alternatives)
        at = 0;
    if (at >= out->n_alternatives)
        return refuse_all(out, forced);
    take(out, at);
    notice_choice(out, need, from, forced ? forced : wanted);
    return PLAIT_OK;
}
