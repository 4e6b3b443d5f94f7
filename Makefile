# One stamp file per set of extras: the first call installs, the next ones don't.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
DEPS   := pyproject.toml constraints.txt

# Two busy processes on few cores starve each other when OpenMP threads spin.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: help demo test test-all test-floor test-wheel check docs format clean
help:
	@echo "make demo    train and compare methods on embedded data, write a report page"
	@echo "make test    tests, doctests and documentation examples; make test-all the slow sweeps too"
	@echo "make test-floor   the core's tests with the lowest versions that pyproject.toml allows"
	@echo "make test-wheel   build, install into a clean environment, use it there"
	@echo "make check   ruff and mypy"
	@echo "make docs    build the site into site/; fails on an undocumented public name"
	@echo "make format  let ruff format the code"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "pip>=25.1"

$(VENV)/.demo: $(DEPS) | $(BIN)/python
	$(PIP) -e ".[train,report]"
	@touch $@

$(VENV)/.test: $(DEPS) | $(BIN)/python
	$(PIP) -e ".[all]" --group test
	@touch $@

$(VENV)/.check: $(DEPS) | $(BIN)/python
	$(PIP) -e ".[all]" --group test --group check
	@touch $@

$(VENV)/.docs: $(DEPS) | $(BIN)/python
	$(PIP) -e ".[train,report]" --group docs
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/longtail demo --out longtail-demo --force

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not long" $(ARGS)

test-all: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

$(VENV)/.wheel: | $(BIN)/python
	$(PIP) build
	@touch $@

test-wheel: $(VENV)/.wheel
	bash tests/wheel.sh $(BIN)/python

# An environment of its own: the lowest versions and the newest don't go together.
FLOOR := .venv-floor
CORE  := priors metrics posthoc tuning shift margins consistency checks sklearn predictions
test-floor: $(DEPS) floor.txt
	test -d $(FLOOR) || $(PYTHON) -m venv $(FLOOR)
	$(FLOOR)/bin/pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(FLOOR)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -c floor.txt \
	    -e ".[torch,tables,report]" --group floor
	OMP_NUM_THREADS=1 $(FLOOR)/bin/python -m pytest -q -m "not long and not slow" \
	    $(CORE:%=tests/test_%.py) tests/cli/test_cli.py tests/cli/test_cli_adjust.py \
	    tests/cli/test_cli_tune.py tests/cli/test_cli_explain.py $(ARGS)

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

format: $(VENV)/.check
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(FLOOR) site build dist
