# `make demo` shows it, `make test` checks it, `make docs` builds the pages. All set up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test docs test-lowest fuzz kills exports browser

demo: .venv/installed
	$(BIN)/zerotprune demo

# A file of tests stays with one process: what it sets up is set up once. tests/conftest.py has the
# order. pytest's last lines are the ten slowest tests and how long all of them took.
test: .venv/installed browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --durations 10

# Strict: a warning is an error. `make test` builds the pages as well, in tests/docs.
docs: .venv/installed
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs docs/_build
	@echo "docs/_build/index.html"

# So many command lines that nobody should type, some that one should, and Ctrl-C at many moments;
# others every time. The last test presses it 200 times in a real `demo`, and prints how each ended.
FUZZ ?= 2000
fuzz: .venv/installed
	ZEROTPRUNE_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/cli/test_fuzz.py tests/cli/test_valid_calls.py \
		tests/cli/test_ctrl_c.py

# `embed` killed so often at random moments, in this process and on Ray; every row is there once.
KILLS ?= 30
kills: .venv/installed
	ZEROTPRUNE_KILLS=$(KILLS) $(BIN)/python -m pytest tests/embed/test_kills.py tests/embed/test_ray.py

# Every static method in every runtime with DeiT-Ti's real weights, beside torch on so many images.
EXPORTS ?= 100
exports: .venv/installed
	ZEROTPRUNE_EXPORTS=$(EXPORTS) $(BIN)/python -m pytest -s tests/export/test_real_weights.py

# The core with the lowest versions that pyproject.toml promises.
LOWEST := torch==2.11.* timm==1.0.30
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet $(LOWEST) --editable '.[cli]' \
		beartype fvcore hypothesis jaxtyping open_clip_torch pytest pytest-xdist
	.venv-lowest/bin/python -m pytest --numprocesses auto -W ignore \
		tests/test_*.py tests/backbones tests/budgets tests/methods/test_zero_tprune.py

# The page is tested in a real browser, where Debian's can be had.
browser:
	@command -v chromedriver >/dev/null || { [ "$$(id -u)" = 0 ] && { apt-get update && \
		apt-get install --yes chromium chromium-driver; } >/dev/null 2>&1; } || \
		echo "no Chromium here: the tests of the page in a browser will be skipped"

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[cli,test]'
	$(BIN)/python -m pip install --quiet --no-deps tlt  # an oracle; it asks for an old timm
	touch $@
