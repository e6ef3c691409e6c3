/* SPDX-License-Identifier: Apache-2.0 */
/* Rows into and out of paged caches: refusals, slots that are not ours, scales. The codes of every
   type are proved by `plait check`. */
#include <plait/kv.h>

#include <math.h>
#include <string.h>

#include <plait/attn.h>

#include "core/convert.h"
#include "unit.h"

enum { page = 4, pages = 3, slots = page * pages };

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("got %.9g, wanted %.9g", got, want);
}

/* ---- GQA in fp8: two KV heads of 4 / 3 ------------------------------------------------------- */

enum { heads = 2, d_k = 4, d_v = 3, most = 6 };

struct gqa {
    float k[most][heads][d_k], v[most][heads][d_v];
    uint8_t k_cache[slots][heads][d_k], v_cache[slots][heads][d_v];
    int64_t slot[most];
    float k_scale[heads], v_scale[heads];
    plait_kv_append_args args;
};

static void open_gqa(struct gqa *g, int32_t rows, int32_t scales)
{
    memset(g, 0, sizeof *g);
    memset(g->k_cache, 0x55, sizeof g->k_cache);
    memset(g->v_cache, 0x55, sizeof g->v_cache);
    for (int i = 0; i < most * heads * d_k; i++)
        (&g->k[0][0][0])[i] = (float)((i * 37) % 29 - 14) / 16;
    for (int i = 0; i < most * heads * d_v; i++)
        (&g->v[0][0][0])[i] = (float)((i * 23) % 31 - 15) / 8;
    for (int i = 0; i < most; i++)
        g->slot[i] = i;
    g->k_scale[0] = 0.5f;
    g->k_scale[1] = 0.25f;
    g->v_scale[0] = 2;
    g->v_scale[1] = 4;
    plait_kv_append_args *a = &g->args;
    *a = (plait_kv_append_args)PLAIT_KV_APPEND_ARGS_INIT;
    a->op = PLAIT_OP_GQA;
    a->num_rows = rows;
    a->h_kv = heads;
    a->d_qk = d_k;
    a->d_v = d_v;
    a->page_size = page;
    a->num_pages = pages;
    a->slot = g->slot;
    a->k = g->k;
    a->v = g->v;
    a->k_head_stride = a->k_head_cache_stride = d_k;
    a->v_head_stride = a->v_head_cache_stride = d_v;
    a->k_row_stride = a->k_token_stride = heads * d_k;
    a->v_row_stride = a->v_token_stride = heads * d_v;
    a->k_page_stride = page * heads * d_k;
    a->v_page_stride = page * heads * d_v;
    a->k_cache = g->k_cache;
    a->v_cache = g->v_cache;
    a->kv_dtype = PLAIT_FP8_E4M3;
    a->k_scale = g->k_scale;
    a->v_scale = g->v_scale;
    a->k_scale_n = a->v_scale_n = scales;
}

static void test_case14_a_row_of_another_rank_writes_nothing(void **state)
{
    (void)state;
    struct gqa g;
    open_gqa(&g, most, 1);
    for (int i = 0; i < most; i++)
        g.slot[i] = -1;
    assert_int_equal(plait_kv_append(&g.args), PLAIT_OK);
    for (size_t i = 0; i < sizeof g.k_cache; i++)
        assert_int_equal((&g.k_cache[0][0][0])[i], 0x55);
    for (size_t i = 0; i < sizeof g.v_cache; i++)
        assert_int_equal((&g.v_cache[0][0][0])[i], 0x55);
    g.slot[3] = slots - 1;
    assert_int_equal(plait_kv_append(&g.args), PLAIT_OK);
    for (int s = 0; s < slots; s++)
        assert_int_equal(g.k_cache[s][0][0] == 0x55, s != slots - 1);
}

/* A slot beyond the pool is refused by row and number, and no row before it is written. */
static void test_case23_a_slot_beyond_the_pool_leaves_the_cache(void **state)
{
    (void)state;
    static const int64_t bad[] = {slots, slots + 99, INT32_MAX, INT64_MAX, -2};
    struct gqa g;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        open_gqa(&g, most, 1);
        g.slot[4] = bad[i];
        assert_int_equal(plait_kv_append(&g.args), PLAIT_E_ARG);
        assert_non_null(strstr(plait_last_error(), "of row 4, wanted -1 or one of the 3 pages"));
        for (size_t j = 0; j < sizeof g.k_cache; j++)
            assert_int_equal((&g.k_cache[0][0][0])[j], 0x55);
    }
}

/* Attention over the fp8 cache of both rows' heads; q is 1, one head per KV head. */
static void attend(const struct gqa *g, const float *k_scale, const float *v_scale, int32_t n,
                   float *out, float *lse)
{
    static const float q[heads * d_k] = {1, 1, 1, 1, 1, 1, 1, 1};
    static _Alignas(64) char workspace[1 << 16];
    const int32_t row_start[] = {0, 1}, kv_end[] = {most}, table[] = {0, 1};
    plait_attn_args a = PLAIT_ATTN_ARGS_INIT;
    a.op = PLAIT_OP_GQA;
    a.num_seqs = a.num_rows = 1;
    a.h_q = a.h_kv = heads;
    a.d_qk = d_k;
    a.d_v = d_v;
    a.page_size = page;
    a.num_pages = pages;
    a.row_start = row_start;
    a.kv_end = kv_end;
    a.page_table = table;
    a.page_table_stride = 2;
    a.q = q;
    a.q_head_stride = d_k;
    a.k = g->k_cache;
    a.v = g->v_cache;
    a.kv_dtype = PLAIT_FP8_E4M3;
    a.k_page_stride = g->args.k_page_stride;
    a.k_token_stride = g->args.k_token_stride;
    a.k_head_stride = d_k;
    a.v_page_stride = g->args.v_page_stride;
    a.v_token_stride = g->args.v_token_stride;
    a.v_head_stride = d_v;
    a.k_scale = k_scale;
    a.v_scale = v_scale;
    a.k_scale_n = a.v_scale_n = n;
    a.out = out;
    a.out_head_stride = d_v;
    a.lse = lse;
    a.lse_head_stride = 1;
    a.softmax_scale = 1;
    a.workspace = workspace;
    a.workspace_bytes = sizeof workspace;
    const plait_kernel *kernel = plait_kernel_find("gqa_ref");
    assert_int_equal(plait_attn_check(&a), PLAIT_OK);
    assert_int_equal(plait_attn_run(kernel, &a, NULL), PLAIT_OK);
}

/* What is written with scales and attended with them is attention over the rows: the k scale enters
   the score once, the v scale the output once; swapped scales change the answer. */
static void test_case30_scales_of_write_and_attention_agree(void **state)
{
    (void)state;
    struct gqa g;
    float out[heads][d_v], lse[heads], swapped[heads][d_v], swapped_lse[heads];
    for (int32_t n = 1; n <= heads; n++) {
        open_gqa(&g, most, n);
        assert_int_equal(plait_kv_append(&g.args), PLAIT_OK);
        attend(&g, g.k_scale, g.v_scale, n, out[0], lse);
        attend(&g, g.v_scale, g.k_scale, n, swapped[0], swapped_lse);
        for (int h = 0; h < heads; h++) {
            double score[most], sum = 0, want[d_v] = {0};
            for (int c = 0; c < most; c++) {
                score[c] = 0;
                for (int d = 0; d < d_k; d++)
                    score[c] += (double)g.k[c][h][d];
                sum += exp(score[c]);
            }
            for (int c = 0; c < most; c++)
                for (int d = 0; d < d_v; d++)
                    want[d] += exp(score[c]) / sum * (double)g.v[c][h][d];
            near(lse[h], log(sum), 0.1); /* three bits of mantissa */
            for (int d = 0; d < d_v; d++)
                near(out[h][d], want[d], 0.12);
            assert_false(fabs((double)swapped_lse[h] - log(sum)) < 0.3);
        }
    }
}

/* The latent has a standard deviation of 0.03 and the rope part is in [-1, 1]: one shared scale of
   0.5 leaves the rope part within 7%, as do the scales of the 656-byte rows. */
static void test_case30_one_latent_scale_does_not_saturate_rope(void **state)
{
    (void)state;
    enum { latent = 512, rope = 64, d = latent + rope };
    static float row[d], back[d];
    static _Alignas(64) uint8_t cache[page][656];
    const plait_dtype types[] = {PLAIT_FP8_E4M3, PLAIT_FP8_DS656};
    const float scale = 0.5f;
    const int64_t slot = 2;
    for (int i = 0; i < d; i++)
        row[i] = (float)sin(i * 1.7) * (i < latent ? 0.042f : 1.0f);
    for (int t = 0; t < 2; t++) {
        const int ds = types[t] == PLAIT_FP8_DS656;
        plait_kv_append_args a = PLAIT_KV_APPEND_ARGS_INIT;
        a.num_rows = 1;
        a.d_qk = d;
        a.d_rope = rope;
        a.page_size = page;
        a.slot = &slot;
        a.k = row;
        a.rope = row + latent;
        a.kv_dtype = types[t];
        a.k_cache = cache;
        a.k_token_stride = ds ? 1 : d;
        a.k_scale = &scale;
        a.k_scale_n = ds ? 0 : 1;
        assert_int_equal(plait_kv_append(&a), PLAIT_OK);
        plait_kv_gather_args g = PLAIT_KV_GATHER_ARGS_INIT;
        g.num_rows = 1;
        g.d = d;
        g.page_size = page;
        g.slot = &slot;
        g.cache = cache;
        g.kv_dtype = types[t];
        g.token_stride = a.k_token_stride;
        g.scale = &scale;
        g.scale_n = a.k_scale_n;
        g.out = back;
        assert_int_equal(plait_kv_gather(&g), PLAIT_OK);
        for (int i = latent; i < d; i++)
            if (fabsf(row[i]) > 0.01f)
                near(back[i], row[i], 0.07 * fabs((double)row[i]));
        for (int i = 0; ds && i < latent; i++)
            near(back[i], row[i], 0.0626 * fabs((double)row[i]) + 1e-6);
    }
}

static void refused(plait_status status, const char *sentence)
{
    assert_int_equal(status, PLAIT_E_ARG);
    if (!strstr(plait_last_error(), sentence))
        fail_msg("'%s' does not say '%s'", plait_last_error(), sentence);
}

static void test_bad_arguments_are_named(void **state)
{
    (void)state;
    struct gqa g;
    plait_kv_append_args mla = PLAIT_KV_APPEND_ARGS_INIT;
    refused(plait_kv_append(NULL), "append: arguments of size 0");
    open_gqa(&g, most, 1);
    g.args.k_scale_n = 3;
    refused(plait_kv_append(&g.args), "k_scale_n is 3, wanted 0, 1 or 2");
    open_gqa(&g, most, heads);
    g.v_scale[1] = 0;
    refused(plait_kv_append(&g.args), "v_scale[1] is 0, wanted more than 0");
    g.v_scale[1] = NAN;
    refused(plait_kv_append(&g.args), "v_scale[1] is nan");
    open_gqa(&g, most, 0);
    g.args.v = NULL;
    refused(plait_kv_append(&g.args), "v, rope or a cache is NULL with 6 rows");
    open_gqa(&g, most, 0);
    g.args.dtype = PLAIT_FP8_E4M3;
    refused(plait_kv_append(&g.args), "values in fp8");
    open_gqa(&g, most, 0);
    g.args.kv_dtype = PLAIT_FP8_DS656;
    refused(plait_kv_append(&g.args), "wanted MLA, 576");
    mla.d_qk = 576;
    mla.d_rope = 576;
    refused(plait_kv_append(&mla), "d_rope 576");
    mla.d_rope = 32;
    mla.kv_dtype = PLAIT_FP8_DS656;
    refused(plait_kv_append(&mla), "d_rope 32, k_scale_n 0; wanted MLA, 576, 0 or 64, 0");
    mla.d_rope = 64;
    mla.page_size = 0;
    refused(plait_kv_append(&mla), "page_size 0");
    plait_kv_gather_args gather = PLAIT_KV_GATHER_ARGS_INIT;
    gather.d = 8;
    gather.page_size = page;
    gather.out_dtype = PLAIT_FP8_E4M3;
    refused(plait_kv_gather(&gather), "a cache in f32 to rows in fp8");
    gather.kv_dtype = PLAIT_FP8_E4M3;
    gather.scale_n = 1;
    refused(plait_kv_gather(&gather), "a copy of bits takes no scale");
    gather.scale_n = 0;
    gather.num_rows = 1;
    refused(plait_kv_gather(&gather), "1 rows without slots");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_case14_a_row_of_another_rank_writes_nothing),
        cmocka_unit_test(test_case23_a_slot_beyond_the_pool_leaves_the_cache),
        cmocka_unit_test(test_case30_scales_of_write_and_attention_agree),
        cmocka_unit_test(test_case30_one_latent_scale_does_not_saturate_rope),
        cmocka_unit_test(test_bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
