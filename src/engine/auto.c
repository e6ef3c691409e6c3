/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto.c: how many drafts a sequence gets when the caller leaves it to us.
 *
 * Two things are measured: what a target pass and a round of drafting cost by their rows, and which
 * share of the drafts of each depth stood, in a sequence and in all. A sequence gets the number of
 * drafts with the most tokens a second for the whole batch, 0 where drafts do not pay. A number
 * that was never measured is judged by those around it, or by what rows cost as a rule, so that
 * trying what cannot win costs nothing. After a while, and after twice as long each time, the
 * number beside the best is tried: neither costs nor texts stay as they were. Times are rank 0's,
 * and everything else is the same on all ranks: so are the decisions. Nothing here changes which
 * tokens come, but for those of sampled requests.
 */
#include "engine/auto.h"

#include "core/status.h"
#include "engine/session.h"

enum {
    FIRST_DRAFTS = 1, /* while nothing was measured */
    PROBE_AFTER = 16  /* steps with the same number, at first */
};

/* The share of a draft that stands before anything is known, and the trials that this is worth;
   those that the share in all sequences is worth for one. */
static const float kept_prior = 0.8f, prior_trials = 16, own_trials = 8;
static const float forget = 0.92f, forget_all = 0.995f; /* weight of what was a trial ago */
static const float base_rows = 3; /* rows that cost what a step costs before its first, as a rule */
static const float switch_gain = 1.03f; /* what another number must promise */
static const float late = 1.5f;         /* what is later yet has reasons of its own */

/* ---- costs ----------------------------------------------------------------------------------- */

/* Rows 1, 2, 3, 4, 5-6, 7-8, 9-12, ...: products are filled up to the last of each. */
static int32_t bin_of(int32_t rows)
{
    int32_t bin = 0, last = 1, next = 2;
    while (last < rows && bin < PLAIT_AUTO_BINS - 1) {
        const int32_t step = next;
        next = last == 1 ? 3 : last * 2;
        last = step;
        bin++;
    }
    return bin;
}

/* What a cost says about other rows, as a rule. */
static float moved_cost(const plait_auto_cost *c, float rows)
{
    return c->seconds * (base_rows + rows) / (base_rows + (float)c->rows);
}

/* The line through two costs, which does not fall. */
static float line_at(const plait_auto_cost *a, const plait_auto_cost *b, float rows)
{
    const float low = a->seconds < b->seconds ? a->seconds : b->seconds;
    return low + (b->seconds - low) * (rows - (float)a->rows) / (float)(b->rows - a->rows);
}

/* The cost of `rows`: between the known ones around it, else the lower of what is beyond the first
   and the last by the rule and by their line. 0: nothing is known. */
static float cost_at(const plait_auto_cost *costs, float rows)
{
    const plait_auto_cost *below = NULL, *above = NULL, *first = NULL, *last = NULL;
    for (int32_t i = 0; i < PLAIT_AUTO_BINS; i++) {
        const plait_auto_cost *c = &costs[i];
        if (!c->num)
            continue;
        first = first ? first : c;
        last = c;
        if ((float)c->rows <= rows)
            below = c;
        else if (!above)
            above = c;
    }
    if (!first)
        return 0;
    if (below && above)
        return line_at(below, above, rows);
    const float rule = moved_cost(below ? below : above, rows);
    const float line = first == last ? rule : line_at(first, last, rows);
    return line > 0 && line < rule ? line : rule;
}

/*
 * The first run of a row count is slow: its code is not in any cache. It may only lower what the
 * others say of it. Later ones are late for reasons of their own more often than early. What makes
 * one row count slower than before, as a longer context does, is taken to make the others slower
 * too, by half as much.
 */
static void note(plait_auto_cost *costs, int32_t rows, float seconds)
{
    plait_auto_cost *c = &costs[bin_of(rows)];
    const float expected = cost_at(costs, (float)rows);
    if (!(seconds > 0))
        return;
    const int known = c->num++ > 0;
    c->rows = rows;
    if (!known) {
        c->seconds = expected > 0 && expected < seconds ? expected : seconds;
        return;
    }
    float change = seconds / expected - 1;
    change = change < late - 1 ? change : late - 1;
    change *= change < 0 || c->num == 2 ? 0.5f : 0.2f;
    c->seconds = expected * (1 + change);
    for (int32_t i = 0; i < PLAIT_AUTO_BINS && c->num > 2; i++) {
        if (&costs[i] != c)
            costs[i].seconds *= 1 + change / 2;
    }
}

/* Of a step over `rows` with `drafts` drafts in `rounds` rounds. */
static float step_cost(const plait_auto *a, int32_t rows, int32_t drafts, int32_t rounds)
{
    const float draft = rounds ? cost_at(a->draft, (float)drafts / (float)rounds) : 0;
    return cost_at(a->target, (float)rows) + (float)rounds * draft;
}

/* ---- gains ----------------------------------------------------------------------------------- */

static void count_kept(plait_auto *a, plait_sequence *q)
{
    plait_auto_counts *c = &q->counts;
    for (int32_t i = 0; i < q->num_drafts && i <= q->last_accepted && i < PLAIT_AUTO_DRAFTS; i++) {
        const float kept = i < q->last_accepted;
        a->tried[i] = forget_all * a->tried[i] + 1;
        a->kept[i] = forget_all * a->kept[i] + kept;
        c->tried = forget * c->tried + 1;
        c->kept = forget * c->kept + kept;
    }
}

static float share_of(float kept, float tried, float prior, float trials)
{
    return (kept + trials * prior) / (tried + trials);
}

/*
 * Tokens that a step with `drafts` drafts is to gain. Texts differ and change, so that the last
 * trials of the sequence itself count most, whatever their depth; how much worse drafts get with
 * their depth is the same everywhere.
 */
static float gain_of(const plait_session *s, const plait_sequence *q, int32_t drafts)
{
    const plait_auto *a = &s->adapt;
    float kept = 0, tried = 0, stand = 1, gain = 1, deep;
    for (int32_t i = 0; i < PLAIT_AUTO_DRAFTS; i++) {
        kept += a->kept[i];
        tried += a->tried[i];
    }
    const float all = share_of(kept, tried, kept_prior, prior_trials);
    const float own = share_of(q->counts.kept, q->counts.tried, all, own_trials);
    for (int32_t i = 0; i < drafts; i++) {
        deep = share_of(a->kept[i], a->tried[i], all, prior_trials) / all;
        stand *= own * deep < 1 ? own * deep : 1;
        gain += stand;
    }
    return gain;
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* What the other sequences do in the next step. */
struct others {
    float gain;
    int32_t rows, drafts, rounds;
};

static void add_other(struct others *o, const plait_session *s, const plait_sequence *q)
{
    const int32_t wanted = q->counts.wanted;
    o->gain += gain_of(s, q, wanted);
    o->rows += 1 + wanted;
    o->drafts += wanted;
    o->rounds = wanted > o->rounds ? wanted : o->rounds;
}

/* The best number for one sequence beside the others. */
static int32_t best_drafts(const plait_session *s, const plait_sequence *q, const struct others *o)
{
    float best_rate = 0;
    int32_t best = 0;
    for (int32_t k = 0; k <= s->spec_tokens; k++) {
        const int32_t rounds = k > o->rounds ? k : o->rounds;
        const float cost = step_cost(&s->adapt, o->rows + 1 + k, o->drafts + k, rounds);
        float rate = cost > 0 ? (o->gain + gain_of(s, q, k)) / cost : 0;
        if (k == q->counts.wanted)
            rate *= switch_gain;
        if (rate > best_rate) {
            best_rate = rate;
            best = k;
        }
    }
    return best;
}

static void choose_drafts(const plait_session *s, plait_sequence *q, const struct others *o)
{
    plait_auto_counts *c = &q->counts;
    const int32_t before = c->wanted, best = best_drafts(s, q, o);
    c->wanted = best;
    c->same = best == before ? c->same + 1 : 0;
    if (c->same < c->probe_after)
        return;
    c->same = 0;
    c->probe_after *= 2;
    c->probed_more = best == 0 || (best < s->spec_tokens && !c->probed_more);
    c->wanted = c->probed_more ? best + 1 : best - 1;
}

void plait_auto_start(const plait_session *s, plait_sequence *q)
{
    const int32_t most = s->spec_tokens < FIRST_DRAFTS ? s->spec_tokens : FIRST_DRAFTS;
    struct others o = {0};
    q->counts.probe_after = PROBE_AFTER;
    q->counts.wanted = most;
    for (int32_t i = 0; i < PLAIT_SESSION_BATCH; i++) {
        const plait_sequence *other = &s->sequences[i];
        if (other != q && other->request)
            add_other(&o, s, other);
    }
    if (cost_at(s->adapt.target, 1) > 0)
        q->counts.wanted = best_drafts(s, q, &o);
}

plait_status plait_auto_learn(plait_session *s, const plait_auto_times *times, int32_t num,
                              const int32_t *list, int32_t with_prompts)
{
    plait_comm *ranks = s->pass->attend->options.ranks;
    plait_auto_times all[PLAIT_COMM_MAX_RANKS] = {*times};
    int32_t rows = 0, drafts = 0, rounds = 0;
    if (plait_comm_size(ranks) > 1)
        PLAIT_TRY(
            plait_comm_exchange(ranks, "times of a step", PLAIT_OK, times, sizeof *times, all));
    for (int32_t i = 0; i < num; i++) {
        plait_sequence *q = &s->sequences[list[i]];
        rows += 1 + q->num_drafts;
        drafts += q->num_drafts;
        rounds = q->num_drafts > rounds ? q->num_drafts : rounds;
        count_kept(&s->adapt, q);
    }
    if (!with_prompts && num > 0)
        note(s->adapt.target, rows, all[0].target_s);
    if (!with_prompts && rounds > 0)
        note(s->adapt.draft, (drafts + rounds - 1) / rounds, all[0].draft_s / (float)rounds);
    for (int32_t i = 0; i < num; i++) {
        struct others o = {0};
        for (int32_t j = 0; j < num; j++) {
            if (j != i)
                add_other(&o, s, &s->sequences[list[j]]);
        }
        choose_drafts(s, &s->sequences[list[i]], &o);
    }
    return PLAIT_OK;
}
