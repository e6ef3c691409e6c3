/* SPDX-License-Identifier: Apache-2.0 */
/* src/spec - verification rules. greedy.c: greedy acceptance, and the cut at stops and limits. */
#include <plait/spec.h>

#include <math.h>

enum { LANES = 16 };

/*
 * Each lane keeps its highest value and where that stood first: 16 independent chains, and a form
 * that compilers turn into vectors.
 */
int32_t plait_spec_argmax(const float *logits, int32_t n)
{
    float top[LANES];
    int32_t at[LANES], nan[LANES] = {0}, best = -1, i = 0;
    for (int32_t j = 0; j < LANES; j++) {
        top[j] = -INFINITY;
        at[j] = j;
    }
    for (; i + LANES <= n; i += LANES) {
        for (int32_t j = 0; j < LANES; j++) {
            const float x = logits[i + j];
            const int32_t higher = -(x > top[j]);
            nan[j] |= x != x;
            at[j] = (at[j] & ~higher) | ((i + j) & higher);
            top[j] = x > top[j] ? x : top[j];
        }
    }
    for (int32_t j = 0; i < n; i++, j++) {
        nan[j] |= logits[i] != logits[i];
        at[j] = logits[i] > top[j] ? i : at[j];
        top[j] = logits[i] > top[j] ? logits[i] : top[j];
    }
    for (int32_t j = 0; j < LANES; j++) {
        if (nan[j])
            return -1;
        if (isfinite(top[j]) &&
            (best < 0 || top[j] > top[best] || (top[j] == top[best] && at[j] < at[best])))
            best = j;
        else if (top[j] == INFINITY)
            return -1;
    }
    return best < 0 ? -1 : at[best];
}

int32_t plait_spec_verify_greedy(const int32_t *drafts, int32_t num_drafts, const int32_t *chosen)
{
    int32_t kept = 0;
    while (kept < num_drafts && drafts[kept] == chosen[kept])
        kept++;
    return kept + 1;
}

static int is_stop(int32_t token, const int32_t *stops, int32_t num_stops)
{
    for (int32_t i = 0; i < num_stops; i++) {
        if (stops[i] == token)
            return 1;
    }
    return 0;
}

int32_t plait_spec_cut(const int32_t *tokens, int32_t num, int64_t room, const int32_t *stops,
                       int32_t num_stops, int32_t *stopped)
{
    *stopped = 0;
    int32_t kept = 0;
    while (kept < num && kept < room) {
        if (is_stop(tokens[kept++], stops, num_stops)) {
            *stopped = 1;
            break;
        }
    }
    return kept;
}
