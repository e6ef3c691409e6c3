#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plait explain: the pairings of known kernels, refusals with their reasons, docs/backends.md.
. "$(dirname "$0")/common.inc"
gqa="--attention gqa --heads 64 --kv-heads 8 --tp 16 --from profiles"
mla="--attention mla --heads 128 --tp 4 --dcp 4 --device sm100 --kv-dtype fp8 --from profiles"

# gives NAME CODE PATTERN ARGS...: one JSON line that begins with PATTERN.
gives() {
    name=$1 want=$2 pattern=$3
    shift 3
    "$plait" explain "$@" --json >"$work/json" 2>"$work/err"
    code=$?
    [ "$code" -eq "$want" ] && [ "$(wc -l <"$work/json")" -eq 1 ] &&
        grep -q "^{$pattern" "$work/json"
    result "$name" $? "exit $code: $(head -c 300 "$work/json") $(cat "$work/err")"
}

# holds NAME PATTERN: the last answer has it.
holds() {
    grep -q "$2" "$work/json"
    result "$1" $? "'$2' is not in it"
}

one_notice='"notices": \["[^"]*"\]}$'
native='"backend": "flashinfer.native", "strategy": "'
gives xqa_without_lse_gives_way_to_native 0 "${native}direct\", \"decode_threshold\": 1," \
    $gqa --device sm90 --dcp 2 --q-len 1
holds xqa_refusal_names_lse \
    '"flashinfer.xqa", "reasons": \["dcp 2 by direct needs LSE, it returns none"\]'
holds xqa_gives_one_notice "$one_notice"
gives trtllm_gen_takes_one_token 0 '"backend": "flashinfer.trtllm_gen", "strategy": "direct"' \
    $gqa --device sm100 --dcp 2 --q-len 1
gives trtllm_gen_takes_several_not_directly 0 \
    '"backend": "flashinfer.trtllm_gen", "strategy": "[wf][a-z]*", "decode_threshold": 1,' \
    $gqa --device sm100 --dcp 2 --q-len 4 --backend flashinfer.trtllm_gen
holds trtllm_gen_rows_stay_decodes '"decode_rows": 4, "calls": 1, "relative_cost": 1\.'
holds trtllm_gen_mask_is_end_aligned \
    'flashinfer.trtllm_gen", "reasons": \["4 rows at dcp 2 [^"]*aligned to the local end"\]'
gives prefill_is_native 0 "$native" $gqa --device sm100 --dcp 2 --phase prefill
holds prefill_gives_one_notice "$one_notice"
gives prefill_prefers_in_vain 0 "$native" $gqa --device sm100 --dcp 2 --phase prefill \
    --prefer flashinfer.trtllm_gen
holds prefer_gives_one_notice '"notices": \["flashinfer.trtllm_gen was preferred [^"]*"\]}$'
gives prefill_forced_in_vain 1 '"backend": "", "strategy": "refuse"' $gqa --device sm100 --dcp 2 \
    --phase prefill --backend flashinfer.trtllm_gen
grep -q 'needs LSE.*what would work: flashinfer.native$' "$work/err"
result forced_names_what_would_work $? "$(cat "$work/err")"
gives tokenspeed_is_direct 0 \
    '"backend": "tokenspeed_mla", "strategy": "direct", "decode_threshold": 4' $mla --draft mtp
holds tokenspeed_bytes '"kv_bytes_per_token": 144,'
gives tokenspeed_interleave_16 0 '"backend"' $mla --q-len 4 --interleave 16
holds tokenspeed_is_not_direct 'tokenspeed_mla", "reasons": \["interleave is 16'
gives tokenspeed_of_old 1 '"backend": ""' $mla --q-len 4 --backend tokenspeed_mla \
    --package tokenspeed-mla=0.1.2
holds tokenspeed_version 'tokenspeed-mla is 0.1.2, this needs version 0.2.5'
gives ragged_rows 0 '"backend": "tokenspeed_mla"' $mla --q-len ragged --backend tokenspeed_mla
gives memory_of_each_dcp 0 '"backend"' $mla --q-len 1 --memory 576K
one='{"dcp": 1, "tokens": 1024}'
holds memory_tokens \
    '"tokens_that_fit": \['"$one"', {"dcp": 2, "tokens": 2048}, {"dcp": 4, "tokens": 4096}\]'
gives built_in 0 '"backend": "mla_[a-z0-9]*", "strategy": "direct"' --attention mla --heads 128
"$plait" explain --attention mla --heads 128 >"$work/out" && grep -q '^backend  *mla_' "$work/out"
result explain_text $? "$(head -n 3 "$work/out")"

refuse explain_unknown_backend 2 "no backend is named 'x'.*mla_ref" explain --attention mla \
    --heads 8 --backend x
refuse explain_device 2 "'sm9x'" explain --attention mla --heads 8 --device sm9x
refuse explain_package 2 "NAME=VERSION" explain --attention mla --heads 8 --package foo=1
refuse explain_geometry 2 "multiple of 8 KV heads; tp is 2" explain --attention gqa --heads 16 \
    --kv-heads 8 --tp 2 --dcp 2
refuse explain_markdown_alone 2 "alone" explain --markdown --json

# The table is written on x86, which has all built-in kernels.
"$plait" explain --markdown >"$work/backends"
cmp -s "$work/backends" docs/backends.md
result docs_backends_is_current $? \
    "docs/backends.md is stale: plait explain --markdown > docs/backends.md"
