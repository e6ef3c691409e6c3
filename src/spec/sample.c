/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c: the filtered distribution, draws from it, and the judgement of drafts. */
#include <plait/spec.h>

#include <math.h>
#include <string.h>

/* ---- the distribution ------------------------------------------------------------------------ */

/* e^x for x <= 0, within 1e-14, and of the same bits everywhere: ranks on machines whose C
   libraries differ must agree. x = k ln 2 + r with |r| <= ln 2 / 2; e^r by its series. */
static double exp_negative(double x)
{
    if (!(x > -700))
        return 0;
    const int64_t k = (int64_t)(x * 1.4426950408889634 - 0.5);
    const double r = (x - (double)k * 0x1.62e42fefa3800p-1) - (double)k * 0x1.ef35793c76730p-45;
    double sum = 1;
    for (int32_t i = 13; i > 0; i--)
        sum = 1 + sum * r / i;
    const uint64_t bits = (uint64_t)(k + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

/* Whether a goes before b: by logit, then the lowest id. */
static int is_before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* Restores the heap below `at`, whose first is before all others. */
static void sift(const float *logits, int32_t *heap, int32_t n, int32_t at)
{
    for (int32_t child = 2 * at + 1; child < n; at = child, child = 2 * at + 1) {
        if (child + 1 < n && is_before(logits, heap[child + 1], heap[child]))
            child++;
        if (!is_before(logits, heap[child], heap[at]))
            return;
        const int32_t id = heap[at];
        heap[at] = heap[child];
        heap[child] = id;
    }
}

/* Moves the first `count` ids in order to the end of heap, the first of all last. */
static void take_first(const float *logits, int32_t *heap, int32_t n, int32_t count)
{
    for (int32_t left = n; left > n - count; left--) {
        const int32_t first = heap[0];
        heap[0] = heap[left - 1];
        heap[left - 1] = first;
        sift(logits, heap, left - 1, 0);
    }
}

/* Zeroes the weights of all tokens but those that top-k and top-p keep. */
static void filter(const float *logits, int32_t n, const plait_sampling *s, int32_t *ids,
                   float *weights)
{
    const int32_t most = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    if (most == n && s->top_p >= 1)
        return;
    double total = 0, mass = 0;
    for (int32_t i = 0; i < n; i++)
        ids[i] = i;
    for (int32_t i = n / 2 - 1; i >= 0; i--)
        sift(logits, ids, n, i);
    int32_t taken = 0, kept = 0;
    if (most < n) {
        take_first(logits, ids, n, most);
        taken = most;
        for (int32_t i = 0; i < most; i++)
            total += (double)weights[ids[n - 1 - i]];
    } else {
        for (int32_t i = 0; i < n; i++)
            total += (double)weights[i];
    }
    while (kept < most && (kept == 0 || s->top_p >= 1 || mass < s->top_p * total)) {
        if (kept == taken) {
            take_first(logits, ids, n - taken, 1);
            taken++;
        }
        mass += (double)weights[ids[n - 1 - kept++]];
    }
    for (int32_t i = 0; i < n - kept; i++)
        weights[ids[i]] = 0;
}

int32_t plait_spec_distribution(const float *logits, int32_t n, const plait_sampling *s,
                                int32_t *scratch, float *probs)
{
    const int32_t best = plait_spec_argmax(logits, n);
    if (best < 0)
        return -1;
    if (s->temperature <= 0) {
        memset(probs, 0, (size_t)n * sizeof *probs);
        probs[best] = 1;
        return best;
    }
    double total = 0;
    for (int32_t i = 0; i < n; i++)
        probs[i] = (float)exp_negative(((double)logits[i] - (double)logits[best]) / s->temperature);
    filter(logits, n, s, scratch, probs);
    for (int32_t i = 0; i < n; i++)
        total += (double)probs[i];
    for (int32_t i = 0; i < n; i++)
        probs[i] = (float)((double)probs[i] / total);
    return best;
}

/* ---- draws ----------------------------------------------------------------------------------- */

/* What remains of p after q: its positive part. q NULL: all of the draft. */
static double residual(const float *p, const float *q, int32_t draft, int32_t i)
{
    if (!q)
        return i == draft ? 0 : (double)p[i];
    const double rest = (double)p[i] - (double)q[i];
    return rest > 0 ? rest : 0;
}

static double residual_sum(const float *p, const float *q, int32_t n, int32_t draft)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += residual(p, q, draft, i);
    return sum;
}

/* The token at `mass` of the residual, in the order of ids; the last with any at rounding. */
static int32_t at_mass(const float *p, const float *q, int32_t n, int32_t draft, double mass)
{
    double sum = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < n; i++) {
        const double more = residual(p, q, draft, i);
        if (more <= 0)
            continue;
        last = i;
        sum += more;
        if (sum > mass)
            break;
    }
    return last;
}

int32_t plait_spec_draw(const float *probs, int32_t n, double random)
{
    return at_mass(probs, NULL, n, -1, random * residual_sum(probs, NULL, n, -1));
}

int32_t plait_spec_judge(const float *p, const float *q, int32_t n, int32_t draft,
                         const plait_sampling *s, int64_t position)
{
    const double chance = plait_spec_random(s->seed, s->request, position, PLAIT_SPEC_ACCEPT);
    if (chance * (q ? (double)q[draft] : 1) < (double)p[draft])
        return draft;
    const double rest = residual_sum(p, q, n, draft);
    if (rest <= 0) /* p is q but for rounding */
        return draft;
    const double random = plait_spec_random(s->seed, s->request, position, PLAIT_SPEC_REDRAW);
    return at_mass(p, q, n, draft, random * rest);
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

void plait_spec_logprobs(const float *logits, int32_t n, int32_t token, int32_t num_top,
                         float *logprob, int32_t *top_ids, float *top_logprobs)
{
    int32_t num = 0;
    for (int32_t i = 0; i < n; i++) {
        if (num == num_top && (num == 0 || !is_before(logits, i, top_ids[num - 1])))
            continue;
        int32_t at = num < num_top ? num++ : num - 1;
        for (; at > 0 && is_before(logits, i, top_ids[at - 1]); at--)
            top_ids[at] = top_ids[at - 1];
        top_ids[at] = i;
    }
    const double highest = (double)logits[plait_spec_argmax(logits, n)];
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp_negative((double)logits[i] - highest);
    const double norm = highest + log(sum);
    *logprob = (float)((double)logits[token] - norm);
    for (int32_t i = 0; i < num; i++)
        top_logprobs[i] = (float)((double)logits[top_ids[i]] - norm);
    for (int32_t i = num; i < num_top; i++) {
        top_ids[i] = -1;
        top_logprobs[i] = -INFINITY;
    }
}
