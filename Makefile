# make demo: the main job on a bundled dataset.  make test: all that must hold.  make help: the rest.
# PYTHON=python3.12 chooses the Python of .venv; else .ci/venv does.
BIN := .venv/bin
STAMP := .venv/installed$(if $(PYTHON),-$(notdir $(PYTHON)))
READY := .venv/ready$(if $(PYTHON),-$(notdir $(PYTHON)))
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick check test-all docs bench clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Create .venv and install saccade with everything its development needs

$(STAMP): pyproject.toml constraints.txt
	@.ci/venv $(PYTHON)
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

$(READY): pyproject.toml constraints.txt
	@.ci/venv $(PYTHON)
	@echo "Installing saccade, PyTorch and ONNX Runtime into .venv; this takes a few minutes"
	$(BIN)/pip install --editable '.[onnx]'
	@touch $@

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(READY))  ## Digits on photographs: train, explain, prune and export a small ViT
	$(BIN)/saccade demo

test: check  ## Formatting, types, imports and every test that is not slow
	$(BIN)/pytest -n auto --dist worksteal -m "not slow" $(ARGS)

quick: $(STAMP)  ## The unit tests of one room, in under a minute: make quick ROOM=explain
	@test -n "$(ROOM)" -a -d "tests/$(ROOM)" || \
	  { echo "ROOM=$(ROOM) has no tests; choose one of: $(filter-out __pycache__,$(notdir $(patsubst %/,%,$(wildcard tests/*/))))"; exit 2; }
	$(BIN)/pytest -n auto --dist worksteal -m "not slow" tests/$(ROOM) $(ARGS)

check: $(STAMP)  ## ruff, mypy, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-all: check  ## The slow tests too (real weights on real images, the site, a fresh clone, ...)
	SACCADE_FUZZ=2000 $(BIN)/pytest -n auto $(ARGS)

docs: $(STAMP)  ## Build the documentation into site/; warnings are errors
	$(BIN)/zensical build --strict --clean

bench: $(STAMP)  ## Measure against the peers, in one run, as ratios
	$(BIN)/python benchmarks/forward.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/decode.py

clean:  ## Remove the environment, the site and all caches; runs/ stays
	rm -rf .venv .cache site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
