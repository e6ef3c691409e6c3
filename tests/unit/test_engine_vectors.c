/* SPDX-License-Identifier: Apache-2.0 */
/* Logits of models/tiny against those of other implementations (tests/vectors/README.md). */
#include "vector_file.h"

#define MODEL PLAIT_SOURCE_DIR "/models/tiny"

static plait_engine *open_draft(plait_dtype dtype, int32_t dcp, int32_t interleave,
                                int32_t replicated, plait_draft_kind draft)
{
    plait_engine_options o = PLAIT_ENGINE_OPTIONS_INIT;
    plait_engine *e;
    o.model_dir = MODEL;
    o.dtype = dtype;
    o.dcp = dcp;
    o.interleave = interleave;
    o.draft = draft;
    o.draft_dir = MODEL "/eagle3";
    o.draft_kv_replicated = replicated;
    if (plait_engine_open(&o, &e) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
    return e;
}

static plait_engine *open_engine(plait_dtype dtype, int32_t dcp, int32_t interleave,
                                 int32_t replicated)
{
    return open_draft(dtype, dcp, interleave, replicated, PLAIT_DRAFT_MTP);
}

static void check_f32(int32_t dcp, int32_t interleave, int32_t replicated, int32_t chunk)
{
    plait_engine *e = open_engine(PLAIT_F32, dcp, interleave, replicated);
    const double target = worst_target(e, open_vectors("logits.bin"), chunk, 1e-4),
                 mtp = worst_draft(e, "mtp.bin", chunk);
    print_message("# dcp %d: target %.2g, mtp %.2g of the deviation\n", (int)dcp, target, mtp);
    assert_true(target <= 1e-3);
    assert_true(mtp <= 1e-3);
    plait_engine_close(&e);
}

static void f32_logits_equal_transformers(void **state)
{
    (void)state;
    check_f32(1, 1, 0, 0);
}

static void f32_logits_equal_in_small_chunks_on_two_ranks(void **state)
{
    (void)state;
    check_f32(2, 3, 0, 37);
}

static void f32_logits_equal_with_a_replicated_draft_case37(void **state)
{
    (void)state;
    check_f32(3, 1, 1, 100);
}

/* Draft logits of the EAGLE-3 head: GQA, its cache in pages of D ranks or replicated. */
static void check_eagle3(int32_t dcp, int32_t interleave, int32_t replicated, int32_t chunk)
{
    plait_engine *e = open_draft(PLAIT_F32, dcp, interleave, replicated, PLAIT_DRAFT_EAGLE3);
    const double worst = worst_draft(e, "eagle3.bin", chunk);
    print_message("# dcp %d: eagle3 %.2g of the deviation\n", (int)dcp, worst);
    assert_true(worst <= 1e-3);
    plait_engine_close(&e);
}

static void f32_eagle3_logits_equal_the_public_definition(void **state)
{
    (void)state;
    check_eagle3(1, 1, 0, 0);
    check_eagle3(2, 3, 0, 37);
    check_eagle3(3, 1, 1, 100);
}

static void bf16_logits_are_close_to_transformers(void **state)
{
    (void)state;
    plait_engine *e = open_engine(PLAIT_BF16, 1, 1, 0);
    struct vectors v = open_vectors("logits.bin");
    double kl = 0;
    uint32_t rows = 0, left_out = 0;
    for (uint32_t i = 0; i < v.cases; i++) {
        struct vector_case c = read_case(&v);
        float *got = malloc(4 * (size_t)c.tokens * v.vocab);
        if (plait_engine_logits(e, c.ids, c.tokens, 0, got, NULL, NULL, 0) != PLAIT_OK)
            fail_msg("%s", plait_last_error());
        for (uint32_t r = 0; r < c.rows; r++) {
            const uint32_t at = c.places[2 * r + 1];
            const float *want = c.logits + (size_t)r * v.vocab, *have = got + (size_t)at * v.vocab;
            if (c.margin[at] < 0.02f) {
                left_out++;
                continue;
            }
            rows++;
            kl += divergence(want, have, v.vocab);
            if (top_gap(want, v.vocab) > 0.3)
                assert_int_equal(best(want, v.vocab), best(have, v.vocab));
        }
        free(got);
        free_case(&c);
    }
    print_message("# bf16: mean KL %.2g over %u rows, %.0f%% left out\n", kl / rows, rows,
                  100.0 * left_out / (rows + left_out));
    assert_true(rows > 0);
    assert_true(kl / rows <= 2e-3);
    fclose(v.file);
    plait_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_logits_equal_transformers),
        cmocka_unit_test(f32_logits_equal_in_small_chunks_on_two_ranks),
        cmocka_unit_test(f32_logits_equal_with_a_replicated_draft_case37),
        cmocka_unit_test(f32_eagle3_logits_equal_the_public_definition),
        cmocka_unit_test(bf16_logits_are_close_to_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
