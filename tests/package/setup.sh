#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/setup with made-up dpkg-query, id, sudo and apt-get: what is missing is installed, or the
# command is printed; nothing happens when all is there.
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/sudo"

# tool FOLDER NAME SCRIPT
tool() {
    printf '#!/bin/sh\n%s\n' "$3" >"$work/$1/$2"
    chmod +x "$work/$1/$2"
}
# run PATH: tools/setup with only the made-up tools; output and status are kept.
run() {
    env PATH="$1" /bin/sh tools/setup >"$work/out" 2>&1
    status=$?
}
# verdict NAME STATUS PATTERN
verdict() {
    if [ "$status" = "$2" ] && echo "$(tr '\n' ' ' <"$work/out")" | grep -Eq "$3"; then
        echo "ok setup_$1"
    else
        cat "$work/out"
        echo "not ok setup_$1 - status $status, wanted $2 and $3"
    fi
}

tool bin pkg-config 'exit 0'
tool bin id 'echo 1000'
tool bin env 'while [ "${1#*=}" != "$1" ]; do shift; done; exec "$@"'
tool bin apt-get 'echo "apt-get $*"'
tool sudo sudo 'echo sudo; exec "$@"'

tool bin dpkg-query 'printf installed'
run "$work/bin"
verdict all_there_is_silent 0 '^$'

tool bin dpkg-query 'case "$*" in
*libdnnl-dev) exit 1 ;;
*cmake) printf config-files ;;
*) printf installed ;;
esac'
run "$work/bin"
verdict without_root_prints_the_command 1 'apt-get install .* cmake libdnnl-dev *$'
run "$work/bin:$work/sudo"
verdict through_sudo 0 'installing cmake libdnnl-dev.*sudo apt-get install .* cmake libdnnl-dev *$'
tool bin id 'echo 0'
run "$work/bin"
verdict as_root 0 'libdnnl-dev apt-get update .*apt-get install .* cmake libdnnl-dev *$'
