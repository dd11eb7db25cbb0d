# Two commands matter: `make demo` and `make test`. Each installs what it needs into .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo test lint docs wheel bench bench-attacks bench-defences fuzz clean

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 11) else "asgnn needs Python 3.11 or newer, and this is %d.%d; run make PYTHON=python3.11" % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: setup
	$(BIN)/asgnn demo

test: lint
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Builds the wheel and tries it in an empty environment, alone and with each extra.
wheel: setup
	$(BIN)/python scripts/check_wheel.py

bench: setup
	$(BIN)/python benchmarks/run.py

# This and the next make an environment of their own for DeepRobust, .venv-peers.
bench-attacks: setup
	$(BIN)/python benchmarks/run_attacks.py

bench-defences: setup
	$(BIN)/python benchmarks/run_defences.py

fuzz: setup
	$(BIN)/python scripts/fuzz.py --cases 5000

clean:
	rm -rf $(VENV) .venv-peers runs site dist .mypy_cache .ruff_cache .pytest_cache
