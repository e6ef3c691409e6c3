/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session_schedule.c: who is in the next step.
 *
 * Requests wait in their order. The first one takes a place as soon as there is one and the pages
 * of all its tokens, up to its limit, are not promised to others: what was admitted always runs to
 * its end. Sequences that decode take turns if their rows are more than a step has; while a prompt
 * is being read, a quarter of the rows is kept for it, so that neither waits for ever. Every rank
 * comes to the same decisions, from lengths and tokens; what only rank 0 knows is exchanged.
 */
#include <string.h>
#include <time.h>

#include "core/status.h"
#include "engine/session.h"

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int is_prefilling(const plait_sequence *q)
{
    return q->num_cached < q->num_prompt;
}

/* ---- admission ------------------------------------------------------------------------------- */

static void start(plait_session *s, plait_sequence *q, const plait_job *job)
{
    int32_t *ids = q->ids;
    float *state = q->state;
    memset(q, 0, sizeof *q);
    q->ids = ids;
    q->state = state;
    q->request = job->request;
    q->stops = &job->stops;
    q->index = (int32_t)(job - s->jobs);
    q->num_prompt = q->num_known = job->num_prompt;
    q->limit = job->limit;
    q->num_reused = -1;
    q->start_s = now_s();
    memcpy(ids, job->prompt, (size_t)job->num_prompt * sizeof *ids);
    if (s->spec_auto)
        plait_auto_start(s, q);
}

static void admit(plait_session *s)
{
    for (int32_t i = 0; i < PLAIT_SESSION_BATCH && s->next_job < s->num_jobs; i++) {
        const plait_job *job = &s->jobs[s->next_job];
        if (s->sequences[i].request)
            continue;
        /* The last token is never cached. */
        if (!plait_kv_fits(s->target, job->limit - 1) ||
            (s->draft && !plait_kv_fits(s->draft, job->limit - 1)))
            break;
        plait_kv_promise(s->target, i, job->limit - 1);
        if (s->draft)
            plait_kv_promise(s->draft, i, job->limit - 1);
        start(s, &s->sequences[i], job);
        s->next_job++;
    }
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* The places that decode in this step, in turn. Returns their number. */
static int32_t list_decodes(plait_session *s, int32_t most, int32_t *list, int32_t *rows)
{
    int32_t num = 0;
    *rows = 0;
    for (int32_t i = 0; i < PLAIT_SESSION_BATCH; i++) {
        const int32_t place = (s->turn + i) % PLAIT_SESSION_BATCH;
        const plait_sequence *q = &s->sequences[place];
        if (!q->request || is_prefilling(q))
            continue;
        const int32_t more = 1 + plait_session_room(s, q);
        if (num && *rows + more > most) {
            s->turn = place;
            break;
        }
        list[num++] = place;
        *rows += more;
    }
    return num;
}

/* The place whose prompt is to be read after that of request `after`: requests go in order. */
static int32_t next_prefill(const plait_session *s, int32_t after)
{
    int32_t best = -1;
    for (int32_t i = 0; i < PLAIT_SESSION_BATCH; i++) {
        const plait_sequence *q = &s->sequences[i];
        if (q->request && is_prefilling(q) && q->index > after &&
            (best < 0 || q->index < s->sequences[best].index))
            best = i;
    }
    return best;
}

/* Looks a prompt up in the prefix cache when it is about to be read: by then, those before it may
   have left their prefixes. */
static void look_up(plait_session *s, int32_t place)
{
    plait_sequence *q = &s->sequences[place];
    if (q->num_reused < 0)
        q->num_reused =
            plait_kv_reuse(s->target, s->draft, place, q->ids, q->num_prompt, &q->num_cached);
}

static int32_t list_prefills(plait_session *s, int32_t rows, int32_t *list, int32_t *chunk)
{
    int32_t num = 0;
    for (int32_t i = next_prefill(s, -1); i >= 0 && rows > 0;
         i = next_prefill(s, s->sequences[i].index)) {
        look_up(s, i);
        const int64_t rest = s->sequences[i].num_prompt - s->sequences[i].num_cached;
        list[num] = i;
        chunk[num] = rest < rows ? (int32_t)rest : rows;
        rows -= chunk[num++];
    }
    return num;
}

static plait_status step(plait_session *s)
{
    int32_t decode[PLAIT_SESSION_BATCH], prefill[PLAIT_SESSION_BATCH], chunk[PLAIT_SESSION_BATCH];
    const int32_t kept = next_prefill(s, -1) >= 0 ? s->max_rows / 4 : 0;
    int32_t rows;
    const int32_t num = list_decodes(s, s->max_rows - kept, decode, &rows);
    const int32_t prefills = list_prefills(s, s->max_rows - rows, prefill, chunk);
    return plait_session_step(s, num, decode, prefills, prefill, chunk);
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Ends the requests that the caller gave up, on all ranks. */
static plait_status cancel(plait_session *s)
{
    plait_comm *ranks = s->pass->attend->options.ranks;
    uint32_t of_ranks[PLAIT_COMM_MAX_RANKS] = {s->cancelled};
    if (plait_comm_size(ranks) > 1)
        PLAIT_TRY(plait_comm_exchange(ranks, "cancelled requests", PLAIT_OK, &s->cancelled,
                                      sizeof s->cancelled, of_ranks));
    s->cancelled = 0;
    for (int32_t i = 0; i < PLAIT_SESSION_BATCH; i++) {
        plait_sequence *q = &s->sequences[i];
        if (!(of_ranks[0] >> i & 1) || !q->request)
            continue;
        q->cancelled = 1;
        s->text.bytes = 0;
        PLAIT_TRY(plait_session_finish(s, q));
        PLAIT_TRY(plait_session_settle(s, i));
        plait_session_leave(s, i);
    }
    return PLAIT_OK;
}

static int is_running(const plait_session *s)
{
    for (int32_t i = 0; i < PLAIT_SESSION_BATCH; i++) {
        if (s->sequences[i].request)
            return 1;
    }
    return 0;
}

plait_status plait_session_run(plait_session *s, const plait_job *jobs, int32_t num)
{
    s->jobs = jobs;
    s->num_jobs = num;
    s->next_job = s->turn = 0;
    s->cancelled = 0;
    s->most_kv = s->most_draft_kv = 0;
    for (int32_t i = 0; i < PLAIT_SESSION_BATCH; i++)
        s->sequences[i].request = NULL;
    for (admit(s); is_running(s); admit(s)) {
        PLAIT_TRY(step(s));
        PLAIT_TRY(cancel(s));
    }
    return PLAIT_OK;
}
