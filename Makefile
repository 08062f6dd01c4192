# `make demo` shows it, `make test` checks it, `make docs` builds the pages. All set up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-thorough docs matrix test-lowest test-middle dist keeps fuzz kills exports browser

demo: .venv/installed
	$(BIN)/zerotprune demo

# Each test file runs in one process, so that its fixtures are set up once; one process more than there
# are cores, since many tests wait. tests/conftest.py sets the order. pytest ends with the ten slowest
# tests and the total time.
WORKERS = $$(($$($(BIN)/python -c 'import os; print(os.cpu_count())') + 1))
test: .venv/installed browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 10

# The whole suite, with the sweeps that `make test` leaves out (tests/thorough.py).
test-thorough: .venv/installed browser
	ZEROTPRUNE_THOROUGH=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile \
		--no-loadscope-reorder --durations 10

# Warnings are errors. `make test` builds the pages too, in tests/docs.
docs: .venv/installed
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs docs/_build
	@echo "docs/_build/index.html"

# Run $(FUZZ) random command lines, most of them invalid, and press Ctrl-C at random moments. Every run
# draws new ones. The last test presses Ctrl-C 200 times in a real `demo` and prints how each run ended.
FUZZ ?= 2000
fuzz: .venv/installed
	ZEROTPRUNE_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/cli/test_fuzz.py tests/cli/test_valid_calls.py \
		tests/cli/test_ctrl_c.py

# Kill `embed` $(KILLS) times at random moments, with and without Ray, and check that no row is lost or
# written twice.
KILLS ?= 30
kills: .venv/installed
	ZEROTPRUNE_KILLS=$(KILLS) $(BIN)/python -m pytest tests/embed/test_kills.py tests/embed/test_ray.py

# Compare every static method in every runtime with torch, using DeiT-Ti's real weights, on $(EXPORTS)
# images.
EXPORTS ?= 100
exports: .venv/installed
	ZEROTPRUNE_EXPORTS=$(EXPORTS) $(BIN)/python -m pytest -s tests/export/test_real_weights.py \
		tests/export/test_executorch.py

# Test the versions that pyproject.toml promises. `make test-lowest PYTHON=python3.10` installs the
# lowest version of each package and runs the tests of the core and of all libraries;
# `make test-middle PYTHON=python3.13` does the same with versions that many people have. `make test`
# uses the newest. `make matrix` lists them all.
LOWEST := torch==2.6.* torchvision==0.21.* timm==1.0.21 transformers==5.18.*
MIDDLE := torch==2.10.* torchvision==0.25.* timm==1.0.24 transformers==5.19.*
CORE := tests/test_pruning.py tests/test_pruned.py tests/test_cost.py tests/test_schedule.py \
	tests/test_trace.py tests/test_grid.py tests/backbones/test_families.py \
	tests/backbones/test_libraries.py tests/backbones/transformers/test_families.py \
	tests/methods/test_fold.py tests/test_saving.py tests/test_sizes.py tests/embed/test_embedder.py

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
$(1)/bin/python -m pip install --quiet $(2) --editable '.[cli,embed]' beartype fvcore hypothesis \
	jaxtyping open_clip_torch pytest pytest-xdist
ZEROTPRUNE_THOROUGH=1 $(1)/bin/python -m pytest --numprocesses auto --dist loadfile -W ignore $(CORE)
endef

# Build and check wheel and sdist, then try the wheel in an empty environment outside the clone.
dist: .venv/installed
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*
	place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && wheel=$$(ls $(CURDIR)/dist/*.whl) && \
		$(PYTHON) -m venv "$$place/venv" && cp .ci/installed.py "$$place" && cd "$$place" && \
		venv/bin/python -m pip install --quiet "$$wheel[cli]" && \
		venv/bin/python installed.py && venv/bin/zerotprune demo --images 50
	@ls dist

# Install the wheel over a torch that is there: no package that is there may change, torch and
# torchvision above all. `make keeps TORCH=2.6.0`; pip chooses the torchvision for that torch.
TORCH ?= 2.10.0
keeps: .venv/installed
	place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && \
		$(BIN)/python -m build --quiet --wheel --outdir "$$place" && \
		$(PYTHON) -m venv "$$place/venv" && cd "$$place" && pip="venv/bin/python -m pip" && \
		$$pip install --quiet torch==$(TORCH) torchvision && $$pip freeze >before && \
		$$pip install --quiet "$$(ls ./*.whl)[cli]" && $$pip freeze >after && \
		grep -E '^(torch|torchvision)==' after && ! diff before after | grep '^<' && \
		echo "nothing that was there has changed"

# The page is tested in Chromium, which is installed here if apt-get can do it.
browser:
	@command -v chromedriver >/dev/null || { [ "$$(id -u)" = 0 ] && { apt-get update && \
		apt-get install --yes chromium chromium-driver; } >/dev/null 2>&1; } || \
		echo "Chromium not found: the browser tests of the page will be skipped"

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[cli,test]'
	$(BIN)/python -m pip install --quiet --no-deps tlt  # a test oracle that requires an old timm
	touch $@
