# Needs Python 3.11+, pip, gcc and make; everything else is installed into .venv.
PYTHON ?= python3.11
VENV := .venv
WORKERS ?= 4
BIN := $(VENV)/bin
SOURCES := pyproject.toml setup.py metta/ops/_native.c $(wildcard metta/agent/*.[ch]) $(wildcard metta/envs/*.h metta/envs/*/*.[ch])

# modules are compiled once, not by each of the processes that tests start
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help train test check coverage format setup slow learning bench overhead faults docs docs-serve release-check clean

help:
	@echo "make train      set up and train four agents to gather (under a minute on 2 cores)"
	@echo "make test       set up and run every check of this project: lint, types, layers, tests"
	@echo "make coverage   the tests once more, and the lines that no test runs"
	@echo "make slow       longer tests: compiled updates against eager ones, a million steps of C against NumPy"
	@echo "make learning   train each task to a threshold over several seeds (about 40 minutes)"
	@echo "make bench      steps per second compared with other libraries"
	@echo "make faults     every fault campaign, about an hour and a half; writes faults.jsonl and faults.md"
	@echo "make overhead   CPU seconds of every interface over a bare loop of the parts"
	@echo "make docs       build the documentation site into build/site; make docs-serve shows it while you write"
	@echo "make release-check  build sdist and wheel, install the wheel elsewhere, and train with it"

$(VENV)/train-installed: $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install -qq --editable '.[plot]'
	@touch $@

$(VENV)/dev-installed: $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install -qq --editable '.[dev]'
	@touch $@ $(VENV)/train-installed

setup: $(VENV)/dev-installed

train: $(VENV)/train-installed
	$(BIN)/metta train

test: setup check

# types and layers are checked while tests wait for processes, and reported after them
check:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@($(BIN)/mypy && $(BIN)/lint-imports) > $(VENV)/types.txt 2>&1 & types=$$!; \
	METTA_REQUIRE_NATIVE=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/types.txt; exit $$((tests + types))

coverage: setup
	METTA_REQUIRE_NATIVE=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --cov --cov-report=term:skip-covered

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# a compiler takes a gibibyte, and longer than the fast suite allows
slow: setup
	METTA_REQUIRE_NATIVE=1 $(BIN)/pytest --ignore=tests/learning -m slow -n 2 --dist loadfile --timeout 900

learning: setup
	$(BIN)/pytest tests/learning -m slow -s

bench: setup
	$(BIN)/python -m benchmarks.speed --out benchmarks/results

faults: setup
	$(BIN)/python -m faults.run

overhead: setup
	$(BIN)/python -m benchmarks.overhead

# the warning is news of another generator, not of this site
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

release-check: setup
	tools/release_check.sh $(BIN)/python

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .coverage*
