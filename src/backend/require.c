/* SPDX-License-Identifier: Apache-2.0 */
/* What a batch needs, and what a row lacks of it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/bridge.h"
#include "core/status.h"

static plait_status check_numbers(const plait_backend_config *c)
{
    const int32_t most = 1 << 24; /* so that sums and products of two stay in 64 bits */
    const struct {
        const char *name;
        int32_t value;
    } positive[] = {{"heads", c->heads},     {"kv_heads", c->kv_heads},
                    {"d_qk", c->d_qk},       {"d_v", c->d_v},
                    {"tp", c->tp},           {"dcp", c->dcp},
                    {"q_len", c->q_len},     {"interleave", c->interleave},
                    {"batch", c->batch},     {"page_size", c->page_size},
                    {"lengths", c->lengths}, {"context", c->context}};
    if (c->size != sizeof *c)
        return plait_fail(PLAIT_E_ARG, "backend config: size is %zu, %zu was wanted", c->size,
                          sizeof *c);
    for (size_t i = 0; i < sizeof positive / sizeof *positive; i++)
        if (positive[i].value < 1 || positive[i].value > most)
            return plait_fail(PLAIT_E_ARG, "backend config: %s is %d, 1 to %d was wanted",
                              positive[i].name, positive[i].value, most);
    if (c->op != PLAIT_OP_MLA && c->op != PLAIT_OP_GQA)
        return plait_fail(PLAIT_E_ARG, "backend config: op is %d, MLA or GQA was wanted",
                          (int)c->op);
    if (!plait_dtype_bytes(c->dtype) || !plait_dtype_bytes(c->kv_dtype))
        return plait_fail(PLAIT_E_ARG, "backend config: dtype %d or KV dtype %d is none",
                          (int)c->dtype, (int)c->kv_dtype);
    if ((unsigned)c->device > PLAIT_DEVICE_NPU)
        return plait_fail(PLAIT_E_ARG, "backend config: device is %d, a kind was wanted",
                          (int)c->device);
    if (c->phase != PLAIT_PHASE_DECODE && c->phase != PLAIT_PHASE_PREFILL)
        return plait_fail(PLAIT_E_ARG, "backend config: phase is %u, one of two was wanted",
                          (unsigned)c->phase);
    return PLAIT_OK;
}

static plait_status check_split(const plait_backend_config *c)
{
    int gqa = c->op == PLAIT_OP_GQA;
    if (c->tp % c->dcp)
        return plait_fail(PLAIT_E_ARG, "dcp %d does not divide tp %d", c->dcp, c->tp);
    if (gqa && c->heads % c->kv_heads)
        return plait_fail(PLAIT_E_ARG, "%d heads are no multiple of %d KV heads", c->heads,
                          c->kv_heads);
    if (!gqa && c->kv_heads != 1)
        return plait_fail(PLAIT_E_ARG, "MLA has 1 KV head, not %d", c->kv_heads);
    if (gqa && c->dcp > 1 && c->tp % c->kv_heads)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "GQA with dcp %d needs tp to be a multiple of %d KV heads; tp is %d",
                          c->dcp, c->kv_heads, c->tp);
    if (gqa && c->dcp > 1 && c->tp / c->kv_heads % c->dcp)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "GQA: dcp %d does not divide tp / KV heads = %d / %d = %d", c->dcp, c->tp,
                          c->kv_heads, c->tp / c->kv_heads);
    if (gqa && c->heads % c->tp && c->dcp > 1)
        return plait_fail(PLAIT_E_UNSUPPORTED, "GQA with dcp %d: tp %d does not divide %d heads",
                          c->dcp, c->tp, c->heads);
    return PLAIT_OK;
}

plait_status plait_requirement_derive(const plait_backend_config *c, plait_requirement *out)
{
    PLAIT_TRY(check_numbers(c));
    PLAIT_TRY(check_split(c));
    int32_t local = (c->heads + c->tp - 1) / c->tp;
    *out = (plait_requirement){.config = *c};
    out->heads = local * c->dcp < c->heads ? local * c->dcp : c->heads;
    out->kv_heads = c->kv_heads > c->tp ? (c->kv_heads + c->tp - 1) / c->tp : 1;
    out->rows = c->ragged      ? PLAIT_ROWS_RAGGED
                : c->q_len > 1 ? PLAIT_ROWS_UNIFORM
                               : PLAIT_ROWS_SINGLE;
    out->ranges = out->rows == PLAIT_ROWS_SINGLE ? PLAIT_RANGES_NONE
                  : c->dcp > 1                   ? PLAIT_RANGES_PER_ROW
                                                 : PLAIT_RANGES_END_ALIGNED;
    out->needs_lse = c->dcp > 1 || c->sinks;
    return PLAIT_OK;
}

/* ---- subtraction ---------------------------------------------------------------------------- */

static void lack(plait_refusal *to, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void lack(plait_refusal *to, const char *format, ...)
{
    va_list list;
    if (to->n == PLAIT_REASONS_MAX)
        return;
    va_start(list, format);
    vsnprintf(to->reasons[to->n++], PLAIT_REASON_BYTES, format, list);
    va_end(list);
}

static void lack_dtype(plait_refusal *to, const char *what, uint32_t mask, plait_dtype dtype)
{
    char names[64] = "";
    size_t used = 0;
    if (mask & PLAIT_DTYPE_BIT(dtype))
        return;
    for (int d = 0; plait_dtype_bytes((plait_dtype)d); d++)
        if (mask & PLAIT_DTYPE_BIT(d))
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                                     plait_dtype_name((plait_dtype)d));
    lack(to, "%s dtype is %s, it takes %s", what, plait_dtype_name(dtype), names);
}

static void lack_size(plait_refusal *to, const char *what, int32_t value, int32_t least,
                      int32_t most, int32_t multiple)
{
    if (value >= least && (!most || value <= most) && value % multiple == 0)
        return;
    if (most)
        lack(to, "%s is %d, it takes multiples of %d from %d to %d", what, value, multiple, least,
             most);
    else
        lack(to, "%s is %d, it takes multiples of %d from %d", what, value, multiple, least);
}

/* <0, 0, >0 as version a is older, equal, newer; parts are numbers between dots. */
static int version_order(const char *a, const char *b)
{
    while (*a || *b) {
        char *end_a, *end_b;
        long x = strtol(a, &end_a, 10), y = strtol(b, &end_b, 10);
        if (x != y)
            return x < y ? -1 : 1;
        if (end_a == a && end_b == b)
            return strcmp(a, b);
        a = *end_a == '.' ? end_a + 1 : end_a;
        b = *end_b == '.' ? end_b + 1 : end_b;
    }
    return 0;
}

static void lack_package(plait_refusal *to, const plait_row_note *note,
                         const plait_backend_config *c)
{
    size_t n = note->package ? strlen(note->package) : 0;
    for (int32_t i = 0; note->since && i < c->n_packages; i++) {
        const char *given = c->packages[i];
        if (!strncmp(given, note->package, n) && given[n] == '=' &&
            version_order(given + n + 1, note->since) < 0)
            lack(to, "%s is %s, this needs version %s", note->package, given + n + 1, note->since);
    }
}

static void lack_device(plait_refusal *to, const plait_backend *b, const plait_caps *caps,
                        const plait_backend_config *c)
{
    static const char *const kinds[] = {"cpu", "cuda", "rocm", "npu"};
    char names[64];
    plait_cpu_features absent = b->kernel ? b->kernel->needs & ~c->features : 0;
    if (caps->device != c->device)
        lack(to, "device is %s, it is for %s", kinds[c->device & 3], kinds[caps->device & 3]);
    else if (c->device == PLAIT_DEVICE_CPU && absent)
        lack(to, "it needs %s, which is absent or masked",
             plait_cpu_names(absent, names, sizeof names));
    else if (c->device != PLAIT_DEVICE_CPU &&
             (c->device_version < caps->device_min ||
              (caps->device_max && c->device_version > caps->device_max)))
        lack(to, "device is sm%d, it takes sm%d to sm%d", c->device_version, caps->device_min,
             caps->device_max);
}

/* What no strategy changes. */
static void lack_fixed(plait_refusal *to, const plait_backend *b, int32_t row,
                       const plait_requirement *need, plait_strategy strategy)
{
    const plait_backend_config *c = &need->config;
    const plait_caps *caps = &b->rows[row];
    const plait_row_note *note = plait_backend_note(b, row);
    uint32_t phase = strategy == PLAIT_STRATEGY_PREFILL ? PLAIT_PHASE_PREFILL : c->phase;
    if (caps->op != c->op)
        lack(to, "attention is %s, it is for %s", c->op == PLAIT_OP_MLA ? "mla" : "gqa",
             caps->op == PLAIT_OP_MLA ? "mla" : "gqa");
    lack_device(to, b, caps, c);
    if (!(caps->phases & phase))
        lack(to, "phase is %s, it is for %s", phase == PLAIT_PHASE_PREFILL ? "prefill" : "decode",
             phase == PLAIT_PHASE_PREFILL ? "decode" : "prefill");
    if (!(note->q_in_kv_dtype && (caps->q_dtypes & PLAIT_DTYPE_BIT(c->kv_dtype))))
        lack_dtype(to, "q", caps->q_dtypes, c->dtype);
    lack_dtype(to, "KV", caps->kv_dtypes, c->kv_dtype);
    lack_size(to, "d_qk", c->d_qk, caps->d_qk_min, caps->d_qk_max, caps->d_multiple);
    lack_size(to, "d_v", c->d_v, caps->d_v_min, caps->d_v_max, caps->d_multiple);
    lack_size(to, "page size", c->page_size, caps->page_min, caps->page_max, caps->page_multiple);
    lack_package(to, note, c);
    if (c->capture && !caps->capture)
        lack(to, "graph capture is wanted, it cannot be captured");
    if (c->invariant && !b->kernel)
        lack(to, "invariant mode is wanted, it has none");
}

static void lack_ranges(plait_refusal *to, const plait_caps *caps, const plait_row_note *note,
                        const plait_requirement *need)
{
    const plait_backend_config *c = &need->config;
    if (need->ranges > caps->ranges)
        lack(to, "%d rows at dcp %d need a range for each row, its ranges are %s", c->q_len, c->dcp,
             caps->ranges == PLAIT_RANGES_END_ALIGNED ? "aligned to the local end"
                                                      : "the same for all rows");
    else if (need->ranges == PLAIT_RANGES_PER_ROW && caps->interleave_max &&
             c->interleave > caps->interleave_max)
        lack(to, "interleave is %d, its ranges for each row hold up to %d", c->interleave,
             caps->interleave_max);
    if (c->window && caps->ranges != PLAIT_RANGES_PER_ROW && (c->dcp > 1 || !note->windows))
        lack(to, "a window of %d needs a range for each row, it has none", c->window);
}

struct plait_bridge_rows plait_backend_rows(const plait_requirement *need, int32_t heads_max)
{
    const int ragged = need->rows == PLAIT_ROWS_RAGGED;
    return (struct plait_bridge_rows){.least = ragged ? 0 : need->config.q_len,
                                      .most = need->config.q_len,
                                      .heads = need->heads,
                                      .heads_max = heads_max};
}

int32_t plait_backend_missing(const plait_backend *b, int32_t row, const plait_requirement *need,
                              plait_strategy strategy, plait_refusal *out)
{
    const plait_caps *caps = &b->rows[row];
    const plait_row_note *note = plait_backend_note(b, row);
    const plait_backend_config *c = &need->config;
    out->backend = b;
    out->row = row;
    out->n = 0;
    lack_fixed(out, b, row, need, strategy);
    if (strategy == PLAIT_STRATEGY_DIRECT)
        lack_ranges(out, caps, note, need);
    if (strategy == PLAIT_STRATEGY_REFUSE)
        lack(out, "refuse computes nothing");
    int merges =
        need->needs_lse || strategy == PLAIT_STRATEGY_WINDOW || strategy == PLAIT_STRATEGY_PREFILL;
    if (merges && caps->lse == PLAIT_LSE_NONE)
        lack(out, "dcp %d by %s needs LSE, it returns none", c->dcp, plait_strategy_name(strategy));
    if (strategy == PLAIT_STRATEGY_FLATTEN && c->phase == PLAIT_PHASE_PREFILL)
        lack(out, "a prefill of %d rows is not flattened", c->q_len);
    if (strategy != PLAIT_STRATEGY_DIRECT && need->rows == PLAIT_ROWS_SINGLE)
        lack(out, "one row needs no %s", plait_strategy_name(strategy));
    /* The gathered context is what one rank with all keys has, and runs directly. */
    struct plait_bridge_rows rows = plait_backend_rows(need, note->heads_max);
    char text[PLAIT_REASON_BYTES];
    plait_strategy how = strategy == PLAIT_STRATEGY_PREFILL ? PLAIT_STRATEGY_DIRECT : strategy;
    if (strategy != PLAIT_STRATEGY_REFUSE &&
        plait_bridge_of(caps, how, &rows, text, sizeof text) == PLAIT_BRIDGE_NONE)
        lack(out, "%s", text);
    if (strategy == PLAIT_STRATEGY_PREFILL && caps->ranges == PLAIT_RANGES_NONE)
        lack(out, "prefill needs ranges aligned to the end, its ranges are the same for all rows");
    if (strategy == PLAIT_STRATEGY_WINDOW && c->dtype == PLAIT_FP8_E4M3)
        lack(out, "a window merges f32, bf16 and f16, not fp8");
    if (strategy == PLAIT_STRATEGY_WINDOW && b->kernel && !plait_bridge_newest(need))
        lack(out, "a window needs a built-in kernel for the newest keys, none takes them");
    if (strategy != PLAIT_STRATEGY_DIRECT && c->window)
        lack(out, "a window of %d is not bridged by %s", c->window, plait_strategy_name(strategy));
    return out->n;
}
