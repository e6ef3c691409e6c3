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
