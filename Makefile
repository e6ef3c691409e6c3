# SPDX-License-Identifier: Apache-2.0
# Short names for what CMake and tests/run do. Each configuration has its own build directory.
BUILD ?= build
PREFIX ?= /usr/local
CMAKE_FLAGS ?=
FUZZ_SECONDS ?= 600
C_FILES = $(shell git ls-files '*.c' '*.h')

# CMAKE_FLAGS given later are applied to the directory that is there.
all: $(BUILD)/build.ninja
	$(if $(CMAKE_FLAGS),cmake -B $(BUILD) $(CMAKE_FLAGS))
	cmake --build $(BUILD)

$(BUILD)/build.ninja:
	cmake -G Ninja -B $(BUILD) -DPLAIT_WERROR=ON

setup:
	tools/setup

demo: setup
	$(MAKE) all
	tools/demo $(BUILD)/plait

check: setup
	tests/run check

check-long: setup
	tests/run check-long

sanitize: setup
	tests/run sanitize

fuzz: setup
	tests/run fuzz $(FUZZ_SECONDS)

lint:
	tests/style/style.sh

format:
	clang-format -i $(C_FILES)

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf build build-*

.PHONY: all setup demo check check-long sanitize fuzz lint format install clean
