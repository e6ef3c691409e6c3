/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Estimated times. A built-in kernel gives its own cost for a row; profiles get the larger of bytes
 * and operations over what the device can do. Strategies add bytes, operations and launches.
 */
#include "backend/backend.h"

/* Per microsecond, and microseconds of a launch. Data sheets, rounded down: estimates. */
struct machine {
    double bytes, flops, link, launch;
};

static struct machine machine_of(const plait_backend_config *c)
{
    if (c->device == PLAIT_DEVICE_CPU)
        return (struct machine){2e4, 5e5, 1e4, 1};
    if (c->device_version >= 100)
        return (struct machine){7e6, 2e9, 4e5, 4};
    if (c->device_version >= 90)
        return (struct machine){3e6, 7e8, 2e5, 4};
    return (struct machine){1.5e6, 2e8, 1e5, 4};
}

static double token_bytes(const plait_requirement *need)
{
    const plait_backend_config *c = &need->config;
    if (c->kv_dtype == PLAIT_FP8_DS656)
        return (double)plait_dtype_bytes(c->kv_dtype);
    double values = c->op == PLAIT_OP_MLA ? c->d_qk : (double)need->kv_heads * (c->d_qk + c->d_v);
    return values * (double)plait_dtype_bytes(c->kv_dtype);
}

/* The time of one kernel that reads the cache `reads` times for all rows. */
static double kernel_us(const plait_backend *b, const plait_requirement *need, double reads)
{
    const plait_backend_config *c = &need->config;
    struct machine m = machine_of(c);
    double keys = (double)c->context / c->dcp, rows = (double)c->batch * c->q_len;
    double read = c->batch * keys * token_bytes(need) * reads / m.bytes;
    if (b->kernel && b->from == PLAIT_FROM_BUILTIN) {
        /* Rows of a sequence share its keys, unless flattened; many are told by some of them. */
        enum { most = 64 };
        const int32_t n = reads > 1 ? 1 : c->q_len < most ? c->q_len : most;
        const int32_t starts[] = {0, n}, end = keys < 1 ? 1 : (int32_t)keys;
        int32_t ends[most];
        plait_attn_args args = PLAIT_ATTN_ARGS_INIT;
        for (int32_t i = 0; i < n; i++)
            ends[i] = end;
        args.op = c->op;
        args.num_seqs = 1;
        args.num_rows = n;
        args.h_q = need->heads;
        args.h_kv = need->kv_heads;
        args.d_qk = c->d_qk;
        args.d_v = c->d_v;
        args.row_start = starts;
        args.kv_end = ends;
        double us = b->kernel->cost(&args, 1) * rows / n;
        return us > read ? us : read;
    }
    double work = 2 * rows * keys * need->heads * ((double)c->d_qk + c->d_v) / m.flops;
    return b->cost * (work > read ? work : read);
}

double plait_backend_cost(const plait_backend *b, const plait_requirement *need,
                          plait_strategy strategy)
{
    const plait_backend_config *c = &need->config;
    struct machine m = machine_of(c);
    double partial = (double)c->batch * c->q_len * need->heads * (c->d_v + 1) * sizeof(float);
    double us = kernel_us(b, need, strategy == PLAIT_STRATEGY_FLATTEN ? c->q_len : 1) + m.launch;
    if (strategy == PLAIT_STRATEGY_WINDOW) /* a call for the newest keys, a merge of two partials */
        us += 2 * m.launch + 4 * partial / m.bytes;
    if (strategy == PLAIT_STRATEGY_PREFILL) /* all ranks' keys come here, are written and read */
        us += 2 * m.launch + (double)c->batch * c->context * token_bytes(need) *
                                 ((c->dcp - 1.0) / c->dcp / m.link + 2 / m.bytes);
    return us;
}

double plait_backend_launch_us(const plait_requirement *need)
{
    return machine_of(&need->config).launch;
}

double plait_backend_token_bytes(const plait_requirement *need)
{
    return token_bytes(need) / need->config.dcp;
}

int64_t plait_backend_workspace(const plait_choice *choice, const plait_requirement *need)
{
    const plait_backend_config *c = &need->config;
    int64_t parts = choice->strategy == PLAIT_STRATEGY_WINDOW    ? 2
                    : choice->strategy == PLAIT_STRATEGY_PREFILL ? 2
                                                                 : need->needs_lse != 0;
    double bytes =
        (double)parts * c->batch * c->q_len * need->heads * (c->d_v + 1.0) * sizeof(float);
    if (!choice->backend)
        return 0;
    return bytes < 9e18 ? (int64_t)bytes : INT64_MAX;
}

int32_t plait_dcp_pays(const plait_choice *choice, const plait_requirement *need, double *dcp_us,
                       double *replicated_us)
{
    plait_backend_config config = need->config;
    plait_requirement one;
    struct machine m = machine_of(&config);
    *dcp_us = *replicated_us = choice->us;
    config.dcp = 1;
    if (need->config.dcp == 1 || !choice->backend ||
        plait_requirement_derive(&config, &one) != PLAIT_OK)
        return 0;
    /* Queries are gathered, partials exchanged: two collectives of what other ranks hold. */
    double rows = (double)config.batch * config.q_len * need->heads;
    double away = (need->config.dcp - 1.0) / need->config.dcp;
    *dcp_us +=
        2 * 2 * m.launch + rows * away * (2.0 * config.d_qk + 4.0 * (config.d_v + 1)) / m.link;
    *replicated_us = plait_backend_cost(choice->backend, &one, PLAIT_STRATEGY_DIRECT);
    return *dcp_us < *replicated_us;
}
