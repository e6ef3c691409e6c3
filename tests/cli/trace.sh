#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plait generate --trace: a Chrome trace with a row for each rank, valid when the run fails too.
. "$(dirname "$0")/common.inc"
model=models/tiny

"$plait" generate --model $model --prompt "The read() function" --max-new-tokens 4 --dcp 2 \
    --draft mtp --json --trace "$work/trace" >"$work/json" 2>"$work/err"
result exit $? "$(cat "$work/err")"
for name in prefill decode draft "draft catch-up" sampling attention "gather queries" \
    "attend shard" exchange "sum over ranks" "query and latent GEMMs" "value and output GEMMs" \
    "MLP GEMMs" "logits GEMM"; do
    for rank in 0 1; do
        grep -q "\"name\": \"$name\", \"ph\": \"X\", \"pid\": 0, \"tid\": $rank, " "$work/trace" ||
            echo "$name of rank $rank"
    done
done >"$work/missing"
[ ! -s "$work/missing" ]
result a_row_of_each_rank $? "no span: $(cat "$work/missing")"
# 6 layers in each of the target's passes, and one in each pass of the draft layer.
steps=$(number steps "$work/json")
passes=$(grep -c '"name": "\(prefill\|decode\)", .*"tid": 0' "$work/trace")
[ "$passes" -eq $((1 + steps)) ]
result a_span_of_each_pass $? "$passes passes, $steps steps"

"$plait" generate --model $model --prompt x --max-new-tokens 2 --kv-cache 1K \
    --trace "$work/failed" >"$work/out" 2>"$work/err"
code=$?
[ $code -eq 1 ] && tail -n 1 "$work/failed" | grep -q '^\]}$'
result a_failed_run_leaves_a_trace $? "exit $code: $(cat "$work/err" "$work/failed")"
"$plait" generate --model "$work/none" --prompt x --trace "$work/unopened" >"$work/out" \
    2>"$work/err"
if command -v python3 >/dev/null; then
    for file in trace failed unopened; do
        python3 - "$work/$file" <<'END'
import json, sys
events = json.load(open(sys.argv[1], encoding="utf-8"))["traceEvents"]
open_until = {}
spans = [e for e in events if e["ph"] == "X"]
for e in sorted(spans, key=lambda e: (e["tid"], e["ts"], -e["dur"])):
    stack = open_until.setdefault(e["tid"], [])
    while stack and stack[-1] <= e["ts"] + 1e-3:
        stack.pop()
    assert e["ts"] >= 0 and e["dur"] >= 0, e
    # A span lies in another one or beside it.
    assert not stack or e["ts"] + e["dur"] <= stack[-1] + 2e-3, e
    stack.append(e["ts"] + e["dur"])
END
        result "$file"_is_valid $? "$(head -c 300 "$work/$file")"
    done
else
    echo "skip trace_is_valid - python3 is not installed"
fi
refuse unwritable 1 "cannot be written" generate --model $model --prompt x --trace "$work/no/dir"
