# Every command of the project. `make demo` and `make test` do all the set-up they need.
SHELL := /bin/bash
BUILD ?= build
JOBS ?= $(shell nproc)
# ccache settings that let another checkout of the same sources hit: paths relative to the checkout, no directory in
# the hash, and precompiled headers allowed.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros,include_file_mtime,include_file_ctime
export CCACHE_MAXSIZE ?= 5G

.PHONY: help deps configure build test
help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

deps:  ## install Debian packages, LibTorch and the example data
	@setup/install.sh

$(BUILD)/build.ninja:
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_CXX_COMPILER_LAUNCHER=ccache

configure: deps $(BUILD)/build.ninja

build: configure  ## build everything into build/
	@cmake --build $(BUILD) -j $(JOBS)

test: build  ## set up, build and run all tests but the Kubernetes tiers
	@cd $(BUILD) && ctest --output-on-failure --progress
