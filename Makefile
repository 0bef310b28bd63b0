# From nothing but Python 3.11+ and make: `make demo` shows what ManyGP does, `make test` checks it.

VENV := .venv
BIN := $(VENV)/bin
# The first interpreter that runs and is new enough; `make PYTHON=/path/to/python ...` overrides it.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO_OUT ?= manygp-demo
PYTEST_ARGS ?= --numprocesses auto

.PHONY: help demo test test-all lint format browser clean

help:
	@echo "make demo      fit the built-in climate table, print the comparison, write figures to $(DEMO_OUT)/"
	@echo "make test      linter, formatter, type checker, import layers and the fast tests"
	@echo "make test-all  the same with the slow tests"
	@echo "make lint      the checks of make test without the tests"
	@echo "make format    rewrite the sources in the house format"
	@echo "make browser   Chromium, for the tests of reports in a browser (Debian and Ubuntu)"
	@echo "make clean     remove the environment, caches and the demo's output"

demo: $(VENV)/.ready-demo
	$(BIN)/manygp demo --out $(DEMO_OUT)

test: lint
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-all: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

browser: $(VENV)/.ready-dev
	PYTHON=$(BIN)/python scripts/install_browser.sh

format: $(VENV)/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The stamps make the second run quick; a change of what is to be installed makes them stale.
$(VENV)/.ready-demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing ManyGP and what the demo needs into $(VENV) (a few minutes the first time)"
	$(PIP_INSTALL) --editable '.[cli,plots,report]'
	@touch $@

$(VENV)/.ready-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing ManyGP and its development tools into $(VENV) (a few minutes the first time)"
	$(PIP_INSTALL) --editable '.[all,dev]'
	@touch $@ $(VENV)/.ready-demo

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "ManyGP needs Python 3.11 or newer with the venv module; none was found: install one or say make PYTHON=/path/to/python." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) $(DEMO_OUT) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
