#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles each public header alone, as C11 and as C++17, with every compiler that is there.
set -u
flags="-Iinclude -Wall -Wextra -Wshadow -Wundef -pedantic -Werror -fsyntax-only"

# one COMPILER STANDARD LANGUAGE HEADER
one() {
    name="header_$(basename "$4" .h)_$1_$2"
    if out=$(printf '#include <plait/%s>\n' "${4##*/}" |
        "$1" -std="$2" -x "$3" $flags - 2>&1); then
        echo "ok $name"
    else
        echo "$out"
        echo "not ok $name - does not compile alone"
    fi
}

# every COMPILER STANDARD LANGUAGE
every() {
    if ! command -v "$1" >/dev/null; then
        echo "skip headers_$1 - $1 is not installed"
        return
    fi
    for header in include/plait/*.h; do
        [ -e "$header" ] && one "$@" "$header"
    done
}

every gcc c11 c
every g++ c++17 c++
every clang c11 c
every clang++ c++17 c++
