/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto.c: how many drafts a sequence gets when the caller leaves it to us.
 *
 * Two things are measured: what a step costs, by the rows of its target pass and by the rounds of
 * its drafting, and which share of the drafts of each depth stood in a sequence. A sequence gets
 * the number of drafts with the most tokens a second for the whole batch, 0 where drafts do not
 * pay. There it tries a draft again after a while, and after twice as long each time. Times are
 * rank 0's, and everything else is the same on all ranks: so are the decisions. Nothing here
 * changes which tokens come, but for those of sampled requests.
 */
#include "engine/auto.h"

#include <math.h>

#include "core/status.h"
#include "engine/session.h"

enum {
    FIRST_DRAFTS = 2, /* of the first step with drafts, which tells what they cost */
    RETRY_DRAFTS = 1, /* of a sequence whose drafts did not pay */
    RETRY_AFTER = 32  /* its first steps without */
};

static const float kept_prior = 0.6f; /* share of a draft that stands, before anything is known */
static const float prior_weight = 2;
static const float forget = 0.95f; /* weight of what was a trial ago */

/* ---- costs ----------------------------------------------------------------------------------- */

/* Steps are late for reasons of their own more often than early. */
static void note(float *cost, float seconds)
{
    if (*cost <= 0)
        *cost = seconds;
    else
        *cost += (seconds < *cost ? 0.5f : 0.2f) * (seconds - *cost);
}

/* The cost at `at`: more never costs less, so what is known of larger steps bounds it, else the
   line through the known ones around it or through the first and the last one. */
static float cost_at(const float *costs, int32_t n, int32_t at)
{
    int32_t below = -1, above = -1, first = -1;
    float bound = INFINITY, lower = 0;
    for (int32_t i = n - 1; i >= 0; i--) {
        if (costs[i] <= 0)
            continue;
        bound = i >= at && costs[i] < bound ? costs[i] : bound;
        above = i >= at ? i : above;
        below = i < at && below < 0 ? i : below;
        first = i;
    }
    if (above == at || below < 0)
        return bound < INFINITY ? bound : 0;
    if (above < 0) {
        above = below;
        below = first;
    }
    lower = costs[below] < costs[above] ? costs[below] : costs[above];
    if (above == below)
        return lower;
    const float slope = (costs[above] - lower) / (float)(above - below);
    const float line = lower + slope * (float)(at - below);
    return line < bound ? line : bound;
}

static float step_cost(const plait_auto *a, int32_t rows, int32_t drafts)
{
    const int32_t n = PLAIT_AUTO_DRAFTS + 1;
    return cost_at(a->target_s, PLAIT_AUTO_ROWS, rows) +
           (drafts ? cost_at(a->draft_s, n, drafts) : 0);
}

/* ---- gains ----------------------------------------------------------------------------------- */

static void count_kept(plait_sequence *q)
{
    plait_auto_counts *c = &q->counts;
    for (int32_t i = 0; i < q->num_drafts && i <= q->last_accepted && i < PLAIT_AUTO_DRAFTS; i++) {
        c->tried[i] = forget * c->tried[i] + 1;
        c->kept[i] = forget * c->kept[i] + (float)(i < q->last_accepted);
    }
}

/* Tokens that a step with `drafts` drafts is to gain. */
static float gain_of(const plait_sequence *q, int32_t drafts)
{
    float share = kept_prior, all = 1, gain = 1;
    for (int32_t i = 0; i < drafts; i++) {
        share = (q->counts.kept[i] + prior_weight * share) / (q->counts.tried[i] + prior_weight);
        all *= share;
        gain += all;
    }
    return gain;
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* The best number for one sequence beside what the others do. */
static int32_t best_drafts(const plait_session *s, const plait_sequence *q, float gain,
                           int32_t rows, int32_t rounds)
{
    float best_rate = 0;
    int32_t best = 0;
    for (int32_t k = 0; k <= s->spec_tokens; k++) {
        const float cost = step_cost(&s->adapt, rows + 1 + k, k > rounds ? k : rounds);
        const float rate = cost > 0 ? (gain + gain_of(q, k)) / cost : 0;
        if (rate > best_rate) {
            best_rate = rate;
            best = k;
        }
    }
    return best;
}

static void choose_drafts(plait_session *s, plait_sequence *q, float gain, int32_t rows,
                          int32_t rounds)
{
    plait_auto_counts *c = &q->counts;
    if (!s->adapt.knows_drafts) {
        c->wanted = s->adapt.knows_plain ? FIRST_DRAFTS : 0;
        return;
    }
    const int32_t best = best_drafts(s, q, gain, rows, rounds);
    c->idle = q->num_drafts > 0 ? 0 : c->idle + 1;
    if (best > 0)
        c->retry_after = RETRY_AFTER;
    c->wanted = best;
    if (best == 0 && c->idle >= c->retry_after) {
        /* A drafter may have nothing to say: it is asked until it has. */
        c->wanted = RETRY_DRAFTS;
        if (q->num_drafts > 0 || c->idle == c->retry_after)
            c->retry_after *= 2;
    }
}

plait_status plait_auto_learn(plait_session *s, const plait_auto_times *times, int32_t num,
                              const int32_t *list, int32_t with_prompts)
{
    plait_comm *ranks = s->pass->attend->options.ranks;
    plait_auto_times all[PLAIT_COMM_MAX_RANKS] = {*times};
    int32_t rows = 0, rounds = 0;
    float gain = 0;
    if (plait_comm_size(ranks) > 1)
        PLAIT_TRY(
            plait_comm_exchange(ranks, "times of a step", PLAIT_OK, times, sizeof *times, all));
    for (int32_t i = 0; i < num; i++) {
        const plait_sequence *q = &s->sequences[list[i]];
        rows += 1 + q->num_drafts;
        rounds = q->num_drafts > rounds ? q->num_drafts : rounds;
        count_kept(&s->sequences[list[i]]);
    }
    /* The first step of all is slow: caches are cold and memory is new. */
    if (!with_prompts && num > 0 && rows < PLAIT_AUTO_ROWS && s->adapt.steps++ > 0) {
        note(&s->adapt.target_s[rows], all[0].target_s);
        if (rounds > 0)
            note(&s->adapt.draft_s[rounds], all[0].draft_s);
        s->adapt.knows_plain |= rounds == 0;
        s->adapt.knows_drafts |= rounds > 0;
    }
    rows = rounds = 0;
    for (int32_t i = 0; i < num; i++) {
        const plait_sequence *q = &s->sequences[list[i]];
        rows += 1 + q->counts.wanted;
        gain += gain_of(q, q->counts.wanted);
    }
    for (int32_t i = 0; i < num; i++) {
        plait_sequence *q = &s->sequences[list[i]];
        rows -= 1 + q->counts.wanted;
        gain -= gain_of(q, q->counts.wanted);
        rounds = 0;
        for (int32_t j = 0; j < num; j++) {
            const int32_t wanted = s->sequences[list[j]].counts.wanted;
            rounds = j != i && wanted > rounds ? wanted : rounds;
        }
        choose_drafts(s, q, gain, rows, rounds);
        rows += 1 + q->counts.wanted;
        gain += gain_of(q, q->counts.wanted);
    }
    return PLAIT_OK;
}
