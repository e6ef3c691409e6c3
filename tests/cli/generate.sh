#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plait generate: its JSON object, streaming text, and bad input: one clear sentence each.
. "$(dirname "$0")/common.inc"
model=models/tiny
prompt="The read() function"

generate() {
    "$plait" generate --model $model --prompt "$prompt" "$@" 2>"$work/err"
}

# oneDNN multiplies bf16 from AVX-512 on; the default dtype works without, too.
ONEDNN_MAX_CPU_ISA=AVX2 DNNL_MAX_CPU_ISA=AVX2 generate --max-new-tokens 4 --json >"$work/json"
result bf16_without_avx512 $? "exit $?: $(cat "$work/err")"

new=128
[ -n "${PLAIT_SANITIZED:-}" ] && new=16
generate --draft mtp --spec-tokens 3 --dcp 2 --max-new-tokens $new --json >"$work/json"
result json_exit $? "exit $?: $(cat "$work/err")"
[ ! -s "$work/err" ] && [ "$(wc -l <"$work/json")" -eq 1 ]
result json_is_alone $? "one line on stdout and nothing on stderr were wanted"
keys=$(sed 's/^{"text": "\(\\.\|[^"\\]\)*"/"text": 0/' "$work/json" |
    sed 's/"notices": \[.*\]}$/"notices": 0/' | grep -o '"[a-z_]*": ' | tr -d '":\n')
want="text token_ids finish_reason prompt_tokens cached_tokens new_tokens prefill_tokens_per_s \
decode_tokens_per_s steps \
accepted_per_step draft spec_tokens tp dcp interleave comm kv_bytes_per_rank \
draft_kv_bytes_per_rank attention_kernel notices "
[ "$keys" = "$want" ]
result json_fields $? "the fields are: $keys"
tokens=$(list token_ids "$work/json" | awk -F, '{ print NF }')
[ "$tokens" = "$(number new_tokens "$work/json")" ]
result json_counts_new_tokens $? "$tokens token_ids"
[ "$(list kv_bytes_per_rank "$work/json" | awk -F, '{ print NF, ($1 > 0), ($2 > 0) }')" = "2 1 1" ]
result json_bytes_of_each_rank $? "two positive numbers were wanted"
awk -v n="$tokens" -v s="$(number steps "$work/json")" \
    -v a="$(number accepted_per_step "$work/json")" \
    'BEGIN { d = a - (n - 1) / s; exit !(s > 0 && d < 1e-4 && d > -1e-4) }'
result json_accepted_per_step $? "it is not (new_tokens - 1) / steps"
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys; json.load(open(sys.argv[1], encoding="utf-8"))' "$work/json"
    result json_parses $? "it is no JSON"
else
    echo "skip json_parses - python3 is not installed"
fi

# The default output: the text as in JSON, then the summary.
generate --max-new-tokens 16 --dtype f32 >"$work/text"
generate --max-new-tokens 16 --dtype f32 --json >"$work/json"
grep -q '^tokens  .* 16 new$' "$work/text" && grep -q '^attention ' "$work/text"
result summary $? "$(tail -n 8 "$work/text")"
[ ! -s "$work/err" ]
result no_progress_without_a_terminal $? "stderr: $(head -c 200 "$work/err")"
printf '%s' "$prompt" >"$work/prompt"
"$plait" generate --model $model --prompt-file "$work/prompt" --max-new-tokens 16 --dtype f32 \
    --json >"$work/json2"
[ -n "$(list token_ids "$work/json")" ] &&
    [ "$(list token_ids "$work/json")" = "$(list token_ids "$work/json2")" ]
result prompt_file $? "its tokens are not those of --prompt"

# Invariant mode refuses sums whose order is the communicator's.
generate --max-new-tokens 4 --dtype f32 --dcp 2 --draft mtp --invariant --json >"$work/json2"
[ "$(list token_ids "$work/json" | cut -d, -f1-4)" = "$(list token_ids "$work/json2")" ]
result invariant $? "its tokens are not those of a plain run: $(cat "$work/err" "$work/json2")"
refuse invariant_ag_rs 2 "invariant mode with exchange ag_rs" generate --model $model --prompt x \
    --dcp 2 --exchange ag_rs --invariant

# Stop texts end the output where they begin, in JSON and in the text that streams.
generate --max-new-tokens 24 --dtype f32 --ignore-eos --json >"$work/json"
whole=$(sed 's/^{"text": "\([^"\\]*\).*/\1/' "$work/json")
stop=$(printf '%s' "$whole" | cut -c 12-16)
generate --max-new-tokens 24 --dtype f32 --ignore-eos --stop "not in it" --stop "$stop" --json \
    >"$work/json2"
[ -n "$stop" ] && grep -q '"finish_reason": "stop"' "$work/json2" &&
    [ "$(sed 's/^{"text": "\([^"\\]*\)".*/\1/' "$work/json2")" = "${whole%%"$stop"*}" ]
result stop_json $? "$(head -c 200 "$work/json2") from $(head -c 200 "$work/json")"
generate --max-new-tokens 24 --dtype f32 --ignore-eos --stop "$stop" >"$work/text"
[ "$(head -n 1 "$work/text")" = "${whole%%"$stop"*}" ]
result stop_text $? "$(head -n 1 "$work/text")"
refuse empty_stop 2 "stop text 0 has 0 bytes" generate --model $model --prompt x --stop ""

# One new token leaves nothing of decoding to measure: no NaN in either output.
generate --max-new-tokens 1 >"$work/text" && ! grep -qi 'nan\|decode' "$work/text" &&
    grep -q '^steps  *0$' "$work/text"
result one_token_summary $? "$(tail -n 8 "$work/text")"
generate --max-new-tokens 1 --json >"$work/json" &&
    grep -q '"decode_tokens_per_s": null, "steps": 0, "accepted_per_step": null' "$work/json"
result one_token_json $? "$(cat "$work/json")"

# Look-up drafts on a prompt that repeats code: at least 1.5 tokens gained in each step.
cat >"$work/code" <<'CODE'
def read_first(path):
    with open(path) as file:
        data = file.read()
    return data.split("\n")[0]

def read_second(path):
    with open(path) as file:
        data = file.read()
    return data.split("\n")[1]

def read_third(path):
    with open(path) as file:
        data = file.read()
    return data.split("\n")[2]

def read_fourth(path):
CODE
"$plait" generate --model $model --prompt-file "$work/code" --max-new-tokens 96 --dtype f32 \
    --ignore-eos --draft ngram --spec-tokens 6 --json >"$work/json"
awk -v a="$(number accepted_per_step "$work/json")" 'BEGIN { exit !(a >= 1.5) }'
result ngram_on_repeated_code $? "accepted_per_step: $(number accepted_per_step "$work/json")"

# ---- bad input --------------------------------------------------------------------------------
refuse no_model 2 "--model is missing" generate --prompt x
refuse no_prompt 2 "exactly one of --prompt" generate --model $model
refuse two_prompts 2 "exactly one of --prompt" generate --model $model --prompt x --prompt-file y
refuse no_such_head 1 "$work/none/config.json" \
    generate --model $model --prompt x --draft "$work/none"
refuse empty_prompt 2 "empty" generate --model $model --prompt ""
refuse absent_prompt_file 1 "cannot be read" generate --model $model --prompt-file "$work/none"
refuse absent_model 1 "$work/none" generate --model "$work/none" --prompt x
refuse dcp_not_in_tp 2 "dcp must divide tp" generate --model $model --prompt x --tp 3 --dcp 2
refuse too_many_ranks 2 "at most" generate --model "$work/none" --prompt x --dcp 1000
refuse options_before_the_model 2 "dcp must divide tp" \
    generate --model "$work/none" --prompt x --tp 3 --dcp 2
for option in "--spec-tokens 3" "--spec-tokens auto" "--draft-kv sharded"; do
    # shellcheck disable=SC2086
    refuse "no_draft_for_${option#--}" 2 "${option% *} is for drafts" \
        generate --model "$work/none" --prompt x $option
done
refuse no_cache_of_ngram 2 "--draft ngram has none" \
    generate --model "$work/none" --prompt x --draft ngram --draft-kv replicated
refuse more_ranks_than_heads 1 "64 .* 8 query heads" generate --model $model --prompt x --tp 64
refuse bad_mask 2 "avx512" generate --model $model --prompt x --cpu-mask sse9
refuse no_such_kernel 1 "no kernel" generate --model $model --prompt x --kernel no_such_kernel
refuse small_cache 1 "bytes" generate --model $model --prompt x --kv-cache 1K
i=0
while [ $i -lt 400 ]; do
    printf 'The words of a prompt that is too long for the model. '
    i=$((i + 1))
done >"$work/long"
refuse long_prompt 1 "the model takes 2047" generate --model $model --prompt-file "$work/long"

# broken NAME: a copy of the model to break.
broken() {
    rm -rf "$work/model"
    mkdir "$work/model"
    cp $model/*.json $model/*.safetensors "$work/model"
}
broken
rm "$work/model/model-00002-of-00002.safetensors"
refuse absent_shard 1 "model-00002-of-00002.safetensors" \
    generate --model "$work/model" --prompt x
broken
head -c 1000000 $model/model-00002-of-00002.safetensors \
    >"$work/model/model-00002-of-00002.safetensors"
refuse truncated_shard 1 "model-00002-of-00002.safetensors" \
    generate --model "$work/model" --prompt x
broken
size=$(wc -c <"$work/model/model-00002-of-00002.safetensors")
printf '\377\377\377\377' | dd of="$work/model/model-00002-of-00002.safetensors" bs=1 \
    seek=$((size - 4)) conv=notrunc 2>"$work/dd"
refuse nan_in_weights 1 "must be finite" generate --model "$work/model" --prompt x --draft mtp
broken
sed 's/DeepseekV3ForCausalLM/LlamaForCausalLM/; s/deepseek_v3/llama/' $model/config.json \
    >"$work/model/config.json"
refuse another_architecture 1 "llama\|Llama" generate --model "$work/model" --prompt x
broken
head -c 300 $model/config.json >"$work/model/config.json"
refuse truncated_config 1 "config.json" generate --model "$work/model" --prompt x
broken
rm "$work/model/tokenizer.json"
refuse absent_tokenizer 1 "tokenizer.json" generate --model "$work/model" --prompt x

"$plait" generate --model "$model" --prompt hi --max-new-tokens 2 --threads $(($(nproc) + 1)) \
    >"$work/out" 2>"$work/err" && [ "$(grep -c 'threads were asked for' "$work/err")" -eq 1 ]
result too_many_threads_are_noticed_once $? "stderr holds $(head -c 300 "$work/err")"
