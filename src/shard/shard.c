/* SPDX-License-Identifier: Apache-2.0 */
/*
 * src/shard: what the inline arithmetic of plait/shard.h leaves: checks of a geometry and of head
 * layouts. Nothing here knows of memory or ranks' messages.
 */
#include <plait/shard.h>

#include "core/status.h"

plait_status plait_shard_check(plait_shard s)
{
    if (s.d < 1)
        return plait_fail(PLAIT_E_ARG, "shard: d is %d, wanted at least 1", s.d);
    if (s.r < 0 || s.r >= s.d)
        return plait_fail(PLAIT_E_ARG, "shard: rank is %d, wanted 0 to %d", s.r, s.d - 1);
    if (s.i < 1)
        return plait_fail(PLAIT_E_ARG, "shard: interleave is %d tokens, wanted at least 1", s.i);
    return PLAIT_OK;
}

int64_t plait_shard_prefix_unit(plait_shard s, int32_t page_size)
{
    int64_t a = page_size, b = s.i;
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return page_size / a * s.i * s.d;
}

static plait_status check_gqa_split(const plait_heads *h)
{
    if (h->d == 1)
        return PLAIT_OK;
    if (h->w % h->kv_heads != 0)
        return plait_fail(
            PLAIT_E_UNSUPPORTED,
            "heads: GQA with DCP %d needs tensor parallel size %d to be a multiple of "
            "the %d KV heads, so that a DCP group holds one set of KV heads",
            h->d, h->w, h->kv_heads);
    if (h->w / h->kv_heads % h->d != 0)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "heads: DCP %d must divide tensor parallel size %d / %d KV heads = %d",
                          h->d, h->w, h->kv_heads, h->w / h->kv_heads);
    if (h->heads % h->w != 0)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "heads: GQA with DCP %d needs %d query heads to be a multiple of tensor "
                          "parallel size %d (uneven head counts are for MLA and DCP 1)",
                          h->d, h->heads, h->w);
    return PLAIT_OK;
}

plait_status plait_heads_check(const plait_heads *h)
{
    if (h->heads < 1 || h->kv_heads < 1)
        return plait_fail(PLAIT_E_ARG, "heads: %d query heads and %d KV heads, wanted at least 1",
                          h->heads, h->kv_heads);
    if (h->w < 1 || h->d < 1)
        return plait_fail(PLAIT_E_ARG,
                          "heads: tensor parallel size %d and DCP %d, wanted at least 1", h->w,
                          h->d);
    if (h->w % h->d != 0)
        return plait_fail(PLAIT_E_UNSUPPORTED, "heads: DCP %d must divide tensor parallel size %d",
                          h->d, h->w);
    if (h->w > h->heads)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "heads: tensor parallel size %d is more than the %d query heads", h->w,
                          h->heads);
    if (h->mla) {
        if (h->kv_heads != 1)
            return plait_fail(PLAIT_E_ARG, "heads: MLA has 1 KV head (the latent), found %d",
                              h->kv_heads);
        return PLAIT_OK;
    }
    if (h->heads % h->kv_heads != 0)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "heads: %d query heads are no multiple of %d KV heads", h->heads,
                          h->kv_heads);
    return check_gqa_split(h);
}

/* First query head of `rank`: the first heads mod w ranks hold one more. */
static int32_t first_head(const plait_heads *h, int32_t rank)
{
    int32_t rest = h->heads % h->w;
    return h->heads / h->w * rank + (rank < rest ? rank : rest);
}

plait_status plait_heads_of_rank(const plait_heads *h, int32_t rank, plait_heads_rank *out)
{
    PLAIT_TRY(plait_heads_check(h));
    if (rank < 0 || rank >= h->w)
        return plait_fail(PLAIT_E_ARG, "heads: rank is %d, wanted 0 to %d", rank, h->w - 1);
    int32_t group = rank / h->d;
    out->head_begin = first_head(h, rank);
    out->head_end = first_head(h, rank + 1);
    out->group_head_begin = first_head(h, group * h->d);
    out->group_head_end = first_head(h, (group + 1) * h->d);
    out->q_per_kv = h->heads / h->kv_heads;
    out->kv_begin = out->group_head_begin / out->q_per_kv;
    out->kv_end = (out->group_head_end - 1) / out->q_per_kv + 1;
    out->dcp_rank = rank % h->d;
    out->dcp_group = group;
    return PLAIT_OK;
}
