#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Time to the first token of a prompt that begins like one before it, with the prefix cache on and
# off. Two requests of one call: `--kv-cache` holds the pages of one, so that the second begins when
# the first has ended. The model declares 2048 tokens, so that a copy with a longer limit serves
# here. Prints a Markdown table with medians of interleaved runs.
# Arguments: the plait command, the number of rounds (5), the tokens to share (2048).
set -u
plait=${1:?usage: bench/prefix.sh PLAIT [ROUNDS [TOKENS]]}
rounds=${2:-5}
tokens=${3:-2048}
. "$(dirname "$0")/common.inc"
long_model

value() {
    sed -n 's/.*"'"$1"'": \([^],}]*\).*/\1/p' "$2" | tail -n 1
}

generate() {
    "$plait" generate --model "$work/model" --prompts "$work/prompts" --threads 2 \
        --max-new-tokens 1 --ignore-eos "$@" >"$work/out" 2>"$work/err" && return
    cat "$work/err" >&2
    exit 1
}

# The shortest run of lines with as many tokens as are to be shared.
lines=$((tokens / 80)) have=0
while [ "$have" -lt "$tokens" ]; do
    lines=$((lines + 1))
    shared=$(head -n $lines "$work/long" | tr '\n' ' ')
    printf '{"prompt": "%s"}\n' "$shared" >"$work/prompts"
    generate
    have=$(($(value prompt_tokens "$work/out") - 1))
done
printf '{"prompt": "%s This is the end."}\n{"prompt": "%s Another way to close it."}\n' \
    "$shared" "$shared" >"$work/prompts"
# Bytes of a page of 64 tokens, and pages for a little more than one of the prompts.
pages=$(((have + 16) / 64 + 1))
for name in mtp none; do
    "$plait" generate --model "$work/model" --prompt x --max-new-tokens 9 --ignore-eos --json \
        --draft $name >"$work/one" || exit 1
    for field in kv_bytes_per_rank draft_kv_bytes_per_rank; do
        sed -n 's/.*"'$field'": \[\([0-9]*\).*/\1/p' "$work/one"
    done | tr '\n' ' ' >"$work/bytes.$name"
done

round=0
while [ $round -lt "$rounds" ]; do
    for name in none mtp; do
        read -r page draft _ <"$work/bytes.$name" || true
        for cache in off on; do
            generate --draft $name --kv-cache $((pages * (page + draft))) --prefix-cache $cache
            echo "$(value prompt_tokens "$work/out") $(value prefill_tokens_per_s "$work/out")" |
                awk '{ print 1000 * $1 / $2 }' >>"$work/$name.$cache"
            value cached_tokens "$work/out" >"$work/$name.$cache.hit"
        done
    done
    round=$((round + 1))
done

echo "$("$plait" --version), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)," \
    "2 threads, bf16, $(date -u +%F), median of $rounds runs"
echo
echo "| drafts | tokens in the prompt | tokens found | first token, cache off | on | times faster |"
echo "|---|---|---|---|---|---|"
for name in none mtp; do
    off=$(median "$work/$name.off") on=$(median "$work/$name.on")
    echo "$name $(value prompt_tokens "$work/out") $(cat "$work/$name.on.hit") $off $on" |
        awk '{ printf "| %s | %d | %d | %.1f ms | %.1f ms | %.1f |\n",
            $1, $2, $3, $4, $5, $4 / $5 }'
done
