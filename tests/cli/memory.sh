#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plait generate with too little address space: it says so in one line; it never crashes.
. "$(dirname "$0")/common.inc"

if [ -n "${PLAIT_SANITIZED:-}" ]; then
    echo "skip small_address_space - a sanitizer needs more of it than any limit here"
    exit 0
fi

refused=0 ran=0
for kb in 60000 80000 100000 120000 130000 150000 170000 200000 250000 400000; do
    (
        ulimit -c 0
        ulimit -v $kb
        exec "$plait" generate --model models/tiny --prompt x --max-new-tokens 2 --threads 2
    ) >"$work/out" 2>"$work/err"
    code=$?
    case $code in
    0) ran=$((ran + 1)) ;;
    127) ;; # libraries do not fit: the system's loader says so
    1) refused=$((refused + 1)) && [ "$(wc -l <"$work/err")" -eq 1 ] && [ ! -s "$work/out" ] ;;
    *) false ;;
    esac
    result "address_space_$kb" $? "exit $code: $(head -c 300 "$work/err")"
done
[ $refused -gt 0 ] && [ $ran -gt 0 ]
result some_refused_some_ran $? "$refused refused, $ran ran"
