/* SPDX-License-Identifier: Apache-2.0 */
/* Ceilings of the machine for `plait bench`. */
#include <stdlib.h>
#include <time.h>

#include "kernel/peak.h"
#include "tools/bench.h"

double plait_bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double plait_bench_quantile(double *values, int32_t n, double part)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
    return values[(int32_t)(part * (n - 1) + 0.5)];
}

struct task {
    const plait_peak *peak;
    int64_t rounds;
    const uint64_t *memory;
    size_t words;
    volatile uint64_t sink; /* keeps the sums alive */
};

static plait_status compute(void *arg, int32_t worker, int32_t n_workers)
{
    struct task *t = arg;
    (void)n_workers;
    float sum = t->peak->run(t->rounds);
    if (worker == 0)
        t->sink = (uint64_t)(sum > 0);
    return PLAIT_OK;
}

/* Four streams a worker, with software prefetch: the fastest of the patterns that were tried. */
static plait_status read_share(void *arg, int32_t worker, int32_t n_workers)
{
    enum { streams = 4, line = 8, ahead = 64 * line };
    struct task *t = arg;
    const size_t share = t->words / (size_t)n_workers / (streams * line) * line;
    const uint64_t *from[streams];
    uint64_t sum[streams] = {0};
    for (size_t i = 0; i < streams; i++)
        from[i] = t->memory + ((size_t)worker * streams + i) * share;
    for (size_t at = 0; at < share; at += line)
        for (size_t i = 0; i < streams; i++) {
            const uint64_t *p = from[i] + at;
            __builtin_prefetch(p + ahead);
            sum[i] += p[0] + p[1] + p[2] + p[3] + p[4] + p[5] + p[6] + p[7];
        }
    if (worker == 0)
        t->sink = sum[0] + sum[1] + sum[2] + sum[3];
    return PLAIT_OK;
}

/* Median seconds of n calls. */
static double timed(const plait_executor *executor, plait_task_fn fn, struct task *t, int32_t n)
{
    double seconds[16];
    for (int32_t i = 0; i < n; i++) {
        double from = plait_bench_now();
        executor->parallel_for(executor->user, fn, t);
        seconds[i] = plait_bench_now() - from;
    }
    return plait_bench_quantile(seconds, n, 0.5);
}

static void keep_larger(double *kept, double now)
{
    *kept = now > *kept ? now : *kept;
}

void plait_bench_measure(plait_bench_machine *m, const plait_executor *executor,
                         plait_cpu_features features, const void *memory, size_t bytes)
{
    struct task t = {.memory = memory, .words = bytes / sizeof(uint64_t)};
    keep_larger(&m->read_gbps, (double)bytes * 1e-9 / timed(executor, read_share, &t, 3));
    m->n_peaks = 0;
    for (int32_t i = 0; plait_peak_get(i) && m->n_peaks < PLAIT_BENCH_PEAKS; i++) {
        t.peak = plait_peak_get(i);
        t.rounds = 200000; /* some milliseconds */
        if (t.peak->needs & ~features)
            continue;
        double flops = (double)t.rounds * t.peak->flops * executor->n_workers;
        m->peak_name[m->n_peaks] = t.peak->name;
        m->peak_needs[m->n_peaks] = t.peak->needs;
        keep_larger(&m->peak_gflops[m->n_peaks++], flops * 1e-9 / timed(executor, compute, &t, 7));
    }
}

double plait_bench_peak(const plait_bench_machine *m, plait_cpu_features needs)
{
    double best = 0;
    for (int32_t i = 0; i < m->n_peaks; i++) {
        if (!(m->peak_needs[i] & ~needs))
            return m->peak_gflops[i];
        best = m->peak_gflops[i] > best ? m->peak_gflops[i] : best;
    }
    return best;
}
