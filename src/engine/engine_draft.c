/* SPDX-License-Identifier: Apache-2.0 */
/* engine_draft.c: what the engine opens for its drafter: files, heads, attention, KV group. */
#include <stdio.h>

#include "core/status.h"
#include "engine/engine_ranks.h"

static int has_head(const plait_engine *e)
{
    return e->options.draft == PLAIT_DRAFT_EAGLE3;
}

static int32_t draft_dcp(const plait_engine *e)
{
    return e->options.draft_kv_replicated ? 1 : e->options.dcp;
}

void plait_rank_set_group(const plait_rank *r, int32_t d, int32_t layers, int32_t width,
                          plait_kv_group *g)
{
    const plait_engine *e = r->engine;
    g->shard = (plait_shard){d, d > 1 ? r->heads.dcp_rank : 0, e->options.interleave};
    g->num_layers = layers;
    g->width = width;
    g->page_size = e->options.page_size;
    g->dtype = (plait_dtype)e->options.kv_dtype;
    g->caching = e->options.prefix_cache;
    g->allocator = e->options.allocator;
}

plait_status plait_engine_open_draft(plait_engine *e)
{
    const plait_config *c = &e->config;
    if (e->options.draft == PLAIT_DRAFT_MTP && c->num_mtp_layers < 1)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "%s has no MTP layer (num_nextn_predict_layers is 0): use another draft",
                          e->options.model_dir);
    if (!has_head(e))
        return PLAIT_OK;
    PLAIT_TRY(plait_eagle3_open(e->options.draft_dir, c, &e->eagle3));
    return plait_rope_table_open(&e->eagle3.config.rope, c->max_position, &e->draft_rope);
}

plait_status plait_rank_layout_draft(plait_rank *r)
{
    const plait_engine *e = r->engine;
    if (!has_head(e))
        return PLAIT_OK;
    const plait_heads heads = {0, e->eagle3.config.num_heads, e->eagle3.config.num_kv_heads,
                               e->num_ranks, draft_dcp(e)};
    const plait_status status = plait_heads_of_rank(&heads, r->rank, &r->draft_heads);
    if (status == PLAIT_OK)
        return PLAIT_OK;
    char sentence[PLAIT_ENGINE_ERROR_BYTES];
    snprintf(sentence, sizeof sentence, "%s", plait_last_error());
    return plait_fail(status, "the EAGLE-3 head of %.200s, its cache %s: %s", e->options.draft_dir,
                      e->options.draft_kv_replicated ? "replicated" : "sharded", sentence);
}

plait_status plait_rank_load_draft(plait_rank *r)
{
    const plait_engine *e = r->engine;
    if (!has_head(e))
        return PLAIT_OK;
    return plait_eagle3_load(&e->eagle3, &r->draft_heads, r->gemms, e->options.dtype, &r->model);
}

/* The pattern of --kernel, unless it names none of the head's kind: it was meant for the target. */
static const char *kernel_pattern(const char *pattern)
{
    for (int32_t i = 0; i < plait_kernel_count(); i++) {
        const plait_kernel *k = plait_kernel_get(i);
        if (k->op == PLAIT_OP_GQA && plait_kernel_match(k->name, pattern))
            return pattern;
    }
    return NULL;
}

/* Attention of the head's layer: as the target's in all but its heads. */
static plait_status open_attention(plait_rank *r)
{
    const plait_engine *e = r->engine;
    const plait_eagle3_config *c = &e->eagle3.config;
    const plait_heads heads = {0, c->num_heads, c->num_kv_heads, e->num_ranks, draft_dcp(e)};
    plait_attend_options a = r->attend.options;
    int32_t dcp_heads[PLAIT_COMM_MAX_RANKS];
    for (int32_t d = 0; d < heads.d; d++) {
        plait_heads_rank other;
        PLAIT_TRY(plait_heads_of_rank(&heads, r->draft_heads.dcp_group * heads.d + d, &other));
        dcp_heads[d] = other.head_end - other.head_begin;
    }
    a.num_heads = r->draft_heads.head_end - r->draft_heads.head_begin;
    a.group_heads = r->draft_heads.group_head_end - r->draft_heads.group_head_begin;
    a.dcp_heads = dcp_heads;
    a.op = PLAIT_OP_GQA;
    a.num_kv_heads = r->draft_heads.kv_end - r->draft_heads.kv_begin;
    a.q_per_kv = r->draft_heads.q_per_kv;
    a.q_head0 = r->draft_heads.group_head_begin - r->draft_heads.kv_begin * a.q_per_kv;
    a.d_qk = a.d_v = c->head_dim;
    a.softmax_scale = plait_rope_softmax_scale(&c->rope, c->head_dim);
    a.pattern = kernel_pattern(a.pattern);
    if (heads.d == 1)
        a.dcp_ranks = NULL;
    PLAIT_TRY(plait_attend_open(&a, &r->draft_attend));
    r->draft_attend.options.dcp_heads = NULL; /* read during open only */
    return PLAIT_OK;
}

plait_status plait_rank_open_draft(plait_rank *r)
{
    const plait_engine *e = r->engine;
    const plait_config *c = &e->config;
    plait_attend *attend = &r->attend;
    int32_t width = c->kv_lora_rank + c->qk_rope_dim;
    if (!r->session.drafter || !r->session.drafter->has_kv)
        return PLAIT_OK;
    if (has_head(e)) {
        PLAIT_TRY(open_attention(r));
        attend = &r->draft_attend;
        width = attend->options.num_kv_heads * 2 * e->eagle3.config.head_dim;
    }
    plait_rank_set_group(r, draft_dcp(e), 1, width, &r->draft);
    r->draft.ahead = 1;
    r->session.draft = &r->draft;
    r->session.draft_attend = attend;
    return plait_attend_open_plan(attend, &r->draft);
}
