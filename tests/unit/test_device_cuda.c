/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device layer where there is no GPU: it says so, in a sentence, and nothing breaks. */
#include <plait/cuda.h>

#include <string.h>

#include "unit.h"

static void test_open_without_a_gpu_is_refused(void **state)
{
    (void)state;
    plait_cuda *cuda = (plait_cuda *)(void *)&cuda;
    int32_t n = 0;
    if (plait_cuda_count(&n) == PLAIT_OK && n > 0) {
        print_message("there is a GPU here\n");
        skip();
    }
    plait_status status = plait_cuda_open(0, &cuda);
    assert_true(status == PLAIT_E_DEVICE || status == PLAIT_E_UNSUPPORTED);
    assert_null(cuda);
    assert_non_null(strstr(plait_last_error(), "cuda: "));
    plait_cuda_info info = {.size = sizeof info};
    assert_int_equal(plait_cuda_describe(0, &info), PLAIT_E_DEVICE);
}

static void test_info_of_another_size_is_refused(void **state)
{
    (void)state;
    plait_cuda_info info = {.size = 1};
    assert_int_equal(plait_cuda_describe(0, &info), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "size 1"));
}

static void test_close_accepts_null(void **state)
{
    (void)state;
    plait_cuda *cuda = NULL;
    plait_cuda_close(NULL);
    plait_cuda_close(&cuda);
    assert_null(cuda);
}

static plait_attn_args mla_args(void)
{
    plait_attn_args a = PLAIT_ATTN_ARGS_INIT;
    a.h_q = 16;
    a.h_kv = 1;
    a.d_qk = 576;
    a.d_v = 512;
    a.page_size = 64;
    a.q_dtype = a.kv_dtype = a.out_dtype = PLAIT_BF16;
    return a;
}

static void test_a_closed_device_is_refused_by_name(void **state)
{
    (void)state;
    plait_attn_args a = mla_args();
    const plait_kernel *kernel = plait_kernel_find("mla_sm90");
    char text[128];
    assert_non_null(kernel);
    assert_non_null(strstr(plait_kernel_refusal(kernel, &a, 0, text, sizeof text), "device"));
    a.device = 63;
    assert_non_null(strstr(plait_kernel_refusal(kernel, &a, 0, text, sizeof text), "not open"));
    assert_int_equal(plait_cuda_schedule(&a, &a, sizeof a), PLAIT_E_STATE);
    const plait_kernel *picked = kernel;
    assert_int_equal(plait_attn_pick(&a, 0, 1, NULL, &picked), PLAIT_E_UNSUPPORTED);
    assert_non_null(strstr(plait_last_error(), "mla_sm90: the device is not open"));
}

/* The CPU deals items in turn; a table of workers would be ignored there. */
static void test_worker_start_is_for_devices(void **state)
{
    (void)state;
    plait_attn_args a = mla_args();
    const int32_t start[2] = {0, 0};
    const plait_attn_work work = {0};
    a.worker_start = start;
    a.work = &work;
    a.num_workers = 1;
    assert_int_equal(plait_attn_check(&a), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "worker_start"));
    a.device = 0;
    assert_int_equal(plait_attn_check(&a), PLAIT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_without_a_gpu_is_refused),
        cmocka_unit_test(test_info_of_another_size_is_refused),
        cmocka_unit_test(test_close_accepts_null),
        cmocka_unit_test(test_a_closed_device_is_refused_by_name),
        cmocka_unit_test(test_worker_start_is_for_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
