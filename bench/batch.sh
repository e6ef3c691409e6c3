#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Throughput of the bundled model on two threads: 32 prompts of mixed lengths in one batch against
# the same prompts one at a time, without drafts and with MTP drafts. Times are those of generation,
# without loading. Prints a Markdown table with medians of interleaved runs.
# Arguments: the plait command, the number of rounds (3), the number of prompts (32).
set -u
plait=${1:?usage: bench/batch.sh PLAIT [ROUNDS] [PROMPTS]}
rounds=${2:-3}
prompts=${3:-32}
. "$(dirname "$0")/common.inc"

# 32 to 192 new tokens, in no order; prompts of one or two held-out prompts.
awk -v n="$prompts" '{ sub(/^{"prompt": "/, ""); sub(/"}$/, ""); text[NR - 1] = $0 }
    END { for (i = 0; i < n; i++) {
        prompt = text[i % NR]
        for (j = 1; j <= i * 7 % 2; j++)
            prompt = prompt " " text[(i + 5 * j) % NR]
        printf "{\"prompt\": \"%s\", \"max_new_tokens\": %d}\n", prompt, 32 + i * 37 % 161
    } }' "$root/tests/vectors/heldout_prompts.jsonl" >"$work/all"
split -l 1 -a 3 "$work/all" "$work/one."

# run FILE OPTIONS...: adds tokens and seconds of a run to $work/sum.
run() {
    file=$1
    shift
    "$plait" generate --model "$root/models/tiny" --prompts "$file" --threads 2 --ignore-eos "$@" \
        >"$work/out" 2>"$work/err" || {
        cat "$work/err" >&2
        exit 1
    }
    awk '/^prompts / { new = $(NF - 1) } /^speed / { print new, $5 }' "$work/err" >>"$work/sum"
}

# speed NAME FILES... -- OPTIONS...: new tokens per second over all files.
speed() {
    name=$1
    : >"$work/sum"
    shift
    files=
    while [ "$1" != -- ]; do
        files="$files $1"
        shift
    done
    shift
    for file in $files; do
        run "$file" "$@"
    done
    awk '{ n += $1; s += $2 } END { print n / s }' "$work/sum" >>"$work/$name"
}

round=0
while [ $round -lt "$rounds" ]; do
    speed alone.none "$work"/one.* -- --draft none
    speed batch.none "$work/all" -- --draft none
    speed alone.mtp "$work"/one.* -- --draft mtp
    speed batch.mtp "$work/all" -- --draft mtp
    round=$((round + 1))
done

echo "$("$plait" --version), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)," \
    "2 threads, bf16, $(date -u +%F), $prompts prompts, median of $rounds runs"
echo
echo "| drafts | one at a time, tokens/s | in one batch, tokens/s | ratio |"
echo "|---|---|---|---|"
for draft in none mtp; do
    echo "$draft $(median "$work/alone.$draft") $(median "$work/batch.$draft")" |
        awk '{ printf "| %s | %.1f | %.1f | %.2f |\n", $1, $2, $3, $3 / $2 }'
done
