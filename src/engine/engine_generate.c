/* SPDX-License-Identifier: Apache-2.0 */
/* engine_generate.c: requests in, tokens, text and counts out; teacher-forced logits. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "engine/engine_ranks.h"

/* A call of generate or logits, shared by the ranks. */
struct call {
    plait_job *jobs; /* [num] */
    int32_t num;
    int64_t target_pages, draft_pages; /* of each rank */
    plait_output output;
    plait_generation *generation;
};

/* ---- requests -------------------------------------------------------------------------------- */

static plait_status copy_prompt(const plait_engine *e, const plait_request *r, int32_t index,
                                int32_t **ids, int64_t *length)
{
    if (r->size != sizeof *r)
        return plait_fail(PLAIT_E_ARG, "request %d of %zu bytes, wanted %zu", (int)index, r->size,
                          sizeof *r);
    if (r->max_new_tokens < 1)
        return plait_fail(PLAIT_E_ARG, "request %d: max_new_tokens %d must be at least 1",
                          (int)index, (int)r->max_new_tokens);
    size_t n = 0;
    if (r->ids) {
        n = r->num_ids > 0 ? (size_t)r->num_ids : 0;
        *ids = malloc((n + 1) * sizeof **ids);
        if (!*ids)
            return plait_fail(PLAIT_E_NOMEM, "no memory for a prompt of %zu tokens", n);
        memcpy(*ids, r->ids, n * sizeof **ids);
    } else if (r->text && r->text_bytes) {
        PLAIT_TRY(plait_tokenizer_encode(e->tokenizer, r->text, r->text_bytes, true, ids, &n));
    }
    if (n == 0)
        return plait_fail(PLAIT_E_ARG, "request %d: the prompt is empty", (int)index);
    for (size_t i = 0; i < n; i++) {
        if ((*ids)[i] < 0 || (*ids)[i] >= e->config.vocab_size)
            return plait_fail(PLAIT_E_ARG,
                              "request %d: token id %d is outside the vocabulary of %d", (int)index,
                              (int)(*ids)[i], (int)e->config.vocab_size);
    }
    *length = (int64_t)n;
    return PLAIT_OK;
}

/* Pages of both groups for one sequence with `length` tokens in the cache. */
static void count_pages(const plait_rank *r, int64_t length, int64_t *target, int64_t *draft)
{
    *target = plait_shard_pages(r->target.shard, length, r->target.page_size);
    *draft = r->session.draft ? plait_shard_pages(r->draft.shard, length, r->draft.page_size) : 0;
}

static int64_t page_bytes(const plait_rank *r, int64_t target, int64_t draft)
{
    return target * plait_kv_page_bytes(&r->target) +
           (draft ? draft * plait_kv_page_bytes(&r->draft) : 0);
}

/* The longest sequence up to `high` tokens whose pages take at most `bytes`. */
static int64_t longest_fit(const plait_engine *e, int64_t bytes, int64_t high)
{
    int64_t low = 0, target, draft;
    while (low < high) {
        const int64_t middle = low + (high - low + 1) / 2;
        count_pages(&e->ranks[0], middle - 1, &target, &draft);
        if (page_bytes(&e->ranks[0], target, draft) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static plait_status refuse_pages(const plait_engine *e, int32_t index, int64_t target,
                                 int64_t draft)
{
    const plait_rank *r = &e->ranks[0];
    const long long bytes = (long long)page_bytes(r, target, draft);
    const long long page = (long long)plait_kv_page_bytes(&r->target);
    const long long draft_page = draft ? (long long)plait_kv_page_bytes(&r->draft) : 0;
    const int64_t available = e->options.kv_cache_bytes;
    const int64_t longest = longest_fit(e, available, e->config.max_position);
    /* One token needs no page, but the shortest request has one of prompt and a new one. */
    if (longest < 2)
        return plait_fail(PLAIT_E_NOMEM,
                          "request %d: the KV cache is too small: %lld bytes needed for each rank, "
                          "%lld available; no sequence fits (%lld pages of %lld bytes, %lld of "
                          "drafts of %lld)",
                          (int)index, bytes, (long long)available, (long long)target, page,
                          (long long)draft, draft_page);
    return plait_fail(
        PLAIT_E_NOMEM,
        "request %d: the KV cache is too small: %lld bytes needed for each rank, "
        "%lld available; the longest sequence that fits has %lld tokens (%lld pages "
        "of %lld bytes, %lld of drafts of %lld; beside the cache %zu bytes of attention "
        "workspace)",
        (int)index, bytes, (long long)available, (long long)longest, (long long)target, page,
        (long long)draft, draft_page, r->attend.workspace_bytes);
}

static plait_status plan_request(const plait_engine *e, const plait_request *r, int32_t index,
                                 plait_job *job)
{
    const int64_t longest = e->config.max_position, available = e->options.kv_cache_bytes;
    int64_t target, draft;
    job->request = r;
    PLAIT_TRY(copy_prompt(e, r, index, &job->prompt, &job->num_prompt));
    PLAIT_TRY(plait_sample_check(r, index));
    PLAIT_TRY(plait_stops_open(r->stop_texts, r->num_stop_texts, index, &job->stops));
    if (job->num_prompt >= longest)
        return plait_fail(PLAIT_E_UNSUPPORTED,
                          "request %d: a prompt of %lld tokens, the model takes %lld with at least "
                          "one new token",
                          (int)index, (long long)job->num_prompt, (long long)longest - 1);
    job->limit = job->num_prompt + r->max_new_tokens;
    job->limit = job->limit < longest ? job->limit : longest;
    /* The last token is never cached. */
    count_pages(&e->ranks[0], job->limit - 1, &target, &draft);
    if (available && page_bytes(&e->ranks[0], target, draft) > available)
        return refuse_pages(e, index, target, draft);
    return PLAIT_OK;
}

static int longest_first(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Pages for the longest requests that can run at one time; or the pages of the longest sequence
   that the cache may take, however long, so that whatever fits by itself fits in both groups. */
static void plan_pages(const plait_engine *e, struct call *call, int64_t *limits)
{
    const plait_rank *r = &e->ranks[0];
    int64_t target, draft;
    if (e->options.kv_cache_bytes) {
        count_pages(r, longest_fit(e, e->options.kv_cache_bytes, INT32_MAX) - 1,
                    &call->target_pages, &call->draft_pages);
        return;
    }
    for (int32_t i = 0; i < call->num; i++)
        limits[i] = call->jobs[i].limit;
    qsort(limits, (size_t)call->num, sizeof *limits, longest_first);
    for (int32_t i = 0; i < call->num && i < PLAIT_SESSION_BATCH; i++) {
        count_pages(r, limits[i] - 1, &target, &draft);
        call->target_pages += target;
        call->draft_pages += draft;
    }
}

static plait_status plan_requests(const plait_engine *e, const plait_request *requests,
                                  struct call *call)
{
    for (int32_t i = 0; i < call->num; i++) {
        plait_job *job = &call->jobs[i];
        PLAIT_TRY(plan_request(e, &requests[i], i, job));
        PLAIT_TRY(plait_sample_open_result(&requests[i], job->limit - job->num_prompt,
                                           &call->generation->results[i]));
    }
    int64_t *limits = malloc((size_t)call->num * sizeof *limits);
    if (!limits)
        return plait_fail(PLAIT_E_NOMEM, "no memory for %d requests", (int)call->num);
    plan_pages(e, call, limits);
    free(limits);
    return PLAIT_OK;
}

/* Over what decides which tokens come. */
static uint64_t hash_requests(const struct call *call)
{
    uint64_t hash = plait_engine_hash(0, &call->num, sizeof call->num);
    for (int32_t i = 0; call->jobs && i < call->num && call->jobs[i].prompt; i++) {
        const plait_job *job = &call->jobs[i];
        const plait_request *r = job->request;
        const int64_t numbers[] = {job->num_prompt, job->limit, r->ignore_eos, r->num_stop_ids};
        const double sampling[] = {r->temperature, r->top_p};
        const uint64_t seeds[] = {(uint64_t)r->top_k, r->seed, r->seed_request};
        hash = plait_engine_hash(hash, numbers, sizeof numbers);
        hash = plait_engine_hash(hash, sampling, sizeof sampling);
        hash = plait_engine_hash(hash, seeds, sizeof seeds);
        hash = plait_engine_hash(hash, job->prompt, (size_t)job->num_prompt * sizeof *job->prompt);
        if (r->num_stop_ids > 0)
            hash =
                plait_engine_hash(hash, r->stop_ids, (size_t)r->num_stop_ids * sizeof *r->stop_ids);
        for (int32_t s = 0; s < job->stops.num; s++)
            hash = plait_engine_hash(hash, r->stop_texts[s], (size_t)job->stops.lengths[s] + 1);
    }
    return hash;
}

/* ---- running --------------------------------------------------------------------------------- */

static plait_status reserve_caches(plait_rank *r, const struct call *call)
{
    const int64_t longest = r->engine->config.max_position;
    const plait_executor *executor = r->pass.executor;
    PLAIT_TRY(plait_kv_reserve(&r->target, call->target_pages, PLAIT_SESSION_BATCH, longest));
    if (r->session.draft)
        PLAIT_TRY(plait_kv_reserve(&r->draft, call->draft_pages, PLAIT_SESSION_BATCH, longest));
    return executor->parallel_for(executor->user, plait_gemm_ready, NULL);
}

static plait_status generate_rank(plait_rank *r, void *arg)
{
    struct call *call = arg;
    plait_generation *g = call->generation;
    const int first = r == r->engine->ranks; /* of this process: the one that tells */
    PLAIT_TRY(plait_rank_agree(r, "reserve memory", reserve_caches(r, call)));
    r->session.output = first ? &call->output : NULL;
    PLAIT_TRY(plait_session_run(&r->session, call->jobs, call->num));
    const int64_t used[2] = {r->session.most_kv, r->session.most_draft_kv};
    int64_t all[PLAIT_COMM_MAX_RANKS][2];
    PLAIT_TRY(plait_comm_exchange(r->ranks, "KV bytes", PLAIT_OK, used, sizeof used, all));
    if (!first)
        return PLAIT_OK;
    for (int32_t i = 0; i < r->engine->num_ranks; i++) {
        g->kv_bytes[i] = all[i][0];
        g->draft_kv_bytes[i] = all[i][1];
    }
    g->kernel = r->attend.kernel->name;
    g->exchange = !r->attend.dcp                                              ? "none"
                  : plait_dcp_exchange(r->attend.dcp) == PLAIT_EXCHANGE_AG_RS ? "ag_rs"
                                                                              : "a2a";
    return PLAIT_OK;
}

/* Ids and text of all results up to their limits: running allocates nothing. */
static plait_status open_results(const plait_engine *e, struct call *call)
{
    const size_t token = plait_tokenizer_max_push(e->tokenizer);
    for (int32_t i = 0; i < call->num; i++) {
        plait_result *r = &call->output.results[i];
        const size_t most = (size_t)(call->jobs[i].limit - call->jobs[i].num_prompt);
        r->ids = malloc(most * sizeof *r->ids);
        r->text = malloc(most * token + 4);
        if (!r->ids || !r->text)
            return plait_fail(PLAIT_E_NOMEM, "no memory for %zu new tokens of request %d", most,
                              (int)i);
        r->text[0] = 0;
    }
    return PLAIT_OK;
}

static plait_status open_generation(const plait_engine *e, struct call *call)
{
    plait_generation *g = calloc(1, sizeof *g);
    call->generation = g;
    if (!g)
        return plait_fail(PLAIT_E_NOMEM, "no memory for results");
    g->num_results = call->num;
    g->num_ranks = e->num_ranks;
    g->results = calloc((size_t)call->num, sizeof *g->results);
    g->kv_bytes = calloc((size_t)e->num_ranks, sizeof *g->kv_bytes);
    g->draft_kv_bytes = calloc((size_t)e->num_ranks, sizeof *g->draft_kv_bytes);
    call->jobs = calloc((size_t)call->num, sizeof *call->jobs);
    call->output.results = g->results;
    if (!g->results || !g->kv_bytes || !g->draft_kv_bytes || !call->jobs)
        return plait_fail(PLAIT_E_NOMEM, "no memory for %d requests", (int)call->num);
    return PLAIT_OK;
}

/* Whatever a failed call left. Its engine runs nothing more. */
static void leave_tables(plait_kv_group *g)
{
    for (int32_t i = 0; i < g->num_tables; i++)
        plait_kv_leave(g, i);
}

static void close_call(plait_engine *e, struct call *call)
{
    for (int32_t i = 0; call->jobs && i < call->num; i++) {
        free(call->jobs[i].prompt);
        plait_stops_close(&call->jobs[i].stops);
    }
    free(call->jobs);
    for (int32_t r = 0; r < e->num_local; r++) {
        leave_tables(&e->ranks[r].target);
        leave_tables(&e->ranks[r].draft);
    }
}

static plait_status check_usable(const plait_engine *e)
{
    if (e->failed)
        return plait_fail(PLAIT_E_STATE, "an earlier call on this engine failed: close it and open "
                                         "another");
    return PLAIT_OK;
}

plait_status plait_engine_generate(plait_engine *e, const plait_request *requests, int32_t num,
                                   plait_stream_fn fn, void *user, plait_generation **out)
{
    *out = NULL;
    PLAIT_TRY(check_usable(e));
    if (num < 1 || !requests)
        return plait_fail(PLAIT_E_ARG, "%d requests, wanted at least 1", (int)num);
    struct call call = {0};
    call.num = num;
    call.output.fn = e->ranks[0].rank == 0 ? fn : NULL;
    call.output.user = user;
    plait_status status = open_generation(e, &call);
    if (status == PLAIT_OK)
        status = plan_requests(e, requests, &call);
    if (status == PLAIT_OK)
        status = open_results(e, &call);
    status = plait_engine_agree_requests(e, hash_requests(&call), status);
    if (status == PLAIT_OK) {
        status = plait_engine_run(e, generate_rank, &call);
        e->failed = status != PLAIT_OK;
    }
    close_call(e, &call);
    if (status != PLAIT_OK)
        plait_generation_close(&call.generation);
    *out = call.generation;
    return status;
}

const char *plait_finish_name(plait_finish finish)
{
    static const char *const names[] = {"length", "stop", "cancelled"};
    return finish >= PLAIT_FINISH_LENGTH && finish <= PLAIT_FINISH_CANCELLED ? names[finish] : "?";
}

void plait_generation_close(plait_generation **generation)
{
    plait_generation *g = *generation;
    if (!g)
        return;
    for (int32_t i = 0; g->results && i < g->num_results; i++) {
        free(g->results[i].ids);
        free(g->results[i].text);
        free(g->results[i].logprobs);
        free(g->results[i].top_ids);
        free(g->results[i].top_logprobs);
    }
    free(g->results);
    free(g->kv_bytes);
    free(g->draft_kv_bytes);
    free(g);
    *generation = NULL;
}

/* ---- teacher-forced logits ------------------------------------------------------------------- */

struct forced {
    struct call call;
    const int32_t *ids;
    int64_t num;
    int32_t chunk, more_drafts;
    float *logits, *margin, *draft_logits;
};

/* Logits of the pass's `count` states to out (rank 0 only), row by row; by the target's head
   where fn is NULL. */
static plait_status put_logits(plait_rank *r, plait_logits_fn fn, int32_t count, float *out)
{
    plait_pass *p = &r->pass;
    const int64_t vocab = r->engine->config.vocab_size, hidden = r->engine->config.hidden_size;
    for (int32_t at = 0; at < count; at += p->max_logit_rows) {
        const int32_t n = count - at < p->max_logit_rows ? count - at : p->max_logit_rows;
        PLAIT_TRY(fn ? fn(&r->session, p->hidden + at * hidden, n)
                     : plait_pass_logits(p, p->hidden + at * hidden, n));
        if (r->rank == 0)
            memcpy(out + at * vocab, p->logits, (size_t)(n * vocab) * sizeof(float));
    }
    return PLAIT_OK;
}

static plait_status forced_chunk(plait_rank *r, const struct forced *f, int64_t at, int32_t count)
{
    plait_session *s = &r->session;
    const int64_t vocab = r->engine->config.vocab_size;
    s->tables[0] = 0;
    s->starts[0] = at;
    s->counts[0] = count;
    s->is_prompt[0] = 1;
    PLAIT_TRY(plait_session_begin(s, s->target, 1));
    PLAIT_TRY(plait_pass_target(&r->pass, s->target, f->ids + at));
    if (f->margin && r->rank == 0)
        memcpy(f->margin + at, r->pass.margin, (size_t)count * sizeof(float));
    if (f->logits)
        PLAIT_TRY(put_logits(r, NULL, count, f->logits + at * vocab));
    s->counts[0] = at + count < f->num ? count : count - 1;
    if (!f->draft_logits || s->counts[0] == 0)
        return PLAIT_OK;
    s->sequences[0].row = 0;
    PLAIT_TRY(plait_draft_catch_up(s, 1));
    /* That wrote their KV; the states of all of them take the whole layer. */
    PLAIT_TRY(s->drafter->run(s, s->ids, s->states));
    return put_logits(r, s->drafter->logits, s->counts[0], f->draft_logits + at * vocab);
}

/* Rows of the draft layer after the last one: the draft that the row before chose, with the state
   that it gave. */
static plait_status forced_drafts(plait_rank *r, const struct forced *f)
{
    plait_session *s = &r->session;
    const int64_t vocab = r->engine->config.vocab_size;
    const int64_t hidden = r->engine->config.hidden_size;
    int32_t row = s->counts[0] - 1;
    for (int32_t i = 0; i < f->more_drafts; i++, row = 0) {
        memcpy(s->states, r->pass.hidden + row * hidden, (size_t)hidden * sizeof(float));
        PLAIT_TRY(plait_session_choose(s, s->drafter->logits, s->states, 1, NULL, s->ids));
        s->tables[0] = 0;
        s->starts[0] = f->num - 1 + i;
        s->counts[0] = 1;
        s->is_prompt[0] = 0;
        PLAIT_TRY(plait_session_begin(s, s->draft, 1));
        PLAIT_TRY(s->drafter->run(s, s->ids, s->states));
        PLAIT_TRY(put_logits(r, s->drafter->logits, 1, f->draft_logits + (f->num - 1 + i) * vocab));
    }
    return PLAIT_OK;
}

static plait_status forced_rank(plait_rank *r, void *arg)
{
    const struct forced *f = arg;
    PLAIT_TRY(plait_rank_agree(r, "reserve memory", reserve_caches(r, &f->call)));
    memcpy(r->session.sequences[0].ids, f->ids, (size_t)f->num * sizeof *f->ids);
    for (int64_t at = 0; at < f->num; at += f->chunk) {
        const int64_t rest = f->num - at;
        PLAIT_TRY(forced_chunk(r, f, at, (int32_t)(rest < f->chunk ? rest : f->chunk)));
    }
    return f->draft_logits ? forced_drafts(r, f) : PLAIT_OK;
}

plait_status plait_engine_logits(plait_engine *e, const int32_t *ids, int64_t num_ids,
                                 int32_t chunk, float *logits, float *router_margin,
                                 float *draft_logits, int32_t more_drafts)
{
    PLAIT_TRY(check_usable(e));
    if (draft_logits && !e->ranks[0].session.draft)
        return plait_fail(PLAIT_E_ARG,
                          "draft logits need an engine opened with draft mtp or eagle3");
    if (chunk < 0 || more_drafts < 0)
        return plait_fail(PLAIT_E_ARG, "chunk %d and more_drafts %d must not be negative",
                          (int)chunk, (int)more_drafts);
    if (more_drafts && num_ids < 2)
        return plait_fail(PLAIT_E_ARG, "drafts need at least 2 tokens, not %lld",
                          (long long)num_ids);
    plait_request request = PLAIT_REQUEST_INIT;
    request.ids = ids;
    request.num_ids = num_ids;
    request.max_new_tokens = 1 + more_drafts;
    struct forced f = {0};
    f.call.num = 1;
    f.ids = ids;
    f.num = num_ids;
    f.chunk = chunk && chunk < PLAIT_ENGINE_ROWS ? chunk : PLAIT_ENGINE_ROWS;
    f.logits = logits;
    f.margin = router_margin;
    f.draft_logits = draft_logits;
    f.more_drafts = more_drafts;
    plait_status status = open_generation(e, &f.call);
    if (status == PLAIT_OK)
        status = plan_requests(e, &request, &f.call);
    status = plait_engine_agree_requests(e, hash_requests(&f.call), status);
    if (status == PLAIT_OK) {
        status = plait_engine_run(e, forced_rank, &f);
        e->failed = status != PLAIT_OK;
    }
    close_call(e, &f.call);
    plait_generation_close(&f.call.generation);
    return status;
}
