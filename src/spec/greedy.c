/* SPDX-License-Identifier: Apache-2.0 */
/* src/spec - verification rules. greedy.c: greedy acceptance, and the cut at stops and limits. */
#include <plait/spec.h>

#include <math.h>

int32_t plait_spec_argmax(const float *logits, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(logits[i]))
            return -1;
        if (best < 0 || logits[i] > logits[best])
            best = i;
    }
    return best >= 0 && isfinite(logits[best]) ? best : -1;
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
