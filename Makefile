# Two commands set everything up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-
JOBS   ?= 2

.PHONY: help demo test pytest browser test-all lint format bench docs versioned-site oldest wheel clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       install into $(VENV) and run the main job on embedded data"
	@echo "make test       install, lint, type-check and run the fast tests"
	@echo "make test-all   the same with the slow tests, after installing chromium if it can"
	@echo "make format     format the code"
	@echo "make bench      install the peers and measure side by side (minutes)"
	@echo "make docs       install the builder and build the documentation into site/"
	@echo "make versioned-site VERSION=0.2"
	@echo "                commit the site of a release to the local branch gh-pages, beside the earlier ones"
	@echo "make oldest     try the oldest dependencies that are allowed"
	@echo "make wheel      build and check the wheel, and try it in an empty environment"
	@echo "make clean      remove $(VENV) and caches"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP)base: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(STAMP)dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e ".[dev]"
	@touch $@ $(STAMP)base

$(STAMP)bench: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e ".[bench]"
	@touch $@ $(STAMP)base

demo: $(STAMP)base
	$(BIN)/equipoise fit digits

lint: $(STAMP)dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs src tests bench
	$(BIN)/mypy

format: $(STAMP)dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Types are checked while the tests run: a core that waits for the other is not idle then.
test: $(STAMP)dev
	$(MAKE) --no-print-directory --jobs=2 lint pytest

# One thread a worker: the machine's cores are shared out between the workers, not fought over.
pytest: $(STAMP)dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS)

# The page of a report is looked at in a browser, where there is one.
browser:
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && apt-get update -qq \
		&& apt-get install -y -qq chromium; } || echo "no chromium: tests in a browser are skipped"

test-all: lint browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) -m "slow or not slow"

$(STAMP)docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e ".[docs]"
	@touch $@ $(STAMP)base

# Every warning is an error. The page to open is printed last.
docs: $(STAMP)docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

# Nothing is pushed. `latest` is the newest release, to which the bare address of the site leads.
versioned-site: $(STAMP)docs
	@test -n "$(VERSION)" || { echo "Say which release it is: make versioned-site VERSION=0.2"; exit 2; }
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mike deploy --update-aliases $(VERSION) latest
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mike set-default latest

bench: $(STAMP)bench
	$(BIN)/python -m bench

# What must work with the oldest dependencies, as with the newest.
SMOKE := tests/solve/test_anderson.py tests/solve/test_newton.py tests/models/affine tests/test_recipe.py
FIT   := fit digits --rows 300 --epochs 5

oldest:
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install -q $$($(PYTHON) tests/oldest.py) -e . pytest hypothesis pandas
	OMP_NUM_THREADS=1 $(VENV)-oldest/bin/python -m pytest $(SMOKE)
	$(VENV)-oldest/bin/equipoise $(FIT) --out $(VENV)-oldest/run

wheel: $(BIN)/python
	rm -rf dist
	$(BIN)/python -m pip install -q build twine
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check dist/*
	$(PYTHON) -m venv dist/try
	dist/try/bin/python -m pip install -q dist/*.whl
	dist/try/bin/equipoise $(FIT) --out dist/try/run

clean:
	rm -rf $(VENV) $(VENV)-oldest .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build site
