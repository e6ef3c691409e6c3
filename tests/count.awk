# SPDX-License-Identifier: Apache-2.0
# Counts the tests in the output of `ctest -V`. Test programs print `ok`, `not ok`, `skip` lines (or
# TAP, as cmocka does, with `# SKIP`), or `counts P F S` for many at once. A program that crashes,
# times out or counts nothing is one failed test. Prints one line per program, the lines that tell
# of failures and skips, and last `counts P F S`.

# Start of a program's output line: "12: text". Programs run side by side, hence the number.
/^[0-9]+: / {
    id = $1 + 0
    text = substr($0, index($0, ":") + 2)
    if (text ~ /^(Test command|Working Directory|Environment variables|Test timeout)/ ||
        text ~ /^ (CMOCKA_MESSAGE_OUTPUT|PLAIT_SANITIZED)=/ || text ~ /^# (not )?ok/) {
        next
    }
    if (text ~ /^(not )?ok .*# SKIP/ || text ~ /^skip /) {
        skipped[id]++
        why = reason[id] == "" ? "it gives no reason" : reason[id]
        report[id] = report[id] "    " text (text ~ /^skip / ? "" : " - " why) "\n"
    } else if (text ~ /^not ok /) {
        failed[id]++
        report[id] = report[id] "    " text "\n"
    } else if (text ~ /^ok /) {
        passed[id]++
    } else if (text ~ /^counts [0-9]+ [0-9]+ [0-9]+$/) {
        split(text, n, " ")
        passed[id] += n[2]
        failed[id] += n[3]
        skipped[id] += n[4]
    } else {
        # cmocka prints what a test said before its line.
        reason[id] = text
        tail[id] = substr(tail[id] "    " text "\n", length(tail[id]) > 6000 ? 2000 : 1)
    }
    if (text ~ /^# /) {
        report[id] = report[id] "    " text "\n"
    }
    if (text ~ /^(not )?ok /) {
        reason[id] = ""
    }
    next
}

# "3/10 Test  #3: name ......   Passed    0.01 sec"
/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
    match($0, /#[0-9]+/)
    id = substr($0, RSTART + 1, RLENGTH - 1) + 0
    match($0, /: [^ ]+/)
    name = substr($0, RSTART + 2, RLENGTH - 2)
    good = $0 ~ / Passed +[0-9.]+ sec/
    if (!good && !failed[id]) {
        failed[id]++
        report[id] = report[id] "    not ok " name " - " substr($0, index($0, "***")) "\n"
    } else if (good && passed[id] + failed[id] + skipped[id] == 0) {
        failed[id]++
        report[id] = report[id] "    not ok " name " - it counted no test\n"
    }
    printf "%-32s %4d passed %3d failed %3d skipped  %s\n", name, passed[id], failed[id],
        skipped[id], $(NF - 1) " s"
    if (failed[id]) {
        printf "%s", tail[id]
    }
    printf "%s", report[id]
    p += passed[id]
    f += failed[id]
    s += skipped[id]
}

END {
    print "counts " p + 0, f + 0, s + 0
}
