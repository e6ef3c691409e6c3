#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs into a fresh prefix and builds examples/dcp_decode.c against it, shared and static,
# through pkg-config and through find_package, and runs each. Argument: the build directory.
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
example=$PWD/examples/dcp_decode.c

# step NAME COMMAND...: runs a command; its output is shown if it fails.
step() {
    name=$1
    shift
    if out=$("$@" 2>&1); then
        echo "ok $name"
    else
        echo "$out"
        echo "not ok $name - failed: $*"
        return 1
    fi
}

step install cmake --install "$1" --prefix "$prefix" || exit 1
if [ ! -f "$example" ]; then
    echo "skip install_example - examples/dcp_decode.c is not there"
    exit 0
fi
lib=$(dirname "$(find "$prefix" -name libplait.a)")
export PKG_CONFIG_PATH="$lib/pkgconfig"
cc="gcc -std=c11 -Wall -Wextra -Werror $example"

step pkgconfig_shared sh -c "$cc -o $work/shared \
    \$(pkg-config --cflags --libs plait) -pthread -lm" &&
    step pkgconfig_shared_runs env LD_LIBRARY_PATH="$lib" "$work/shared"
step pkgconfig_static sh -c "$cc -o $work/static \$(pkg-config --cflags plait) \
    -Wl,-Bstatic -L$lib -lplait -Wl,-Bdynamic \
    \$(pkg-config --static --libs plait | sed 's/-lplait//') -pthread" &&
    step pkgconfig_static_runs "$work/static"

mkdir "$work/consumer"
cat >"$work/consumer/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(consumer C)
find_package(Plait 0.1 REQUIRED)
find_package(Threads REQUIRED)
foreach(kind plait plait_static)
    add_executable(with_\${kind} $example)
    target_link_libraries(with_\${kind} PRIVATE Plait::\${kind} Threads::Threads m)
endforeach()
EOF
step find_package sh -c "cmake -G Ninja -S $work/consumer -B $work/out \
    -DCMAKE_PREFIX_PATH=$prefix && cmake --build $work/out" || exit 1
step find_package_shared_runs "$work/out/with_plait"
step find_package_static_runs "$work/out/with_plait_static"

# A plug-in from the installed package alone, in an empty directory.
mkdir "$work/plugin" && cp "$PWD/examples/plugin_backend.c" "$work/plugin" || exit 1
step plugin_builds sh -c "cd $work/plugin && gcc -std=c11 -Wall -Wextra -Werror -O2 -fPIC -shared \
    \$(pkg-config --cflags plait) plugin_backend.c -o plugin.so -lm" &&
    step plugin_passes env LD_LIBRARY_PATH="$lib" "$prefix/bin/plait" check \
        --plugin "$work/plugin/plugin.so"
