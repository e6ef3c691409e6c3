/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times MLA decode on a GPU: bf16, 576/512, pages of 64 with shuffled ids, q and cache N(0, 1), LSE
 * returned, the schedule made outside the timed region. us is the median of the calls, each between
 * two events; limit is max(bytes / B, operations / (0.91 F)) and score us / (limit + 4 us).
 *
 *   gpu_mla --read B --product F [--sets fixed,varlen,agent,shard,ragged] [--calls N] [--check]
 *           [--csv FILE]
 *
 * B in TB/s and F in TFLOP/s come from tests/gpu/ceilings.cu in the same run. --check compares
 * cells of each configuration with a softmax in double.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <plait/attn.h>
#include <plait/cuda.h>
#include <plait/shard.h>

enum { page = 64, d_qk = 576, d_v = 512, block_pages = 512, max_calls = 200, check_cells = 2 };
enum { max_pages = 26000, max_seqs = 128, max_rows = 1024, max_heads = 128 };

static const double scale = 1.0 / 24;

struct bench {
    plait_cuda *cuda;
    void *stream, *begin[max_calls], *end[max_calls];
    uint16_t *block, *q; /* host: the pages that the pool repeats, and the queries */
    void *d_k, *d_q, *d_out, *d_table, *d_meta, *d_lse, *d_schedule, *d_workspace;
    size_t schedule_bytes, workspace_bytes;
    int32_t *table, *meta;
    double read_tbs, product_tflops;
    int calls, check;
    FILE *csv;
};

struct shape {
    const char *set;
    int32_t heads, b, rows[max_seqs], keys[max_seqs]; /* keys: seen by the last row */
    int32_t s_q, sk;                                  /* as labels */
    plait_shard shard;
};

static uint64_t state = 1;

static double uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)((state >> 11) + 1) * 0x1p-53;
}

static double normal(void)
{
    double r = sqrt(-2 * log(uniform()));
    return r * cos(6.283185307179586 * uniform());
}

static uint16_t bf16(double x)
{
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static double from_bf16(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return (double)f;
}

static void must(plait_status status)
{
    if (status == PLAIT_OK)
        return;
    fprintf(stderr, "gpu_mla: %s\n", plait_last_error());
    exit(1);
}

static void *allocate(struct bench *s, size_t bytes)
{
    void *p;
    must(plait_cuda_alloc(s->cuda, bytes, &p));
    return p;
}

static void *host(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p)
        exit(1);
    return p;
}

static void open_bench(struct bench *s)
{
    size_t page_bytes = (size_t)page * d_qk * 2, n_block = (size_t)block_pages * page * d_qk;
    size_t n_q = (size_t)max_rows * max_heads * d_qk;
    must(plait_cuda_open(0, &s->cuda));
    must(plait_cuda_stream_open(s->cuda, &s->stream));
    for (int i = 0; i < s->calls; i++) {
        must(plait_cuda_event_open(s->cuda, &s->begin[i]));
        must(plait_cuda_event_open(s->cuda, &s->end[i]));
    }
    s->block = host(n_block * 2);
    s->q = host(n_q * 2);
    for (size_t i = 0; i < n_block; i++)
        s->block[i] = bf16(normal());
    for (size_t i = 0; i < n_q; i++)
        s->q[i] = i < n_block ? bf16(normal()) : s->q[i - n_block];
    s->d_k = allocate(s, (size_t)max_pages * page_bytes);
    for (int32_t p = 0; p < max_pages; p += block_pages) {
        int32_t n = p + block_pages > max_pages ? max_pages - p : block_pages;
        must(plait_cuda_copy(s->cuda, (char *)s->d_k + (size_t)p * page_bytes, s->block,
                             (size_t)n * page_bytes, s->stream));
    }
    s->d_q = allocate(s, n_q * 2);
    must(plait_cuda_copy(s->cuda, s->d_q, s->q, n_q * 2, s->stream));
    s->d_out = allocate(s, (size_t)max_rows * max_heads * d_v * 2);
    s->d_lse = allocate(s, (size_t)max_rows * max_heads * 4);
    s->d_table = allocate(s, (size_t)max_pages * max_seqs * 4);
    s->table = host((size_t)max_pages * max_seqs * 4);
    s->d_meta = allocate(s, (max_seqs + 1 + 2 * max_rows) * 4);
    s->meta = host((max_seqs + 1 + 2 * max_rows) * 4);
    s->schedule_bytes = plait_cuda_schedule_bytes(s->cuda, max_seqs, max_rows, max_heads);
    s->d_schedule = allocate(s, s->schedule_bytes);
    s->workspace_bytes = (size_t)256 << 20;
    s->d_workspace = allocate(s, s->workspace_bytes);
    must(plait_cuda_stream_sync(s->cuda, s->stream));
}

/* Metadata of a shape, to the device. Returns 0 if it does not fit. */
static int set_up(struct bench *s, const struct shape *shape, plait_attn_args *a)
{
    static int32_t order[max_pages];
    static const plait_attn_args init = PLAIT_ATTN_ARGS_INIT;
    int32_t *row_start = s->meta, *begin, *end, rows = 0, next = 0, most = 0;
    for (int32_t i = 0; i < shape->b; i++) {
        row_start[i] = rows;
        rows += shape->rows[i];
        most = shape->keys[i] > most ? shape->keys[i] : most;
        next += (shape->keys[i] + page - 1) / page;
    }
    row_start[shape->b] = rows;
    if (rows > max_rows || next > max_pages)
        return 0;
    begin = s->meta + max_seqs + 1;
    end = begin + max_rows;
    for (int32_t i = 0; i < shape->b; i++)
        for (int32_t j = 0; j < shape->rows[i]; j++) {
            int64_t index = (int64_t)shape->keys[i] * shape->shard.d - shape->rows[i] + j;
            plait_shard_range(shape->shard, index, 0, &begin[row_start[i] + j],
                              &end[row_start[i] + j]);
        }
    for (int32_t i = 0; i < max_pages; i++) {
        int32_t j = (int32_t)(uniform() * (i + 1)) % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    *a = init;
    a->page_table_stride = (most + page - 1) / page;
    next = 0;
    for (int32_t i = 0; i < shape->b; i++)
        for (int64_t p = 0; p < a->page_table_stride; p++)
            s->table[i * a->page_table_stride + p] = p * page < shape->keys[i] ? order[next++] : -1;
    must(plait_cuda_copy(s->cuda, s->d_table, s->table,
                         (size_t)(shape->b * a->page_table_stride) * 4, s->stream));
    must(
        plait_cuda_copy(s->cuda, s->d_meta, s->meta, (max_seqs + 1 + 2 * max_rows) * 4, s->stream));
    a->op = PLAIT_OP_MLA;
    a->num_seqs = shape->b;
    a->num_rows = rows;
    a->h_q = shape->heads;
    a->h_kv = 1;
    a->d_qk = d_qk;
    a->d_v = d_v;
    a->page_size = page;
    a->row_start = s->d_meta;
    a->kv_end = (const int32_t *)s->d_meta + max_seqs + 1 + max_rows;
    a->page_table = s->d_table;
    a->num_pages = max_pages;
    a->q = s->d_q;
    a->k = s->d_k;
    a->q_dtype = a->kv_dtype = a->out_dtype = PLAIT_BF16;
    a->q_head_stride = d_qk;
    a->q_row_stride = (int64_t)shape->heads * d_qk;
    a->k_token_stride = a->k_head_stride = d_qk;
    a->k_page_stride = page * d_qk;
    a->out = s->d_out;
    a->out_head_stride = d_v;
    a->out_row_stride = (int64_t)shape->heads * d_v;
    a->lse = s->d_lse;
    a->lse_head_stride = 1;
    a->lse_row_stride = shape->heads;
    a->softmax_scale = (float)scale;
    a->workspace = s->d_workspace;
    a->workspace_bytes = s->workspace_bytes;
    a->device = 0;
    a->stream = s->stream;
    must(plait_cuda_schedule(a, s->d_schedule, s->schedule_bytes));
    return 1;
}

/* Relative L2 error of out over some cells, and the largest error of lse. */
static void compare(struct bench *s, const struct shape *shape, const plait_attn_args *a,
                    double *out_error, double *lse_error)
{
    static double score[1 << 18], want[d_v];
    double error = 0, size = 0;
    *lse_error = 0;
    must(plait_cuda_stream_sync(s->cuda, s->stream));
    for (int i = 0; i < check_cells; i++) {
        int32_t seq = (int32_t)(uniform() * shape->b) % shape->b;
        if (shape->rows[seq] == 0)
            continue;
        int32_t row = s->meta[seq] + (int32_t)(uniform() * shape->rows[seq]) % shape->rows[seq];
        int32_t head = (int32_t)(uniform() * shape->heads) % shape->heads;
        int32_t keys = s->meta[max_seqs + 1 + max_rows + row];
        int64_t cell = (int64_t)row * shape->heads + head;
        double top = -INFINITY, sum = 0;
        uint16_t got[d_v];
        float lse;
        memset(want, 0, sizeof want);
        for (int pass = 0; pass < 2; pass++)
            for (int32_t c = 0; c < keys; c++) {
                int32_t id = s->table[seq * a->page_table_stride + c / page];
                const uint16_t *k =
                    s->block + ((size_t)(id % block_pages) * page + c % page) * d_qk;
                double dot = 0;
                if (pass == 0) {
                    for (int d = 0; d < d_qk; d++)
                        dot += from_bf16(s->q[cell * d_qk + d]) * from_bf16(k[d]);
                    score[c] = dot * scale;
                    top = fmax(top, score[c]);
                    continue;
                }
                double p = exp(score[c] - top);
                sum += p;
                for (int d = 0; d < d_v; d++)
                    want[d] += p * from_bf16(k[d]);
            }
        must(plait_cuda_copy(s->cuda, got, (uint16_t *)s->d_out + cell * d_v, sizeof got,
                             s->stream));
        must(plait_cuda_copy(s->cuda, &lse, (float *)s->d_lse + cell, 4, s->stream));
        must(plait_cuda_stream_sync(s->cuda, s->stream));
        if (keys == 0)
            continue;
        for (int d = 0; d < d_v; d++) {
            double e = from_bf16(got[d]) - want[d] / sum;
            error += e * e;
            size += want[d] / sum * want[d] / sum;
        }
        double l = top + log(sum), e = fabs((double)lse - l) / fmax(1, fabs(l));
        *lse_error = !(e <= *lse_error) ? e : *lse_error;
    }
    *out_error = sqrt(error / size);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* All calls are queued behind a fill, so that launching them takes no part of their time. */
static double median_us(struct bench *s, const plait_kernel *kernel, const plait_attn_args *a)
{
    static double us[max_calls];
    for (int i = 0; i < 4; i++)
        must(plait_cuda_fill(s->cuda, s->d_workspace, 0, s->workspace_bytes, s->stream));
    for (int i = -5; i < s->calls; i++) {
        int at = i < 0 ? 0 : i;
        must(plait_cuda_event_record(s->cuda, s->begin[at], s->stream));
        must(plait_attn_run(kernel, a, NULL));
        must(plait_cuda_event_record(s->cuda, s->end[at], s->stream));
    }
    for (int i = 0; i < s->calls; i++)
        must(plait_cuda_event_elapsed(s->cuda, s->begin[i], s->end[i], &us[i]));
    qsort(us, (size_t)s->calls, sizeof *us, by_value);
    return us[s->calls / 2];
}

/* Logs of scores by group: all, b <= 8, b = 1, saturated. */
static double logs[4];
static int counts[4];

static void run(struct bench *s, const struct shape *shape)
{
    plait_attn_args a;
    const plait_kernel *kernel;
    double out_error = 0, lse_error = 0, keys = 0, rows = 0, products = 0;
    if (!set_up(s, shape, &a))
        return;
    must(plait_attn_pick(&a, 0, 1, NULL, &kernel));
    double us = median_us(s, kernel, &a);
    if (s->check)
        compare(s, shape, &a, &out_error, &lse_error);
    for (int32_t i = 0; i < shape->b; i++) {
        keys += shape->keys[i];
        rows += shape->rows[i];
        products += 2.0 * shape->rows[i] * shape->heads * shape->keys[i] * (d_qk + d_v);
    }
    double bytes = keys * d_qk * 2 + rows * shape->heads * (d_qk + d_v) * 2;
    double by_bytes = bytes / s->read_tbs * 1e-6, by_products = products / s->product_tflops * 1e-6;
    double limit = fmax(by_bytes, by_products / 0.91), score = us / (limit + 4);
    const int in[4] = {1, shape->b <= 8, shape->b == 1, shape->b >= 32 && shape->sk >= 8192};
    if (strcmp(shape->set, "fixed") == 0 || strcmp(shape->set, "varlen") == 0)
        for (int i = 0; i < 4; i++)
            if (in[i]) {
                logs[i] += log(score);
                counts[i]++;
            }
    printf("%-7s h %3d q %2d b %3d keys %5d (mean %8.1f)  %8.2f us  limit %8.2f  score %5.2f  "
           "%4.2f TB/s %4.0f TFLOP/s",
           shape->set, shape->heads, shape->s_q, shape->b, shape->sk, keys / shape->b, us, limit,
           score, bytes / us * 1e-6, products / us * 1e-6);
    if (s->check)
        printf("  error %.1e lse %.0e", out_error, lse_error);
    printf("\n");
    if (s->csv)
        fprintf(s->csv, "%s,%d,%d,%d,%d,%.1f,%.2f,%.2f,%.3f,%.3e,%.3e\n", shape->set, shape->heads,
                shape->s_q, shape->b, shape->sk, keys / shape->b, limit, us, score, out_error,
                lse_error);
    if (s->check && !(out_error <= 4e-3 && lse_error <= 1e-5)) {
        fprintf(stderr, "gpu_mla: the result is wrong\n");
        exit(1);
    }
}

static void fill(struct shape *shape, const char *set, int32_t heads, int32_t s_q, int32_t b,
                 int32_t sk)
{
    *shape = (struct shape){
        .set = set, .heads = heads, .b = b, .s_q = s_q, .sk = sk, .shard = {1, 0, 1}};
    for (int32_t i = 0; i < b; i++) {
        shape->rows[i] = s_q;
        shape->keys[i] = sk;
    }
}

static void run_table(struct bench *s, int varied)
{
    static const int32_t heads[] = {16, 32, 64, 128}, q[] = {1, 2, 4}, b[] = {1, 8, 32, 128};
    static const int32_t sk[] = {1024, 4096, 8192, 32768};
    struct shape shape;
    for (int h = 0; h < 4; h++)
        for (int j = 0; j < 3; j++)
            for (int i = varied; i < 4; i++)
                for (int k = 0; k < 4 - (b[i] == 128); k++) {
                    fill(&shape, varied ? "varlen" : "fixed", heads[h], q[j], b[i], sk[k]);
                    for (int32_t n = 0; varied && n < b[i]; n++) {
                        double keys = sk[k] + normal() * sk[k] / 2;
                        shape.keys[n] = keys < q[j] ? q[j] : (int32_t)keys;
                    }
                    run(s, &shape);
                }
}

static void run_agent(struct bench *s)
{
    struct shape shape;
    for (int32_t heads = 16; heads <= 32; heads += 16)
        for (int32_t b = 4; b <= 16; b *= 2) {
            fill(&shape, "agent", heads, 4, b, 80000);
            run(s, &shape);
        }
}

/* A shard's ranges against the same lengths, and ragged rows against uniform ones. */
static void run_pairs(struct bench *s)
{
    struct shape shape;
    for (int32_t sharded = 0; sharded < 2; sharded++) {
        fill(&shape, sharded ? "shard" : "whole", 16, 4, 32, 8192);
        shape.shard = sharded ? (plait_shard){4, 1, 1} : shape.shard;
        run(s, &shape);
    }
    for (int32_t ragged = 0; ragged < 2; ragged++) {
        fill(&shape, ragged ? "ragged" : "uniform", 16, 4, 64, 8192);
        for (int32_t i = 0; ragged && i < 64; i++)
            shape.rows[i] = i % 2 ? 1 + i / 2 % 8 : 7 - i / 2 % 8;
        run(s, &shape);
    }
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"all", "b <= 8", "b = 1", "saturated"};
    static struct bench s = {.read_tbs = 4.57, .product_tflops = 770, .calls = 50};
    const char *sets = "fixed,varlen,agent,pairs";
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--check") == 0)
            s.check = 1;
        else if (strcmp(argv[i], "--read") == 0)
            s.read_tbs = atof(value);
        else if (strcmp(argv[i], "--product") == 0)
            s.product_tflops = atof(value);
        else if (strcmp(argv[i], "--calls") == 0)
            s.calls = atoi(value) < 1 || atoi(value) > max_calls ? 50 : atoi(value);
        else if (strcmp(argv[i], "--sets") == 0)
            sets = value;
        else if (strcmp(argv[i], "--csv") == 0)
            s.csv = fopen(value, "w");
    }
    if (!(s.product_tflops > 0)) {
        printf("F was not measured, 770 is taken\n");
        s.product_tflops = 770;
    }
    open_bench(&s);
    printf("B %.2f TB/s, F %.0f TFLOP/s\n", s.read_tbs, s.product_tflops);
    if (s.csv)
        fprintf(s.csv, "kind,h_q,s_q,b,sk,mean_sk,limit_us,us,score,out_error,lse_error\n");
    if (strstr(sets, "fixed"))
        run_table(&s, 0);
    if (strstr(sets, "varlen"))
        run_table(&s, 1);
    if (strstr(sets, "agent"))
        run_agent(&s);
    if (strstr(sets, "pairs"))
        run_pairs(&s);
    for (int i = 0; i < 4; i++)
        if (counts[i])
            printf("score %-10s %.3f over %d\n", names[i], exp(logs[i] / counts[i]), counts[i]);
    if (s.csv)
        fclose(s.csv);
    return 0;
}
