/* SPDX-License-Identifier: Apache-2.0 */
/* N-gram drafts: the newest of the longest matches, periods, no match, growth. */
#include "unit.h"

#include <stdlib.h>
#include <string.h>

#include <plait/engine.h>

#include "engine/session.h"

enum { LENGTH = 6000 };

static plait_config config;
static plait_model model;
static plait_pass pass;

/* A session that has no more than drafts need. */
static plait_session *open_session(int32_t spec_tokens)
{
    plait_session *s = calloc(1, sizeof *s);
    config.max_position = LENGTH;
    model.config = &config;
    pass.model = &model;
    s->pass = &pass;
    s->spec_tokens = spec_tokens;
    s->drafter = plait_drafter_of(PLAIT_DRAFT_NGRAM);
    assert_non_null(s->drafter);
    assert_int_equal(s->drafter->open(s), PLAIT_OK);
    for (int32_t i = 0; i < PLAIT_SESSION_BATCH; i++)
        s->sequences[i].ids = malloc(LENGTH * sizeof(int32_t));
    return s;
}

static void close_session(plait_session *s)
{
    s->drafter->close(s);
    assert_null(s->drafter_data);
    for (int32_t i = 0; i < PLAIT_SESSION_BATCH; i++)
        free(s->sequences[i].ids);
    free(s);
}

/* Drafts of place 3 after its tokens became those. */
static const plait_sequence *propose(plait_session *s, const int32_t *ids, int32_t num)
{
    const int32_t place = 3;
    plait_sequence *q = &s->sequences[place];
    memcpy(q->ids, ids, (size_t)num * sizeof *ids);
    q->num_known = num;
    q->limit = LENGTH;
    assert_int_equal(plait_draft_propose(s, 1, &place), PLAIT_OK);
    return q;
}

static void expect(const plait_sequence *q, const int32_t *want, int32_t num)
{
    assert_int_equal(q->num_drafts, num);
    assert_memory_equal(q->drafts, want, (size_t)num * sizeof *want);
}

static void no_match_gives_no_draft(void **state)
{
    (void)state;
    plait_session *s = open_session(4);
    const int32_t ids[] = {7, 1, 2, 3, 4, 5, 7, 9, 3};
    for (int32_t n = 1; n <= 9; n++)
        assert_int_equal(propose(s, ids, n)->num_drafts, 0);
    close_session(s);
}

static void longest_match_wins_and_the_newest_of_equals(void **state)
{
    (void)state;
    plait_session *s = open_session(3);
    const int32_t longest[] = {1, 2, 3, 50, 51, 52, 9, 2, 3, 60, 61, 62, 1, 2, 3};
    expect(propose(s, longest, 15), (const int32_t[]){50, 51, 52}, 3);
    s->sequences[3].num_indexed = 0;
    const int32_t newest[] = {2, 3, 50, 51, 52, 2, 3, 60, 61, 62, 2, 3};
    expect(propose(s, newest, 12), (const int32_t[]){60, 61, 62}, 3);
    close_session(s);
}

static void a_period_goes_on_and_room_cuts(void **state)
{
    (void)state;
    plait_session *s = open_session(7);
    const int32_t ids[] = {1, 2, 3, 1, 2, 3};
    expect(propose(s, ids, 5), (const int32_t[]){3, 1, 2, 3, 1, 2, 3}, 7);
    plait_sequence *q = &s->sequences[3];
    const int32_t place = 3;
    q->limit = q->num_known + 4; /* three drafts and the target's token */
    assert_int_equal(plait_draft_propose(s, 1, &place), PLAIT_OK);
    expect(q, (const int32_t[]){3, 1, 2}, 3);
    close_session(s);
}

/* What a scan of everything gives, at every length of random text that repeats itself; the index
   grows by steps of any size, and a new request does not see the old one. */
static void index_equals_a_scan(void **state)
{
    (void)state;
    plait_session *s = open_session(1);
    static int32_t ids[LENGTH];
    uint32_t random = 12345;
    for (int32_t request = 0; request < 4; request++) {
        const uint32_t words = request % 2 ? 3 : 40;
        s->sequences[3].num_indexed = 0;
        for (int32_t n = 0; n < 400; n++) {
            random = random * 1664525u + 1013904223u;
            ids[n] = (int32_t)(random >> 16 & 3 ? (random >> 20) % words : (uint32_t)n % words);
        }
        for (int32_t n = 1; n < 400; n += 1 + request) {
            int32_t longest = 1, best = -1;
            for (int32_t at = n - 2; at >= 1; at--) {
                int32_t m = 0;
                while (m <= at && m < 32 && ids[at - m] == ids[n - 1 - m])
                    m++;
                if (m > longest) {
                    longest = m;
                    best = at;
                }
            }
            const plait_sequence *q = propose(s, ids, n);
            /* Long chains are cut: then the match may be shorter, but it is one. */
            if (words == 40)
                expect(q, &ids[best + 1], best >= 0);
            else
                assert_int_equal(q->num_drafts, best >= 0);
        }
    }
    close_session(s);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_match_gives_no_draft),
        cmocka_unit_test(longest_match_wins_and_the_newest_of_equals),
        cmocka_unit_test(a_period_goes_on_and_room_cuts),
        cmocka_unit_test(index_equals_a_scan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
