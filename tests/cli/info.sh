#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plait info: the same facts for people, as JSON, and as the support matrix in README.md.
. "$(dirname "$0")/common.inc"

"$plait" info >"$work/text" && grep -q '^version' "$work/text" && grep -q '^cpu' "$work/text"
result info_text $? "version and cpu lines were wanted"
"$plait" info --json >"$work/json" && [ "$(wc -l <"$work/json")" -eq 1 ] &&
    grep -q '^{"version": "[0-9.]*", .*}$' "$work/json"
result info_json $? "one object on one line was wanted"

# A word shows its part alone, as in the whole.
for row in kernels:kernel devices:gpu features:cpu versions:version; do
    "$plait" info "${row%:*}" >"$work/part" && [ -s "$work/part" ] &&
        grep -q "^${row#*:} " "$work/part" && [ -z "$(grep -vxFf "$work/text" "$work/part")" ] &&
        [ "$(wc -l <"$work/part")" -lt "$(wc -l <"$work/text")" ]
    result "info_${row%:*}" $? "$(head -n 3 "$work/part")"
done
"$plait" info versions kernels --json >"$work/json" &&
    grep -q '^{"version": "[0-9.]*", "kernels": \[{.*}\]}$' "$work/json"
result info_parts_as_json $? "$(head -c 200 "$work/json")"
refuse info_unknown_part 2 "no part 'kernel'" info kernel
refuse info_markdown_alone 2 "support matrix alone" info kernels --markdown

"$plait" info --markdown >"$work/matrix"
sed -n '/<!-- support matrix -->/,/<!-- end -->/p' README.md | sed '1d;$d' >"$work/readme"
[ -s "$work/readme" ] && diff "$work/matrix" "$work/readme" >"$work/diff"
result readme_matrix_is_current $? \
    "README.md is stale: put the output of plait info --markdown between the markers"
