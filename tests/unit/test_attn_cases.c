/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention cases that users of such systems reported, on every built-in kernel that takes them.
 * `plait check` proves kernels at large; here each test pins one fault.
 */
#include <plait/attn.h>
#include <plait/merge.h>
#include <plait/shard.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "unit.h"

enum { max_rows = 128, max_keys = 512, d = 48, d_v = 32, page = 16 };

/* f32 calls with one page table entry after the other, shared by the tests. */
struct setup {
    plait_attn_args args;
    float q[max_rows * 8 * d], k[max_keys * 2 * d], v[max_keys * 2 * d_v];
    float out[max_rows * 8 * d_v], lse[max_rows * 8];
    int32_t row_start[9], begin[max_rows], end[max_rows], table[max_keys];
    _Alignas(64) unsigned char workspace[1 << 20];
};
static struct setup s;

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("got %.9g, wanted %.9g", got, want);
}

static float noise(uint32_t i)
{
    i = (i ^ 61u ^ i >> 16) * 9u;
    i = (i ^ i >> 4) * 0x27d4eb2du;
    return (float)((i ^ i >> 15) & 0xffffu) / 32768 - 1;
}

/* One sequence of `rows` rows with h_q heads; all rows see [0, keys). */
static void open_case(plait_op op, int32_t rows, int32_t h_q, int32_t h_kv, int32_t keys)
{
    static const plait_attn_args init = PLAIT_ATTN_ARGS_INIT;
    memset(&s, 0, sizeof s);
    plait_attn_args *a = &s.args;
    *a = init;
    a->op = op;
    a->num_seqs = 1;
    a->num_rows = s.row_start[1] = rows;
    a->h_q = h_q;
    a->h_kv = h_kv;
    a->d_qk = d;
    a->d_v = d_v;
    a->page_size = page;
    a->row_start = s.row_start;
    a->kv_begin = s.begin;
    a->kv_end = s.end;
    a->page_table = s.table;
    a->page_table_stride = max_keys / page;
    a->num_pages = max_keys / page;
    a->q = s.q;
    a->q_head_stride = d;
    a->q_row_stride = h_q * d;
    a->k = s.k;
    a->k_head_stride = d;
    a->k_token_stride = h_kv * d;
    a->k_page_stride = page * a->k_token_stride;
    a->v = op == PLAIT_OP_GQA ? s.v : NULL;
    a->v_head_stride = d_v;
    a->v_token_stride = h_kv * d_v;
    a->v_page_stride = page * a->v_token_stride;
    a->out = s.out;
    a->out_head_stride = d_v;
    a->out_row_stride = h_q * d_v;
    a->lse = s.lse;
    a->lse_head_stride = 1;
    a->lse_row_stride = h_q;
    a->softmax_scale = 0.25f;
    a->workspace = s.workspace;
    a->workspace_bytes = sizeof s.workspace;
    for (int32_t i = 0; i < max_keys / page; i++)
        s.table[i] = i;
    for (int32_t i = 0; i < rows; i++)
        s.end[i] = keys;
    for (uint32_t i = 0; i < (uint32_t)(rows * h_q * d); i++)
        s.q[i] = noise(i);
    for (uint32_t i = 0; i < (uint32_t)(max_keys * h_kv * d); i++)
        s.k[i] = noise(i + 1000000);
    for (uint32_t i = 0; i < (uint32_t)(max_keys * h_kv * d_v); i++)
        s.v[i] = noise(i + 2000000);
    memset(s.out, 0x99, sizeof s.out);
    memset(s.lse, 0x99, sizeof s.lse);
    memset(s.workspace, 0xff, sizeof s.workspace);
}

static int takes(const plait_kernel *kernel)
{
    char text[128];
    return !plait_kernel_refusal(kernel, &s.args, plait_cpu_detect(), text, sizeof text);
}

static void run(const plait_kernel *kernel)
{
    if (plait_attn_check(&s.args) != PLAIT_OK || plait_attn_run(kernel, &s.args, NULL) != PLAIT_OK)
        fail_msg("%s", plait_last_error());
}

/* Each kernel that takes an op's call; body sees `kernel`. A macro because it is a loop head. */
#define FOR_KERNELS(kernel)                                                                        \
    for (int32_t kernel##_i = 0; kernel##_i < plait_kernel_count(); kernel##_i++)                  \
        for (const plait_kernel *kernel = plait_kernel_get(kernel##_i); kernel; kernel = NULL)

static void test_case2_query_magnitudes_and_splits(void **state)
{
    (void)state;
    static const float sizes[] = {0.01f, 1, 100, 1000};
    static const plait_attn_work work[2] = {{0, 0, 4, 0, 2, 0, 90, 0}, {0, 0, 4, 0, 2, 90, 256, 8}};
    static const plait_attn_reduce reduce = {0, 4, 0, 2, 0, 2};
    float out[4 * 2 * d_v], lse[8];
    FOR_KERNELS(kernel)
    for (int i = 0; i < 4; i++) {
        open_case(kernel->op, 4, 2, 1, 256);
        if (!takes(kernel))
            continue;
        for (int j = 0; j < 4 * 2 * d; j++)
            s.q[j] *= sizes[i];
        run(kernel);
        memcpy(out, s.out, sizeof out);
        memcpy(lse, s.lse, sizeof lse);
        s.args.work = work;
        s.args.num_work = 2;
        s.args.reduce = &reduce;
        s.args.num_reduce = 1;
        s.args.num_partials = 16;
        run(kernel);
        for (int j = 0; j < 8; j++)
            near(s.lse[j], lse[j], 1e-6 * (1 + fabs((double)lse[j])));
        for (int j = 0; j < 4 * 2 * d_v; j++)
            near(s.out[j], out[j], 2e-6);
    }
}

/* Threads and their number change no bit. */
static void test_pool_gives_the_same_bits(void **state)
{
    (void)state;
    static const plait_attn_work work[4] = {{0, 0, 4, 0, 1, 0, 90, 0},
                                            {0, 0, 4, 0, 1, 90, 256, 4},
                                            {0, 0, 2, 1, 2, 0, 256, -1},
                                            {0, 2, 4, 1, 2, 0, 256, -1}};
    static const plait_attn_reduce reduce = {0, 4, 0, 1, 0, 2};
    float out[6 * 2 * d_v];
    plait_pool_options options = PLAIT_POOL_OPTIONS_INIT;
    plait_pool *pool;
    options.n_threads = 3;
    options.pin = 0;
    assert_int_equal(plait_pool_open(&options, &pool), PLAIT_OK);
    FOR_KERNELS(kernel)
    {
        open_case(kernel->op, 4, 2, 1, 256);
        if (!takes(kernel))
            continue;
        s.args.num_rows = 6; /* two rows of padding */
        s.args.work = work;
        s.args.num_work = 4;
        s.args.reduce = &reduce;
        s.args.num_reduce = 1;
        s.args.num_partials = 8;
        run(kernel);
        memcpy(out, s.out, sizeof out);
        memset(s.out, 0x99, sizeof s.out);
        for (int i = 0; i < 20; i++) {
            assert_int_equal(plait_attn_run(kernel, &s.args, plait_pool_executor(pool)), PLAIT_OK);
            assert_memory_equal(s.out, out, sizeof out);
        }
        for (int i = 4 * 2 * d_v; i < 6 * 2 * d_v; i++)
            assert_true(out[i] == 0);
    }
    plait_pool_close(&pool);
}

static void test_case4_short_sequences(void **state)
{
    (void)state;
    static const int32_t length[3] = {0, 1, 130};
    FOR_KERNELS(kernel)
    {
        open_case(kernel->op, 3, 2, 1, 0);
        if (!takes(kernel))
            continue;
        s.args.num_seqs = 3;
        for (int i = 0; i < 3; i++) {
            s.row_start[i + 1] = i + 1;
            s.end[i] = length[i];
            for (int j = 0; j < max_keys / page; j++)
                s.table[i * (max_keys / page) + j] = j;
        }
        run(kernel);
        for (int h = 0; h < 2; h++) {
            assert_true(s.lse[h] == -INFINITY);
            for (int i = 0; i < d_v; i++)
                assert_true(s.out[h * d_v + i] == 0);
            const float *v = kernel->op == PLAIT_OP_MLA ? s.k : s.v;
            near(s.out[(2 + h) * d_v], v[0], 1e-7); /* one key has all the weight */
            assert_true(isfinite(s.lse[2 + h]) && isfinite(s.lse[4 + h]));
        }
    }
}

/* Attends [begin, end) of row 0's range as a state of its own. */
static void attend_part(const plait_kernel *kernel, int32_t begin, int32_t end, float *out,
                        float *lse)
{
    s.begin[0] = begin;
    s.end[0] = end;
    run(kernel);
    memcpy(out, s.out, 2 * d_v * sizeof(float));
    memcpy(lse, s.lse, 2 * sizeof(float));
}

static void test_case5_chunks_without_keys(void **state)
{
    (void)state;
    static const int32_t context[4] = {500, 10, 0, 257};
    float whole[2 * d_v], whole_lse[2], out[2 * d_v], lse[2], sum[2 * d_v], sum_lse[2];
    FOR_KERNELS(kernel)
    for (int i = 0; i < 4; i++) {
        open_case(kernel->op, 1, 2, 1, 0);
        if (!takes(kernel))
            continue;
        plait_merged to = {sum, PLAIT_F32, 0, d_v, sum_lse, 0, 1};
        plait_partial part = {out, PLAIT_F32, 0, d_v, lse, 0, 1};
        attend_part(kernel, 0, context[i], whole, whole_lse);
        plait_merge(NULL, 0, 1, 2, d_v, 0, &to);
        for (int32_t at = 0; at < 512; at += 128) {
            int32_t end = at + 128 < context[i] ? at + 128 : context[i];
            attend_part(kernel, at < end ? at : end, end, out, lse);
            assert_int_equal(plait_merge_into(&to, &part, 1, 2, d_v, 0), PLAIT_OK);
        }
        for (int h = 0; h < 2; h++)
            if (whole_lse[h] != sum_lse[h])
                near(sum_lse[h], whole_lse[h], 1e-5);
        for (int j = 0; j < 2 * d_v; j++)
            near(sum[j], whole[j], 2e-6);
    }
}

/* Cases 6 and 11: shards of a sequence, merged, give what one rank gives, in every row; also where
   there are fewer tokens than ranks. */
static void shards_equal_one(const plait_kernel *kernel, int32_t n_ranks, int32_t interleave,
                             int32_t length, int32_t rows)
{
    float whole[8 * d_v], whole_lse[8], out[8][8 * d_v], lse[8][8], *k = malloc(sizeof s.k);
    plait_partial part[8];
    float *v = malloc(sizeof s.v);
    open_case(kernel->op, rows, 2, 1, 0);
    for (int32_t j = 0; j < rows; j++)
        s.end[j] = length - rows + j + 1 > 0 ? length - rows + j + 1 : 0;
    run(kernel);
    memcpy(whole, s.out, sizeof whole);
    memcpy(whole_lse, s.lse, sizeof whole_lse);
    memcpy(k, s.k, sizeof s.k);
    memcpy(v, s.v, sizeof s.v);
    for (int32_t r = 0; r < n_ranks; r++) {
        plait_shard shard = {n_ranks, r, interleave};
        memset(s.k, 0xff, sizeof s.k);
        memset(s.v, 0xff, sizeof s.v);
        for (int32_t c = 0; c < plait_shard_len(shard, length); c++) {
            memcpy(s.k + c * d, k + plait_shard_global(shard, c) * d, d * sizeof(float));
            memcpy(s.v + c * d_v, v + plait_shard_global(shard, c) * d_v, d_v * sizeof(float));
        }
        for (int32_t j = 0; j < rows; j++)
            s.end[j] = (int32_t)plait_shard_len(shard, length - rows + j + 1);
        run(kernel);
        memcpy(out[r], s.out, sizeof out[r]);
        memcpy(lse[r], s.lse, sizeof lse[r]);
        part[r] = (plait_partial){out[r], PLAIT_F32, 2 * d_v, d_v, lse[r], 2, 1};
    }
    plait_merged to = {s.out, PLAIT_F32, 2 * d_v, d_v, s.lse, 2, 1};
    assert_int_equal(plait_merge(part, n_ranks, rows, 2, d_v, 0, &to), PLAIT_OK);
    for (int32_t i = 0; i < rows * 2; i++)
        if (s.lse[i] != whole_lse[i])
            near(s.lse[i], whole_lse[i], 2e-6);
    for (int32_t i = 0; i < rows * 2 * d_v; i++)
        near(s.out[i], whole[i], 2e-6);
    free(k);
    free(v);
}

static void test_case6_fewer_tokens_than_ranks(void **state)
{
    (void)state;
    FOR_KERNELS(kernel)
    {
        open_case(kernel->op, 1, 2, 1, 0);
        if (!takes(kernel))
            continue;
        for (int32_t length = 1; length <= 9; length++)
            shards_equal_one(kernel, 8, 1, length, 1);
        for (int32_t length = 1; length <= 17; length++)
            shards_equal_one(kernel, 8, 16, length, 1);
    }
}

static void test_case11_verification_rows_under_dcp(void **state)
{
    (void)state;
    FOR_KERNELS(kernel)
    {
        open_case(kernel->op, 1, 2, 1, 0);
        if (!takes(kernel))
            continue;
        shards_equal_one(kernel, 2, 1, 6, 4);
        shards_equal_one(kernel, 3, 16, 130, 4);
        shards_equal_one(kernel, 2, 1, 3, 4); /* case 10: a row before position 0 */
    }
}

/* Sets the last `n` of `keys` keys to a constant score and all before them to NaN; the row's range
   leaves those out, so that the first tile is partly or wholly masked. */
static void constant_scores(float score, int32_t keys, int32_t n)
{
    for (int i = 0; i < d; i++)
        for (int h = 0; h < 7; h++)
            s.q[h * d + i] = i == d - 1;
    for (int32_t c = 0; c < keys; c++)
        for (int i = 0; i < d; i++)
            s.k[c * d + i] = c < keys - n ? NAN : i == d - 1 ? score / 0.25f : (float)(c % 5);
    s.begin[0] = keys - n;
    s.end[0] = keys;
}

static void test_case7_very_negative_scores(void **state)
{
    (void)state;
    static const float scores[] = {-80, -200, -1e4f};
    FOR_KERNELS(kernel)
    for (int i = 0; i < 3; i++)
        for (int32_t keys = 64; keys <= 448; keys += 32) {
            open_case(kernel->op, 1, 7, 1, keys);
            if (!takes(kernel))
                continue;
            s.args.v = kernel->op == PLAIT_OP_GQA ? s.k : NULL;
            s.args.v_token_stride = d;
            s.args.v_page_stride = page * d;
            constant_scores(scores[i], keys, 64);
            run(kernel);
            double mean = 0;
            for (int32_t c = keys - 64; c < keys; c++)
                mean += (double)(c % 5) / 64;
            for (int h = 0; h < 7; h++) {
                near(s.out[h * d_v], mean, 1e-5);
                near(s.lse[h], (double)scores[i] + log(64), 1e-6 * fabs((double)scores[i]));
            }
        }
}

static void test_case8_scores_below_any_finite_mask(void **state)
{
    (void)state;
    static const int32_t counts[] = {1, 2, 65};
    FOR_KERNELS(kernel)
    for (int i = 0; i < 3; i++) {
        open_case(kernel->op, 1, 7, 1, 1);
        if (!takes(kernel))
            continue;
        s.args.v = kernel->op == PLAIT_OP_GQA ? s.k : NULL;
        s.args.v_token_stride = d;
        s.args.v_page_stride = page * d;
        constant_scores(-6e4f, 96, counts[i]);
        run(kernel);
        for (int h = 0; h < 7; h++)
            near(s.lse[h], -6e4 + log(counts[i]), 0.02);
        assert_true(isfinite(s.out[0]) && s.out[0] >= 0 && s.out[0] <= 4);
    }
}

/* A rank with 8 of 32 query heads and both KV heads: its KV head follows from the global number. */
static void test_case15_kv_head_of_global_head(void **state)
{
    (void)state;
    FOR_KERNELS(kernel)
    {
        if (kernel->op != PLAIT_OP_GQA)
            continue;
        for (int32_t rank = 0; rank < 4; rank++) {
            open_case(PLAIT_OP_GQA, 1, 8, 2, 40);
            s.args.q_per_kv = 16;
            s.args.q_head0 = rank * 8;
            if (!takes(kernel))
                continue;
            for (int32_t i = 0; i < max_keys * 2 * d_v; i++)
                s.v[i] = (float)(i / d_v % 2 + 1);
            run(kernel);
            for (int h = 0; h < 8; h++)
                near(s.out[h * d_v], rank < 2 ? 1 : 2, 1e-6);
        }
        open_case(PLAIT_OP_GQA, 1, 8, 2, 40);
        s.args.q_per_kv = 16;
        s.args.q_head0 = 26;
        assert_int_equal(plait_attn_check(&s.args), PLAIT_E_ARG);
        assert_non_null(strstr(plait_last_error(), "q_head0 26"));
    }
}

static void test_case19_workspace_is_exact(void **state)
{
    (void)state;
    FOR_KERNELS(kernel)
    {
        open_case(kernel->op, 1, 2, 1, 40);
        if (!takes(kernel))
            continue;
        size_t need = plait_attn_workspace(kernel, &s.args, 1);
        char bytes[32];
        s.args.workspace_bytes = need;
        assert_int_equal(plait_attn_run(kernel, &s.args, NULL), PLAIT_OK);
        s.args.workspace_bytes = need - 1;
        assert_int_equal(plait_attn_run(kernel, &s.args, NULL), PLAIT_E_NOMEM);
        snprintf(bytes, sizeof bytes, "%zu", need);
        assert_non_null(strstr(plait_last_error(), bytes));
        snprintf(bytes, sizeof bytes, "%zu", need - 1);
        assert_non_null(strstr(plait_last_error(), bytes));
    }
}

/* Case 22: NaN after the last key of a page; and keys that only later rows see stay out too. */
static void test_case22_nan_tails(void **state)
{
    (void)state;
    float clean[3 * 2 * d_v];
    FOR_KERNELS(kernel)
    {
        open_case(kernel->op, 3, 2, 1, 0);
        if (!takes(kernel))
            continue;
        for (int j = 0; j < 3; j++)
            s.end[j] = 33 + j;
        run(kernel);
        memcpy(clean, s.out, sizeof clean);
        for (int32_t i = 34; i < max_keys; i++) {
            for (int j = 0; j < d; j++)
                s.k[i * d + j] = NAN;
            for (int j = 0; j < d_v; j++)
                s.v[i * d_v + j] = NAN;
        }
        run(kernel);
        assert_memory_equal(s.out, clean, 2 * 2 * d_v * sizeof(float));
        assert_true(isnan(s.out[4 * d_v])); /* the last row does see one of them */
    }
}

/* Case 24: page id times stride passes 2^31 and 2^32 elements; the space is reserved, not used. */
static void test_case24_offsets_beyond_32_bits(void **state)
{
    (void)state;
    static const int32_t ids[] = {131071, 131072, 262143, 262144, 1000000};
    const int64_t stride = 16384;
    size_t bytes = (size_t)1000001 * (size_t)stride * sizeof(float);
    float *pool = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED) {
        print_message("so large a mapping is not allowed here\n");
        skip();
    }
    float low[2 * d_v];
    FOR_KERNELS(kernel)
    {
        open_case(kernel->op, 1, 2, 1, 2 * page);
        if (!takes(kernel))
            continue;
        run(kernel);
        memcpy(low, s.out, sizeof low);
        for (int i = 0; i < 5; i++) {
            int32_t other = ids[(i + 1) % 5];
            s.table[0] = ids[i];
            s.table[1] = other;
            for (int p = 0; p < 2; p++) {
                float *to = pool + s.table[p] * stride;
                memcpy(to, s.k + p * page * d, page * d * sizeof(float));
                memcpy(to + page * d, s.v + p * page * d_v, page * d_v * sizeof(float));
            }
            s.args.k = pool;
            s.args.v = kernel->op == PLAIT_OP_GQA ? pool + page * d : NULL;
            s.args.k_page_stride = s.args.v_page_stride = stride;
            s.args.num_pages = 1000001;
            memset(s.out, 0x99, sizeof s.out);
            run(kernel);
            assert_memory_equal(s.out, low, sizeof low);
        }
    }
    munmap(pool, bytes);
}

/* Cases 17 and 31: a verification row has the bits of single-token decode at its place, and the
   last draft's key and value reach no row before it. */
static void test_case31_rows_equal_single_decode(void **state)
{
    (void)state;
    enum { n = 8, width = 3 * d_v };
    float all[n * width], changed[n * width], one[width];
    FOR_KERNELS(kernel)
    for (int32_t length = 16; length <= 400; length += 96) {
        open_case(kernel->op, n, 3, 1, 0);
        if (!takes(kernel))
            continue;
        for (int32_t j = 0; j < n; j++)
            s.end[j] = length + j + 1;
        run(kernel);
        memcpy(all, s.out, sizeof all);
        s.k[(length + n - 1) * d] += 1;
        s.v[(length + n - 1) * d_v] += 1;
        run(kernel);
        memcpy(changed, s.out, sizeof changed);
        assert_memory_equal(changed, all, (n - 1) * width * sizeof(float));
        assert_memory_not_equal(changed + (n - 1) * width, all + (n - 1) * width,
                                width * sizeof(float));
        s.args.num_rows = s.row_start[1] = 1;
        for (int32_t j = 0; j < n; j++) {
            s.args.q = s.q + j * 3 * d;
            s.end[0] = length + j + 1;
            run(kernel);
            memcpy(one, s.out, sizeof one);
            assert_memory_equal(one, changed + j * width, sizeof one);
        }
    }
}

static void test_case25_page_sizes(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 8, 16, 32, 48, 64, 128, 256, 512, 1000};
    float first[2 * d_v];
    FOR_KERNELS(kernel)
    for (int i = 0; i < 10; i++)
        for (int32_t keys = sizes[i] - 1; keys <= sizes[i] + 1; keys++) {
            open_case(kernel->op, 1, 2, 1, keys < 500 ? keys : 500);
            if (!takes(kernel))
                continue;
            run(kernel);
            memcpy(first, s.out, sizeof first);
            s.args.page_size = sizes[i];
            s.args.page_table_stride = s.args.num_pages = max_keys / sizes[i] + 1;
            s.args.k_page_stride = sizes[i] * s.args.k_token_stride;
            s.args.v_page_stride = sizes[i] * s.args.v_token_stride;
            for (int32_t j = 0; j < max_keys / sizes[i] && j < max_keys; j++)
                s.table[j] = j;
            run(kernel);
            assert_memory_equal(s.out, first, sizeof first);
        }
}

static void test_case27_head_counts(void **state)
{
    (void)state;
    static const int32_t heads[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128};
    static float all[128 * d_v];
    float lse[128];
    FOR_KERNELS(kernel)
    for (int i = 0; i < 15; i++) {
        open_case(kernel->op, 1, heads[i], 1, 77);
        if (!takes(kernel))
            continue;
        run(kernel);
        memcpy(all, s.out, sizeof all);
        memcpy(lse, s.lse, sizeof lse);
        uint32_t beyond; /* nothing is written past the last head */
        memcpy(&beyond, &s.lse[heads[i]], 4);
        assert_int_equal(beyond, 0x99999999u);
        memcpy(&beyond, &s.out[heads[i] * d_v], 4);
        assert_int_equal(beyond, 0x99999999u);
        s.args.h_q = 1;
        for (int32_t h = 0; h < heads[i]; h++) {
            s.args.q = s.q + h * d;
            run(kernel);
            assert_memory_equal(s.out, all + h * d_v, d_v * sizeof(float));
            assert_true(s.lse[0] == lse[h]);
        }
    }
}

static void test_checked_mode_names_request_and_entry(void **state)
{
    (void)state;
    open_case(PLAIT_OP_MLA, 2, 2, 1, 40);
    s.table[1] = s.args.num_pages;
    assert_int_equal(plait_attn_check(&s.args), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "sequence 0, table entry 1 is page 32"));
    s.begin[0] = s.begin[1] = 32; /* entries 0 and 1 are no longer in use */
    assert_int_equal(plait_attn_check(&s.args), PLAIT_OK);
    s.end[1] = 35;
    assert_int_equal(plait_attn_check(&s.args), PLAIT_E_ARG);
    s.end[1] = max_keys + 1;
    assert_int_equal(plait_attn_check(&s.args), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "key 512"));
}

static void test_pick_keeps_every_reason(void **state)
{
    (void)state;
    const plait_kernel *kernel;
    open_case(PLAIT_OP_MLA, 2, 2, 1, 40);
    assert_int_equal(plait_attn_pick(&s.args, 0, 1, NULL, &kernel), PLAIT_OK);
    assert_string_equal(kernel->name, "mla_ref");
    if (plait_cpu_detect() & PLAIT_CPU_AVX512) {
        assert_int_equal(plait_attn_pick(&s.args, plait_cpu_detect(), 1, NULL, &kernel), PLAIT_OK);
        assert_string_equal(kernel->name, "mla_avx512");
    }
    assert_int_equal(plait_attn_pick(&s.args, 0, 1, "*avx512", &kernel), PLAIT_E_UNSUPPORTED);
    assert_non_null(strstr(plait_last_error(), "mla_avx512: it needs avx512"));
    s.args.out_dtype = PLAIT_FP8_DS656;
    assert_int_equal(plait_attn_pick(&s.args, 0, 1, NULL, &kernel), PLAIT_E_UNSUPPORTED);
    assert_non_null(strstr(plait_last_error(), "mla_ref: out dtype is fp8_ds656"));
    assert_non_null(strstr(plait_last_error(), "gqa_ref: it is for GQA"));
    s.args.kv_dtype = PLAIT_FP8_E4M3;
    s.args.out_dtype = PLAIT_F32;
    assert_int_equal(plait_attn_pick(&s.args, PLAIT_CPU_ALL, 1, "mla_avx512*", &kernel),
                     PLAIT_E_UNSUPPORTED);
    assert_non_null(strstr(plait_last_error(), "KV dtype is fp8, it takes f32, bf16, f16"));
    assert_null(kernel);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_case2_query_magnitudes_and_splits),
        cmocka_unit_test(test_pool_gives_the_same_bits),
        cmocka_unit_test(test_case4_short_sequences),
        cmocka_unit_test(test_case5_chunks_without_keys),
        cmocka_unit_test(test_case6_fewer_tokens_than_ranks),
        cmocka_unit_test(test_case11_verification_rows_under_dcp),
        cmocka_unit_test(test_case7_very_negative_scores),
        cmocka_unit_test(test_case8_scores_below_any_finite_mask),
        cmocka_unit_test(test_case15_kv_head_of_global_head),
        cmocka_unit_test(test_case19_workspace_is_exact),
        cmocka_unit_test(test_case22_nan_tails),
        cmocka_unit_test(test_case24_offsets_beyond_32_bits),
        cmocka_unit_test(test_case31_rows_equal_single_decode),
        cmocka_unit_test(test_case25_page_sizes),
        cmocka_unit_test(test_case27_head_counts),
        cmocka_unit_test(test_checked_mode_names_request_and_entry),
        cmocka_unit_test(test_pick_keeps_every_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
