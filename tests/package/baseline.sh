#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Only files with an ISA word in their name may hold AVX or AMX instructions: anything else has to
# run on every x86-64 processor, before features are known. Argument: the static library.
set -u
if [ "$(uname -m)" != x86_64 ]; then
    echo "skip baseline - not an x86-64 processor"
    exit 0
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
objdump -d --no-show-raw-insn "$1" | awk '
    /file format/ { file = $1; sub(/:$/, "", file); n_files++ }
    file !~ /_(avx|amx)/ && /%[yzt]mm[0-9]/ { bad[file]++ }
    END {
        for (f in bad) print "not ok baseline_" f " - holds " bad[f] " AVX or AMX instructions"
        if (n_files > 0 && length(bad) == 0) print "ok baseline of " n_files " objects"
    }' | tee "$work/lines"
[ -s "$work/lines" ] || echo "not ok baseline - objdump shows no object in $1"
