#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plait bench gives one JSON object whose figures agree with each other.
. "$(dirname "$0")/common.inc"

number() {
    sed -n 's/.*"'"$1"'": \([-+.e0-9]*\).*/\1/p' "$work/json"
}

# 2 * (97 + 98 + 99) keys * 16 heads * (576 + 512) multiply-adds; with D 2, rank 1 sees half.
"$plait" bench mla --heads 16 --q-len 3 --context 99 --page-size 16 --batch 1 --threads 1 --json \
    >"$work/json"
result bench_mla $? "it failed"
awk -v gflops="$(number gflops)" -v us="$(number us)" \
    'BEGIN { want = 2 * 294 * 16 * 1088; got = gflops * us * 1e3
             exit !(got > 0.999 * want && got < 1.001 * want) }'
result bench_operations $? "gflops times us is not the work of the call"
awk -v f="$(number fraction_of_limit)" -v low="$(number us_low)" -v us="$(number us)" \
    -v high="$(number us_high)" 'BEGIN { exit !(f > 0 && f < 2 && low <= us && us <= high) }'
result bench_fraction $? "fraction_of_limit or the spread is out of range"
"$plait" bench mla --heads 16 --context 100 --dcp 2 --rank 1 --threads 1 --json >"$work/json"
awk -v gflops="$(number gflops)" -v us="$(number us)" \
    'BEGIN { want = 2 * 50 * 16 * 1088; got = gflops * us * 1e3
             exit !(got > 0.999 * want && got < 1.001 * want) }'
result bench_dcp $? "a rank of two does not see half of the keys"
"$plait" bench gqa --heads 8 --kv-heads 2 --context 64 --kv-dtype fp8 --threads 2 >"$work/out" &&
    grep -q "^gqa_" "$work/out"
result bench_gqa $? "no line of the kernel"

# Causal prefill of 64 tokens: 64 * 65 / 2 keys for each of 4 heads of 192/128.
"$plait" bench prefill --heads 4 --context 64 --threads 1 --json >"$work/json"
awk -v gflops="$(number gflops)" -v us="$(number us)" \
    'BEGIN { want = 2 * 2080 * 4 * 320; got = gflops * us * 1e3
             exit !(got > 0.999 * want && got < 1.001 * want) }'
result bench_prefill $? "gflops times us is not the work of the call: $(cat "$work/json")"

# Three states of 5 rows and 8 heads: 512 values and an LSE each, read, and one written.
"$plait" bench merge --heads 8 --batch 5 --dcp 3 --threads 2 --json >"$work/json"
awk -v gbps="$(number gbps)" -v us="$(number us)" \
    'BEGIN { want = 4 * 5 * 8 * 513 * 4; got = gbps * us * 1e3
             exit !(got > 0.999 * want && got < 1.001 * want) }'
result bench_merge $? "gbps times us is not the bytes of the call: $(cat "$work/json")"

# 7 rows of 576 values, from 2 bytes each to 1.
for level in none avx2 all; do
    "$plait" bench append --q-len 7 --kv-dtype fp8 --threads 1 --cpu-mask $level --json \
        >"$work/json"
    awk -v gbps="$(number gbps)" -v us="$(number us)" \
        'BEGIN { want = 7 * 576 * 3; got = gbps * us * 1e3
                 exit !(got > 0.999 * want && got < 1.001 * want) }'
    result "bench_append_$level" $? "the bytes are wrong: $(cat "$work/json")"
done
refuse bench_append_unknown_kernel 1 "no append kernel matches" bench append --kernel 'merge*'
