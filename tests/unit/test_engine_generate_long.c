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
            for (int32_t k = 0; k <= 6; k++) {
                const matrix_setting s = {d,
                                          interleaves[i],
                                          k == 0   ? PLAIT_DRAFT_NONE
                                          : k == 5 ? PLAIT_DRAFT_ORACLE
                                          : k == 6 ? PLAIT_DRAFT_NGRAM
                                                   : PLAIT_DRAFT_MTP,
                                          k >= 5 ? 3 : k,
                                          0,
                                          0};
                matrix_check(&m, &s);
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
