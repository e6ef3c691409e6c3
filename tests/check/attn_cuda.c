/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A case on a CUDA device: all of its buffers in one block of device memory, each between bands.
 * Bands around inputs hold NaN; all bands, and the inputs, must be as they were after the call.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/check/check.h"

enum { band = 1024, align = 256, extra = 2 }; /* extra: the schedule and its workspace */

struct image {
    unsigned char *host, *after; /* before and after the call */
    unsigned char *device;
    size_t at[PLAIT_BUFS + extra], bytes[PLAIT_BUFS + extra], total;
};

static void place(struct image *m, int i, size_t bytes)
{
    m->at[i] = m->total + band;
    m->bytes[i] = bytes;
    m->total = (m->at[i] + bytes + band + align - 1) / align * align;
}

/* The device's address of what lies at p in buffer i of the case. */
static void *moved(const struct image *m, const plait_attn_case *c, int i, const void *p)
{
    return p ? m->device + m->at[i] + ((const unsigned char *)p - c->buf[i].data) : NULL;
}

static plait_attn_args device_args(const struct image *m, const plait_attn_case *c)
{
    plait_attn_args a = c->args;
    a.q = moved(m, c, PLAIT_BUF_Q, a.q);
    a.k = moved(m, c, PLAIT_BUF_K, a.k);
    a.page_table = moved(m, c, PLAIT_BUF_TABLE, a.page_table);
    a.row_start = moved(m, c, PLAIT_BUF_ROW_START, a.row_start);
    a.kv_begin = moved(m, c, PLAIT_BUF_BEGIN, a.kv_begin);
    a.kv_end = moved(m, c, PLAIT_BUF_END, a.kv_end);
    a.work = moved(m, c, PLAIT_BUF_WORK, a.work);
    a.reduce = moved(m, c, PLAIT_BUF_REDUCE, a.reduce);
    a.q_scale = moved(m, c, PLAIT_BUF_SCALES, a.q_scale);
    a.k_scale = moved(m, c, PLAIT_BUF_SCALES, a.k_scale);
    a.v_scale = moved(m, c, PLAIT_BUF_SCALES, a.v_scale);
    a.out = moved(m, c, PLAIT_BUF_OUT, a.out);
    a.lse = moved(m, c, PLAIT_BUF_LSE, a.lse);
    a.workspace = moved(m, c, PLAIT_BUF_WORKSPACE, a.workspace);
    return a;
}

/* Tables of output bases hold device addresses and lie in front of the first buffer's band. */
static void place_bases(struct image *m, const plait_attn_case *c, plait_attn_args *a)
{
    if (!c->args.out_bases)
        return;
    void *out[2] = {m->device + m->at[PLAIT_BUF_OUT], m->device + m->at[PLAIT_BUF_OUT2]};
    float *lse[2] = {(float *)(void *)(m->device + m->at[PLAIT_BUF_LSE]),
                     (float *)(void *)(m->device + m->at[PLAIT_BUF_LSE2])};
    memcpy(m->host, out, sizeof out);
    memcpy(m->host + sizeof out, lse, sizeof lse);
    a->out_bases = (void *const *)(void *)m->device;
    a->lse_bases = c->args.lse_bases ? (float *const *)(void *)(m->device + sizeof out) : NULL;
}

static plait_status call(plait_cuda *cuda, const plait_kernel *kernel, struct image *m,
                         plait_attn_args *a, void *stream)
{
    plait_status status = plait_cuda_copy(cuda, m->device, m->host, m->total, stream);
    a->stream = stream;
    if (status == PLAIT_OK && m->bytes[PLAIT_BUFS]) {
        status = plait_cuda_schedule(a, m->device + m->at[PLAIT_BUFS], m->bytes[PLAIT_BUFS]);
        a->workspace = m->device + m->at[PLAIT_BUFS + 1];
        a->workspace_bytes = m->bytes[PLAIT_BUFS + 1];
    }
    if (status == PLAIT_OK)
        status = plait_attn_run(kernel, a, NULL);
    if (status == PLAIT_OK)
        status = plait_cuda_copy(cuda, m->after, m->device, m->total, stream);
    plait_status end = plait_cuda_stream_sync(cuda, stream);
    return status == PLAIT_OK ? end : status;
}

/* NULL if all but the outputs, the schedule and the workspaces is as it was. */
static const char *compare_rest(const struct image *m)
{
    size_t from = 0;
    for (int i = 0; i < PLAIT_BUFS + extra; i++) {
        int written = i >= PLAIT_BUF_INPUTS;
        size_t to = written ? m->at[i] : m->at[i] + m->bytes[i];
        if (memcmp(m->host + from, m->after + from, to - from) != 0)
            return written ? "it wrote in front of an output" : "it wrote to its inputs";
        from = m->at[i] + m->bytes[i];
    }
    return memcmp(m->host + from, m->after + from, m->total - from) ? "it wrote behind an output"
                                                                    : NULL;
}

const char *plait_check_cuda(plait_cuda *cuda, const plait_kernel *kernel, plait_attn_case *c,
                             int outputs, int workspace)
{
    struct image m;
    void *stream = NULL, *device = NULL;
    const char *why = "no memory";
    const plait_attn_args *a = &c->args;
    memset(&m, 0, sizeof m);
    for (int i = 0; i < PLAIT_BUFS; i++)
        place(&m, i, c->buf[i].bytes);
    int schedule = !a->work && c->number % 4 == 2;
    plait_attn_args probe = *a;
    size_t bytes = plait_cuda_schedule_bytes(cuda, a->num_seqs, a->num_rows, a->h_q);
    plait_cuda_info info = {.size = sizeof info};
    if (plait_cuda_describe(a->device, &info) != PLAIT_OK)
        return plait_last_error();
    probe.num_partials = 2 * 64 * info.num_sms;
    place(&m, PLAIT_BUFS, schedule ? bytes : 0);
    place(&m, PLAIT_BUFS + 1, schedule ? plait_attn_workspace(kernel, &probe, 1) : 0);
    m.host = malloc(m.total);
    m.after = malloc(m.total);
    if (m.host && m.after && plait_cuda_stream_open(cuda, &stream) == PLAIT_OK &&
        plait_cuda_alloc(cuda, m.total, &device) == PLAIT_OK) {
        m.device = device;
        memset(m.host, 0xff, m.total);
        for (int i = 0; i < PLAIT_BUFS + extra; i++)
            memset(m.host + m.at[i], i < PLAIT_BUF_WORKSPACE ? outputs : workspace, m.bytes[i]);
        for (int i = 0; i < PLAIT_BUF_INPUTS; i++)
            if (m.bytes[i])
                memcpy(m.host + m.at[i], c->buf[i].data, m.bytes[i]);
        plait_attn_args args = device_args(&m, c);
        place_bases(&m, c, &args);
        why = call(cuda, kernel, &m, &args, stream) == PLAIT_OK ? compare_rest(&m)
                                                                : plait_last_error();
        for (int i = PLAIT_BUF_OUT; i <= PLAIT_BUF_LSE2; i++)
            if (m.bytes[i])
                memcpy(c->buf[i].data, m.after + m.at[i], m.bytes[i]);
    }
    plait_cuda_free(cuda, device);
    plait_cuda_stream_close(cuda, stream);
    free(m.host);
    free(m.after);
    return why;
}
