/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c: opens and closes an engine, and runs its ranks. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/status.h"
#include "engine/engine_ranks.h"
#include "engine/pass_eagle3.h"

/* ---- ranks ----------------------------------------------------------------------------------- */

static void *run_rank(void *arg)
{
    plait_rank *r = arg;
    r->status = r->fn(r, r->arg);
    if (r->status != PLAIT_OK) {
        size_t n = strlen(plait_last_error());
        n = n < sizeof r->error ? n : sizeof r->error - 1;
        memcpy(r->error, plait_last_error(), n);
        r->error[n] = 0;
        if (r->ranks && !r->agreed)
            plait_comm_abort(r->ranks, r->error);
        if (r->dcp_ranks && !r->agreed)
            plait_comm_abort(r->dcp_ranks, r->error);
    }
    return NULL;
}

plait_status plait_engine_run(plait_engine *e, plait_rank_fn fn, void *arg)
{
    int32_t started = 1;
    for (int32_t i = 0; i < e->num_local; i++) {
        e->ranks[i].fn = fn;
        e->ranks[i].arg = arg;
        e->ranks[i].status = PLAIT_OK;
        e->ranks[i].agreed = 0;
    }
    while (started < e->num_local) {
        plait_rank *r = &e->ranks[started];
        if (pthread_create(&r->thread, NULL, run_rank, r) != 0)
            break;
        started++;
    }
    plait_status status = PLAIT_OK;
    if (started < e->num_local) {
        status = plait_fail(PLAIT_E_UNSUPPORTED, "the system refused a thread for rank %d",
                            (int)started);
        for (int32_t i = 0; i < e->num_local; i++)
            plait_comm_abort(e->ranks[i].ranks, "a rank could not start");
    } else {
        run_rank(&e->ranks[0]);
    }
    for (int32_t i = 1; i < started; i++)
        pthread_join(e->ranks[i].thread, NULL);
    const plait_rank *first = NULL;
    for (int32_t i = 0; i < e->num_local; i++) {
        const plait_rank *r = &e->ranks[i];
        const int better = first && first->status == PLAIT_E_COMM && r->status != PLAIT_E_COMM;
        if (r->status != PLAIT_OK && (!first || better))
            first = r;
    }
    return first ? plait_fail(first->status, "%s", first->error) : status;
}

/* ---- open ------------------------------------------------------------------------------------ */

static plait_status check_size(const plait_engine_options *o)
{
    if (o->size != sizeof *o)
        return plait_fail(PLAIT_E_ARG, "engine options of %zu bytes, wanted %zu", o->size,
                          sizeof *o);
    return PLAIT_OK;
}

static plait_status check_options(const plait_engine_options *o)
{
    if (!o->model_dir)
        return plait_fail(PLAIT_E_ARG, "model_dir is NULL");
    if (o->comm && o->tp != plait_comm_size(o->comm))
        return plait_fail(PLAIT_E_ARG, "tp %d, but the communicator has %d ranks", (int)o->tp,
                          (int)plait_comm_size(o->comm));
    if (o->dcp < 1 || o->tp < 0 || (o->tp && o->tp % o->dcp) || o->tp > PLAIT_COMM_MAX_RANKS ||
        o->dcp > PLAIT_COMM_MAX_RANKS)
        return plait_fail(PLAIT_E_ARG, "tp %d and dcp %d: dcp must divide tp, at most %d ranks",
                          (int)o->tp, (int)o->dcp, PLAIT_COMM_MAX_RANKS);
    if (o->interleave < 1 || o->page_size < 1)
        return plait_fail(PLAIT_E_ARG, "interleave %d and page_size %d must be at least 1",
                          (int)o->interleave, (int)o->page_size);
    if (o->dtype != PLAIT_F32 && o->dtype != PLAIT_BF16)
        return plait_fail(PLAIT_E_UNSUPPORTED, "dtype %s: the engine computes in f32 or bf16",
                          plait_dtype_name(o->dtype));
    if (o->kv_dtype != PLAIT_KV_DTYPE_AUTO && o->kv_dtype != PLAIT_F32 &&
        o->kv_dtype != PLAIT_BF16 && o->kv_dtype != PLAIT_F16)
        return plait_fail(PLAIT_E_UNSUPPORTED, "kv_dtype %s: the cache is f32, bf16 or f16",
                          plait_dtype_name((plait_dtype)o->kv_dtype));
    if (o->draft != PLAIT_DRAFT_NONE && !plait_drafter_of(o->draft))
        return plait_fail(PLAIT_E_ARG, "draft %d is no kind of draft", (int)o->draft);
    if (o->draft == PLAIT_DRAFT_EAGLE3 && !o->draft_dir)
        return plait_fail(PLAIT_E_ARG, "draft_dir is NULL: it names the EAGLE-3 head's folder");
    if (o->draft != PLAIT_DRAFT_NONE && o->spec_tokens != PLAIT_SPEC_AUTO &&
        (o->spec_tokens < 1 || o->spec_tokens > PLAIT_MAX_SPEC_TOKENS))
        return plait_fail(PLAIT_E_ARG, "spec_tokens %d must be 1 .. %d or PLAIT_SPEC_AUTO",
                          (int)o->spec_tokens, PLAIT_MAX_SPEC_TOKENS);
    if (o->invariant && o->exchange == PLAIT_EXCHANGE_AG_RS)
        return plait_fail(PLAIT_E_ARG, "invariant mode with exchange ag_rs, whose order of sums is "
                                       "the communicator's; wanted a2a or auto");
    if (o->kv_cache_bytes < 0 || o->threads < 0)
        return plait_fail(PLAIT_E_ARG, "kv_cache_bytes and threads must not be negative");
    if (!(o->comm_timeout_s >= 1))
        return plait_fail(PLAIT_E_ARG,
                          "comm_timeout_s is %g, wanted at least 1: healthy ranks come apart by as "
                          "long as a pass takes",
                          o->comm_timeout_s);
    return PLAIT_OK;
}

static plait_status open_attention(plait_rank *r, const plait_executor *executor)
{
    const plait_engine *e = r->engine;
    const plait_engine_options *o = &e->options;
    const plait_config *c = &e->config;
    plait_attend_options a = {0};
    a.num_heads = r->model.num_heads;
    a.group_heads = r->heads.group_head_end - r->heads.group_head_begin;
    a.dcp_heads = r->dcp_heads;
    a.op = PLAIT_OP_MLA;
    a.num_kv_heads = 1;
    a.d_qk = c->kv_lora_rank + c->qk_rope_dim;
    a.d_v = c->kv_lora_rank;
    a.softmax_scale = plait_rope_softmax_scale(&c->rope, c->qk_nope_dim + c->qk_rope_dim);
    a.q_dtype = o->dtype == PLAIT_BF16 && o->kv_dtype == PLAIT_BF16 ? PLAIT_BF16 : PLAIT_F32;
    a.max_rows = PLAIT_ENGINE_ROWS;
    a.max_seqs = PLAIT_SESSION_BATCH;
    a.page_size = o->page_size;
    a.allocator = o->allocator;
    a.max_length = c->max_position;
    a.features = plait_cpu_detect() & o->cpu_mask;
    a.pattern = o->kernel;
    a.executor = executor;
    a.ranks = r->ranks;
    a.dcp_ranks = o->dcp > 1 ? r->dcp_ranks : NULL;
    a.exchange = (plait_exchange)o->exchange;
    a.invariant = o->invariant;
    a.trace = o->trace ? &r->trace : NULL;
    if (o->trace)
        PLAIT_TRY(plait_trace_open(&r->trace, PLAIT_TRACE_SPANS));
    PLAIT_TRY(plait_attend_open(&a, &r->attend));
    plait_rank_set_group(r, o->dcp, c->num_layers, a.d_qk, &r->target);
    PLAIT_TRY(plait_attend_open_plan(&r->attend, &r->target));
    return plait_rank_open_draft(r);
}

/* Loads a rank: what needs no other rank. */
static plait_status load_rank(plait_rank *r)
{
    plait_engine *e = r->engine;
    const plait_engine_options *o = &e->options;
    plait_pool_options p = PLAIT_POOL_OPTIONS_INIT;
    p.n_threads = e->threads_per_rank;
    p.rank = e->options.comm ? e->pin_rank : r->rank;
    p.n_local_ranks = e->options.comm ? e->pin_ranks : e->num_ranks;
    PLAIT_TRY(plait_pool_open(&p, &r->pool));
    const plait_executor *executor = plait_pool_executor(r->pool);
    PLAIT_TRY(plait_gemm_set_open(executor->n_workers, PLAIT_ENGINE_ROWS, o->allocator, &r->gemms));
    r->model.rank = r->rank;
    r->model.n_ranks = e->num_ranks;
    r->model.n_slices = executor->n_workers;
    r->model.head_begin = r->heads.head_begin;
    r->model.num_heads = r->heads.head_end - r->heads.head_begin;
    PLAIT_TRY(plait_model_load(e->checkpoint, &e->config, r->gemms, o->dtype,
                               o->draft == PLAIT_DRAFT_MTP, &r->model));
    return plait_rank_load_draft(r);
}

/* What does not depend on requests; collective over the DCP group. */
static plait_status open_buffers(plait_rank *r)
{
    plait_engine *e = r->engine;
    const plait_engine_options *o = &e->options;
    const plait_executor *executor = plait_pool_executor(r->pool);
    r->session.drafter = plait_drafter_of(o->draft);
    PLAIT_TRY(open_attention(r, executor));
    PLAIT_TRY(plait_pass_open(&r->model, &e->rope, e->embedding, &r->attend, executor,
                              PLAIT_ENGINE_ROWS, PLAIT_ENGINE_LOGIT_ROWS, &r->pass));
    if (r->pass.eagle3) {
        r->pass.eagle3->attend = &r->draft_attend;
        r->pass.eagle3->rope = &e->draft_rope;
    }
    r->session.pass = &r->pass;
    r->session.target = &r->target;
    r->session.spec_auto = o->spec_tokens == PLAIT_SPEC_AUTO;
    r->session.spec_tokens = r->session.spec_auto ? PLAIT_AUTO_DRAFTS : o->spec_tokens;
    r->session.debug_ranks = o->debug_ranks;
    r->session.tokenizer = e->tokenizer;
    r->session.eos_ids = e->config.eos_ids;
    r->session.num_eos = e->config.num_eos;
    return plait_session_open(&r->session);
}

static plait_status open_rank(plait_rank *r, void *arg)
{
    const int32_t dcp = r->engine->options.dcp;
    (void)arg;
    PLAIT_TRY(plait_rank_agree(r, "load the model", load_rank(r)));
    if (dcp > 1)
        PLAIT_TRY(plait_comm_split(r->ranks, dcp, &r->dcp_ranks));
    return plait_rank_agree(r, "open the engine", open_buffers(r));
}

/* Splits heads over the ranks and gives each rank its handle of the group. */
static plait_status layout_ranks(plait_engine *e)
{
    const plait_heads heads = {1, e->config.num_heads, 1, e->num_ranks, e->options.dcp};
    plait_comm *comms[PLAIT_COMM_MAX_RANKS] = {NULL};
    PLAIT_TRY(plait_heads_check(&heads));
    e->ranks = calloc((size_t)e->num_local, sizeof *e->ranks);
    if (!e->ranks)
        return plait_fail(PLAIT_E_NOMEM, "no memory for %d ranks", (int)e->num_local);
    if (e->options.comm)
        comms[0] = e->options.comm;
    else if (e->num_ranks == 1)
        PLAIT_TRY(plait_comm_self_open(NULL, comms));
    else
        PLAIT_TRY(plait_comm_threads_open(e->num_ranks, e->options.comm_timeout_s, NULL, comms));
    for (int32_t i = 0; i < e->num_local; i++) {
        plait_rank *r = &e->ranks[i];
        r->engine = e;
        r->rank = plait_comm_rank(comms[i]);
        r->ranks = comms[i];
    }
    for (int32_t i = 0; i < e->num_local; i++) {
        plait_rank *r = &e->ranks[i];
        PLAIT_TRY(plait_heads_of_rank(&heads, r->rank, &r->heads));
        for (int32_t d = 0; d < e->options.dcp; d++) {
            plait_heads_rank other;
            PLAIT_TRY(plait_heads_of_rank(&heads, r->heads.dcp_group * e->options.dcp + d, &other));
            r->dcp_heads[d] = other.head_end - other.head_begin;
        }
        PLAIT_TRY(plait_rank_layout_draft(r));
    }
    return PLAIT_OK;
}

static plait_status open_files(plait_engine *e)
{
    const char *dir = e->options.model_dir;
    PLAIT_TRY(plait_config_load(dir, &e->config));
    const plait_config *c = &e->config;
    PLAIT_TRY(plait_engine_open_draft(e));
    PLAIT_TRY(plait_tokenizer_open(dir, &e->tokenizer));
    PLAIT_TRY(plait_checkpoint_open(dir, c, &e->checkpoint));
    PLAIT_TRY(plait_rope_table_open(&c->rope, c->max_position, &e->rope));
    e->embedding = malloc((size_t)c->vocab_size * (size_t)c->hidden_size * sizeof(float));
    if (!e->embedding)
        return plait_fail(PLAIT_E_NOMEM, "no memory for %d embeddings", (int)c->vocab_size);
    const plait_slice all = PLAIT_SLICE_MATRIX(c->vocab_size, c->hidden_size);
    return plait_checkpoint_load(e->checkpoint, "model.embed_tokens.weight", &all, PLAIT_F32,
                                 e->embedding, c->hidden_size);
}

static plait_status open_engine(plait_engine *e)
{
    plait_engine_options *o = &e->options;
    if (o->kv_dtype == PLAIT_KV_DTYPE_AUTO)
        o->kv_dtype = (int32_t)o->dtype;
    e->num_ranks = o->tp;
    e->num_local = o->comm ? 1 : o->tp;
    const int32_t useful = plait_threads_default(1);
    const int32_t threads = o->threads ? o->threads : useful;
    e->threads_per_rank = threads / o->tp > 0 ? threads / o->tp : 1;
    if (!o->comm && o->threads > useful && o->threads > o->tp)
        plait_notice("%d threads were asked for and %d can run at once here: more only wait for "
                     "each other",
                     o->threads, useful);
    plait_status status = open_files(e);
    if (status == PLAIT_OK)
        status = layout_ranks(e);
    PLAIT_TRY(plait_engine_agree_model(e, status));
    PLAIT_TRY(plait_engine_run(e, open_rank, NULL));
    plait_checkpoint_finish(e->checkpoint, &e->config);
    plait_checkpoint_close(&e->checkpoint);
    plait_checkpoint_close(&e->eagle3.checkpoint);
    return PLAIT_OK;
}

plait_status plait_engine_open(const plait_engine_options *options, plait_engine **out)
{
    *out = NULL;
    PLAIT_TRY(check_size(options));
    plait_engine_options o = *options;
    if (o.tp == 0)
        o.tp = o.comm ? plait_comm_size(o.comm) : o.dcp;
    plait_status status = check_options(&o);
    plait_engine *e = status == PLAIT_OK ? calloc(1, sizeof *e) : NULL;
    if (status == PLAIT_OK && !e)
        status = plait_fail(PLAIT_E_NOMEM, "no memory for an engine");
    status = plait_engine_agree_options(&o, status);
    if (status != PLAIT_OK) {
        free(e);
        return status;
    }
    e->options = o;
    status = open_engine(e);
    if (status != PLAIT_OK)
        plait_engine_close(&e);
    else
        e->options.model_dir = e->options.draft_dir = NULL;
    *out = e;
    return status;
}

static void close_rank(plait_rank *r)
{
    plait_trace_close(&r->trace);
    plait_session_close(&r->session);
    if (r->pass.model)
        plait_pass_close(&r->pass);
    plait_kv_close(&r->target);
    plait_kv_close(&r->draft);
    plait_attend_close(&r->draft_attend);
    plait_attend_close(&r->attend);
    plait_model_close(&r->model);
    plait_gemm_set_close(&r->gemms);
    plait_comm_close(&r->dcp_ranks);
    if (!r->engine->options.comm)
        plait_comm_close(&r->ranks);
    plait_pool_close(&r->pool);
}

void plait_engine_close(plait_engine **engine)
{
    plait_engine *e = *engine;
    if (!e)
        return;
    for (int32_t i = 0; e->ranks && i < e->num_local; i++)
        close_rank(&e->ranks[i]);
    free(e->ranks);
    free(e->embedding);
    plait_eagle3_close(&e->eagle3);
    plait_rope_table_close(&e->draft_rope);
    plait_rope_table_close(&e->rope);
    plait_checkpoint_close(&e->checkpoint);
    plait_tokenizer_close(&e->tokenizer);
    free(e);
    *engine = NULL;
}

const plait_trace_span *plait_engine_trace(const plait_engine *e, int32_t rank, int64_t *num,
                                           int64_t *dropped)
{
    *num = *dropped = 0;
    for (int32_t i = 0; i < e->num_local; i++) {
        const plait_trace *t = &e->ranks[i].trace;
        if (e->ranks[i].rank != rank)
            continue;
        *num = t->num;
        *dropped = t->dropped;
        return t->spans;
    }
    return NULL;
}

plait_status plait_engine_get_info(const plait_engine *e, plait_engine_info *out)
{
    const plait_config *c = &e->config;
    const plait_kv_group *g = &e->ranks[0].target;
    *out = (plait_engine_info){c->vocab_size,         c->num_layers,
                               c->hidden_size,        c->num_heads,
                               c->max_position,       e->num_ranks,
                               e->options.dcp,        e->num_ranks * e->threads_per_rank,
                               c->num_mtp_layers > 0, plait_kv_page_bytes(g) / g->page_size};
    return PLAIT_OK;
}
