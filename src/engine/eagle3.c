/* SPDX-License-Identifier: Apache-2.0 */
/* eagle3.c: the files of an EAGLE-3 head, and a rank's part of its weights. */
#include "engine/eagle3.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "engine/checkpoint_table.h"
#include "engine/json.h"
#include "engine/model_load.h"

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* ---- what ranks share ------------------------------------------------------------------------ */

/* Target ids of the draft ids: draft id + d2t[draft id], each in the vocabulary and once. */
static plait_status map_ids(plait_eagle3_head *h, const plait_tensor *d2t, unsigned char *seen)
{
    const plait_eagle3_config *c = &h->config;
    for (int32_t i = 0; i < c->draft_vocab_size; i++) {
        int64_t offset = 0;
        if (d2t)
            memcpy(&offset, d2t->data + 8 * (size_t)i, sizeof offset);
        if (offset < -i || offset >= c->vocab_size - i)
            return plait_fail(PLAIT_E_FORMAT,
                              "d2t[%d] is %lld: draft id %d would be outside the target's %d ids",
                              (int)i, (long long)offset, (int)i, (int)c->vocab_size);
        const int32_t id = i + (int32_t)offset;
        if (seen[id]++)
            return plait_fail(PLAIT_E_FORMAT, "d2t[%d] is %lld: target id %d has two draft ids",
                              (int)i, (long long)offset, (int)id);
        h->target_ids[i] = id;
    }
    return PLAIT_OK;
}

static plait_status read_ids(plait_eagle3_head *h, const char *dir)
{
    const plait_eagle3_config *c = &h->config;
    const plait_tensor *d2t = plait_checkpoint_find(h->checkpoint, "d2t");
    if (!d2t && c->draft_vocab_size != c->vocab_size)
        return plait_fail(PLAIT_E_FORMAT,
                          "%s has no tensor d2t, which %d draft ids of %d target ids need", dir,
                          (int)c->draft_vocab_size, (int)c->vocab_size);
    if (d2t &&
        (strcmp(d2t->dtype, "I64") != 0 || d2t->rank != 1 || d2t->shape[0] != c->draft_vocab_size))
        return plait_fail(PLAIT_E_FORMAT,
                          "%s: d2t has dtype %s and %d dimensions, the first of %lld; wanted I64 "
                          "and draft_vocab_size, %d",
                          dir, d2t->dtype, (int)d2t->rank,
                          (long long)(d2t->rank ? d2t->shape[0] : 0), (int)c->draft_vocab_size);
    h->target_ids = malloc((size_t)c->draft_vocab_size * sizeof *h->target_ids);
    unsigned char *seen = calloc((size_t)c->vocab_size, 1);
    const plait_status status =
        h->target_ids && seen
            ? map_ids(h, d2t, seen)
            : plait_fail(PLAIT_E_NOMEM, "no memory for %d draft ids", (int)c->draft_vocab_size);
    free(seen);
    return status;
}

static plait_status read_embedding(plait_eagle3_head *h)
{
    static const char name[] = "embed_tokens.weight";
    const plait_eagle3_config *c = &h->config;
    if (!plait_checkpoint_has(h->checkpoint, name))
        return PLAIT_OK;
    h->embedding = malloc((size_t)c->vocab_size * (size_t)c->hidden_size * sizeof(float));
    if (!h->embedding)
        return plait_fail(PLAIT_E_NOMEM, "no memory for %d embeddings", (int)c->vocab_size);
    const plait_slice all = PLAIT_SLICE_MATRIX(c->vocab_size, c->hidden_size);
    return plait_checkpoint_load(h->checkpoint, name, &all, PLAIT_F32, h->embedding,
                                 c->hidden_size);
}

static plait_status open_head(const char *dir, const plait_config *target, plait_eagle3_head *h)
{
    char path[PATH_MAX], *text;
    size_t bytes;
    PLAIT_TRY(plait_path_join(path, sizeof path, dir, "config.json"));
    PLAIT_TRY(plait_file_read(path, MAX_CONFIG_BYTES, &text, &bytes));
    const plait_status status = plait_eagle3_config_parse(text, bytes, path, target, &h->config);
    free(text);
    PLAIT_TRY(status);
    PLAIT_TRY(plait_checkpoint_open(dir, NULL, &h->checkpoint));
    PLAIT_TRY(read_ids(h, dir));
    return read_embedding(h);
}

plait_status plait_eagle3_open(const char *dir, const plait_config *target, plait_eagle3_head *out)
{
    memset(out, 0, sizeof *out);
    const plait_status status = open_head(dir, target, out);
    if (status != PLAIT_OK)
        plait_eagle3_close(out);
    return status;
}

void plait_eagle3_close(plait_eagle3_head *h)
{
    plait_checkpoint_close(&h->checkpoint);
    free(h->target_ids);
    free(h->embedding);
    h->target_ids = NULL;
    h->embedding = NULL;
}

/* ---- a rank's part --------------------------------------------------------------------------- */

static plait_status load_attention(plait_loader *l, const char *prefix, plait_eagle3 *e)
{
    const plait_eagle3_config *c = &e->shared->config;
    const int64_t in = 2 * (int64_t)c->hidden_size, d = c->head_dim;
    const int64_t q = c->num_heads * d, kv = c->num_kv_heads * d;
    const int32_t first = e->kv_begin * c->head_dim, n = e->num_kv_heads * c->head_dim;
    plait_gemm **k, **v;
    PLAIT_TRY(plait_load_rows(l, prefix, "self_attn.q_proj.weight", q, in,
                              e->head_begin * c->head_dim, e->num_heads * c->head_dim, e->num_heads,
                              &e->q));
    PLAIT_TRY(plait_load_rows(l, prefix, "self_attn.k_proj.weight", kv, in, first, n, 1, &k));
    PLAIT_TRY(plait_load_rows(l, prefix, "self_attn.v_proj.weight", kv, in, first, n, 1, &v));
    e->k = k[0];
    e->v = v[0];
    return plait_load_output(l, prefix, q, e->head_begin * d, e->num_heads * d, &e->layer.o);
}

static plait_status load_all(plait_loader *l, plait_eagle3 *e)
{
    const plait_eagle3_config *c = &e->shared->config;
    const int64_t hidden = c->hidden_size;
    /* The authors' name, and that of a Llama layer. */
    const char *prefix = plait_checkpoint_has(l->checkpoint, "midlayer.hidden_norm.weight")
                             ? "midlayer."
                             : "layers.0.";
    PLAIT_TRY(plait_load_rows(l, "", "fc.weight", hidden, PLAIT_EAGLE3_AUX * hidden, 0,
                              c->hidden_size, l->model->n_slices, &e->fc));
    PLAIT_TRY(plait_load_vector(l, prefix, "input_layernorm.weight", hidden, &e->layer.input_norm));
    PLAIT_TRY(plait_load_vector(l, prefix, "hidden_norm.weight", hidden, &e->hidden_norm));
    PLAIT_TRY(plait_load_vector(l, prefix, "post_attention_layernorm.weight", hidden,
                                &e->layer.post_norm));
    PLAIT_TRY(plait_load_vector(l, "", "norm.weight", hidden, &e->final_norm));
    PLAIT_TRY(load_attention(l, prefix, e));
    PLAIT_TRY(plait_load_dense(l, prefix, c->intermediate_size, &e->layer));
    return plait_load_head(l, "lm_head.weight", c->draft_vocab_size, &e->head);
}

plait_status plait_eagle3_load(const plait_eagle3_head *head, const plait_heads_rank *heads,
                               plait_gemm_set *gemms, plait_dtype dtype, plait_model *model)
{
    plait_loader l = {head->checkpoint, model->config, gemms, dtype, model, NULL, 0};
    plait_eagle3 *e;
    PLAIT_TRY(plait_load_own(model, 1, sizeof *e, &e));
    e->shared = head;
    e->head_begin = heads->head_begin;
    e->num_heads = heads->head_end - heads->head_begin;
    e->kv_begin = heads->kv_begin;
    e->num_kv_heads = heads->kv_end - heads->kv_begin;
    const plait_status status = load_all(&l, e);
    free(l.buffer);
    model->eagle3 = e;
    return status;
}
