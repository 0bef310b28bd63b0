# From nothing but Python 3.11+ and make: `make demo` shows what ManyGP does, `make test` checks it.

VENV := .venv
BIN := $(VENV)/bin
# The first interpreter that runs and is new enough; `make PYTHON=/path/to/python ...` overrides it.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO_OUT ?= manygp-demo
# Neighbours in the list of tests run in one process, so that what they share is fitted once.
PYTEST_ARGS ?= --numprocesses auto --dist worksteal
SITE ?= build/site

.PHONY: help demo test test-all test-matrix lint format docs dist browser clean

help:
	@echo "make demo      fit the built-in climate table, print the comparison, write figures to $(DEMO_OUT)/"
	@echo "make test      linter, formatter, type checker, import layers and the fast tests"
	@echo "make test-all  the same with the slow tests"
	@echo "make lint      the checks of make test without the tests"
	@echo "make format    rewrite the sources in the house format"
	@echo "make docs      build the site, its gallery included, into $(SITE)/ and look at it in a browser"
	@echo "make dist      build wheel and sdist into dist/ and try the wheel in a clean environment"
	@echo "make test-matrix  the tests of the core with other Pythons, and with the oldest versions allowed"
	@echo "make browser   Chromium, for the tests of reports and of the site (Debian and Ubuntu)"
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

# Warnings are errors, dead links among them. Examples that have not changed are not run again.
docs: $(VENV)/.ready-docs
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --doctree-dir build/doctrees docs $(SITE)
	MANYGP_SITE=$(SITE) $(BIN)/python -m pytest tests/test_site.py
	@echo "The site is in $(SITE)/index.html"

# SOURCE_DATE_EPOCH makes two builds of one commit equal to the byte.
dist: $(VENV)/.ready-dev
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 0) $(BIN)/python -m build --no-isolation --outdir dist .
	MANYGP_DIST=dist $(BIN)/python -m pytest tests/test_dist.py
	@ls -l dist

test-matrix: $(VENV)/.ready-dev
	PATH=$(CURDIR)/$(BIN):$$PATH scripts/test_matrix.sh

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

$(VENV)/.ready-docs: $(VENV)/.ready-dev
	$(PIP_INSTALL) --editable '.[docs]'
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "ManyGP needs Python 3.11 or newer with the venv module; none was found: install one or say make PYTHON=/path/to/python." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) $(DEMO_OUT) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist docs/gallery docs/sg_execution_times.rst
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
