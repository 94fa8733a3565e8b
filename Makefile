# Everything here sets itself up from Python 3.11+, pip and make alone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
WORKERS ?= 2

.PHONY: help setup demo test lint types docs bench lock ci clean
.DEFAULT_GOAL := help

help:            ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## */\t/'

$(READY): pyproject.toml requirements.lock
	@echo "== setting up $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than 3.11; call make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(READY)

setup: $(READY)  ## create the virtual environment with the locked packages

demo: $(READY)   ## both packages on data they find on this machine; table and figures in out/
	@$(BIN)/python -m benchmarks.demo --output out

# The tests of a file share compiled programs and stay together, package after package.
test: $(READY)   ## tests and doctests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(READY)   ## ruff and pyright
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright

docs: $(READY)   ## the documentation site, strictly
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

bench: $(READY)  ## every benchmark, quickly
	@for name in $$(cd benchmarks && ls mpd_*.py npc_*.py | sed 's/\.py$$//'); do \
	  $(BIN)/python -m benchmarks.$$name --quick || exit 1; done

lock: $(READY)   ## pin what CI installs (run it on the oldest Python supported)
	@$(BIN)/pip-compile --quiet --upgrade --strip-extras --no-header --no-annotate --no-emit-index-url \
	  --no-emit-trusted-host --no-emit-find-links --all-extras --output-file requirements.lock pyproject.toml

ci: lint test docs  ## what a change has to pass

clean:           ## remove what make made
	@rm -rf $(VENV) site out build dist
