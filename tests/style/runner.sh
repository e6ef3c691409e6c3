#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The counting of tests/count.awk: a failed, crashed or empty program must never look like success.
set -u
cd "$(dirname "$0")/../.." || exit 1

# expect NAME "P F S": counts the lines on standard input.
expect() {
    got=$(awk -f tests/count.awk | sed -n 's/^counts //p')
    if [ "$got" = "$2" ]; then
        echo "ok runner_$1"
    else
        echo "not ok runner_$1 - counted $got, wanted $2"
    fi
}

expect tap_lines "2 1 1" <<'EOF'
3: ok 1 - a
3: not ok 2 - b
3: # 0x1 != 0x2
3: no AMX here
3: not ok 3 # SKIP c
3: ok 4 - d
3: # not ok - tests
1/1 Test  #3: test_x ........................***Failed    0.01 sec
EOF
expect side_by_side "3 0 1" <<'EOF'
1: ok a
2: skip b - no clang
1: ok c
2: ok d
1/2 Test  #2: two ........................   Passed    0.01 sec
2/2 Test  #1: one ........................   Passed    0.01 sec
EOF
expect many_at_once "100 0 7" <<'EOF'
1: counts 100 0 7
1/1 Test  #1: check ......................   Passed    0.01 sec
EOF
expect crash_after_success "1 1 0" <<'EOF'
1: ok a
1/1 Test  #1: x ..........................***Exception: SegFault  0.01 sec
EOF
expect timeout "0 1 0" <<'EOF'
1/1 Test  #1: x ..........................***Timeout  900.01 sec
EOF
expect success_that_counts_nothing "0 1 0" <<'EOF'
1: all fine
1/1 Test  #1: x ..........................   Passed    0.01 sec
EOF
expect nothing_ran "0 0 0" </dev/null

# A skip is shown with what the test said before it, or with the word that it said nothing.
shown=$(awk -f tests/count.awk <<'EOF' | grep SKIP
3: ok 1 - a
3: not ok 2 # SKIP b
3: no AMX here
3: not ok 3 # SKIP c
1/1 Test  #3: test_x ........................   Passed    0.01 sec
EOF
)
if [ "$shown" = "    not ok 2 # SKIP b - it gives no reason
    not ok 3 # SKIP c - no AMX here" ]; then
    echo "ok runner_reason_of_a_skip"
else
    echo "not ok runner_reason_of_a_skip - $shown"
fi
