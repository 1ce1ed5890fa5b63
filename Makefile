# Every command sets up what it needs: a virtual environment in .venv, with the exact versions of constraints.txt.

PYTHON ?= python3
JOBS ?= 2
PYTEST_FLAGS ?=
BENCH_FLAGS ?=
FUZZ_COUNT ?= 10000

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 10 --timeout 180 -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install test demo docs pictures package look lint format bench quick results clean fuzz

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# torch goes first and alone: with it in place, no other package can pull in another build of it.
$(STAMP): pyproject.toml benchmarks/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Canon needs Python 3.11 or newer; set PYTHON=/path/to/python3")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) setuptools torch
	$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	$(PIP_INSTALL) --no-build-isolation --no-deps --editable benchmarks
	@touch $(STAMP)

install: $(STAMP) ## Make the virtual environment

test: $(STAMP) ## Run the tests and the examples in the docstrings
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --durations=10 $(PYTEST_FLAGS)

demo: $(STAMP) ## Watermark a network, hide it, bring it back, and prove it
	@mkdir -p build
	$(BIN)/canon demo --report build/demo.html --force

docs: $(STAMP) ## Build the documentation in build/docs, warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir build/docs
	@echo "Open build/docs/index.html in a browser; nothing has to be served."

pictures: $(STAMP) ## Draw the picture of the packages from their imports
	$(BIN)/python -m tools.architecture docs/pictures/architecture.svg

package: $(STAMP) ## Build and install a wheel in a clean place, and measure it
	$(BIN)/python -m tools.package docs/package.md

look: docs ## Open every page of the documentation in Chromium, and keep pictures of them
	$(BIN)/python -m tools.look build/docs build/look

lint: $(STAMP) ## Check style, types and the order of the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Put the code in its standard form
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(STAMP) ## Measure what small things cost; `canon bench list` names all measurements
	$(BIN)/canon bench run costs --out build/bench $(BENCH_FLAGS)
	$(BIN)/canon bench run locate_time --out build/bench $(BENCH_FLAGS)
	$(BIN)/canon bench report --records build/bench --out build/bench

quick: $(STAMP) ## Run the benchmark's quick suite from nothing
	rm -rf build/quick
	$(BIN)/canon bench run quick --jobs $(JOBS) --out build/quick/records --cache build/quick/models

results: $(STAMP) ## Build the pages of docs/results from their records
	$(BIN)/canon bench report

fuzz: $(STAMP) ## Throw 10,000 damaged files of every format at the readers
	$(BIN)/python -m tests.io.fuzz --count $(FUZZ_COUNT) --out docs/results/fuzz.json
	$(BIN)/python -m tests.watermarks.hostile --count $(FUZZ_COUNT) --out docs/results/fuzz_keys.json

clean: ## Remove what the other commands made
	rm -rf $(VENV) build dist runs .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name '*.egg-info' -prune -exec rm -rf {} +
	find . -name __pycache__ -prune -exec rm -rf {} +
