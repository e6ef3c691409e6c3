/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/bench.h - the parts of `plait bench`: ceilings of the machine and timed cases.
 */
#ifndef PLAIT_TOOLS_BENCH_H
#define PLAIT_TOOLS_BENCH_H

#include <stdint.h>

#include <plait/attn.h>

#include "kernel/routine.h"

#define PLAIT_BENCH_PEAKS 4
#define PLAIT_BENCH_CALLS 2000 /* at most, of one case */

/* Random numbers, and a table of N(0,1) values to draw from. */
typedef struct plait_bench_source {
    uint64_t state;
    float *normal;
} plait_bench_source;

int plait_bench_source_open(plait_bench_source *source); /* 0: no memory */
void plait_bench_source_close(plait_bench_source *source);
uint64_t plait_bench_random(plait_bench_source *source);

/* n N(0,1) values as f32, bf16, f16 or fp8. */
void plait_bench_fill(plait_bench_source *source, void *to, plait_dtype dtype, size_t n);

/* Memory on huge pages where the system gives them, so that page walks are not what is timed. To be
   freed with free(). NULL: none. */
void *plait_bench_reserve(size_t bytes);

/* Bytes of a working set that no cache holds. */
size_t plait_bench_cold_bytes(void);

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
    int32_t invariant;
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

/* Times merge (dcp float32 states of rows x heads x d_v) or append (rows of MLA in bf16) with the
   first variant that matches; rows are batch * q_len. The rest as above. */
plait_status plait_bench_rows(plait_routine_op op, const plait_bench_shape *shape,
                              const plait_executor *executor, plait_cpu_features features,
                              const char *pattern, plait_bench_machine *m, plait_bench_result *out);

double plait_bench_now(void); /* seconds */

/* Sorts n values; the value below which `part` of them lie. */
double plait_bench_quantile(double *values, int32_t n, double part);

#endif
