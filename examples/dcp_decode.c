/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One decoding step of MLA attention whose cache is split over two ranks, with everything around
 * the library the caller's own: thread pool, allocator and communicator.
 *
 *     cc dcp_decode.c $(pkg-config --cflags --libs plait) -pthread -lm
 *
 * Three sequences of different length; the second one verifies two drafted tokens beside its last
 * one. The result is compared with the reference kernel on one rank that holds all of the cache.
 * Exit 0 if they agree.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <plait/attn.h>
#include <plait/comm.h>
#include <plait/dcp.h>
#include <plait/shard.h>

enum { RANKS = 2, WORKERS = 2, INTERLEAVE = 4, PAGE = 16 };
enum { HEADS = 8, OWN = HEADS / RANKS, D_QK = 576, D_V = 512 };
enum { SEQS = 3, ROWS = 5, MAX_PAGES = 16, POOL = SEQS * MAX_PAGES };

static const int64_t length[SEQS] = {3, 150, 77}; /* tokens of each, those of this step included */
static const int32_t row_start[SEQS + 1] = {0, 1, 4, 5};

/* ---- the caller's allocator: counts what is out ---------------------------------------------- */

static long allocated;
static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER;

static void count(long change)
{
    pthread_mutex_lock(&count_lock);
    allocated += change;
    pthread_mutex_unlock(&count_lock);
}

static void *my_alloc(void *user, size_t bytes, size_t align)
{
    void *memory = NULL;
    (void)user;
    if (posix_memalign(&memory, align, bytes))
        return NULL;
    count((long)bytes);
    return memory;
}

static void my_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    count(-(long)bytes);
    free(memory);
}

static const plait_allocator my_allocator = {sizeof my_allocator, NULL, my_alloc, my_free};

/* ---- the caller's thread pool ---------------------------------------------------------------- */

typedef struct job {
    plait_task_fn fn;
    void *task;
    int32_t worker;
    plait_status status;
} job;

static void *run_job(void *arg)
{
    job *j = arg;
    j->status = j->fn(j->task, j->worker, WORKERS);
    return NULL;
}

static plait_status my_parallel_for(void *user, plait_task_fn fn, void *task)
{
    pthread_t threads[WORKERS];
    job jobs[WORKERS];
    int started[WORKERS] = {0};
    (void)user;
    for (int32_t w = 1; w < WORKERS; w++) {
        jobs[w] = (job){fn, task, w, PLAIT_OK};
        started[w] = !pthread_create(&threads[w], NULL, run_job, &jobs[w]);
        if (!started[w])
            run_job(&jobs[w]);
    }
    jobs[0] = (job){fn, task, 0, PLAIT_OK};
    run_job(&jobs[0]);
    plait_status status = jobs[0].status;
    for (int32_t w = 1; w < WORKERS; w++) {
        if (started[w])
            pthread_join(threads[w], NULL);
        if (status == PLAIT_OK)
            status = jobs[w].status;
    }
    return status;
}

static const plait_executor my_executor = {sizeof my_executor, NULL, WORKERS, my_parallel_for};

/* ---- the caller's communicator: ranks show each other their buffers ---------------------------
 */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int arrived, broken;
    unsigned round;
    const char *send[RANKS];
    const int64_t *sizes[RANKS]; /* bytes or floats for each rank */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

typedef struct my_rank {
    int32_t rank;
} my_rank;

/* Waits until all ranks are here. */
static plait_status meet(const plait_comm_call *call)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)call->timeout_s + 1;
    pthread_mutex_lock(&table.lock);
    unsigned round = table.round;
    if (++table.arrived == RANKS) {
        table.arrived = 0;
        table.round++;
        pthread_cond_broadcast(&table.changed);
    }
    while (round == table.round && !table.broken)
        if (pthread_cond_timedwait(&table.changed, &table.lock, &until))
            table.broken = 1;
    plait_status status = table.broken ? PLAIT_E_COMM : PLAIT_OK;
    pthread_mutex_unlock(&table.lock);
    return status;
}

/* Shows what this rank sends; afterwards it may read what the others send, until `meet`. */
static plait_status show(void *user, const plait_comm_call *call, const void *send,
                         const int64_t *sizes)
{
    int32_t rank = ((my_rank *)user)->rank;
    table.send[rank] = send;
    table.sizes[rank] = sizes;
    return meet(call);
}

static int64_t sum(const int64_t *sizes, int32_t n)
{
    int64_t total = 0;
    for (int32_t i = 0; i < n; i++)
        total += sizes[i];
    return total;
}

static plait_status my_all_gather(void *user, const plait_comm_call *call, const void *send,
                                  const int64_t *bytes, void *recv)
{
    plait_status status = show(user, call, send, bytes);
    for (int32_t r = 0; status == PLAIT_OK && r < RANKS; r++)
        if (bytes[r])
            memcpy((char *)recv + sum(bytes, r), table.send[r], (size_t)bytes[r]);
    return status == PLAIT_OK ? meet(call) : status;
}

static plait_status my_exchange(void *user, const plait_comm_call *call, const void *send,
                                size_t bytes, void *recv)
{
    int64_t sizes[RANKS];
    for (int32_t r = 0; r < RANKS; r++)
        sizes[r] = (int64_t)bytes;
    return my_all_gather(user, call, send, sizes, recv);
}

static plait_status my_all_to_all(void *user, const plait_comm_call *call, const void *send,
                                  const int64_t *send_bytes, void *recv, const int64_t *recv_bytes)
{
    int32_t rank = ((my_rank *)user)->rank;
    plait_status status = show(user, call, send, send_bytes);
    for (int32_t r = 0; status == PLAIT_OK && r < RANKS; r++)
        if (recv_bytes[r])
            memcpy((char *)recv + sum(recv_bytes, r), table.send[r] + sum(table.sizes[r], rank),
                   (size_t)recv_bytes[r]);
    return status == PLAIT_OK ? meet(call) : status;
}

/* Adds n floats from `first` on of every rank, in rank order. */
static void add(int64_t first, int64_t n, float *recv)
{
    for (int64_t i = 0; i < n; i++) {
        recv[i] = 0;
        for (int32_t r = 0; r < RANKS; r++)
            recv[i] += ((const float *)(const void *)table.send[r])[first + i];
    }
}

static plait_status my_reduce_scatter(void *user, const plait_comm_call *call, const float *send,
                                      const int64_t *counts, float *recv)
{
    int32_t rank = ((my_rank *)user)->rank;
    plait_status status = show(user, call, send, counts);
    if (status != PLAIT_OK)
        return status;
    add(sum(counts, rank), counts[rank], recv);
    return meet(call);
}

static plait_status my_all_reduce(void *user, const plait_comm_call *call, const float *send,
                                  int64_t n, float *recv)
{
    plait_status status = show(user, call, send, &n);
    if (status != PLAIT_OK)
        return status;
    add(0, n, recv);
    return meet(call);
}

static void my_abort(void *user, const char *why)
{
    (void)user;
    (void)why;
    pthread_mutex_lock(&table.lock);
    table.broken = 1;
    pthread_cond_broadcast(&table.changed);
    pthread_mutex_unlock(&table.lock);
}

/* ---- the batch: any numbers will do, the same on every rank -----------------------------------
 */

static float number(int64_t a, int64_t b, int64_t c)
{
    uint64_t x = (uint64_t)(a * 1000003 + b * 10007 + c + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return (float)(x >> 40) / (1 << 23) - 1; /* [-1, 1) */
}

typedef struct batch {
    int32_t page_table[SEQS * MAX_PAGES];
    int32_t kv_end[ROWS];
    float cache[POOL][PAGE][D_QK];
    float q[ROWS][HEADS][D_QK]; /* of the heads that the rank holds */
} batch;

/* What a rank with this geometry holds: its tokens' rows, each query row's keys, its heads' q. */
static void fill(batch *b, plait_shard shard, int32_t first_head, int32_t heads)
{
    float *q = &b->q[0][0][0];
    for (int32_t i = 0; i < SEQS * MAX_PAGES; i++)
        b->page_table[i] = (i * 7 + 3) % POOL; /* pages lie anywhere */
    for (int32_t s = 0; s < SEQS; s++) {
        for (int64_t p = 0; p < length[s]; p++) {
            int64_t slot =
                plait_shard_slot(shard, p, b->page_table + s * MAX_PAGES, MAX_PAGES, PAGE);
            for (int32_t d = 0; slot >= 0 && d < D_QK; d++)
                b->cache[slot / PAGE][slot % PAGE][d] = number(s, p, d);
        }
        for (int32_t row = row_start[s]; row < row_start[s + 1]; row++) {
            int32_t begin;
            int64_t index = length[s] - row_start[s + 1] + row;
            plait_shard_range(shard, index, 0, &begin, &b->kv_end[row]);
        }
    }
    for (int32_t row = 0; row < ROWS; row++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t d = 0; d < D_QK; d++)
                *q++ = number(100 + row, first_head + h, d);
}

/* Arguments for all heads of the group; q and out hold `own` of them. */
static plait_attn_args arguments(const batch *b, int32_t own, float *out)
{
    plait_attn_args args = PLAIT_ATTN_ARGS_INIT;
    args.op = PLAIT_OP_MLA;
    args.num_seqs = SEQS;
    args.num_rows = ROWS;
    args.h_q = HEADS;
    args.h_kv = 1;
    args.d_qk = D_QK;
    args.d_v = D_V;
    args.page_size = PAGE;
    args.row_start = row_start;
    args.kv_end = b->kv_end;
    args.page_table = b->page_table;
    args.page_table_stride = MAX_PAGES;
    args.num_pages = POOL;
    args.q = b->q;
    args.q_row_stride = (int64_t)own * D_QK;
    args.q_head_stride = D_QK;
    args.k = b->cache;
    args.k_page_stride = PAGE * D_QK;
    args.k_token_stride = args.k_head_stride = D_QK;
    args.out = out;
    args.out_row_stride = (int64_t)own * D_V;
    args.out_head_stride = D_V;
    args.softmax_scale = 1 / sqrtf(D_QK);
    return args;
}

/* ---- one rank ---------------------------------------------------------------------------------
 */

typedef struct rank_work {
    int32_t rank;
    float *out; /* [ROWS][OWN][D_V] */
    plait_status status;
    char error[512];
} rank_work;

/* Runs the step, or with dcp NULL the kernel alone, in a workspace of the size that it asks for. */
static plait_status attend(plait_dcp *dcp, const plait_kernel *kernel, plait_attn_args *args,
                           const plait_executor *executor)
{
    size_t bytes = plait_attn_workspace(kernel, args, executor->n_workers);
    args->workspace = bytes ? my_alloc(NULL, bytes, 64) : NULL;
    args->workspace_bytes = bytes;
    if (bytes && !args->workspace)
        return PLAIT_E_NOMEM;
    plait_status status =
        dcp ? plait_dcp_step(dcp, kernel, args, executor) : plait_attn_run(kernel, args, executor);
    if (bytes)
        my_free(NULL, args->workspace, bytes);
    return status;
}

static plait_status step(plait_dcp *dcp, const batch *b, float *out)
{
    const plait_kernel *kernel;
    plait_attn_args args = arguments(b, OWN, out);
    plait_status status = plait_attn_pick(&args, plait_cpu_detect(), WORKERS, NULL, &kernel);
    return status == PLAIT_OK ? attend(dcp, kernel, &args, &my_executor) : status;
}

static void *run_rank(void *arg)
{
    rank_work *work = arg;
    my_rank self = {work->rank};
    const int32_t heads[RANKS] = {OWN, OWN};
    plait_comm_ops ops = {.size = sizeof ops,
                          .user = &self,
                          .rank = work->rank,
                          .n_ranks = RANKS,
                          .exchange = my_exchange,
                          .all_gather = my_all_gather,
                          .reduce_scatter = my_reduce_scatter,
                          .all_to_all = my_all_to_all,
                          .all_reduce = my_all_reduce,
                          .abort = my_abort};
    plait_comm *comm = NULL;
    plait_dcp *dcp = NULL;
    batch *b = calloc(1, sizeof *b);
    plait_dcp_options options = PLAIT_DCP_OPTIONS_INIT;
    plait_status status = b ? PLAIT_OK : PLAIT_E_NOMEM;
    if (status == PLAIT_OK)
        status = plait_comm_from_ops(&ops, 30, 1, &my_allocator, &comm);
    if (status == PLAIT_OK) {
        options.comm = comm;
        options.heads = heads;
        options.d_qk = D_QK;
        options.d_v = D_V;
        options.max_rows = ROWS;
        options.allocator = &my_allocator;
        status = plait_dcp_open(&options, &dcp);
    }
    if (status == PLAIT_OK) {
        fill(b, (plait_shard){RANKS, work->rank, INTERLEAVE}, work->rank * OWN, OWN);
        status = step(dcp, b, work->out);
    }
    work->status = status;
    snprintf(work->error, sizeof work->error, "%s", plait_last_error());
    plait_dcp_close(&dcp);
    plait_comm_close(&comm);
    free(b);
    return NULL;
}

/* ---- the comparison ---------------------------------------------------------------------------
 */

static float own_out[RANKS][ROWS][OWN][D_V], reference[ROWS][HEADS][D_V];

static plait_status run_reference(void)
{
    const plait_kernel *kernel = plait_kernel_find("mla_ref");
    batch *b = calloc(1, sizeof *b);
    if (!kernel || !b) {
        free(b);
        return PLAIT_E_NOMEM;
    }
    fill(b, (plait_shard){1, 0, 1}, 0, HEADS);
    plait_attn_args args = arguments(b, HEADS, &reference[0][0][0]);
    plait_status status = plait_attn_check(&args);
    if (status == PLAIT_OK)
        status = attend(NULL, kernel, &args, plait_executor_inline());
    free(b);
    return status;
}

static double largest_difference(void)
{
    double worst = 0;
    for (int32_t row = 0; row < ROWS; row++)
        for (int32_t h = 0; h < HEADS; h++)
            for (int32_t d = 0; d < D_V; d++) {
                double error =
                    fabs((double)own_out[h / OWN][row][h % OWN][d] - (double)reference[row][h][d]);
                if (!(error <= worst)) /* a NaN stays */
                    worst = error;
            }
    return worst;
}

int main(void)
{
    rank_work work[RANKS];
    pthread_t thread;
    for (int32_t r = 0; r < RANKS; r++)
        work[r] = (rank_work){r, &own_out[r][0][0][0], PLAIT_OK, ""};
    if (pthread_create(&thread, NULL, run_rank, &work[1])) {
        fprintf(stderr, "no thread for the second rank\n");
        return 1;
    }
    run_rank(&work[0]);
    pthread_join(thread, NULL);
    for (int32_t r = 0; r < RANKS; r++)
        if (work[r].status != PLAIT_OK) {
            fprintf(stderr, "rank %d: %s: %s\n", (int)r, plait_status_name(work[r].status),
                    work[r].error);
            return 1;
        }
    if (run_reference() != PLAIT_OK) {
        fprintf(stderr, "reference: %s\n", plait_last_error());
        return 1;
    }
    double worst = largest_difference();
    printf("largest difference from one rank's reference: %.2e; bytes still allocated: %ld\n",
           worst, allocated);
    int agree = worst <= 1e-5 && allocated == 0;
    printf("%s\n", agree ? "the two ranks agree with it" : "THEY DIFFER");
    return agree ? 0 : 1;
}
