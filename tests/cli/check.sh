#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plait check: all kernels pass, with each level of CPU features, and bad options are refused.
. "$(dirname "$0")/common.inc"

for mask in none avx2 avx512 all; do
    "$plait" check --cpu-mask "$mask" --json >"$work/json" 2>"$work/err"
    code=$?
    [ "$code" -eq 0 ] && [ "$(number failed "$work/json")" -eq 0 ] &&
        [ "$(number passed "$work/json")" -ge 200 ] && [ ! -s "$work/err" ]
    result "check_mask_$mask" $? "exit $code: $(cat "$work/json" "$work/err")"
done

"$plait" check --kernel '*_ref' --cpu-mask none >"$work/out"
tail -n 1 "$work/out" | grep -qx '[1-9][0-9]* passed, 0 failed, 0 skipped'
result check_last_line $? "$(tail -n 1 "$work/out")"

# --json has the counts and the largest error of each kernel, then those of all.
"$plait" check --kernel mla_ref --json --cases 20 >"$work/json"
counts='"passed": 22, "failed": 0, "skipped": 0, "worst": 0\.[0-9]*'
grep -qx "{\"kernels\": \[{\"name\": \"mla_ref\", $counts}\], $counts}" "$work/json"
result check_json_kernels $? "$(cat "$work/json")"

# Every kernel has at least 100 cases.
"$plait" check --list | while read -r kernel rest; do
    "$plait" check --kernel "$kernel" --json >"$work/json"
    total=$(($(number passed "$work/json") + $(number failed "$work/json") +
        $(number skipped "$work/json")))
    [ "$total" -ge 100 ]
    result "check_cases_$kernel" $? "$total cases"
done

"$plait" check --list --kernel 'mla_*' --cpu-mask none --json >"$work/json" &&
    [ "$(wc -l <"$work/json")" -eq 1 ] &&
    grep -q '^{"kernels": \[.*{"name": "mla_ref", "runs": true}.*\]}$' "$work/json" &&
    grep -q '{"name": "mla_avx512", "runs": false}' "$work/json" && ! grep -q gqa "$work/json"
result check_list_json $? "$(cat "$work/json")"
refuse check_list_unknown_kernel 2 "no kernel is named 'nope'" check --list --kernel nope
refuse check_unknown_kernel 2 "no kernel is named 'nope'" check --kernel nope
refuse check_unknown_mask 2 "avx512bf16" check --cpu-mask sse9
