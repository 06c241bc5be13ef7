# Every target makes its own environment, .venv, and installs only what it needs.
#
#   make demo  TORCH="torch==2.13.0"   another torch; one that the environment already has is kept
#   make test  PYTHON=python3.12       another interpreter for a new environment
#   make test  VENV=/path/to/env       another environment
#   make test  JOBS=8 PYTEST="-x -k checkpoint"

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
JOBS ?= 2
PYTEST ?=
DEMO ?=
BENCH ?=

BIN := $(VENV)/bin
STAMPS := $(VENV)/.installed
# what is installed after torch may not replace it
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
ONE_THREAD = OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
SOURCES = src tests examples benchmarks

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all chaos lint format bench clean

help:  ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## */\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{printf "make %-10s %s\n", $$1, $$2}'

demo: $(STAMPS)/demo  ## train on real handwritten digits, in under a minute
	@$(BIN)/bolide demo $(DEMO)

test: lint $(STAMPS)/test  ## lint, then the tests
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) -m "not slow" $(PYTEST)

test-all: lint $(STAMPS)/test  ## lint, then all tests, the slow ones too
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) $(PYTEST)

chaos: $(STAMPS)/test  ## kill training runs at every turn, and compare what they end with
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) tests/chaos $(PYTEST)
	$(ONE_THREAD) $(BIN)/python -m tests.chaos.peer

lint: $(STAMPS)/test  ## ruff and mypy
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(STAMPS)/test  ## put the sources in the form that lint asks for
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(STAMPS)/bench  ## what steps, saves, going on and DDP cost, against a hand-written loop and the peers
	$(BIN)/python benchmarks/import_time.py
	$(ONE_THREAD) $(BIN)/python benchmarks/tensor_loader.py
	$(ONE_THREAD) $(BIN)/python benchmarks/step_cost.py --turns 150 --markdown $(BENCH)
	$(ONE_THREAD) $(BIN)/python benchmarks/checkpoint.py
	$(ONE_THREAD) $(BIN)/python benchmarks/resume.py
	$(ONE_THREAD) $(BIN)/python benchmarks/ddp.py
	$(ONE_THREAD) $(BIN)/python benchmarks/ddp.py --log

clean:  ## remove the environment, caches and builds
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +

# ---- the environment: each stamp is written when its step is done, and is out of date when pyproject.toml is newer

$(STAMPS)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo 'Bolide needs Python 3.10 or newer. Write: make PYTHON=python3.11 ...' >&2; exit 1; }
	@echo "making the environment $(VENV)"
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: $(STAMPS)/python
	@$(BIN)/python -c 'import torch' 2>/dev/null || { echo "installing $(TORCH)"; $(PIP) $(TORCH); }
	@$(BIN)/python -c 'import torch; print(f"torch=={torch.__version__}")' 2>/dev/null >$@.tmp && mv $@.tmp $@

$(STAMPS)/demo: pyproject.toml | $(STAMPS)/torch
	@echo "installing what the demo needs"
	@$(PIP) --constraint $(STAMPS)/torch --editable '.[demo]' && touch $@

$(STAMPS)/test: pyproject.toml | $(STAMPS)/torch
	@echo "installing what the tests need"
	@$(PIP) --constraint $(STAMPS)/torch --editable '.[test,lint]' && touch $@

$(STAMPS)/bench: pyproject.toml | $(STAMPS)/torch
	@echo "installing what the benchmarks need: the peers"
	@$(PIP) --constraint $(STAMPS)/torch --editable '.[bench]' && touch $@
