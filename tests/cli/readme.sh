#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program in README.md builds without warnings and prints text.
. "$(dirname "$0")/common.inc"

if ! "$plait" info | grep -q 'engine on' || [ -n "${PLAIT_SANITIZED:-}" ]; then
    echo "skip readme_example - it needs a build with the engine and without sanitizers"
    exit 0
fi
sed -n '/^```c$/,/^```$/p' README.md | sed '1d;$d' >"$work/example.c"
build=$(dirname "$plait")
${CC:-cc} -std=c11 -Wall -Wextra -Werror -Iinclude "$work/example.c" -o "$work/example" \
    -L"$build" -lplait -Wl,-rpath,"$(cd "$build" && pwd)" 2>"$work/err"
result readme_example_builds $? "$(head -n 5 "$work/err")"
"$work/example" >"$work/out" 2>"$work/err" && [ "$(wc -c <"$work/out")" -gt 40 ]
result readme_example_runs $? "it printed: $(head -c 200 "$work/out") $(head -c 300 "$work/err")"
