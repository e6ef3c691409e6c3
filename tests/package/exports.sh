#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every dynamic symbol of the shared library begins with plait_ and is declared with PLAIT_API in a
# public header, and every declared one is there. Argument: the shared library.
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

nm -D --defined-only "$1" | awk '$2 != "A" { print $3 }' | sort >"$work/exported"
# Comments are cut, then each PLAIT_API declaration is joined up to its first parenthesis.
cat include/plait/*.h | sed 's|//.*||' | tr '\n' ' ' |
    sed 's|/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/| |g' |
    grep -o 'PLAIT_API [^;({]*[;({]' | grep -o 'plait_[a-z0-9_]* *[;({[]$' |
    tr -d ' ;({[' | sort -u >"$work/declared"

foreign=$(grep -v '^plait_' "$work/exported")
undeclared=$(comm -23 "$work/exported" "$work/declared" | grep '^plait_')
absent=$(comm -13 "$work/exported" "$work/declared")

# check NAME LIST WHY
check() {
    if [ -z "$2" ]; then
        echo "ok $1"
    else
        echo "not ok $1 - $3:" $2
    fi
}
check exports_prefix "$foreign" "exported without the prefix plait_"
check exports_declared "$undeclared" "exported but in no public header"
check exports_complete "$absent" "declared but not exported"
[ -s "$work/exported" ] && echo "ok exports_some" || echo "not ok exports_some - none at all"
