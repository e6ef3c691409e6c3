#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plait generate --comm mpi: the tokens of threads, one process that prints, refusals that are the
# same everywhere, and processes that die or stop in the middle.
. "$(dirname "$0")/common.inc"
. "$(dirname "$0")/../mpi/mpirun.inc"
model=models/tiny
prompt="The read() function"

if ! "$plait" info --json | grep -q '"mpi": true'; then
    refuse mpi_not_built 1 "built without MPI" generate --model $model --prompt x --comm mpi
    echo "skip mpi_generate - this build has no MPI"
    exit 0
fi
if ! command -v mpirun >/dev/null; then
    echo "skip mpi_generate - mpirun is not installed"
    exit 0
fi
refuse mpi_without_mpirun 2 "mpirun -n 2 plait generate" \
    generate --model $model --prompt x --comm mpi

# processes N ARGS...: plait generate in N processes; what the launcher itself tells is left out.
processes() {
    n=$1
    shift
    mpirun -n "$n" "$plait" generate --model $model --comm mpi "$@" >"$work/out" 2>"$work/all"
    code=$?
    grep '^plait ' "$work/all" >"$work/err"
    return $code
}

new=24
[ -n "${PLAIT_SANITIZED:-}" ] && new=8
"$plait" generate --model $model --prompt "$prompt" --dtype f32 --max-new-tokens $new --json \
    >"$work/threads"
want=$(list token_ids "$work/threads")
[ -n "$want" ]
result mpi_reference $? "plait generate gave no tokens"
for setting in "2 --dcp 1" "2 --dcp 2" "2 --dcp 1 --draft mtp" "2 --dcp 2 --draft mtp" \
    "4 --tp 4 --dcp 2 --draft mtp" "1 --draft mtp"; do
    # shellcheck disable=SC2086
    processes $setting --prompt "$prompt" --dtype f32 --max-new-tokens $new --json
    code=$?
    got=$(list token_ids "$work/out")
    ranks=$(list kv_bytes_per_rank "$work/out" | awk -F, '{ print NF }')
    [ $code -eq 0 ] && [ "$got" = "$want" ] && [ "$(wc -l <"$work/out")" -eq 1 ] &&
        [ "$ranks" = "${setting%% *}" ] && [ ! -s "$work/all" ]
    result "mpi_tokens_$(echo "$setting" | tr -d ' ')" $? \
        "exit $code, tokens $got instead of $want, $ranks ranks; $(head -c 300 "$work/all")"
done

printf '{"prompt": "The read() function"}\n{"prompt": "int main"}\n' >"$work/lines"
"$plait" generate --model $model --prompts "$work/lines" --dtype f32 --max-new-tokens 8 \
    2>"$work/err" | grep -o '"token_ids": [^]]*' >"$work/threads"
processes 2 --dcp 2 --prompts "$work/lines" --dtype f32 --max-new-tokens 8
grep -o '"token_ids": [^]]*' "$work/out" >"$work/got"
[ "$(wc -l <"$work/threads")" -eq 2 ] && cmp -s "$work/threads" "$work/got"
result mpi_prompts $? "$(cat "$work/all")"

# ---- refusals -----------------------------------------------------------------------------------
# refused NAME CODE PATTERN: of the last processes: one sentence, and nothing on stdout.
refused() {
    [ "$code" -eq "$2" ] && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] &&
        grep -q -e "$3" "$work/err"
    result "$1" $? "exit $code instead of $2, or '$3' is not in: $(head -c 400 "$work/err")"
}
processes 2 --prompt x --tp 3
refused mpi_other_tp 2 "tp 3, but the communicator has 2 ranks"
processes 2 --prompt ""
refused mpi_empty_prompt 2 "empty"
processes 2 --prompt-file "$work/none"
refused mpi_absent_file 1 "$work/none cannot be read"
processes 2 --prompt x --kv-cache 1K
refused mpi_small_cache 1 "bytes"
mpirun -n 1 "$plait" generate --model $model --comm mpi --prompt x --dcp 2 : \
    -n 1 "$plait" generate --model $model --comm mpi --prompt x --dcp 2 --page-size 32 \
    >"$work/out" 2>"$work/all"
code=$?
grep '^plait ' "$work/all" >"$work/err"
refused mpi_other_options 2 "rank 1 was given page_size 32, but rank 0 64"
mpirun -n 1 "$plait" generate --model $model --comm mpi --prompt x --dcp 2 : \
    -n 1 "$plait" generate --model $model --comm mpi --prompt y --dcp 2 >"$work/out" 2>"$work/all"
code=$?
grep '^plait ' "$work/all" >"$work/err"
refused mpi_other_prompt 2 "rank 1 was given other requests than rank 0"

# ---- a process that dies or stops ---------------------------------------------------------------
now() {
    date +%s%N | cut -c1-13
}

# pid_of RANK LAUNCHER: the process of a rank.
pid_of() {
    for pid in $(pgrep -P "$2"); do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1" &&
            echo "$pid"
    done
}

# runs PID: neither gone nor waiting to be collected.
runs() {
    grep -q '^State:[[:space:]]*[^ZX]' "/proc/$1/status" 2>/dev/null
}

# named RANK: how many other ranks named it.
named() {
    grep "^plait generate: rank [0-3]: .*rank $1 of 4" "$work/all" | cut -d: -f2 | sort -u |
        grep -cvx " rank $1"
}

# lost NAME SIGNAL RANK OPTIONS: signals a rank of 4 in mid-run; every other one must name it within
# the deadline + 2 s and exit soon after (a process that tells waits a little for the others).
lost() {
    : >"$work/out"
    # shellcheck disable=SC2086
    mpirun $4 -n 4 "$plait" generate --model $model --comm mpi --dcp 2 --prompt "$prompt" \
        --comm-timeout 2 --ignore-eos --max-new-tokens 2000 >"$work/out" 2>"$work/all" &
    launcher=$!
    i=0
    while [ ! -s "$work/out" ] && [ $i -lt 600 ]; do
        sleep 0.1
        i=$((i + 1))
    done
    sleep 0.3
    victim=$(pid_of "$3" $launcher)
    others=$(pgrep -P $launcher | grep -vx "$victim")
    start=$(now)
    kill -"$2" "$victim"
    left=1 took=
    while [ $left -gt 0 ] && [ $(($(now) - start)) -lt 12000 ]; do
        sleep 0.05
        left=0
        [ -z "$took" ] && [ "$(named "$3")" -eq 3 ] && took=$(($(now) - start))
        for pid in $others; do
            runs "$pid" && left=$((left + 1))
        done
    done
    [ "$(named "$3")" -eq 3 ]
    result "mpi_$1_is_named_by_all" $? "$(grep '^plait ' "$work/all" | head -c 900)"
    [ $left -eq 0 ] && [ "${took:-12000}" -le 4000 ]
    result "mpi_$1_ends_in_time" $? "$left of 3 processes left; all told after ${took:-12000} ms"
    # Where the launcher keeps running for a stopped process, that one is ours to end.
    sleep 0.5
    [ $left -eq 0 ] || kill -KILL $launcher $others
    runs "$victim" && [ -n "$4" ] && kill -KILL "$victim" 2>/dev/null
    wait $launcher
    # A killed process is there until its parent, or init, has reaped it.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        runs "$victim" && sleep 0.3
    done
    ! runs "$victim"
    result "mpi_$1_leaves_no_process" $? "process $victim is still there"
}
lost killed_rank KILL 2 --enable-recovery
lost killed_first_rank KILL 0 --enable-recovery
lost stopped_rank STOP 1 ""
