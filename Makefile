# Everything a newcomer needs: `make demo`, `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON := .venv/bin/python
# The interpreter that the extension is built for is the one in .venv.
CONFIGURE = cmake --preset $(1) -DPython_EXECUTABLE=$(CURDIR)/$(PYTHON) --log-level=WARNING
COMPILE = [ build/$(1)/build.ninja -nt CMakePresets.json ] || $(call CONFIGURE,$(1)); cmake --build build/$(1)

.PHONY: help setup build demo check test test-long test-gpu test-tsan test-aarch64 test-plugins wheel release bench lint tidy format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install what is missing: Debian packages, .venv, pinned Python packages
	@tools/setup

build: setup ## Build the library, the program and the Python extension (release)
	@$(call COMPILE,release)

demo: build ## Trainers hand their weights to engines that lay them out differently, live
	@$(PYTHON) examples/demo.py

lint: setup ## Formatters, linters, types, layers, points of the specification
	@tools/lint

tidy: setup ## clang-tidy on all sources of the product, which takes minutes
	@$(PYTHON) tools/check_tidy.py

format: setup ## Format all sources in place
	@git ls-files -co --exclude-standard '*.cc' '*.h' | xargs -r clang-format -i
	@.venv/bin/ruff format -q . && .venv/bin/ruff check -q --fix .

check: setup ## One file's tests in seconds: T=bus/round/fold, T=tests/bus/test_link.py
	@tools/check $(T)

test: build ## Everything CI runs: lint, C++ tests under ASan + UBSan, pytest
	@tools/setup --tests
	@tools/test

test-long: build ## The long versions too: hundreds of thousands of frames, kills, seeds
	@tools/setup --tests
	@tools/test --long

test-gpu: build ## On a machine with a GPU: what no stand-in can show, as a report (skipped without)
	@$(PYTHON) tools/test_gpu.py

test-tsan: setup ## The C++ tests under ThreadSanitizer
	@$(call COMPILE,tsan) --target unit_tests
	@ctest --preset tsan

test-aarch64: build ## The C++ tests of base, tensor, plan and copy, and the package, on aarch64 (qemu)
	@tools/test_aarch64

test-plugins: build ## The plug-ins inside of the real frameworks, which it installs beside .venv (7 GB)
	@tools/test_plugins

wheel: build ## A wheel in dist/ that runs anywhere; PYTHONS=python3.12 for others; MACHINE=aarch64
ifeq ($(MACHINE),aarch64)
	@tools/test_aarch64 dist
else
	@$(PYTHON) tools/wheel.py
	@for python in $(PYTHONS); do tools/build_for $$python || exit; done
	@$(PYTHON) tools/check_wheel.py dist/*.whl
endif

release: ## Wheels for every Python here, sdist, checksums and notes in dist/ (docs/release.md)
	@tools/release

bench: build ## Benchmarks: PART=store|plan|copy|..., default all that exist
	@$(call COMPILE,bench)
	@$(PYTHON) bench/run.py $(PART)

clean: ## Remove what was built (not .venv)
	@rm -rf build dist python/tensorbus/_core*.so
