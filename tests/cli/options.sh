#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Options that are unknown, incomplete, out of their domain or not built yet are refused by name.
. "$(dirname "$0")/common.inc"

"$plait" >"$work/out" 2>"$work/err"
[ $? -eq 2 ] && [ ! -s "$work/out" ] && grep -q usage "$work/err"
result no_command_is_bad_usage $? "exit 2 and the usage on stderr were wanted"
"$plait" --help >"$work/out" && grep -q generate "$work/out"
result help_lists_commands $? "generate is not in the usage"
"$plait" --version | grep -q '^plait [0-9]*\.[0-9]*\.[0-9]*$'
result version $? "no version"

refuse unknown_command 2 "no command 'frobnicate'" frobnicate
refuse explain_needs 2 "--attention and --heads are needed" explain --attention mla
refuse bench_later 2 "bench exchange is not in this release step" bench exchange
refuse bench_nothing 2 "bench needs an operation" bench
refuse bench_unknown 2 "bench has no operation 'mlp'" bench mlp
refuse bench_heads 2 "--kv-heads is 3" bench gqa --heads 8 --kv-heads 3
refuse bench_q_len 2 "--q-len is 9" bench mla --q-len 9 --context 8
refuse bench_rank 2 "--rank is 2" bench mla --dcp 2 --rank 2
refuse unknown_option 2 "no option '--modle'" generate --modle x
refuse bare_word 2 "no option 'models/tiny'" generate models/tiny
refuse missing_value 2 "--max-new-tokens needs a value" generate --max-new-tokens
refuse not_a_number 2 "takes a whole number, not '12x'" generate --max-new-tokens 12x
refuse not_whole 2 "takes a whole number, not '1.5'" generate --max-new-tokens 1.5
refuse hexadecimal 2 "takes a whole number" generate --max-new-tokens 0x10
refuse empty_number 2 "takes a whole number, not ''" generate --max-new-tokens=
refuse nan 2 "takes a number, not 'nan'" generate --comm-timeout nan
refuse out_of_range 2 "out of range" generate --max-new-tokens -1
refuse huge_number 2 "out of range" generate --max-new-tokens 99999999999999999999
refuse size_unit 2 "takes bytes, as 64M or 2G, not '12Q'" generate --kv-cache 12Q
refuse flag_with_value 2 "takes no value" generate --json=yes
refuse given_twice 2 "given twice" generate --dcp 1 --dcp 2
refuse unknown_choice 2 "--dtype takes bf16|f32, not 'int4'" generate --dtype int4
for option in --backend --prefer --device; do
    refuse "later${option}" 2 "plait generate: $option is not in this release step" \
        generate "$option" 1
done
refuse info_unknown_option 2 "no option '--jsno'" info --jsno
