/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random batch spread over D ranks, its shards in pages, the merge of what ranks gave, and the
 * error against a softmax in double over all keys.
 */
#ifndef PLAIT_TESTS_SHARDED_H
#define PLAIT_TESTS_SHARDED_H

#include <plait/attn.h>

enum { max_seqs = 3, max_rows = 16, max_d = 4, max_keys = 48, max_heads = 8, d_qk = 12, d_v = 8 };
enum { page = 4, stride = max_keys / page, max_kv = 2 };

/* A batch: global lengths, of which the last rows of each sequence are queries. */
struct batch {
    plait_op op;
    int32_t ranks, interleave, seqs, h_q, h_kv, ragged;
    int32_t rows[max_seqs], length[max_seqs];
    int32_t row_start[max_seqs + 1], num_rows; /* with padding */
    float q[max_rows * max_heads * d_qk];
    float k[max_seqs][max_keys][max_kv][d_qk], v[max_seqs][max_keys][max_kv][d_v];
};

/* A rank's cache and what it gave. */
struct rank {
    int32_t end[max_rows], table[max_seqs * stride];
    float k[max_seqs * max_keys * max_kv * d_qk], v[max_seqs * max_keys * max_kv * d_v];
    float out[max_rows * max_heads * d_v], lse[max_rows * max_heads];
};

extern struct batch batch;
extern struct rank batch_ranks[max_d];
extern float batch_out[max_rows * max_heads * d_v], batch_lse[max_rows * max_heads];

/* The random numbers' state, and one of [least, most]. */
extern uint64_t batch_seed;
int32_t batch_pick(int32_t least, int32_t most);

/* Queries, keys and values for the batch's numbers of rows and lengths. */
void batch_fill(void);

/* Another batch. */
void batch_random(void);

/* The rank's shard, in pages that are not in order; everything else is NaN. */
void batch_open_rank(plait_attn_args *a, int32_t r);

/* Merges what all ranks wrote into batch_out and batch_lse. */
void batch_merge(void);

/* What the only rank wrote, with the reference's LSE: for kernels that give none. */
void batch_take_out(void);

/* The largest error of batch_out and lse; infinite where padding is not empty. */
double batch_error(void);

#endif
