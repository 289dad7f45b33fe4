# make demo: the main job on a bundled default.  make test: all that must hold.  make help: the rest.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/installed
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test check test-all bench clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Create .venv and install saccade with everything its development needs

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(STAMP)  ## Train a small ViT on handwritten digits, score it and ask it (two minutes)
	$(BIN)/saccade demo

test: check  ## Formatting, types, rooms and every test that is not slow
	$(BIN)/pytest -n auto --dist worksteal -m "not slow" $(ARGS)

check: $(STAMP)  ## ruff, mypy, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-all: check  ## The slow tests too (real weights on real pictures, a fresh clone, ...)
	$(BIN)/pytest -n auto $(ARGS)

bench: $(STAMP)  ## Measure against the peers, in one run, as ratios
	$(BIN)/python benchmarks/forward.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/decode.py

clean:  ## Remove the environment and all caches; runs/ stays
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
