#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Plants each fault of the list `faults` in a copy of the kernel that it names and asks the cases of
# plait check whether they notice; the kernels as they are must pass. A fault whose text no longer
# stands in the kernel exactly once is a failed test: give it the new text.
#
#   mutants.sh LIBPLAIT.A COMPILER short|all
set -u
lib=$1 cc=$2 which=$3
cd "$(dirname "$0")/../../.." || exit 1
list=tests/check/mutants/faults
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src/kernel"

result() {
    if [ "$2" -eq 0 ]; then
        echo "ok mutant_$1"
    else
        echo "not ok mutant_$1 - $3"
    fi
}

# compile SOURCE OBJECT
compile() {
    isa=
    case $1 in
    *_avx2*) isa='-mavx2 -mfma -mf16c' ;;
    esac
    # shellcheck disable=SC2086
    "$cc" -std=c11 -O1 -w -ffp-contract=off -pthread -D_GNU_SOURCE $isa -I "$work/src" -I include \
        -I src -I . -c "$1" -o "$2" >"$work/errors" 2>&1
}

# link OBJECT...: what a changed kernel defines is not taken from the library.
link() {
    "$cc" -pthread "$@" "$work"/check_*.o "$lib" -lm -ldl -o "$work/check" >"$work/errors" 2>&1
}

# field NAME N: a value from the fault's head.
field() {
    sed -n "s/^$1 //p" "$work/fault" | awk -v n="$2" '{ print $n }'
}

# plant FILE TO: with the fault's texts replaced, each of which must occur once.
plant() {
    awk -v fault="$work/fault" 'BEGIN {
            while ((getline line < fault) > 0) {
                if (substr(line, 1, 2) == "- ") old[++n] = substr(line, 3)
                if (substr(line, 1, 2) == "+ ") new[n] = substr(line, 3)
            }
        }
        {
            for (i = 1; i <= n; i++) {
                at = index($0, old[i])
                if (at) {
                    rest = substr($0, at + length(old[i]))
                    $0 = substr($0, 1, at - 1) new[i] rest
                    found[i] += 1 + (index(rest, old[i]) > 0)
                }
            }
            print
        }
        END {
            for (i = 1; i <= n; i++)
                if (found[i] != 1) exit 1
            exit n == 0
        }' "$1" >"$2"
}

mutant() {
    name=$(field fault 1) file=$(field in 1) kernels=$(field in 3) source=$(field in 5)
    rm -f "$work/src/kernel"/*
    if ! plant "src/kernel/$file" "$work/src/kernel/$file"; then
        result "$name" 1 "its text is not in src/kernel/$file once"
        return
    fi
    source=${source:+src/kernel/$source}
    if ! compile "${source:-$work/src/kernel/$file}" "$work/kernel.o" ||
        ! link "$work/kernel.o"; then
        result "$name" 1 "it does not build: $(head -n 3 "$work/errors" | tr '\n' ' ')"
        return
    fi
    timeout 120 "$work/check" "$kernels" >"$work/out" 2>&1
    case $? in
    1) result "$name" 0 ;;
    0) result "$name" 1 "not noticed in $kernels" ;;
    3) echo "skip mutant_$name - $kernels cannot run on this machine" ;;
    *) result "$name" 1 "the check ended badly: $(tail -n 1 "$work/out")" ;;
    esac
}

for source in tests/check/*.c tests/check/mutants/main.c; do
    compile "$source" "$work/check_$(basename "$source" .c).o" ||
        result build 1 "$source: $(head -n 3 "$work/errors" | tr '\n' ' ')"
done
: >"$work/none.c"
compile "$work/none.c" "$work/none.o"
kernels=$(sed -n 's/^in .* for \([^ ]*\).*/\1/p' $list | sort -u)
for kernel in $kernels; do
    link "$work/none.o" && timeout 120 "$work/check" "$kernel" >"$work/out" 2>&1
    code=$?
    if [ "$code" -eq 3 ]; then
        echo "skip mutant_none_$kernel - it cannot run on this machine"
    else
        result "none_$kernel" "$code" "$(tail -n 1 "$work/out" "$work/errors")"
    fi
done
for name in $(sed -n 's/^fault //p' $list | awk -v all="$which" 'all == "all" || $2 == "short" {
        print $1 }'); do
    awk -v name="$name" '/^fault / { on = $2 == name } on' $list >"$work/fault"
    mutant
done
