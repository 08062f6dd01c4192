# Two commands: `make demo` shows it, `make test` checks it. Both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test

demo: .venv/installed
	$(BIN)/zerotprune demo

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[cli,test]'
	touch $@
