#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# seeds.sh TARGET FOLDER: writes what fuzzing of a target starts from, made of the bundled files.
set -eu
target=$1 out=$2
mkdir -p "$out"

# file NAME HEADER DATA: a safetensors file; DATA as printf takes it. The first byte is the
# target's switch.
file() {
    header=$2
    {
        printf '\000'
        printf "\\$(printf %03o $((${#header} % 256)))\\$(printf %03o $((${#header} / 256)))"
        printf '\000\000\000\000\000\000'
        printf '%s' "$header"
        printf "$3"
    } >"$out/$1"
}

case $target in
config)
    cp models/tiny/config.json "$out/tiny.json"
    cp tests/vectors/variants/*.json "$out"
    {
        cat models/tiny/config.json
        printf '\000{"eos_token_id": [1, 2]}'
    } >"$out/generation"
    ;;
eagle3) cp models/tiny/eagle3/config.json "$out" ;;
safetensors)
    file f32 '{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}' \
        '\000\000\000\000\000\000\200?\000\000\000@\000\000@@'
    file halves '{"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},
"c":{"dtype":"F16","shape":[1,2],"data_offsets":[4,8]}}' \
        '\200?\000@\000<\000@'
    file fp8 '{"__metadata__":{"format":"pt"},
"w":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]},
"w_scale_inv":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}}' \
        '0123\000\000\200?'
    printf '\001{"metadata":{"total_size":24},"weight_map":%s}' \
        '{"a":"a.safetensors","b":"b.safetensors"}' >"$out/index"
    ;;
tokenizer)
    cp tests/fuzz/seeds/tokenizer/*.json "$out"
    {
        sed 's/"post_processor":.*,"decoder"/"post_processor":null,"decoder"/' \
            tests/fuzz/seeds/tokenizer/small.json
        printf '\000{"add_bos_token": true, "bos_token": {"content": "<|begin_of_sentence|>"}}'
    } >"$out/bos"
    ;;
text)
    printf '\000The read() function: caf\303\251 12345\r\n' >"$out/text"
    printf '\000\346\227\245\346\234\254 \360\237\231\202\355\240\200' >"$out/unicode"
    printf '\000<|begin_of_sentence|>x<|end_of_sentence|>' >"$out/special"
    printf '\001\013\000\377\001\040\003\377\377' >"$out/ids"
    ;;
jsonl)
    printf '{"prompt": "a \\u00e9\\n", "max_new_tokens": 3, "stop": ["x", "END"]}\n' >"$out/one"
    printf '\n{"prompt":"b","temperature":0.5,"top_k":40,"top_p":0.9,"seed":7,"stop":"y"}\n' \
        >"$out/two"
    cat "$out/one" "$out/two" >"$out/both"
    ;;
*) printf '\000' >"$out/empty" ;;
esac
