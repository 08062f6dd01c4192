# `make demo` shows it, `make test` checks it, `make docs` builds the pages. All set up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test docs matrix test-lowest test-middle dist fuzz kills exports browser

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
	ZEROTPRUNE_EXPORTS=$(EXPORTS) $(BIN)/python -m pytest -s tests/export/test_real_weights.py \
		tests/export/test_executorch.py

# The versions that pyproject.toml promises: `make test-lowest PYTHON=python3.10` sets up the lowest
# of each package and runs the core and all libraries, `make test-middle PYTHON=python3.13` what many
# people have. `make test` has the newest. `make matrix` lists them.
LOWEST := torch==2.6.* torchvision==0.21.* timm==1.0.21 transformers==5.18.*
MIDDLE := torch==2.10.* torchvision==0.25.* timm==1.0.24 transformers==5.19.*
CORE := tests/test_pruning.py tests/test_pruned.py tests/test_cost.py tests/test_schedule.py \
	tests/test_trace.py tests/test_grid.py tests/backbones/test_families.py \
	tests/backbones/test_libraries.py tests/backbones/transformers/test_families.py \
	tests/methods/test_fold.py

matrix:
	@echo "test-lowest  Python 3.10  $(LOWEST)"
	@echo "test-middle  Python 3.13  $(MIDDLE)"
	@echo "test         Python 3.11  the newest of all"

test-lowest:
	$(call test-with,.venv-lowest,$(LOWEST))
test-middle:
	$(call test-with,.venv-middle,$(MIDDLE))

define test-with
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install --quiet $(2) --editable '.[cli]' beartype fvcore hypothesis \
	jaxtyping open_clip_torch pytest pytest-xdist
$(1)/bin/python -m pytest --numprocesses auto --dist loadfile -W ignore $(CORE)
endef

# Wheel and sdist, checked, and the wheel tried in an empty environment outside the clone.
dist: .venv/installed
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*
	place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && wheel=$$(ls $(CURDIR)/dist/*.whl) && \
		$(PYTHON) -m venv "$$place/venv" && cp .ci/installed.py "$$place" && cd "$$place" && \
		venv/bin/python -m pip install --quiet "$$wheel[cli]" && \
		venv/bin/python installed.py && venv/bin/zerotprune demo --images 50
	@ls dist

# The page is tested in a real browser, where Debian's can be had.
browser:
	@command -v chromedriver >/dev/null || { [ "$$(id -u)" = 0 ] && { apt-get update && \
		apt-get install --yes chromium chromium-driver; } >/dev/null 2>&1; } || \
		echo "no Chromium here: the tests of the page in a browser will be skipped"

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[cli,test]'
	$(BIN)/python -m pip install --quiet --no-deps tlt  # an oracle; it asks for an old timm
	touch $@
