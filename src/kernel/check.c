/* SPDX-License-Identifier: Apache-2.0 */
/* The checked mode: everything about a call that can be validated without reading q, k and v. */
#include <plait/attn.h>

#include "core/status.h"

#define FAIL(...) plait_fail(PLAIT_E_ARG, "attention: " __VA_ARGS__)

static plait_status check_dims(const plait_attn_args *a)
{
    if (a->size != sizeof *a)
        return FAIL("size is %zu, wanted %zu", a->size, sizeof *a);
    if (a->op != PLAIT_OP_MLA && a->op != PLAIT_OP_GQA)
        return FAIL("op is %d, wanted MLA or GQA", (int)a->op);
    if (a->num_seqs < 0 || a->num_rows < 0 || a->num_pages < 0)
        return FAIL("num_seqs %d, num_rows %d, num_pages %d; wanted none negative", a->num_seqs,
                    a->num_rows, a->num_pages);
    if (a->h_q < 1 || a->h_kv < 1 || a->d_qk < 1 || a->d_v < 1 || a->page_size < 1)
        return FAIL("h_q %d, h_kv %d, d_qk %d, d_v %d, page_size %d; wanted all positive", a->h_q,
                    a->h_kv, a->d_qk, a->d_v, a->page_size);
    if (a->op == PLAIT_OP_MLA && (a->h_kv != 1 || a->d_v > a->d_qk || a->v))
        return FAIL("MLA with h_kv %d, d_qk %d, d_v %d%s; wanted h_kv 1, d_v <= d_qk, v NULL",
                    a->h_kv, a->d_qk, a->d_v, a->v ? " and a v" : "");
    if (a->op == PLAIT_OP_GQA && a->q_per_kv == 0 && a->h_q % a->h_kv != 0)
        return FAIL("h_q is %d, wanted a multiple of h_kv %d (or q_per_kv)", a->h_q, a->h_kv);
    if (a->q_head0 < 0 || a->q_per_kv < 0 ||
        (a->op == PLAIT_OP_GQA && a->q_per_kv > 0 &&
         ((int64_t)a->q_head0 + a->h_q - 1) / a->q_per_kv >= a->h_kv))
        return FAIL("q_head0 %d and q_per_kv %d lead %d heads past KV head %d", a->q_head0,
                    a->q_per_kv, a->h_q, a->h_kv - 1);
    return PLAIT_OK;
}

static plait_status check_scale(const char *name, const float *scale, int32_t n, int32_t heads)
{
    if (n != 0 && n != 1 && n != heads)
        return FAIL("%s_n is %d, wanted 0, 1 or %d", name, n, heads);
    if (n != 0 && !scale)
        return FAIL("%s is NULL, but %s_n is %d", name, name, n);
    return PLAIT_OK;
}

static plait_status check_tensors(const plait_attn_args *a)
{
    int ds = a->kv_dtype == PLAIT_FP8_DS656;
    if (!plait_dtype_bytes(a->q_dtype) || !plait_dtype_bytes(a->kv_dtype) ||
        !plait_dtype_bytes(a->out_dtype) || a->q_dtype == PLAIT_FP8_DS656 ||
        a->out_dtype == PLAIT_FP8_DS656)
        return FAIL("dtypes q %s, KV %s, out %s are no such set", plait_dtype_name(a->q_dtype),
                    plait_dtype_name(a->kv_dtype), plait_dtype_name(a->out_dtype));
    if (ds && (a->op != PLAIT_OP_MLA || a->d_qk != 576 || a->d_v > 512 || a->k_scale_n != 0))
        return FAIL("fp8_ds656 with d_qk %d, d_v %d, k_scale_n %d; wanted MLA, 576, <= 512, 0",
                    a->d_qk, a->d_v, a->k_scale_n);
    if (a->op == PLAIT_OP_MLA && a->v_scale_n != 0)
        return FAIL("v_scale_n is %d; MLA takes v from the scaled k, wanted 0", a->v_scale_n);
    PLAIT_TRY(check_scale("q_scale", a->q_scale, a->q_scale_n, a->h_q));
    PLAIT_TRY(check_scale("k_scale", a->k_scale, a->k_scale_n, a->h_kv));
    PLAIT_TRY(check_scale("v_scale", a->v_scale, a->v_scale_n, a->h_kv));
    if (a->num_rows > 0 && (!a->q || (!a->out && !a->out_bases)))
        return FAIL("q or out is NULL with %d rows", a->num_rows);
    if (a->out_bases && a->heads_per_base < 1)
        return FAIL("heads_per_base is %d, wanted at least 1", a->heads_per_base);
    return PLAIT_OK;
}

static plait_status check_row_start(const plait_attn_args *a)
{
    if (!a->row_start || a->row_start[0] != 0)
        return FAIL("row_start is NULL or does not begin with 0");
    for (int32_t s = 0; s < a->num_seqs; s++)
        if (a->row_start[s + 1] < a->row_start[s])
            return FAIL("row_start[%d] is %d, wanted at least %d", s + 1, a->row_start[s + 1],
                        a->row_start[s]);
    if (a->row_start[a->num_seqs] > a->num_rows)
        return FAIL("row_start ends at %d, num_rows is %d", a->row_start[a->num_seqs], a->num_rows);
    if (a->row_start[a->num_seqs] > 0 && !a->kv_end)
        return FAIL("kv_end is NULL");
    return PLAIT_OK;
}

/* The page table entries of keys [begin, end) of sequence s. */
static plait_status check_pages(const plait_attn_args *a, int32_t s, int32_t begin, int32_t end)
{
    int64_t last = (end - 1) / a->page_size;
    if (!a->page_table || !a->k || (a->op == PLAIT_OP_GQA && !a->v))
        return FAIL("page_table, k or v is NULL, but sequence %d sees keys", s);
    if (last >= a->page_table_stride)
        return FAIL("sequence %d sees key %d, its table has %lld entries of %d tokens", s, end - 1,
                    (long long)a->page_table_stride, a->page_size);
    for (int64_t i = begin / a->page_size; i <= last; i++) {
        int32_t page = a->page_table[s * a->page_table_stride + i];
        if (page < 0 || (a->num_pages > 0 && page >= a->num_pages))
            return FAIL("sequence %d, table entry %lld is page %d, the pool has %d", s,
                        (long long)i, page, a->num_pages);
    }
    return PLAIT_OK;
}

static plait_status check_ranges(const plait_attn_args *a, int32_t s)
{
    int32_t last_begin = 0, last_end = 0;
    for (int32_t row = a->row_start[s]; row < a->row_start[s + 1]; row++) {
        int32_t begin = a->kv_begin ? a->kv_begin[row] : 0, end = a->kv_end[row];
        if (begin < last_begin || end < last_end || begin > end)
            return FAIL("row %d of sequence %d sees keys [%d, %d) after [%d, %d); wanted "
                        "non-decreasing ranges",
                        row, s, begin, end, last_begin, last_end);
        if (begin < end)
            PLAIT_TRY(check_pages(a, s, begin, end));
        last_begin = begin;
        last_end = end;
    }
    return PLAIT_OK;
}

static plait_status check_work(const plait_attn_args *a, int32_t i)
{
    const plait_attn_work *w = &a->work[i];
    if (w->seq < 0 || w->seq >= a->num_seqs || w->row_begin < a->row_start[w->seq] ||
        w->row_end < w->row_begin || w->row_end > a->row_start[w->seq + 1])
        return FAIL("work %d has rows [%d, %d) of sequence %d, which do not exist", i, w->row_begin,
                    w->row_end, w->seq);
    if (w->head_begin < 0 || w->head_end < w->head_begin || w->head_end > a->h_q ||
        w->kv_begin < 0 || w->kv_end < w->kv_begin)
        return FAIL("work %d has heads [%d, %d) and keys [%d, %d)", i, w->head_begin, w->head_end,
                    w->kv_begin, w->kv_end);
    int64_t cells = (int64_t)(w->row_end - w->row_begin) * (w->head_end - w->head_begin);
    if (a->invariant && w->partial >= 0 && w->row_begin < w->row_end) {
        const int32_t keys = plait_attn_split_keys(a->kv_end[w->row_begin]);
        if (plait_attn_split_keys(a->kv_end[w->row_end - 1]) != keys || w->kv_begin % keys ||
            w->kv_end % keys)
            return FAIL("work %d has keys [%d, %d) and rows that see %d to %d; invariant mode cuts "
                        "at multiples of %d",
                        i, w->kv_begin, w->kv_end, a->kv_end[w->row_begin],
                        a->kv_end[w->row_end - 1], keys);
        cells *= (w->kv_end - w->kv_begin) / keys;
    }
    if (w->partial < -1 || (w->partial >= 0 && w->partial + cells > a->num_partials))
        return FAIL("work %d has partials from %d, num_partials is %d", i, w->partial,
                    a->num_partials);
    return PLAIT_OK;
}

static plait_status check_reduce(const plait_attn_args *a, int32_t i)
{
    const plait_attn_reduce *r = &a->reduce[i];
    if (r->row_begin < 0 || r->row_end < r->row_begin || r->row_end > a->num_rows ||
        r->head_begin < 0 || r->head_end < r->head_begin || r->head_end > a->h_q)
        return FAIL("reduce %d has rows [%d, %d) and heads [%d, %d)", i, r->row_begin, r->row_end,
                    r->head_begin, r->head_end);
    int64_t cells = (int64_t)(r->row_end - r->row_begin) * (r->head_end - r->head_begin);
    if (r->n_splits < 1 || r->n_splits > PLAIT_ATTN_MAX_SPLITS || r->first_partial < 0 ||
        (cells > 0 && r->n_splits > (a->num_partials - r->first_partial) / cells))
        return FAIL("reduce %d merges %d splits from partial %d, num_partials is %d", i,
                    r->n_splits, r->first_partial, a->num_partials);
    return PLAIT_OK;
}

plait_status plait_attn_check(const plait_attn_args *args)
{
    if (!args)
        return FAIL("args is NULL");
    PLAIT_TRY(check_dims(args));
    PLAIT_TRY(check_tensors(args));
    if (args->worker_start && (args->device < 0 || args->num_workers < 1 || !args->work))
        return FAIL("worker_start with device %d, num_workers %d%s; wanted a device, workers, work",
                    args->device, args->num_workers, args->work ? "" : ", no work");
    if (args->device >= 0)
        return PLAIT_OK; /* the rest is in the device's memory */
    PLAIT_TRY(check_row_start(args));
    for (int32_t s = 0; s < args->num_seqs; s++)
        PLAIT_TRY(check_ranges(args, s));
    if (args->num_partials < 0 || args->num_work < 0 || args->num_reduce < 0 ||
        (args->num_reduce > 0 && !args->reduce) ||
        (!args->work && (args->num_partials || args->num_work || args->num_reduce)))
        return FAIL("num_work %d, num_reduce %d, num_partials %d do not fit the schedule given",
                    args->num_work, args->num_reduce, args->num_partials);
    for (int32_t i = 0; i < args->num_work; i++)
        PLAIT_TRY(check_work(args, i));
    for (int32_t i = 0; i < args->num_reduce; i++)
        PLAIT_TRY(check_reduce(args, i));
    return PLAIT_OK;
}
