/* SPDX-License-Identifier: Apache-2.0 */
/* Every setting of D x I x draft on 20 prompts of 128 new tokens. */
#include "engine_matrix.h"

static void all_settings(plait_dtype dtype)
{
    static const int32_t interleaves[] = {1, 3, 16};
    matrix m;
    matrix_open(&m, dtype, 20, 128);
    for (int32_t d = 1; d <= 4; d++) {
        for (int32_t i = 0; i < 3; i++) {
            const matrix_setting plain = {d, interleaves[i], PLAIT_DRAFT_NONE, 0, 0, 0};
            const matrix_setting oracle = {d, interleaves[i], PLAIT_DRAFT_ORACLE, 3, 0, 0};
            matrix_check(&m, &plain);
            matrix_check(&m, &oracle);
            const matrix_setting ngram = {d, interleaves[i], PLAIT_DRAFT_NGRAM, 3, 0, 0};
            matrix_check(&m, &ngram);
            for (int32_t k = 1; k <= 4; k++) {
                const matrix_setting mtp = {d, interleaves[i], PLAIT_DRAFT_MTP, k, 0, 0};
                const matrix_setting eagle3 = {d, interleaves[i], PLAIT_DRAFT_EAGLE3, k, k % 2, 0};
                matrix_check(&m, &mtp);
                matrix_check(&m, &eagle3);
            }
        }
    }
    print_message("# %lld of %lld tokens taken otherwise\n", (long long)m.other,
                  (long long)m.tokens);
    assert_true((double)m.other < 0.02 * (double)m.tokens);
    matrix_close(&m);
}

static void all_settings_give_the_tokens_of_plain_decoding_f32(void **state)
{
    (void)state;
    all_settings(PLAIT_F32);
}

static void all_settings_give_the_tokens_of_plain_decoding_bf16(void **state)
{
    (void)state;
    all_settings(PLAIT_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_settings_give_the_tokens_of_plain_decoding_f32),
        cmocka_unit_test(all_settings_give_the_tokens_of_plain_decoding_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
