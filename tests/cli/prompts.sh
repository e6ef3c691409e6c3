#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plait generate --prompts: JSON Lines in and out, in the order of the input, and bad files.
. "$(dirname "$0")/common.inc"
model=models/tiny

cat >"$work/in" <<'END'
{"prompt": "The read() function", "max_new_tokens": 12}
{"prompt": "CREATE TABLE", "stop": ["not in it", " "], "temperature": 0, "seed": 3}

{"prompt": "In Python, a list", "max_new_tokens": 2, "top_k": 4, "top_p": 0.5}
END
prompts() {
    "$plait" generate --model $model --dtype f32 --ignore-eos --max-new-tokens 6 "$@" \
        >"$work/out" 2>"$work/err"
}
prompts --prompts "$work/in" --draft mtp --dcp 2
result exit $? "$(cat "$work/err")"
[ "$(sed 's/^{"index": \([0-9]*\), .*}$/\1/' "$work/out" | tr '\n' ' ')" = "0 1 2 " ]
result a_line_each_in_order $? "$(cut -c 1-40 "$work/out")"
[ "$(sed 's/.*"new_tokens": \([0-9]*\).*/\1/' "$work/out" | sed '2d' | tr '\n' ' ')" = "12 2 " ]
result own_limits $? "$(cut -c 1-200 "$work/out")"
sed -n 2p "$work/out" | grep -q '"text": "[^ "]*", .*"finish_reason": "stop"'
result own_stops $? "$(sed -n 2p "$work/out")"
grep -q '^prompts  *3, ' "$work/err" && grep -q '^attention ' "$work/err"
result summary_on_stderr $? "$(cat "$work/err")"
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys
for line in open(sys.argv[1], encoding="utf-8"): json.loads(line)' "$work/out"
    result lines_parse $? "a line is no JSON"
else
    echo "skip lines_parse - python3 is not installed"
fi
list token_ids "$work/out" >"$work/batch"
cp "$work/out" "$work/first"
"$plait" generate --model $model --dtype f32 --ignore-eos --prompt "The read() function" \
    --max-new-tokens 12 --json >"$work/out"
[ "$(list token_ids "$work/out")" = "$(head -n 1 "$work/batch")" ]
result tokens_are_those_alone $? "$(cat "$work/out") not $(head -n 1 "$work/first")"

# A file with a bad line runs nothing, and every bad line is named.
printf '{"prompt": "a"}\n{"prompt": "b", "n": 1}\n{"prompt": "c"\n' >"$work/in"
prompts --prompts "$work/in"
code=$?
[ $code -eq 2 ] && [ ! -s "$work/out" ] && grep -q 'line 2: there is no key "n"' "$work/err" &&
    grep -q "line 3: " "$work/err"
result bad_lines $? "exit $code: $(cat "$work/out" "$work/err")"

# Sampled lines have their own seeds; equal ones give equal tokens, alone as in a batch.
for seed in 1 2 1; do
    echo '{"prompt": "The read() function", "seed": '$seed', "max_new_tokens": 12}'
done >"$work/in"
"$plait" generate --model $model --prompts "$work/in" --temperature 1 --dtype f32 --ignore-eos \
    >"$work/sampled" 2>"$work/err"
"$plait" generate --model $model --prompt "The read() function" --temperature 1 --seed 1 \
    --dtype f32 --ignore-eos --max-new-tokens 12 --json >"$work/alone"
for line in 1 2 3; do
    sed -n ${line}p "$work/sampled" >"$work/line"
    list token_ids "$work/line" >"$work/ids$line"
done
list token_ids "$work/alone" >"$work/ids"
[ -s "$work/ids1" ] && cmp -s "$work/ids1" "$work/ids3" && cmp -s "$work/ids1" "$work/ids" &&
    ! cmp -s "$work/ids1" "$work/ids2"
result sampled_lines $? "$(cat "$work/ids1" "$work/ids2" "$work/ids3" "$work/ids" "$work/err")"

i=0
while [ $i -lt 400 ]; do
    printf 'The words of a prompt that is too long for the model. '
    i=$((i + 1))
done >"$work/long"
printf '{"prompt": "a"}\n\n{"prompt": "%s"}\n' "$(cat "$work/long")" >"$work/in"
prompts --prompts "$work/in"
code=$?
[ $code -eq 1 ] && [ ! -s "$work/out" ] && grep -q "line 3:" "$work/err" &&
    grep -q "the model takes 2047" "$work/err"
result long_line $? "exit $code: $(cat "$work/out" "$work/err")"
refuse empty_file 2 "no line with a prompt" generate --model $model --prompts /dev/null
refuse absent_file 1 "cannot be read" generate --model $model --prompts "$work/none"
refuse two_kinds 2 "exactly one of --prompt" generate --model $model --prompts x --prompt y
