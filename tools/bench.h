/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/bench.h - the parts of `plait bench`: ceilings of the machine and timed cases.
 */
#ifndef PLAIT_TOOLS_BENCH_H
#define PLAIT_TOOLS_BENCH_H

#include <stdint.h>

#include <plait/attn.h>

#define PLAIT_BENCH_PEAKS 4

/* What the machine can do with n threads, measured in this run. */
typedef struct plait_bench_machine {
    double read_gbps; /* DRAM */
    int32_t n_peaks;
    const char *peak_name[PLAIT_BENCH_PEAKS];
    plait_cpu_features peak_needs[PLAIT_BENCH_PEAKS];
    double peak_gflops[PLAIT_BENCH_PEAKS];
} plait_bench_machine;

/* Measures the ceilings; keeps what is larger than before. `memory` holds `bytes` that are in no
   cache. */
void plait_bench_measure(plait_bench_machine *m, const plait_executor *executor,
                         plait_cpu_features features, const void *memory, size_t bytes);

/* Peak of the instruction class that a kernel with these needs uses; the best one for none. */
double plait_bench_peak(const plait_bench_machine *m, plait_cpu_features needs);

typedef struct plait_bench_shape {
    plait_op op;
    int32_t heads, kv_heads, d_qk, d_v;
    int32_t q_len, batch, context, page_size;
    plait_dtype q_dtype, kv_dtype;
    int32_t dcp, rank, interleave;
} plait_bench_shape;

typedef struct plait_bench_result {
    const char *kernel;
    double us, us_low, us_high; /* cold: median, and the tenths of calls below and above */
    double warm_us;
    double bytes, flops; /* of a call */
    int arithmetic;      /* the limit is arithmetic, not bandwidth */
    double fraction_of_limit;
} plait_bench_result;

/* Times one shape: N(0,1) inputs, shuffled pages; cold calls walk through copies of the cache that
   no cache level holds. Measures the machine before and after. */
plait_status plait_bench_attn(const plait_bench_shape *shape, const plait_executor *executor,
                              plait_cpu_features features, const char *pattern,
                              plait_bench_machine *m, plait_bench_result *out);

double plait_bench_now(void); /* seconds */

/* Sorts n values; the value below which `part` of them lie. */
double plait_bench_quantile(double *values, int32_t n, double part);

#endif
