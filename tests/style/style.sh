#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Rules of the sources that a grep can hold. Each rule is one test; long functions and files are
# only told. Looks at tracked files and at new ones that git does not ignore.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

git ls-files -co --exclude-standard | while read -r file; do
    [ -f "$file" ] && echo "$file"
done >"$work/all"
if [ ! -s "$work/all" ]; then
    echo "skip style - git lists no files: it is not installed, or this is not one's own clone"
    exit 0
fi
grep -E '\.(c|h|cu|cuh|def)$' "$work/all" >"$work/code"
grep -E '\.(c|h|cu|cuh|def|sh|awk|py|cmake|in)$|(^|/)(CMakeLists.txt|Makefile|run|setup|demo)$' \
    "$work/all" >"$work/sources"
grep -E '^src/' "$work/code" >"$work/library"

# each LIST COMMAND...: the command over all files of a list, with file names in its output.
each() {
    list=$1
    shift
    [ -s "$work/$list" ] && xargs -d '\n' "$@" /dev/null <"$work/$list" 2>&1
}

# rule NAME WHY: passes if standard input is empty, else shows it.
rule() {
    found=$(head -n 20)
    if [ -z "$found" ]; then
        echo "ok style_$1"
    else
        printf '%s\n' "$found"
        echo "not ok style_$1 - $2"
    fi
}

while read -r file; do
    head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || echo "$file"
done <"$work/sources" | rule spdx "no SPDX line at the head"

each code grep -nP '\t' | rule tabs "tabs"
each sources grep -nP '[ \t\r]+$' | rule trailing "white space at the end of a line"
each sources grep -nP '^.{101,}' | rule width "longer than 100 columns"
while read -r file; do
    [ -s "$file" ] && [ -n "$(tail -c 1 "$file")" ] && echo "$file"
done <"$work/sources" | rule newline "no newline at the end"

each code grep -nE '\b(TODO|FIXME|XXX)\b' | rule todo "unfinished work is an issue, not a comment"

# The library never ends the process, prints or reads the environment.
ends='abort|exit|_exit|getenv|printf|puts|putchar|vprintf|perror'
each library grep -nE "(^|[^.>_[:alnum:]])($ends)\(" |
    rule calls "a call that the library must not make"
each library grep -nE '#include "\.\.?/' | rule relative "includes are written from src/"
each library grep -nE '#pragma +omp|#include <omp.h>' | rule openmp "OpenMP is not ours to use"
grep -v '^src/kernel/' "$work/library" >"$work/nokernel"
each nokernel grep -nE '#include <(immintrin|x86intrin|arm_neon)\.h>|__global__' |
    rule intrinsics "intrinsics belong in src/kernel"

# Includes point down only, in this order.
order="core shard device kernel comm backend plan cp spec engine"
above=$order
for folder in $order; do
    above=${above#"$folder"}
    above=${above# }
    [ -n "$above" ] && grep "^src/$folder/" "$work/library" >"$work/folder" &&
        each folder grep -nE "#include \"($(echo "$above" | tr ' ' '|'))/"
done | rule includes "includes point down only: $order"

if command -v clang-format >/dev/null; then
    grep -E '\.(c|h)$' "$work/code" >"$work/format"
    each format clang-format --dry-run 2>&1 | grep 'warning:' | rule format "run make format"
else
    echo "skip style_format - clang-format is not installed"
fi

# Told, not failed: what exceeds the size aims.
each code wc -l | awk '$2 != "total" && $1 > 800 { print "long file: " $2 ", " $1 " lines" }'
each code awk 'FNR == 1 { n = 0 }
    /^\{/ { start = FNR }
    /^\}/ && start { if (FNR - start > 120)
        print "long function: " FILENAME ":" start ", " FNR - start " lines"; start = 0 }'
exit 0
