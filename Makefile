# Every command of the project. `make demo` and `make test` do all the set-up they need.
SHELL := /bin/bash
BUILD ?= build
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 10
TIDY ?=
# ccache settings that let another checkout of the same sources hit: paths relative to the checkout, no directory in the
# hash, precompiled headers allowed.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros,include_file_mtime,include_file_ctime
export CCACHE_MAXSIZE ?= 5G

CMAKE := cmake -S . -G Ninja -DCMAKE_CXX_COMPILER_LAUNCHER=ccache --log-level=WARNING

.PHONY: help deps jax minilm configure build test demo demo-compare bench lint format manifests sanitize fuzz clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

deps:  ## install Debian packages, LibTorch and the example data (once)
	@setup/install.sh

$(BUILD)/build.ninja:
	@$(CMAKE) -B $(BUILD)

configure: deps
	@$(MAKE) --no-print-directory $(BUILD)/build.ninja

jax: deps  ## install JAX for the second engine (once)
	@setup/jax.sh

minilm: deps  ## get the weights of all-MiniLM-L6-v2 for examples/finetune-minilm.yaml (once)
	@setup/minilm.sh

build: configure  ## build everything into build/
	@cmake --build $(BUILD) -j $(JOBS)

# Serial tests measure real time: a machine that others load may need another try.
test: jax minilm build  ## set up, build and run all tests but the Kubernetes tiers
	@cd $(BUILD) && ctest --output-on-failure -j $(JOBS) -LE serial
	@cd $(BUILD) && ctest --output-on-failure -L serial --repeat until-pass:3

demo: build  ## train a GPT-2 over six emulated compnodes in two sites
	@$(BUILD)/bin/fusionctl run -f examples/gpt2-two-sites.yaml --fit-emulation --overwrite

demo-compare: build  ## measure the demo's plan against EqualNumber and EqualCompute without compression
	@bench/demo_compare.py --build $(BUILD)

manifests: configure  ## write crds/ and docs/api.md from the protos
	@cmake --build $(BUILD) -j $(JOBS) --target manifests

bench: build  ## run the benchmarks of docs/benchmarks.md and print their tables
	@bench/run.sh $(BUILD)

lint: configure  ## check format, include arrows, self-contained headers and clang-tidy
	@lint/format.sh --check
	@lint/arrows.py
	@cmake --build $(BUILD) -j $(JOBS) --target fusion_messages fusion_services checkheaders
	@lint/tidy.py $(BUILD) --jobs $(JOBS) $(TIDY)

format:  ## format all C++ sources
	@lint/format.sh

# Unit tests under the sanitizers, without LibTorch: its engine is not instrumented.
sanitize: deps  ## run the unit tests under ASan+UBSan, and those with threads under TSan
	@$(CMAKE) -B $(BUILD)-asan -DFUSION_TORCH=OFF -DFUSION_SANITIZE=address,undefined
	@cmake --build $(BUILD)-asan -j $(JOBS)
	@cd $(BUILD)-asan && ctest --output-on-failure -j $(JOBS) -L unit
	@$(CMAKE) -B $(BUILD)-tsan -DFUSION_TORCH=OFF -DFUSION_SANITIZE=thread
	@cmake --build $(BUILD)-tsan -j $(JOBS)
	@cd $(BUILD)-tsan && TSAN_OPTIONS=ignore_noninstrumented_modules=1 ctest --output-on-failure -j $(JOBS) -L unit -LE serial

fuzz: deps  ## run every fuzzer for FUZZ_SECONDS (10)
	@$(CMAKE) -B $(BUILD)-fuzz -DFUSION_TORCH=OFF -DFUSION_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++-16 \
	  -DFUSION_SANITIZE=address,undefined
	@cmake --build $(BUILD)-fuzz -j $(JOBS) --target fuzzers
	@for fuzzer in $(BUILD)-fuzz/bin/*_fuzzer; do \
	  echo "==> $$(basename $$fuzzer), $(FUZZ_SECONDS) s"; \
	  $$fuzzer -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -print_final_stats=0 -verbosity=0 || exit 1; \
	done

clean:  ## remove all build folders
	@rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-fuzz
