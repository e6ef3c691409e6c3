/* SPDX-License-Identifier: Apache-2.0 */
/* Which backend a configuration gets, by which strategy, and why others do not (cases 11, 32, 50,
   51): today's rules follow from the rows of profiles. */
#include <stdio.h>
#include <string.h>

#include <plait/backend.h>
#include <plait/log.h>

#include "unit.h"

static plait_selection got;

static plait_backend_config gqa(int32_t version, int32_t dcp, int32_t q_len)
{
    plait_backend_config c = PLAIT_BACKEND_CONFIG_INIT;
    c.op = PLAIT_OP_GQA;
    c.device = PLAIT_DEVICE_CUDA;
    c.device_version = version;
    c.heads = 64;
    c.kv_heads = 8;
    c.d_qk = c.d_v = 128;
    c.tp = 16;
    c.dcp = dcp;
    c.q_len = q_len;
    return c;
}

static plait_backend_config mla(int32_t dcp, int32_t q_len)
{
    plait_backend_config c = PLAIT_BACKEND_CONFIG_INIT;
    c.device = PLAIT_DEVICE_CUDA;
    c.device_version = 100;
    c.kv_dtype = PLAIT_FP8_E4M3;
    c.tp = dcp;
    c.dcp = dcp;
    c.q_len = q_len;
    return c;
}

static plait_status pick(plait_backend_config c, const char *force, const char *prefer)
{
    plait_requirement need;
    plait_status status = plait_requirement_derive(&c, &need);
    return status ? status : plait_select(&need, PLAIT_FROM_PROFILES, force, prefer, &got);
}

static void is_choice(const char *backend, plait_strategy strategy, int32_t notices)
{
    assert_non_null(got.choice.backend);
    assert_string_equal(got.choice.backend->name, backend);
    assert_string_equal(plait_strategy_name(got.choice.strategy), plait_strategy_name(strategy));
    assert_int_equal(got.n_notices, notices);
}

static void is_refused(const char *backend, const char *why)
{
    for (int32_t i = 0; i < got.n_refused; i++) {
        if (strcmp(got.refused[i].backend->name, backend))
            continue;
        for (int32_t k = 0; k < got.refused[i].n; k++)
            if (strstr(got.refused[i].reasons[k], why))
                return;
        fail_msg("%s: '%s' is no reason of it; the first is '%s'", backend, why,
                 got.refused[i].reasons[0]);
    }
    fail_msg("%s is not refused", backend);
}

static void test_xqa_without_lse_gives_way_to_native_under_dcp(void **state)
{
    (void)state;
    assert_int_equal(pick(gqa(90, 1, 1), NULL, NULL), PLAIT_OK);
    is_choice("flashinfer.xqa", PLAIT_STRATEGY_DIRECT, 0);
    assert_int_equal(pick(gqa(90, 2, 1), NULL, NULL), PLAIT_OK);
    is_choice("flashinfer.native", PLAIT_STRATEGY_DIRECT, 1);
    is_refused("flashinfer.xqa", "needs LSE, it returns none");
}

static void test_trtllm_gen_takes_one_token_under_dcp(void **state)
{
    (void)state;
    assert_int_equal(pick(gqa(100, 2, 1), NULL, NULL), PLAIT_OK);
    is_choice("flashinfer.trtllm_gen", PLAIT_STRATEGY_DIRECT, 0);
}

static void test_trtllm_gen_takes_several_tokens_not_directly(void **state)
{
    (void)state;
    assert_int_equal(pick(gqa(100, 2, 4), NULL, NULL), PLAIT_OK);
    is_refused("flashinfer.trtllm_gen", "aligned to the local end");
    assert_int_equal(pick(gqa(100, 2, 4), "flashinfer.trtllm_gen", NULL), PLAIT_OK);
    assert_int_equal(got.choice.decode_threshold, 1); /* as vLLM clamps it */
    assert_int_equal(got.choice.decode_rows, 4);      /* they stay decodes all the same */
    assert_true(got.choice.strategy == PLAIT_STRATEGY_WINDOW ||
                got.choice.strategy == PLAIT_STRATEGY_FLATTEN);
    assert_true(got.choice.relative_cost > 1);
    assert_int_equal(pick(gqa(100, 1, 4), NULL, NULL), PLAIT_OK);
    is_choice("flashinfer.trtllm_gen", PLAIT_STRATEGY_DIRECT, 0);
    assert_int_equal(got.choice.decode_threshold, 4);
}

static void test_prefill_under_dcp_is_native(void **state)
{
    (void)state;
    plait_backend_config c = gqa(100, 2, 512);
    c.phase = PLAIT_PHASE_PREFILL;
    assert_int_equal(pick(c, NULL, NULL), PLAIT_OK);
    assert_string_equal(got.choice.backend->name, "flashinfer.native");
    assert_int_equal(got.n_notices, 1);
    is_refused("flashinfer.trtllm_gen", "needs LSE");
    assert_int_equal(pick(c, NULL, "flashinfer.trtllm_gen"), PLAIT_OK);
    assert_string_equal(got.choice.backend->name, "flashinfer.native");
    assert_int_equal(got.n_notices, 1);
    assert_int_equal(pick(c, "flashinfer.trtllm_gen", NULL), PLAIT_E_UNSUPPORTED);
    assert_non_null(strstr(plait_last_error(), "needs LSE"));
    assert_non_null(strstr(plait_last_error(), "what would work: flashinfer.native"));
    assert_null(got.choice.backend);
}

static void test_tokenspeed_takes_drafts_directly_at_interleave_1(void **state)
{
    (void)state;
    plait_backend_config c = mla(4, 4);
    assert_int_equal(pick(c, NULL, NULL), PLAIT_OK);
    is_choice("tokenspeed_mla", PLAIT_STRATEGY_DIRECT, 0);
    assert_int_equal(got.choice.decode_threshold, 4);
    c.interleave = 16;
    pick(c, NULL, NULL);
    is_refused("tokenspeed_mla", "interleave is 16, its ranges for each row hold up to 1");
    assert_false(got.choice.backend && got.choice.strategy == PLAIT_STRATEGY_DIRECT);
}

static void test_an_old_tokenspeed_is_refused_with_the_version(void **state)
{
    (void)state;
    const char *const old[] = {"tokenspeed-mla=0.1.9"}, *const newer[] = {"tokenspeed-mla=0.10.0"};
    plait_backend_config c = mla(4, 4);
    c.packages = old;
    c.n_packages = 1;
    assert_int_equal(pick(c, "tokenspeed_mla", NULL), PLAIT_E_UNSUPPORTED);
    is_refused("tokenspeed_mla", "tokenspeed-mla is 0.1.9, this needs version 0.2.5");
    c.packages = newer; /* 0.10 is newer than 0.2: parts are numbers */
    assert_int_equal(pick(c, "tokenspeed_mla", NULL), PLAIT_OK);
}

/* Case 32: {1, 2, 3} has 6 rows for 3 sequences, which is no batch of 2 rows each. */
static void test_ragged_rows_are_never_divided(void **state)
{
    (void)state;
    plait_backend_config c = mla(4, 3);
    c.ragged = 1;
    c.lengths = 3;
    assert_int_equal(pick(c, "tokenspeed_mla", NULL), PLAIT_OK);
    assert_int_equal(got.choice.strategy, PLAIT_STRATEGY_FLATTEN); /* 128 heads: arithmetic rules */
    assert_true(got.choice.relative_cost >= 1);
    assert_int_equal(got.choice.decode_rows, 3);
    c.heads = 16;
    c.context = 65536;
    assert_int_equal(pick(c, "tokenspeed_mla", NULL), PLAIT_OK);
    assert_int_equal(got.choice.strategy, PLAIT_STRATEGY_DIRECT); /* reading thrice costs more */
    assert_int_equal(got.choice.calls, 3);
    assert_true(got.choice.relative_cost > 1);
    assert_int_equal(got.choice.decode_rows, 3);
}

static void test_all_reasons_of_a_refusal_are_kept(void **state)
{
    (void)state;
    plait_backend_config c = mla(2, 4);
    c.page_size = 16;
    c.kv_dtype = PLAIT_F32;
    assert_int_equal(pick(c, "cutlass_mla", NULL), PLAIT_E_UNSUPPORTED);
    is_refused("cutlass_mla", "KV dtype is f32, it takes bf16, f16");
    is_refused("cutlass_mla", "page size is 16, it takes multiples of 128 from 128 to 128");
    is_refused("cutlass_mla", "sequences have up to 4 rows, it takes 1");
    is_refused("cutlass_mla", "need a range for each row");
}

/* Case 50: the limit is named with its values; nothing aborts. */
static void test_geometry_that_cannot_be_is_refused_with_its_limit(void **state)
{
    (void)state;
    plait_backend_config c = gqa(90, 2, 1);
    c.heads = 16;
    c.tp = 2;
    assert_int_equal(pick(c, NULL, NULL), PLAIT_E_UNSUPPORTED);
    assert_non_null(strstr(plait_last_error(), "multiple of 8 KV heads; tp is 2"));
    c = gqa(90, 4, 1);
    assert_int_equal(pick(c, NULL, NULL), PLAIT_E_UNSUPPORTED);
    assert_non_null(strstr(plait_last_error(), "dcp 4 does not divide tp / KV heads"));
    c.dcp = 3;
    assert_int_equal(pick(c, NULL, NULL), PLAIT_E_ARG);
    assert_int_equal(pick(gqa(90, 1, 1), "nope", NULL), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "flashinfer.xqa"));
}

static void count_lines(void *user, plait_log_level level, const char *text)
{
    int *lines = user;
    *lines += level == PLAIT_LOG_NOTICE && strstr(text, "triton_mla was preferred") != NULL;
}

static void test_a_notice_appears_once_in_a_process(void **state)
{
    (void)state;
    int lines = 0;
    plait_log_set_sink(count_lines, &lines, PLAIT_LOG_NOTICE);
    for (int i = 0; i < 480; i++)
        assert_int_equal(pick(mla(4, 4), NULL, "triton_mla"), PLAIT_OK);
    plait_log_set_sink(NULL, NULL, PLAIT_LOG_NOTICE);
    assert_int_equal(lines, 1);
    assert_int_equal(got.n_notices, 1);
}

static void test_built_in_rows_are_those_of_the_kernels(void **state)
{
    (void)state;
    for (int32_t i = 0; i < plait_kernel_count(); i++) {
        const plait_backend *b = plait_backend_find(plait_kernel_get(i)->name);
        assert_non_null(b);
        assert_ptr_equal(b->rows, plait_kernel_get(i)->rows);
        assert_ptr_equal(b->kernel, plait_kernel_get(i));
    }
}

static void test_registered_backends_take_part(void **state)
{
    (void)state;
    plait_backend own = *plait_backend_find("tokenspeed_mla");
    plait_requirement need;
    plait_backend_config c = mla(4, 4);
    assert_int_equal(plait_backend_register(&own), PLAIT_E_ARG);
    own.name = "own";
    own.from = PLAIT_FROM_PLUGINS;
    own.cost = 1;
    assert_int_equal(plait_backend_register(&own), PLAIT_OK);
    assert_int_equal(plait_backend_register(&own), PLAIT_E_ARG); /* the name is taken */
    assert_int_equal(plait_requirement_derive(&c, &need), PLAIT_OK);
    assert_int_equal(plait_select(&need, PLAIT_FROM_ALL, NULL, NULL, &got), PLAIT_OK);
    assert_ptr_equal(got.choice.backend, &own);
    plait_backend_unregister(&own);
    assert_null(plait_backend_find("own"));
}

static void test_values_that_cannot_be_are_errors(void **state)
{
    (void)state;
    plait_backend_config c = mla(1, 1);
    c.heads = INT32_MAX;
    assert_int_equal(pick(c, NULL, NULL), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "heads is 2147483647, 1 to 16777216 was wanted"));
    c = mla(1, 1);
    c.kv_dtype = (plait_dtype)40;
    assert_int_equal(pick(c, NULL, NULL), PLAIT_E_ARG);
    c = mla(1, 1);
    c.op = (plait_op)7;
    assert_int_equal(pick(c, NULL, NULL), PLAIT_E_ARG);
    c = mla(1, 1 << 24);
    c.batch = c.heads = 1 << 24;
    c.sinks = 1;
    pick(c, NULL, NULL); /* bytes beyond 64 bits: no overflow */
    c.size = 8;
    assert_int_equal(pick(c, NULL, NULL), PLAIT_E_ARG);
}

static uint64_t seed = 7;

static int32_t one_of(const int32_t *values, int32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return values[(seed >> 33) % (uint64_t)n];
}

#define ONE_OF(...)                                                                                \
    one_of((const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4)

static plait_backend_config random_config(void)
{
    plait_backend_config c = PLAIT_BACKEND_CONFIG_INIT;
    c.op = (plait_op)ONE_OF(0, 1);
    c.phase = (uint32_t)ONE_OF(PLAIT_PHASE_DECODE, PLAIT_PHASE_DECODE, PLAIT_PHASE_PREFILL);
    c.device = (plait_device_kind)ONE_OF(0, 1, 1, 1);
    c.device_version = ONE_OF(80, 90, 90, 100, 103, 120);
    c.dtype = (plait_dtype)ONE_OF(PLAIT_BF16, PLAIT_F16, PLAIT_F32);
    c.kv_dtype = (plait_dtype)ONE_OF(PLAIT_BF16, PLAIT_F16, PLAIT_FP8_E4M3, PLAIT_FP8_DS656);
    c.heads = ONE_OF(16, 64, 128);
    c.kv_heads = c.op == PLAIT_OP_MLA ? 1 : ONE_OF(1, 2, 8);
    if (c.op == PLAIT_OP_GQA)
        c.d_qk = c.d_v = ONE_OF(64, 128, 80);
    c.page_size = ONE_OF(16, 32, 64, 128, 7);
    c.dcp = ONE_OF(1, 2, 3, 4);
    c.tp = c.dcp * ONE_OF(1, 2, 8);
    c.interleave = ONE_OF(1, 1, 16);
    c.q_len = ONE_OF(1, 1, 2, 4, 5);
    c.ragged = c.q_len > 1 && ONE_OF(0, 1);
    c.lengths = c.ragged ? 2 : 1;
    c.capture = ONE_OF(0, 0, 1);
    c.sinks = ONE_OF(0, 0, 0, 1);
    c.window = ONE_OF(0, 0, 0, 128);
    return c;
}

static int32_t missing(const plait_choice *c, const plait_requirement *need)
{
    plait_refusal scratch;
    return plait_backend_missing(c->backend, c->row, need, c->strategy, &scratch);
}

/* What LSE, ranges and dtypes say is worked out again here, apart from the subtraction. */
static void check_choice(const plait_choice *c, const plait_requirement *need)
{
    const plait_backend_config *config = &need->config;
    const plait_caps *row = &c->backend->rows[c->row];
    assert_int_equal(missing(c, need), 0);
    assert_int_equal(row->op, config->op);
    assert_int_equal(row->device, config->device);
    assert_true(row->kv_dtypes & PLAIT_DTYPE_BIT(config->kv_dtype));
    if (config->dcp > 1)
        assert_int_not_equal(row->lse, PLAIT_LSE_NONE);
    if (c->strategy == PLAIT_STRATEGY_DIRECT && config->dcp > 1 && config->q_len > 1) {
        assert_int_equal(row->ranges, PLAIT_RANGES_PER_ROW);
        assert_true(!row->interleave_max || config->interleave <= row->interleave_max);
    }
    assert_true(c->us > 0 && c->relative_cost > 0.99);
}

static void test_random_configurations_choose_what_fits(void **state)
{
    (void)state;
    int32_t chosen = 0, refused = 0;
    for (int i = 0; i < 3000; i++) {
        plait_backend_config c = random_config();
        plait_requirement need;
        if (plait_requirement_derive(&c, &need) != PLAIT_OK)
            continue;
        plait_status status = plait_select(&need, PLAIT_FROM_ALL, NULL, NULL, &got);
        assert_int_equal(status == PLAIT_OK, got.choice.backend != NULL);
        for (int32_t k = 0; k < got.n_refused; k++)
            assert_true(got.refused[k].n > 0 && got.refused[k].reasons[0][0]);
        refused += got.n_refused;
        if (status == PLAIT_OK)
            check_choice(&got.choice, &need);
        for (int32_t k = 0; k < got.n_alternatives; k++) {
            check_choice(&got.alternatives[k], &need);
            assert_true(got.alternatives[k].us >= got.choice.us);
        }
        chosen += status == PLAIT_OK;
    }
    printf("# %d chosen, %d refused\n", chosen, refused);
    assert_true(chosen > 500 && refused > 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xqa_without_lse_gives_way_to_native_under_dcp),
        cmocka_unit_test(test_trtllm_gen_takes_one_token_under_dcp),
        cmocka_unit_test(test_trtllm_gen_takes_several_tokens_not_directly),
        cmocka_unit_test(test_prefill_under_dcp_is_native),
        cmocka_unit_test(test_tokenspeed_takes_drafts_directly_at_interleave_1),
        cmocka_unit_test(test_an_old_tokenspeed_is_refused_with_the_version),
        cmocka_unit_test(test_ragged_rows_are_never_divided),
        cmocka_unit_test(test_all_reasons_of_a_refusal_are_kept),
        cmocka_unit_test(test_geometry_that_cannot_be_is_refused_with_its_limit),
        cmocka_unit_test(test_a_notice_appears_once_in_a_process),
        cmocka_unit_test(test_built_in_rows_are_those_of_the_kernels),
        cmocka_unit_test(test_registered_backends_take_part),
        cmocka_unit_test(test_values_that_cannot_be_are_errors),
        cmocka_unit_test(test_random_configurations_choose_what_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
