# Every target does its own set-up: a fresh machine needs Python 3.11 or newer, and git.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := actors supervisor tests benchmarks examples

.PHONY: demo test lint types docs bench mutants clean

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/ready  ## A short, real run: sessions, aborts, an urgent message, a crash, a hang
	$(BIN)/supervisor demo

test: $(VENV)/ready  ## The whole suite, on both backends
	$(BIN)/python -m pytest

lint: $(VENV)/ready  ## Style, and the typed surface
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/ready  ## mypy --strict over the packages, pyright over the API as a user sees it
	$(BIN)/mypy
	$(BIN)/pyright

docs: $(VENV)/ready  ## The pages that are generated from the tables
	$(BIN)/python -m supervisor.surfaces.machines > docs/machines.md

mutants: $(VENV)/ready  ## Mutants of the pure modules: at least nine in ten must be killed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutation]'
	$(BIN)/python tests/mutation/mutants.py

bench: $(VENV)/ready  ## Ratios against bare primitives, measured in the same run
	$(BIN)/python benchmarks/kernel.py
	$(BIN)/python benchmarks/journal.py
	$(BIN)/python benchmarks/abort.py

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
