# Every command of the project. `make demo` and `make test` do all the set-up they need.
SHELL := /bin/bash
BUILD ?= build
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
TIDY ?=
# Every run of the same sources meets the same random cases, so that a failure is the fault of a change. `make properties` and
# SEED=… draw others.
SEED ?= 1
CASES ?= 2000
export RC_PARAMS ?= seed=$(SEED)
# ccache settings that let another checkout of the same sources hit: paths relative to the checkout, no directory in the
# hash, precompiled headers allowed.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros,include_file_mtime,include_file_ctime
export CCACHE_MAXSIZE ?= 5G

CMAKE := cmake -S . -G Ninja -DCMAKE_CXX_COMPILER_LAUNCHER=ccache --log-level=WARNING

.PHONY: help deps jax minilm configure build test demo demo-compare bench lint format manifests properties sanitize asan tsan fuzz clean

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
	@echo "random cases: RC_PARAMS='$(RC_PARAMS)'"
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

properties: build  ## run all random tests with CASES (2000) of a new seed, or of SEEDS="1 2 3"
	@tests/properties.sh $(BUILD) $(JOBS) $(CASES) $(or $(SEEDS),$$RANDOM$$RANDOM)

# Without LibTorch: its engine is not instrumented. Clang's instrumentation for the fuzzers serves the unit tests as well, so that
# both share one build. A case costs ten times as much here: random tests run a tenth (see also tests/support/random_cases.h).
CONFIGURE_ASAN := $(CMAKE) -B $(BUILD)-asan -DFUSION_TORCH=OFF -DFUSION_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++-16 \
  -DFUSION_SANITIZE=address,undefined
SANITIZED := RC_PARAMS="seed=$(SEED) max_success=10" ctest --output-on-failure -j $(JOBS)

sanitize: asan tsan  ## run the unit tests under ASan+UBSan, and those with threads under TSan

asan: deps
	@$(CONFIGURE_ASAN)
	@cmake --build $(BUILD)-asan -j $(JOBS) --target unit_tests
	@cd $(BUILD)-asan && $(SANITIZED) -L unit

tsan: deps
	@$(CMAKE) -B $(BUILD)-tsan -DFUSION_TORCH=OFF -DFUSION_SANITIZE=thread
	@cmake --build $(BUILD)-tsan -j $(JOBS) --target thread_tests
	@cd $(BUILD)-tsan && $(SANITIZED) -L threads

fuzz: deps  ## run every fuzzer for FUZZ_SECONDS (60), JOBS at a time; FUZZ_SEED=0 for a new seed
	@$(CONFIGURE_ASAN)
	@cmake --build $(BUILD)-asan -j $(JOBS) --target fuzzers
	@tests/fuzz.sh $(BUILD)-asan $(FUZZ_SECONDS) $(JOBS) $(or $(FUZZ_SEED),1)

clean:  ## remove all build folders
	@rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan
