#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plait check --plugin: the example passes, each of five planted faults is caught and named.
. "$(dirname "$0")/common.inc"
example=examples/plugin_backend.c

# build NAME: compiles $work/NAME.c to $work/NAME.so.
build() {
    ${CC:-cc} -std=c11 -O2 -Wall -Wextra -Werror -fPIC -shared -Iinclude "$work/$1.c" \
        -o "$work/$1.so" -lm
}

cp "$example" "$work/right.c"
build right && "$plait" check --plugin "$work/right.so" --json >"$work/json" 2>"$work/err" &&
    [ "$(number passed "$work/json")" -ge 100 ] && [ ! -s "$work/err" ]
result plugin_example $? "$(cat "$work/json" "$work/err")"

# fault NAME WHY SED: the example after SED must fail, with WHY in a line.
fault() {
    sed "$3" "$example" >"$work/$1.c"
    ! cmp -s "$example" "$work/$1.c" && build "$1" || {
        result "plugin_fault_$1" 1 "the fault cannot be planted"
        return
    }
    "$plait" check --plugin "$work/$1.so" >"$work/out" 2>"$work/err"
    [ $? -eq 1 ] && grep -q "$2" "$work/err"
    result "plugin_fault_$1" $? "$(head -3 "$work/err")"
}

fault base_2 'other base' \
    's/(float)(top + log(sum))/(float)((top + log(sum)) * 1.4426950408889634)/'
fault end_aligned 'aligned to the end' '/= seq >= 0 ? a->kv_end\[row\] : 0;/{
s/= .*/= seq < 0 ? 0 : end_of(a, a->row_start[seq + 1] - 1, row);/
}
/^static void attend/i\
static int32_t end_of(const plait_attn_args *a, int32_t last, int32_t row)\
{\
    int32_t end = a->kv_end[last] - (last - row);\
    return end > 0 ? end : 0;\
}'
fault empty 'empty rows are not exact' 's/: -INFINITY;/: 0;/'
fault uniform 'equal numbers' \
    's/row >= a->row_start\[seq + 1\]/row >= a->row_start[a->num_seqs] \/ a->num_seqs * (seq + 1)/'
fault scale 'no single declaration' 's/ \* a->out_scale;/;/'

# truth NAME DECLARED WANTED: the faulty plug-in is right once it declares what it does.
truth() {
    sed "s/$2/$3/" "$work/$1.c" >"$work/true_$1.c"
    ! cmp -s "$work/$1.c" "$work/true_$1.c" && build "true_$1" &&
        "$plait" check --plugin "$work/true_$1.so" --json >"$work/json" 2>"$work/err" &&
        [ "$(number passed "$work/json")" -ge 40 ]
    result "plugin_truth_$1" $? "$(cat "$work/json") $(head -2 "$work/err")"
}

truth base_2 LSE_BASE_E LSE_BASE_2
truth end_aligned RANGES_PER_ROW RANGES_END_ALIGNED
truth empty EMPTY_EXACT EMPTY_UNDEFINED
truth uniform ROWS_RAGGED ROWS_UNIFORM

refuse plugin_absent 1 'cannot open' check --plugin "$work/none.so"
echo 'int x;' >"$work/bare.c"
build bare
refuse plugin_without_entry 1 'exports no plait_plugin_entry' check --plugin "$work/bare.so"
init='{.size = 8, .abi = 9, .backends = backends}'
sed "s/PLAIT_PLUGIN_INIT(.*)/$init/" "$example" >"$work/old.c"
build old
refuse plugin_of_another_abi 1 'ABI 9' check --plugin "$work/old.so"
