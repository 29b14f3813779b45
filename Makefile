# What a contributor runs; `make help` lists it. Everything happens in the environment $(VENV),
# which `make setup` makes, and in the folders build/ and target/.

# GNU make looks for cc itself under another name when CC is not set.
CC := $(if $(filter default,$(origin CC)),cc,$(CC))
CXX := $(if $(filter default,$(origin CXX)),c++,$(CXX))
PYTHON ?= python3
VENV ?= .venv
RANKS ?= 2
export CC CXX
# rustup's own place, for shells that have not read its profile
export PATH := $(PATH):$(HOME)/.cargo/bin
# A file that includes torch takes up to 2 GB to compile.
export CMAKE_BUILD_PARALLEL_LEVEL ?= 2

PY := $(VENV)/bin/python
# Where `make build` puts the extension and libferrocomm.so.
INSTALLED = $(shell $(PY) -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/torchcomms

RUST_FILES = find rust tests/models fuzz -name '*.rs'
# include/ferrocomm.h is cbindgen's.
CXX_FILES = find cpp include tests/bench tests/c tests/cpp rust/torch-bridge/include -type f \
            -name '*.[ch]' ! -name ferrocomm.h -o -name '*.[ch]pp'
CARGO_TEST := $(shell if cargo nextest --version >/dev/null 2>&1; then \
              echo cargo nextest run --cargo-quiet --no-fail-fast --status-level slow \
              --final-status-level fail; else echo cargo test --no-fail-fast; fi)
CARGO_FLAGS := --workspace --locked

.NOTPARALLEL:
.PHONY: help setup build demo test test-full sanitize bench bench-hooks bench-windows header format clean \
        test-rustfmt test-clippy test-clang-format test-ruff test-mypy test-header test-rust \
        test-c test-cpp test-exports test-python test-matrix test-docs test-models \
        test-conformance test-conformance-full test-failures test-reconfigure test-hosts \
        test-simgpu test-gpu prebuilt test-selftest docs \
        test-suite test-suite-quick test-users test-titan test-torch

help:
	@echo 'make setup      the environment .venv with torch and the tools'
	@echo 'make build      setup, then the package installed in it (editable)'
	@echo 'make demo       a DDP training on torch'"'"'s gloo and on the Rust engine, side by side'
	@echo 'make test       the checks; make test-NAME runs one:'
	@echo '                rustfmt clippy clang-format ruff mypy header rust c cpp exports python'
	@echo '                matrix docs conformance failures models simgpu suite-quick'
	@echo 'make test-full  the same, then conformance on four hosts (hosts), self-tests (selftest),'
	@echo '                400 rounds of kill, shrink and rejoin (reconfigure), make sanitize, the demo,'
	@echo '                and cases of conformance drawn from the full product'
	@echo 'make test-suite torch'"'"'s own tests on stock gloo and on the engine; 20 minutes'
	@echo 'make test-users trainers on stock gloo and on the engine; 15 minutes; test-titan: TorchTitan, 30'
	@echo 'make test-torch the package built for torch 2.11 to 2.13 and tried; TORCH=2.12.1: for that one'
	@echo 'make test-gpu   the checks for a machine with an NVIDIA GPU; 8 minutes at most (docs/gpu.md)'
	@echo 'make prebuilt   into build/prebuilt, what such a machine needs that has no Rust'
	@echo 'make sanitize   the tests under address and thread sanitizers and valgrind, and fuzzing'
	@echo 'make bench      every operation beside gloo and MPI, into docs/performance.md; 30 minutes'
	@echo '                (BENCH=--quick: some of it, printed only)'
	@echo 'make bench-windows  puts and signals between two ranks, beside a plain copy'
	@echo 'make bench-hooks  what hooks and the flight recorder cost, into docs/hooks.md'
	@echo 'make docs       the pages as a site, into build/site'
	@echo 'make header     include/ferrocomm.h and the list of exported symbols, written anew'
	@echo 'make format     formats all sources'
	@echo 'make clean      removes what was built; the environment stays'

setup:
	@$(PYTHON) tests/tools/prepare.py $(VENV)

build: setup
	@echo 'build: what has changed (everything takes some minutes)'
	@$(PY) -m pip install --disable-pip-version-check --quiet --no-build-isolation --no-deps \
	    --editable .
	@echo 'build: done'

demo: build
	@$(PY) docs/demo/run.py --ranks $(RANKS)

test: build
	@$(PY) tests/tools/run_all.py

test-full: build
	@$(PY) tests/tools/run_all.py --full

# `make bench BENCH=--quick` prints only.
BENCH ?= --json docs/performance/results.json --plots docs/performance \
         --output-md docs/performance.md
bench: build
	$(PY) -m torchcomms bench $(BENCH)

bench-hooks: build
	$(PY) tests/bench/hooks.py $(INSTALLED) --write

bench-windows: build
	mkdir -p build/bench
	$(CC) -std=c11 -O2 -Wall -Wextra -Werror -Iinclude tests/bench/windows.c tests/c/file_store.c \
	    -L$(INSTALLED) -lferrocomm -Wl,-rpath,'$(abspath $(INSTALLED))' -o build/bench/windows
	build/bench/windows $(CORES)

# run_all.py has built already and says so.
BUILT ?=
BUILD := $(if $(BUILT),,build)

# Workspaces of their own, whose tools ship nothing.
ASIDE := tests/models fuzz rust/simgpu

test-rustfmt:
	cargo fmt --all --check
	for aside in $(ASIDE); do cargo fmt --all --manifest-path $$aside/Cargo.toml --check || exit; done
	@echo "rustfmt: $$($(RUST_FILES) | wc -l) files as it would write them"

test-clippy:
	cargo clippy $(CARGO_FLAGS) --all-targets --quiet -- -D warnings
	cd tests/models && CARGO_TARGET_DIR='$(CURDIR)/build/models' cargo clippy --locked \
	    --all-targets --quiet -- -D warnings
	cd rust/simgpu && CARGO_TARGET_DIR='$(CURDIR)/build/simgpu/target' cargo clippy --locked \
	    --all-targets --quiet -- -D warnings
	@echo "clippy: $$(ls rust/*/src/lib.rs rust/simgpu/*/src/lib.rs | wc -l) crates without warnings"

test-clang-format: setup
	$(CXX_FILES) | xargs $(VENV)/bin/clang-format --dry-run -Werror
	@echo "clang-format: $$($(CXX_FILES) | wc -l) files as it would write them"

test-ruff: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

test-mypy: setup
	$(VENV)/bin/mypy --strict

test-header:
	$(CARGO_TEST) $(CARGO_FLAGS) --test header

test-rust:
	$(CARGO_TEST) $(CARGO_FLAGS)

test-c: $(BUILD)
	tests/c/run.sh $(INSTALLED) build/tests/c

test-cpp: $(BUILD)
	tests/cpp/run.sh $(INSTALLED) build/tests/cpp
	$(CXX) -std=c++20 -O1 -g -Wall -Wextra -Werror -Icpp tests/cpp/run_later_test.cpp \
	    cpp/run_later.cpp -pthread -o build/tests/cpp/run_later_test
	build/tests/cpp/run_later_test

test-exports: $(BUILD)
	tests/exports/check.sh $(INSTALLED)/libferrocomm.so

test-python: $(BUILD)
	$(PY) -m pytest tests/python

test-conformance: $(BUILD)
	$(PY) -m pytest tests/conformance
	$(PY) tests/conformance/run.py
	$(PY) tests/conformance/run.py --transport shm --reads off --ranks 2,3

# Reads of other ranks' memory are switched off as well: what a machine chooses by measurement leaves
# one of the two ways untried.
test-conformance-full: $(BUILD)
	$(PY) tests/conformance/run.py --transport shm --reads off
	$(PY) tests/conformance/run.py --full

test-failures: $(BUILD)
	$(PY) tests/failures/run.py

# 200 rounds of kill, shrink and rejoin over each transport.
test-reconfigure: $(BUILD)
	$(PY) tests/python/rejoin.py --rounds 200

# On network namespaces, which root alone can make. `racks`: bytes between hosts whose places are named.
test-hosts: $(BUILD)
	@if [ "$$(id -u)" = 0 ]; then export PYTHON='$(abspath $(PY))'; \
	tests/hosts/run.sh -s racks && tests/hosts/run.sh -s conformance; \
	else echo 'hosts: 1 skipped: network namespaces need root'; fi

test-selftest: $(BUILD)
	$(PY) tests/tools/selftests.py

test-matrix: setup
	$(PY) cmake/torch_matrix.py
	$(PY) cmake/c10d_table.py

# torch's own tests of torch.distributed, on stock gloo and on the engine, compared by name; those of
# its nccl part on the simulated GPU; cases on its helpers for a package `torchcomms`.
test-suite: $(BUILD)
	$(PY) tests/torch_suite/run.py
	$(PY) tests/torch_suite/run_nccl.py
	$(PY) -m pytest tests/torch_suite/torchcomms_cases.py

test-suite-quick: $(BUILD)
	$(PY) tests/torch_suite/run.py --quick

# Trainers, in an environment that also has their packages.
USERS := build/users-venv
test-users: $(BUILD)
	$(PY) tests/users/prepare.py $(USERS)
	$(USERS)/bin/python tests/users/run.py

test-titan: $(BUILD)
	$(PY) tests/users/prepare.py $(USERS)
	$(USERS)/bin/python tests/users/torchtitan/run.py

# The package built for other torches, and a job of two ranks on each. Downloads 0.5 GB per version.
TORCH ?= 2.11.0 2.12.1 2.13.0
test-torch: setup
	$(PY) tests/torch_versions/run.py $(TORCH)

test-docs: $(BUILD)
	$(PY) tests/tools/check_docs.py $(INSTALLED)

docs: setup
	$(PY) tests/tools/settings.py --write
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet
	@echo 'docs: build/site/index.html'

# The simulated GPU by itself, and torch's own backend on it.
test-simgpu: $(BUILD)
	cd rust/simgpu && CARGO_TARGET_DIR='$(CURDIR)/build/simgpu/target' cargo test --locked --quiet
	$(PY) -m pytest tests/gpu

# Such a machine may have neither this environment nor Rust: nothing is built but the shim, around what
# `make prebuilt` left in the folder PREBUILT. GPU_CHECKS=--simulated tries the script.
PREBUILT ?=
GPU_CHECKS ?=
test-gpu:
	$(if $(wildcard $(PY)),$(PY),$(PYTHON)) tests/gpu/real/run.py \
	    $(if $(PREBUILT),--prebuilt '$(PREBUILT)') $(GPU_CHECKS)

prebuilt:
	CARGO_TARGET_DIR='$(CURDIR)/build/prebuilt-target' cargo build --locked --release \
	    -p ferrocomm-capi -p ferrocomm-torch-bridge
	rm -rf build/prebuilt && mkdir -p build/prebuilt/include
	cp build/prebuilt-target/release/libferrocomm.so \
	    build/prebuilt-target/release/libferrocomm_torch_bridge.a build/prebuilt
	cp -RL build/prebuilt-target/cxxbridge/rust build/prebuilt-target/cxxbridge/ferrocomm-torch-bridge \
	    build/prebuilt/include

test-models:
	cd tests/models && CARGO_TARGET_DIR='$(CURDIR)/build/models' cargo test --locked --quiet

# First the C and C++ clients and headers, then the engine.
CLIENTS := -fsanitize=address,undefined -fno-sanitize-recover=all
sanitize: $(BUILD)
	CFLAGS='$(CLIENTS)' tests/c/run.sh $(INSTALLED) build/tests/c-sanitized
	CXXFLAGS='$(CLIENTS)' tests/cpp/run.sh $(INSTALLED) build/tests/cpp-sanitized
	$(PY) tests/tools/sanitize.py --library $(INSTALLED)

header:
	FERROCOMM_INCLUDE_DIR='$(CURDIR)/include' cargo build --locked -p ferrocomm-capi
	tests/exports/check.sh "$${CARGO_TARGET_DIR:-target}/debug/libferrocomm.so" --write

format: setup
	cargo fmt --all
	for aside in $(ASIDE); do cargo fmt --all --manifest-path $$aside/Cargo.toml || exit; done
	$(CXX_FILES) | xargs $(VENV)/bin/clang-format -i
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf build target .mypy_cache .pytest_cache .ruff_cache
	find python tests docs cmake -name __pycache__ -prune -exec rm -rf {} +
