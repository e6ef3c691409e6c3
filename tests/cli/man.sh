#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# docs/plait.1 lists the options that each command takes, with their values, and no others.
. "$(dirname "$0")/common.inc"
page=docs/plait.1

# The options of a command as its section of the page has them: "--name VALUE".
of_page() {
    awk -v command="$1" '/^\.S[SH]/ { on = $1 == ".SS" && $2 == "plait" && $3 == command }
        on && /^\.TP$/ { getline; sub(/^\.BI? /, ""); gsub(/\\-/, "-"); gsub(/"/, "")
            gsub(/  +/, " "); print }' "$page" | sort
}

of_help() {
    "$plait" "$1" --help | sed -n 's/^  \(--[a-z0-9-]*\) \([^ ]*\).*/\1 \2/p' | sed 's/ $//' | sort
}

commands=$("$plait" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
[ "$(grep -c '^\.SS plait ' "$page")" -eq "$(echo "$commands" | wc -w)" ]
result man_commands $? "the commands are: $commands"
for command in $commands; do
    of_page "$command" >"$work/page"
    of_help "$command" >"$work/help"
    [ -s "$work/help" ] && cmp -s "$work/page" "$work/help"
    result "man_$command" $? "of the page (<) and of --help (>): $(diff "$work/page" "$work/help")"
done
if command -v man >/dev/null && man --version >/dev/null 2>&1; then
    warnings=$(LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z \
        "$page" 2>&1 >/dev/null)
    [ -z "$warnings" ]
    result man_page_has_no_warnings $? "$warnings"
else
    echo "skip man_page_has_no_warnings - man is not installed"
fi
