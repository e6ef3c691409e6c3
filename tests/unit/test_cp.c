/* SPDX-License-Identifier: Apache-2.0 */
/* The DCP step against one pass over the whole cache in double, with both exchanges. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <plait/dcp.h>
#include <plait/kv.h>

#include "core/convert.h"
#include "ranks.h"
#include "unit.h"

enum { D_QK = 20, D_V = 16, PAGE = 4, MAX_SEQS = 8, MAX_ROWS = 40, MAX_HEADS = 48, TABLE = 32 };

/* One batch, the same on all ranks. The q_len newest tokens of a sequence are its rows. */
struct batch {
    int32_t num_seqs, heads, padding;
    int64_t len[MAX_SEQS];
    int32_t q_len[MAX_SEQS];
    int32_t interleave, workers;
    plait_exchange exchange;
};

/* In [-1, 1), a function of its arguments alone. */
static float noise(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t x = a * 2654435761u ^ b * 2246822519u ^ c * 3266489917u;
    x = (x ^ x >> 15) * 2246822519u;
    x = (x ^ x >> 13) * 3266489917u;
    return (float)(int32_t)(x ^ x >> 16) / 2147483648.0f;
}

/* Half of the keys are four times as large, so that shards weigh differently. */
static float key(int32_t seq, int64_t token, int32_t d)
{
    return noise((uint32_t)seq + 1, (uint32_t)token, (uint32_t)d) * (token % 2 ? 1.0f : 4.0f);
}

static float query(int32_t row, int32_t head, int32_t d)
{
    return noise(1000u + (uint32_t)row, (uint32_t)head, (uint32_t)d);
}

/* Heads as plait_heads_of_rank lays them out: the first heads mod D ranks hold one more. */
static void split_heads(int32_t heads, int32_t n, int32_t *own)
{
    for (int32_t i = 0; i < n; i++)
        own[i] = heads / n + (i < heads % n);
}

/* out and lse of one row-head over tokens 0 .. index, in double. */
static double attend(int32_t seq, int64_t index, int32_t row, int32_t head, double *out)
{
    double top = -INFINITY, sum = 0;
    memset(out, 0, D_V * sizeof *out);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t t = 0; t <= index; t++) {
            double score = 0;
            for (int32_t d = 0; d < D_QK; d++)
                score += (double)query(row, head, d) * key(seq, t, d);
            if (pass == 0) {
                top = fmax(top, score);
                continue;
            }
            const double w = exp(score - top);
            sum += w;
            for (int32_t d = 0; d < D_V; d++)
                out[d] += w * key(seq, t, d);
        }
    for (int32_t d = 0; d < D_V; d++)
        out[d] /= sum;
    return top + log(sum);
}

/* One rank's side: its shard of the cache in shuffled pages, all else NaN. */
struct side {
    plait_attn_args args;
    int32_t row_start[MAX_SEQS + 1], kv_end[MAX_ROWS], table[MAX_SEQS * TABLE];
    float pool[MAX_SEQS * TABLE * PAGE * D_QK], before[MAX_SEQS * TABLE * PAGE * D_QK];
    float q[MAX_ROWS * MAX_HEADS * D_QK];
    float out[MAX_ROWS * MAX_HEADS * D_V], lse[MAX_ROWS * MAX_HEADS];
    float partial[MAX_ROWS * MAX_HEADS * D_V], partial_lse[MAX_ROWS * MAX_HEADS];
    _Alignas(64) unsigned char workspace[1 << 18];
};

static void fill_cache(struct side *s, const struct batch *b, plait_shard shard)
{
    for (size_t i = 0; i < sizeof s->pool / sizeof s->pool[0]; i++)
        s->pool[i] = NAN;
    for (int32_t q = 0; q < b->num_seqs; q++) {
        int32_t *table = s->table + q * TABLE;
        for (int32_t k = 0; k < TABLE; k++) /* 77 has no factor in common with the pool's size */
            table[k] = (q * TABLE + k) * 77 % (MAX_SEQS * TABLE);
        for (int64_t t = 0; t < b->len[q]; t++) {
            const int64_t slot = plait_shard_slot(shard, t, table, TABLE, PAGE);
            for (int32_t d = 0; slot >= 0 && d < D_QK; d++)
                s->pool[slot * D_QK + d] = key(q, t, d);
        }
    }
    memcpy(s->before, s->pool, sizeof s->pool);
}

static void fill_rows(struct side *s, const struct batch *b, plait_shard shard, int32_t first,
                      int32_t own)
{
    int32_t row = 0;
    for (int32_t q = 0; q < b->num_seqs; q++) {
        for (int32_t j = 0; j < b->q_len[q]; j++, row++)
            s->kv_end[row] = (int32_t)plait_shard_len(shard, b->len[q] - b->q_len[q] + j + 1);
        s->row_start[q + 1] = row;
    }
    for (int32_t i = 0; i < row; i++)
        for (int32_t h = 0; h < own; h++)
            for (int32_t d = 0; d < D_QK; d++)
                s->q[(i * own + h) * D_QK + d] = query(i, first + h, d);
    s->args.num_rows = row + b->padding;
}

static struct side *make_side(const struct batch *b, plait_shard shard, int32_t first, int32_t own)
{
    struct side *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->args = (plait_attn_args)PLAIT_ATTN_ARGS_INIT;
    fill_cache(s, b, shard);
    fill_rows(s, b, shard, first, own);
    plait_attn_args *a = &s->args;
    a->num_seqs = b->num_seqs;
    a->h_q = b->heads;
    a->h_kv = 1;
    a->d_qk = D_QK;
    a->d_v = D_V;
    a->page_size = PAGE;
    a->row_start = s->row_start;
    a->kv_end = s->kv_end;
    a->page_table = s->table;
    a->page_table_stride = TABLE;
    a->num_pages = MAX_SEQS * TABLE;
    a->q = s->q;
    a->q_row_stride = own * D_QK;
    a->q_head_stride = D_QK;
    a->k = s->pool;
    a->k_page_stride = PAGE * D_QK;
    a->k_token_stride = a->k_head_stride = D_QK;
    a->out = s->out;
    a->out_row_stride = own * D_V;
    a->out_head_stride = D_V;
    a->lse = s->lse;
    a->lse_row_stride = own;
    a->lse_head_stride = 1;
    a->workspace = s->workspace;
    a->workspace_bytes = sizeof s->workspace;
    memset(s->out, 0x99, sizeof s->out);
    memset(s->lse, 0x99, sizeof s->lse);
    return s;
}

static plait_dcp_options options_of(plait_comm *comm, const int32_t *heads, plait_exchange exchange)
{
    plait_dcp_options o = PLAIT_DCP_OPTIONS_INIT;
    o.comm = comm;
    o.heads = heads;
    o.d_qk = D_QK;
    o.d_v = D_V;
    o.max_rows = MAX_ROWS;
    o.exchange = exchange;
    return o;
}

static int close_to(double got, double want, double tolerance)
{
    return fabs(got - want) <= tolerance * (1 + fabs(want));
}

static int check_side(const struct side *s, const struct batch *b, int32_t first, int32_t own)
{
    double want[D_V];
    for (int32_t q = 0; q < b->num_seqs; q++)
        for (int32_t row = s->row_start[q]; row < s->row_start[q + 1]; row++)
            for (int32_t h = 0; h < own; h++) {
                const int64_t index = b->len[q] - b->q_len[q] + row - s->row_start[q];
                const double lse = attend(q, index, row, first + h, want);
                WANT(close_to(s->lse[row * own + h], lse, 3e-6));
                for (int32_t d = 0; d < D_V; d++)
                    WANT(close_to(s->out[(row * own + h) * D_V + d], want[d], 1e-5));
            }
    for (int32_t i = s->row_start[b->num_seqs] * own; i < s->args.num_rows * own; i++) {
        WANT(s->lse[i] == -INFINITY); /* padding is empty */
        for (int32_t d = 0; d < D_V; d++)
            WANT(s->out[i * D_V + d] == 0);
    }
    WANT(memcmp(s->pool, s->before, sizeof s->pool) == 0);
    return 0;
}

/* An executor of several workers that come in reverse order. */
static plait_status reverse_for(void *user, plait_task_fn fn, void *task)
{
    const int32_t n = *(const int32_t *)user;
    plait_status status = PLAIT_OK;
    for (int32_t w = n - 1; w >= 0; w--)
        if (fn(task, w, n) != PLAIT_OK)
            status = PLAIT_E_ARG;
    return status;
}

static int one_step(plait_comm *comm, void *user)
{
    const struct batch *b = user;
    int32_t own[RANKS_MAX], workers = b->workers;
    split_heads(b->heads, plait_comm_size(comm), own);
    const plait_dcp_options o = options_of(comm, own, b->exchange);
    plait_dcp *dcp;
    WANT(plait_dcp_open(&o, &dcp) == PLAIT_OK);
    const int32_t me = plait_comm_rank(comm), first = plait_dcp_first_head(dcp);
    const plait_shard shard = {plait_comm_size(comm), me, b->interleave};
    struct side *s = make_side(b, shard, first, own[me]);
    WANT(s && plait_dcp_heads(dcp) == b->heads);
    const plait_executor executor = {sizeof executor, &workers, workers, reverse_for};
    int failed = 0;
    for (int i = 0; i < 2 && !failed; i++)
        failed = plait_dcp_step(dcp, plait_kernel_find("mla_ref"), &s->args,
                                workers > 1 ? &executor : NULL) != PLAIT_OK ||
                 check_side(s, b, first, own[me]) != 0;
    plait_dcp_close(&dcp);
    free(s);
    return failed;
}

static void steps_equal_one_pass(void **state)
{
    (void)state;
    static const int32_t ranks[] = {1, 2, 3, 4, 6}, interleaves[] = {1, 3, 16};
    struct batch b = {
        .num_seqs = 5, .padding = 2, .len = {1, 2, 6, 37, 100}, .q_len = {1, 1, 4, 3, 8}};
    for (size_t d = 0; d < 5; d++)
        for (size_t i = 0; i < 3; i++)
            for (int32_t heads = 5; heads <= 8; heads += 3) /* 5: a rank of 6 has no head */
                for (int32_t e = PLAIT_EXCHANGE_AG_RS; e <= PLAIT_EXCHANGE_A2A; e++) {
                    b.heads = heads;
                    b.interleave = interleaves[i];
                    b.exchange = (plait_exchange)e;
                    b.workers = heads == 8 ? 3 : 1;
                    assert_int_equal(run_ranks(ranks[d], 60, one_step, &b), 0);
                }
}

static void case6_fewer_tokens_than_ranks(void **state)
{
    (void)state;
    struct batch b = {.num_seqs = 1, .heads = 8, .q_len = {1}, .workers = 1};
    for (int32_t e = PLAIT_EXCHANGE_AG_RS; e <= PLAIT_EXCHANGE_A2A; e++) {
        b.exchange = (plait_exchange)e;
        b.interleave = 1;
        for (b.len[0] = 1; b.len[0] <= 9; b.len[0]++)
            assert_int_equal(run_ranks(8, 60, one_step, &b), 0);
        b.interleave = 16;
        static const int64_t lens[] = {1, 15, 16, 17};
        for (size_t i = 0; i < 4; i++) {
            b.len[0] = lens[i];
            assert_int_equal(run_ranks(8, 60, one_step, &b), 0);
        }
    }
}

static void case11_rows_see_their_own_ranges(void **state)
{
    (void)state;
    static const int32_t want[2][4] = {{2, 2, 3, 3}, {1, 2, 2, 3}};
    struct batch b = {
        .num_seqs = 1, .heads = 2, .len = {6}, .q_len = {4}, .interleave = 1, .workers = 1};
    for (int32_t r = 0; r < 2; r++) {
        struct side *s = make_side(&b, (plait_shard){2, r, 1}, r, 1);
        assert_non_null(s);
        assert_memory_equal(s->kv_end, want[r], sizeof want[r]);
        free(s);
    }
    assert_int_equal(run_ranks(2, 60, one_step, &b), 0);
}

/* ---- merge alone ------------------------------------------------------------------------------*/

/* Partials as the ranks hold them: state of rank r has lse[r] and out value[r] in all heads. */
struct states {
    plait_exchange exchange;
    float lse[RANKS_MAX], value[RANKS_MAX];
    float want, want_lse;
};

static int same(float got, float want)
{
    return isnan(want) ? isnan(got) : isinf(want) ? got == want : fabsf(got - want) <= 2e-6f * 10;
}

static int merge_states(plait_comm *comm, void *user)
{
    const struct states *st = user;
    const int32_t n = plait_comm_size(comm), me = plait_comm_rank(comm);
    int32_t own[RANKS_MAX];
    split_heads(n + 1, n, own);
    const plait_dcp_options o = options_of(comm, own, st->exchange);
    plait_dcp *dcp;
    WANT(plait_dcp_open(&o, &dcp) == PLAIT_OK);
    float out[RANKS_MAX * D_V], lse[RANKS_MAX], merged[2 * D_V], merged_lse[2];
    for (int32_t h = 0; h < n + 1; h++) {
        lse[h] = st->lse[me];
        for (int32_t d = 0; d < D_V; d++)
            out[h * D_V + d] = st->value[me];
    }
    const plait_partial partial = {out, PLAIT_F32, 0, D_V, lse, 0, 1};
    const plait_merged dst = {merged, PLAIT_F32, 0, D_V, merged_lse, 0, 1};
    WANT(plait_dcp_merge(dcp, 1, &partial, NULL, &dst) == PLAIT_OK);
    for (int32_t h = 0; h < own[me]; h++) {
        WANT(same(merged_lse[h], st->want_lse));
        for (int32_t d = 0; d < D_V; d++)
            WANT(same(merged[h * D_V + d], st->want));
    }
    plait_dcp_close(&dcp);
    return 0;
}

static void check_states(int32_t n, struct states st)
{
    for (int32_t e = PLAIT_EXCHANGE_AG_RS; e <= PLAIT_EXCHANGE_A2A; e++) {
        st.exchange = (plait_exchange)e;
        assert_int_equal(run_ranks(n, 60, merge_states, &st), 0);
    }
}

static void case1_lse_is_natural(void **state)
{
    (void)state;
    check_states(2,
                 (struct states){
                     .lse = {10, 7}, .value = {1, 0}, .want = 0.952574f, .want_lse = 10.048587f});
}

static void case3_empty_states(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= 8; n++) {
        struct states st = {.want = 0, .want_lse = -INFINITY};
        for (int32_t i = 0; i < n; i++) {
            st.lse[i] = -INFINITY;
            st.value[i] = NAN; /* a payload of no weight is not read */
        }
        check_states(n, st);
        st.lse[0] = INFINITY; /* counts as empty */
        check_states(n, st);
        for (int32_t i = 0; i < n; i += n - 1) {
            struct states one = st;
            one.lse[0] = -INFINITY;
            one.lse[i] = 3.25f;
            one.value[i] = one.want = -1.5f;
            one.want_lse = 3.25f;
            check_states(n, one);
        }
    }
}

static void a_broken_lse_stays_visible(void **state)
{
    (void)state;
    check_states(
        3, (struct states){.lse = {1, NAN, 2}, .value = {1, 1, 1}, .want = NAN, .want_lse = NAN});
}

static int merge_bf16(plait_comm *comm, void *user)
{
    const plait_exchange exchange = *(const plait_exchange *)user;
    const int32_t n = plait_comm_size(comm), me = plait_comm_rank(comm);
    int32_t own[RANKS_MAX];
    split_heads(n, n, own);
    plait_dcp_options o = options_of(comm, own, exchange);
    o.partial_dtype = PLAIT_BF16;
    plait_dcp *dcp;
    WANT(plait_dcp_open(&o, &dcp) == PLAIT_OK);
    uint16_t out[RANKS_MAX * D_V], merged[D_V];
    float lse[RANKS_MAX] = {0}, merged_lse;
    for (int32_t i = 0; i < n * D_V; i++)
        out[i] = plait_bf16_from_f32(1 + 1e-3f * noise(7, (uint32_t)me, (uint32_t)i));
    const plait_partial partial = {out, PLAIT_BF16, 0, D_V, lse, 0, 1};
    const plait_merged dst = {merged, PLAIT_BF16, 0, D_V, &merged_lse, 0, 1};
    WANT(plait_dcp_merge(dcp, 1, &partial, NULL, &dst) == PLAIT_OK);
    WANT(close_to(merged_lse, log(n), 1e-7));
    for (int32_t d = 0; d < D_V; d++) {
        double mean = 0;
        for (int32_t r = 0; r < n; r++)
            mean += (double)plait_bf16_to_f32(plait_bf16_from_f32(
                        1 + 1e-3f * noise(7, (uint32_t)r, (uint32_t)(me * D_V + d)))) /
                    n;
        /* Half a bf16 step at 1, above it, and some float32 roundings. */
        WANT(fabs((double)plait_bf16_to_f32(merged[d]) - mean) <= 0x1p-8 + 1e-6);
    }
    plait_dcp_close(&dcp);
    return 0;
}

static void case49_partials_add_up_in_float32(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= 16; n *= 2)
        for (int32_t e = PLAIT_EXCHANGE_AG_RS; e <= PLAIT_EXCHANGE_A2A; e++) {
            plait_exchange exchange = (plait_exchange)e;
            assert_int_equal(run_ranks(n, 60, merge_bf16, &exchange), 0);
        }
}

/* ---- queries and heads ------------------------------------------------------------------------*/

static int gather_queries(plait_comm *comm, void *user)
{
    (void)user;
    const int32_t me = plait_comm_rank(comm), n = plait_comm_size(comm), heads = 5, rows = 3;
    int32_t own[RANKS_MAX], table = 3;
    split_heads(heads, n, own);
    const plait_dcp_options o = options_of(comm, own, PLAIT_EXCHANGE_AUTO);
    plait_dcp *dcp;
    WANT(plait_dcp_open(&o, &dcp) == PLAIT_OK);
    /* Token 6 is written by one rank; the other's slot is -1, and its query counts all the same. */
    WANT((plait_shard_slot((plait_shard){2, me, 1}, 6, &table, 1, 8) == -1) == (me == 1));
    float q[3 * 5 * (D_QK + 2)]; /* with gaps between heads */
    const int32_t stride = D_QK + 2, first = plait_dcp_first_head(dcp);
    for (int32_t i = 0; i < rows; i++)
        for (int32_t h = 0; h < own[me]; h++)
            for (int32_t d = 0; d < D_QK; d++)
                q[(i * own[me] + h) * stride + d] = query(i, first + h, d);
    const void *gathered;
    WANT(plait_dcp_gather_q(dcp, rows, q, own[me] * stride, stride, NULL, &gathered) == PLAIT_OK);
    const float *all = gathered;
    for (int32_t i = 0; i < rows; i++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t d = 0; d < D_QK; d++)
                WANT(all[(i * heads + h) * D_QK + d] == query(i, h, d));
    plait_dcp_close(&dcp);
    return 0;
}

static void case14_a_rank_without_the_token_has_its_query(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, 60, gather_queries, NULL), 0);
}

/* 32 query heads over 2 KV heads, tensor parallel 4 in groups of 2: KV head 0 is 1 everywhere and
   KV head 1 is 2, so the output names the KV head that a query head used. */
static int gqa_heads(plait_comm *world, void *user)
{
    const plait_exchange exchange = *(const plait_exchange *)user;
    const plait_heads layout = {.mla = 0, .heads = 32, .kv_heads = 2, .w = 4, .d = 2};
    const int32_t rank = plait_comm_rank(world), dim = 4, own[2] = {8, 8};
    plait_heads_rank h;
    WANT(plait_heads_of_rank(&layout, rank, &h) == PLAIT_OK);
    plait_comm *comm;
    WANT(plait_comm_split(world, 2, &comm) == PLAIT_OK);
    plait_dcp_options o = options_of(comm, own, exchange);
    o.d_qk = o.d_v = dim;
    plait_dcp *dcp;
    WANT(plait_dcp_open(&o, &dcp) == PLAIT_OK);
    float q[8 * 4] = {0}, k[8] = {0}, v[8], out[8 * 4];
    for (int32_t i = 0; i < 8; i++)
        v[i] = (float)(h.kv_begin + 1);
    const int32_t row_start[2] = {0, 1}, kv_end[1] = {1}, table[1] = {0};
    _Alignas(64) unsigned char workspace[1 << 14];
    plait_attn_args a = PLAIT_ATTN_ARGS_INIT;
    a.op = PLAIT_OP_GQA;
    a.num_seqs = a.num_rows = a.h_kv = 1;
    a.h_q = plait_dcp_heads(dcp);
    a.d_qk = a.d_v = dim;
    a.page_size = 1;
    a.row_start = row_start;
    a.kv_end = kv_end;
    a.page_table = table;
    a.page_table_stride = 1;
    a.q = q;
    a.q_row_stride = 8 * dim;
    a.q_head_stride = dim;
    a.k = k;
    a.v = v;
    a.k_page_stride = a.k_token_stride = a.k_head_stride = dim;
    a.v_page_stride = a.v_token_stride = a.v_head_stride = dim;
    a.out = out;
    a.out_row_stride = 8 * dim;
    a.out_head_stride = dim;
    a.q_head0 = h.group_head_begin - h.kv_begin * h.q_per_kv;
    a.q_per_kv = h.q_per_kv;
    a.workspace = workspace;
    a.workspace_bytes = sizeof workspace;
    WANT(plait_dcp_step(dcp, plait_kernel_find("gqa_ref"), &a, NULL) == PLAIT_OK);
    for (int32_t i = 0; i < 8 * dim; i++)
        WANT(fabsf(out[i] - (rank < 2 ? 1.0f : 2.0f)) <= 1e-6f);
    plait_dcp_close(&dcp);
    plait_comm_close(&comm);
    return 0;
}

static void case15_a_group_holds_one_kv_head(void **state)
{
    (void)state;
    for (int32_t e = PLAIT_EXCHANGE_AG_RS; e <= PLAIT_EXCHANGE_A2A; e++) {
        plait_exchange exchange = (plait_exchange)e;
        assert_int_equal(run_ranks(4, 60, gqa_heads, &exchange), 0);
    }
    const plait_heads refused = {.mla = 0, .heads = 32, .kv_heads = 2, .w = 4, .d = 4};
    assert_int_equal(plait_heads_check(&refused), PLAIT_E_UNSUPPORTED);
}

/* ---- gathered context -------------------------------------------------------------------------*/

struct chunks {
    int32_t interleave, page, num_seqs;
    int64_t len[3], chunk;
};

enum { CONTEXT_MAX = 1100 };

static float *paged_context(const struct chunks *k, plait_shard shard, int32_t *table,
                            int32_t entries)
{
    const size_t n = (size_t)k->num_seqs * (size_t)entries * (size_t)k->page;
    float *pool = calloc(n + 1, sizeof *pool);
    for (size_t i = 0; pool && i < n; i++)
        pool[i] = NAN;
    for (int32_t s = 0; pool && s < k->num_seqs; s++) {
        for (int32_t e = 0; e < entries; e++)
            table[s * entries + e] = k->num_seqs * entries - 1 - (s * entries + e);
        for (int64_t t = 0; t < k->len[s]; t++) {
            const int64_t slot = plait_shard_slot(shard, t, table + s * entries, entries, k->page);
            if (slot >= 0)
                pool[slot] = (float)(t + 10000 * s);
        }
    }
    return pool;
}

static int gather_chunks(plait_comm *comm, void *user)
{
    const struct chunks *k = user;
    const plait_shard shard = {plait_comm_size(comm), plait_comm_rank(comm), k->interleave};
    const int32_t entries = CONTEXT_MAX / k->page + 1, one[RANKS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1};
    plait_dcp_options o = options_of(comm, one, PLAIT_EXCHANGE_AUTO);
    o.max_context_rows = k->num_seqs * k->chunk;
    o.context_row_bytes = sizeof(float);
    plait_dcp *dcp;
    WANT(plait_dcp_open(&o, &dcp) == PLAIT_OK);
    static _Thread_local int32_t table[3 * (CONTEXT_MAX + 1)];
    static _Thread_local float out[3 * CONTEXT_MAX + 1];
    float *pool = paged_context(k, shard, table, entries);
    WANT(pool);
    int64_t begin[3], end[3], longest = 0;
    for (int32_t s = 0; s < k->num_seqs; s++)
        longest = k->len[s] > longest ? k->len[s] : longest;
    for (int64_t from = 0; from < longest; from += k->chunk) {
        int64_t total = 0, at = 0;
        for (int32_t s = 0; s < k->num_seqs; s++) {
            begin[s] = from < k->len[s] ? from : k->len[s];
            end[s] = from + k->chunk < k->len[s] ? from + k->chunk : k->len[s];
            total += end[s] - begin[s];
        }
        out[total] = -7; /* a guard */
        const plait_dcp_context x = {.size = sizeof x,
                                     .shard = shard,
                                     .num_seqs = k->num_seqs,
                                     .page_size = k->page,
                                     .begin = begin,
                                     .end = end,
                                     .page_table = table,
                                     .page_table_stride = entries,
                                     .cache = pool,
                                     .page_stride_bytes = k->page * 4,
                                     .token_stride_bytes = 4,
                                     .row_bytes = 4};
        WANT(plait_dcp_gather_context(dcp, &x, out) == PLAIT_OK);
        for (int32_t s = 0; s < k->num_seqs; s++)
            for (int64_t t = begin[s]; t < end[s]; t++)
                WANT(out[at++] == (float)(t + 10000 * s));
        WANT(out[total] == -7);
    }
    free(pool);
    plait_dcp_close(&dcp);
    return 0;
}

static void case13_chunks_come_in_global_order(void **state)
{
    (void)state;
    static const int64_t want[] = {59, 59, 59, 58};
    for (int32_t r = 0; r < 4; r++) {
        const plait_shard shard = {4, r, 1};
        assert_int_equal(plait_shard_len(shard, 768) - plait_shard_len(shard, 512), 64);
        assert_int_equal(plait_shard_len(shard, 1003) - plait_shard_len(shard, 768), want[r]);
    }
    struct chunks k = {1, 16, 1, {1003}, 256};
    assert_int_equal(run_ranks(4, 60, gather_chunks, &k), 0);
    for (int64_t len = 255; len <= 257; len++) {
        struct chunks near = {1, 16, 1, {len}, 256};
        assert_int_equal(run_ranks(4, 60, gather_chunks, &near), 0);
    }
    for (int32_t d = 1; d <= 6; d++) {
        struct chunks unequal = {3, 16, 3, {1000, 10, 513}, 48 * d * 2};
        assert_int_equal(run_ranks(d, 60, gather_chunks, &unequal), 0);
        unequal.chunk = 100; /* not on a page */
        assert_int_equal(run_ranks(d, 60, gather_chunks, &unequal), 0);
    }
}

/* Rows of 2 heads of 3 values in fp8, with a scale for each: prefix 300, 40 new tokens, chunk 128,
   the values that one rank gets from the whole. */
enum { F_HEADS = 2, F_D = 3, F_TOKENS = 340, F_PAGE = 16, F_ENTRIES = F_TOKENS / F_PAGE + 1 };

static int gather_fp8(plait_comm *comm, void *user)
{
    (void)user;
    static const float scale[F_HEADS] = {0.25f, 4};
    const int32_t one[RANKS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1};
    const plait_shard shard = {plait_comm_size(comm), plait_comm_rank(comm), 1};
    static _Thread_local uint8_t pool[F_ENTRIES * F_PAGE][F_HEADS][F_D];
    static _Thread_local float rows[F_TOKENS][F_HEADS][F_D], out[F_TOKENS][F_HEADS][F_D];
    int64_t slot[F_TOKENS];
    int32_t table[F_ENTRIES];
    memset(pool, 0xff, sizeof pool); /* NaN */
    for (int32_t e = 0; e < F_ENTRIES; e++)
        table[e] = F_ENTRIES - 1 - e;
    for (int32_t t = 0; t < F_TOKENS; t++) {
        slot[t] = plait_shard_slot(shard, t, table, F_ENTRIES, F_PAGE);
        for (int32_t h = 0; h < F_HEADS; h++)
            for (int32_t d = 0; d < F_D; d++) /* exact in fp8 with its head's scale */
                rows[t][h][d] = scale[h] * (float)((t + 5 * h + 3 * d) % 16);
    }
    plait_kv_append_args a = PLAIT_KV_APPEND_ARGS_INIT;
    a.op = PLAIT_OP_GQA;
    a.num_rows = F_TOKENS;
    a.h_kv = F_HEADS;
    a.d_qk = a.d_v = F_D;
    a.page_size = F_PAGE;
    a.slot = slot;
    a.k = a.v = rows;
    a.k_row_stride = a.v_row_stride = a.k_token_stride = a.v_token_stride = F_HEADS * F_D;
    a.k_head_stride = a.v_head_stride = a.k_head_cache_stride = a.v_head_cache_stride = F_D;
    a.k_page_stride = a.v_page_stride = F_PAGE * F_HEADS * F_D;
    a.k_cache = a.v_cache = pool;
    a.kv_dtype = PLAIT_FP8_E4M3;
    a.k_scale = a.v_scale = scale;
    a.k_scale_n = a.v_scale_n = F_HEADS;
    WANT(plait_kv_append(&a) == PLAIT_OK);
    plait_dcp_options o = options_of(comm, one, PLAIT_EXCHANGE_AUTO);
    o.max_context_rows = 128;
    o.context_row_bytes = F_HEADS * F_D;
    plait_dcp *dcp;
    WANT(plait_dcp_open(&o, &dcp) == PLAIT_OK);
    for (int64_t begin = 0; begin < 300; begin += 128) {
        const int64_t end = begin + 128 < 300 ? begin + 128 : 300;
        plait_dcp_context x = {.size = sizeof x,
                               .shard = shard,
                               .num_seqs = 1,
                               .page_size = F_PAGE,
                               .begin = &begin,
                               .end = &end,
                               .page_table = table,
                               .page_table_stride = F_ENTRIES,
                               .cache = pool,
                               .page_stride_bytes = F_PAGE * F_HEADS * F_D,
                               .token_stride_bytes = F_HEADS * F_D,
                               .row_bytes = F_HEADS * F_D,
                               .h_kv = F_HEADS,
                               .d = F_D,
                               .kv_dtype = PLAIT_FP8_E4M3,
                               .scale = scale,
                               .scale_n = F_HEADS};
        WANT(plait_dcp_gather_context(dcp, &x, out) == PLAIT_OK);
        WANT(memcmp(out, rows[begin], (size_t)(end - begin) * sizeof *rows) == 0);
        const float swapped[F_HEADS] = {4, 0.25f};
        x.scale = swapped;
        WANT(plait_dcp_gather_context(dcp, &x, out) == PLAIT_OK);
        WANT(memcmp(out, rows[begin], (size_t)(end - begin) * sizeof *rows) != 0);
    }
    plait_dcp_close(&dcp);
    return 0;
}

static void case30_gathered_context_has_its_scales(void **state)
{
    (void)state;
    for (int32_t d = 1; d <= 3; d++)
        assert_int_equal(run_ranks(d, 60, gather_fp8, NULL), 0);
}

static void case47_a_rank_without_context_joins(void **state)
{
    (void)state;
    struct chunks k = {1, 16, 1, {1}, 32};
    assert_int_equal(run_ranks(2, 60, gather_chunks, &k), 0);
    struct batch b = {
        .num_seqs = 1, .heads = 2, .len = {2}, .q_len = {2}, .interleave = 2, .workers = 1};
    assert_int_equal(run_ranks(2, 60, one_step, &b), 0);
}

/* ---- failures ---------------------------------------------------------------------------------*/

static plait_status broken_run(const plait_attn_args *args, int32_t worker, int32_t n_workers)
{
    (void)args;
    (void)worker;
    (void)n_workers;
    return PLAIT_E_DEVICE;
}

enum { KERNEL_FAILS, BAD_ARGUMENT, RANK_MISSING, ROWS_DIFFER };

static int step_fails(plait_comm *comm, void *user)
{
    const int how = *(const int *)user;
    const int32_t me = plait_comm_rank(comm), own[3] = {1, 1, 1};
    struct batch b = {.num_seqs = 1, .heads = 3, .len = {9}, .q_len = {1}, .interleave = 1};
    const plait_dcp_options o = options_of(comm, own, PLAIT_EXCHANGE_AUTO);
    plait_dcp *dcp;
    WANT(plait_dcp_open(&o, &dcp) == PLAIT_OK);
    struct side *s = make_side(&b, (plait_shard){3, me, 1}, me, 1);
    WANT(s);
    plait_kernel kernel = *plait_kernel_find("mla_ref");
    if (how == KERNEL_FAILS && me == 1)
        kernel.run = broken_run;
    if (how == BAD_ARGUMENT && me == 1)
        s->args.h_q = 2;
    if (how == ROWS_DIFFER && me == 1)
        s->args.num_rows = 2;
    const plait_status status =
        how == RANK_MISSING && me == 1 ? PLAIT_OK : plait_dcp_step(dcp, &kernel, &s->args, NULL);
    if (how == KERNEL_FAILS && me == 1)
        WANT(status == PLAIT_E_DEVICE);
    else if (how == BAD_ARGUMENT && me == 1)
        WANT(status == PLAIT_E_ARG);
    else if (how != RANK_MISSING || me != 1)
        WANT(status == PLAIT_E_COMM && strstr(plait_last_error(), "rank 1"));
    free(s);
    plait_dcp_close(&dcp);
    return 0;
}

static void a_failing_rank_is_named_by_the_others(void **state)
{
    (void)state;
    const time_t start = time(NULL);
    for (int how = KERNEL_FAILS; how <= ROWS_DIFFER; how++)
        assert_int_equal(run_ranks(3, how == RANK_MISSING ? 0.3 : 60, step_fails, &how), 0);
    assert_true(time(NULL) - start < 30); /* told, not left to the deadline */
}

static int opens_differ(plait_comm *comm, void *user)
{
    const int how = *(const int *)user, odd = plait_comm_rank(comm) == 1;
    int32_t own[2] = {1, 1};
    if (how == 0 && odd)
        own[0] = 2;
    plait_dcp_options o = options_of(comm, own, PLAIT_EXCHANGE_AUTO);
    if (how == 1 && odd)
        o.exchange = PLAIT_EXCHANGE_AG_RS;
    if (how == 2 && odd)
        o.max_rows = 0;
    plait_dcp *dcp;
    WANT(plait_dcp_open(&o, &dcp) == (how == 2 ? PLAIT_E_ARG : PLAIT_E_COMM) && !dcp);
    WANT(strstr(plait_last_error(), how == 2 ? "max_rows is 0" : "rank 1"));
    return 0;
}

static void ranks_agree_on_options(void **state)
{
    (void)state;
    for (int how = 0; how <= 2; how++)
        assert_int_equal(run_ranks(2, 60, opens_differ, &how), 0);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    plait_comm *comm;
    plait_dcp *dcp;
    const int32_t own[1] = {2};
    assert_int_equal(plait_comm_self_open(NULL, &comm), PLAIT_OK);
    const plait_dcp_options o = options_of(comm, own, PLAIT_EXCHANGE_AUTO);
    assert_int_equal(plait_dcp_open(&o, &dcp), PLAIT_OK);
    plait_attn_args a = PLAIT_ATTN_ARGS_INIT;
    a.h_q = 2;
    a.d_qk = D_QK;
    a.d_v = D_V;
    a.num_rows = MAX_ROWS + 1;
    assert_int_equal(plait_dcp_step(dcp, plait_kernel_find("mla_ref"), &a, NULL), PLAIT_E_NOMEM);
    assert_non_null(strstr(plait_last_error(), "41 rows"));
    a.h_q = 3;
    assert_int_equal(plait_dcp_step(dcp, plait_kernel_find("mla_ref"), &a, NULL), PLAIT_E_ARG);
    const int64_t begin = 0, end = 5;
    const int32_t table[1] = {-1};
    plait_dcp_context x = {.size = sizeof x,
                           .shard = {1, 0, 1},
                           .num_seqs = 1,
                           .page_size = 4,
                           .begin = &begin,
                           .end = &end,
                           .page_table = table,
                           .page_table_stride = 1,
                           .page_stride_bytes = 16,
                           .token_stride_bytes = 4,
                           .row_bytes = 4};
    assert_int_equal(plait_dcp_gather_context(dcp, &x, NULL), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "needs 2 pages"));
    x.page_size = 8;
    assert_int_equal(plait_dcp_gather_context(dcp, &x, NULL), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "entry 0"));
    x.h_kv = 2;
    x.d = 1;
    assert_int_equal(plait_dcp_gather_context(dcp, &x, NULL), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "2 heads of 1 values in f32 are no row of 4 bytes"));
    x.h_kv = 1;
    x.token_stride_bytes = 6;
    assert_int_equal(plait_dcp_gather_context(dcp, &x, NULL), PLAIT_E_ARG);
    assert_non_null(strstr(plait_last_error(), "strides of 16 and 6 bytes"));
    plait_dcp_close(&dcp);
    plait_comm_close(&comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_equal_one_pass),
        cmocka_unit_test(case6_fewer_tokens_than_ranks),
        cmocka_unit_test(case11_rows_see_their_own_ranges),
        cmocka_unit_test(case1_lse_is_natural),
        cmocka_unit_test(case3_empty_states),
        cmocka_unit_test(a_broken_lse_stays_visible),
        cmocka_unit_test(case49_partials_add_up_in_float32),
        cmocka_unit_test(case14_a_rank_without_the_token_has_its_query),
        cmocka_unit_test(case15_a_group_holds_one_kv_head),
        cmocka_unit_test(case13_chunks_come_in_global_order),
        cmocka_unit_test(case30_gathered_context_has_its_scales),
        cmocka_unit_test(case47_a_rank_without_context_joins),
        cmocka_unit_test(a_failing_rank_is_named_by_the_others),
        cmocka_unit_test(ranks_agree_on_options),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
