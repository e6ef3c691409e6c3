#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Decoding speed of the bundled model with 512 and 4096 tokens of context on two threads: two ranks
# (DCP 2, one thread each) against one rank, and MTP drafts of 1 to 4 tokens or of as many as pay
# against none. Prints Markdown tables with medians of interleaved runs, and --spec-tokens auto
# against the best of none and the fixed numbers. The model declares 2048 tokens, so that a copy
# with a longer limit serves here; at 4096 its text means nothing, its speed does.
# Arguments: the plait command, the number of rounds (5).
set -u
plait=${1:?usage: bench/decode.sh PLAIT [ROUNDS]}
rounds=${2:-5}
. "$(dirname "$0")/common.inc"
long_model

value() {
    sed -n 's/.*"'"$1"'": \([^],}]*\).*/\1/p' "$work/json"
}

# prompt TOKENS: a file of about so many, by the bytes per token of a first try.
prompt() {
    bytes=$(($1 * 3))
    for _ in first second; do
        head -c "$bytes" "$work/long" >"$work/prompt.$1"
        "$plait" generate --model "$work/model" --prompt-file "$work/prompt.$1" \
            --max-new-tokens 1 --ignore-eos --json >"$work/json" || exit 1
        bytes=$((bytes * $1 / $(value prompt_tokens)))
    done
    echo "prompt of $(value prompt_tokens) tokens" >&2
}

# speed NAME CONTEXT OPTIONS...: adds one measurement to the file NAME.CONTEXT.
speed() {
    name=$1 context=$2
    shift 2
    "$plait" generate --model "$work/model" --prompt-file "$work/prompt.$context" --threads 2 \
        --max-new-tokens 96 --ignore-eos --json "$@" >"$work/json" || exit 1
    value decode_tokens_per_s >>"$work/$name.$context"
    value accepted_per_step >"$work/$name.$context.gained"
}

for context in 512 4096; do
    prompt $context
    round=0
    while [ $round -lt "$rounds" ]; do
        speed d1 $context --dcp 1
        speed d2 $context --dcp 2
        for k in 1 2 3 4; do
            speed mtp$k $context --dcp 1 --draft mtp --spec-tokens $k
        done
        speed auto $context --dcp 1 --draft mtp --spec-tokens auto
        round=$((round + 1))
    done
done

echo "$("$plait" --version), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)," \
    "2 threads, bf16, $(date -u +%F), median of $rounds runs"
echo
echo "| context | setting | tokens/s | against one rank, no drafts | tokens a step |"
echo "|---|---|---|---|---|"
for context in 512 4096; do
    base=$(median "$work/d1.$context")
    for name in d1 d2 mtp1 mtp2 mtp3 mtp4 auto; do
        now=$(median "$work/$name.$context")
        echo "$context $name $now $base $(cat "$work/$name.$context.gained")" |
            awk '{ printf "| %s | %s | %.1f | %.2f | %.2f |\n", $1, $2, $3, $3 / $4, $5 }'
    done
done
echo
for context in 512 4096; do
    best=$(for name in d1 mtp1 mtp2 mtp3 mtp4; do
        median "$work/$name.$context"
    done | sort -g | tail -n 1)
    echo "$context $(median "$work/auto.$context") $best" |
        awk '{ printf "auto against the best at %s: %.3f\n", $1, $2 / $3 }'
done
