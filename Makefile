# Everything here sets up what it needs: Python 3.11 to 3.14 with pip, make and a package index are enough.
#   make demo [ARGS=--once]   a backend on a small local model, the proxy in front of it, MISS and HIT
#   make quick                the tests of a working day (under a minute)
#   make test                 every test, with a real Redis and a real vLLM
#   make check                what CI asks: format, lint, types, floors, duplicates, every test
#   make bench [ARGS=NAME]    load tests
#   make mutants|audit|sbom   break the key and see it caught; known vulnerabilities of the pins; a CycloneDX bill of materials
# PYTHON chooses the interpreter, PIP_ARGS goes to pip, TEST_JOBS is how many tests run at once.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= $(shell scripts/find-python.sh)
PIP_ARGS ?=
TEST_JOBS ?= 3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check --no-input
INSTALL = $(PIP) install --quiet $(PIP_ARGS) --constraint constraints.txt
PINS := pyproject.toml constraints.txt
CODE := $(wildcard proxy backend tests loadtest)

# The tests take the redis-server on PATH; set-up may have put one beside the interpreter for machines that have none.
export PATH := $(PATH):$(CURDIR)/$(BIN)
# Hundreds of tests start an interpreter: it finds its modules compiled, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo quick test check lint format types floors duplicates bench vllm-venv clean

help:
	@sed -n '2,9s/^# \{0,1\}//p' Makefile

# --- set-up: a stamp for each set of packages, older than nothing it was made from ---

$(BIN)/python:
	@[[ -n "$(PYTHON)" ]] || { echo "Samewise needs Python 3.11 to 3.14 with venv and pip; name one with PYTHON=/path/to/python" >&2; exit 2; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.backend: $(PINS) | $(BIN)/python
	@echo "installing the proxy and the reference backend into $(VENV)"
	@$(INSTALL) hatchling editables
	@$(INSTALL) --no-build-isolation --editable '.[backend]'
	@touch $@

$(VENV)/.dev: $(PINS) scripts/redis-binary.sh | $(BIN)/python
	@echo "installing everything for development into $(VENV)"
	@$(INSTALL) hatchling editables
	@$(INSTALL) --no-build-isolation --editable '.[backend,dev]'
	@scripts/redis-binary.sh $(VENV)
	@touch $(VENV)/.backend $@

setup: $(VENV)/.dev

# Where vLLM has no wheel (status 3) the tests that need it skip and say so.
vllm-venv:
	@PYTHON="$(PYTHON)" PIP_ARGS="$(PIP_ARGS)" PIP_CONSTRAINT="$(CURDIR)/constraints-vllm.txt" scripts/vllm-venv.sh \
	  || { status=$$?; [[ $$status == 3 ]] || exit $$status; }

# --- use ---

demo: $(VENV)/.backend
	@$(BIN)/samewise demo $(ARGS)

bench: $(VENV)/.dev
	@$(BIN)/python -m loadtest $(ARGS)

# --- checks ---

quick: $(VENV)/.dev
	$(BIN)/python -m pytest -m 'not slow and not vllm and not process' --numprocesses $(TEST_JOBS) --dist loadfile $(ARGS)

# A real vLLM wants the machine for itself, and all of its tests share one.
test: quick vllm-venv
	$(BIN)/python -m pytest -m 'process and not slow and not vllm' --numprocesses $(TEST_JOBS) --dist loadfile $(ARGS)
	$(BIN)/python -m pytest -m 'slow and not vllm' --numprocesses $(TEST_JOBS) --dist loadfile $(ARGS)
	$(BIN)/python -m pytest -m 'vllm' $(ARGS)

check: lint test

lint: format-check style types floors duplicates

.PHONY: format-check style
format-check: $(VENV)/.dev
	$(BIN)/ruff format --check $(CODE)

style: $(VENV)/.dev
	$(BIN)/ruff check $(CODE)

types: $(VENV)/.dev
	$(BIN)/mypy $(CODE)

floors: $(VENV)/.dev
	$(BIN)/lint-imports

# Copies of eight lines or more, and functions of the same shape under other names. Imports and the lines by which an
# API's family names what it shares are no logic.
duplicates: $(VENV)/.dev
	$(BIN)/jscpd --format python --mode weak --min-lines 8 --min-tokens 80 --similarity=0.85 --min-nodes 40 \
	  --ignore-pattern '(?m)^(from|import) .*$$|^ +\w+ = staticmethod\(.*$$' \
	  --exit-code --fail-on-empty --reporters console --no-colors $(filter-out tests,$(CODE))

# --- supply chain and mutants: what needs a network, or minutes, is asked for by name ---

.PHONY: mutants audit sbom
mutants: $(VENV)/.dev
	$(BIN)/python scripts/mutate_key.py $(ARGS)

.venv-audit/.tools: | $(BIN)/python
	@$(BIN)/python -m venv .venv-audit
	@.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) pip-audit cyclonedx-bom
	@touch $@

audit: .venv-audit/.tools
	@$(BIN)/python scripts/audit.py .venv-audit/bin/pip-audit constraints.txt

# The proxy alone, as it is deployed: not what its tests need.
sbom: .venv-audit/.tools
	@rm -rf build/product && mkdir -p build && $(BIN)/python -m venv build/product
	@build/product/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --constraint constraints.txt .
	@build/product/bin/python -m pip uninstall --quiet --yes pip setuptools 2>/dev/null || true
	.venv-audit/bin/cyclonedx-py environment --pyproject pyproject.toml --output-format JSON \
	  --output-file build/samewise.cdx.json build/product/bin/python
	@echo "build/samewise.cdx.json"

format: $(VENV)/.dev
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

clean:
	rm -rf $(VENV) .venv-vllm .venv-golden build dist demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(CODE) -type d -name __pycache__ -prune -exec rm -rf {} +
