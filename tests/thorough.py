"""Sweeps that `make test` leaves out: more cases of what it tests already. `make test-thorough`
runs them too."""

from __future__ import annotations

import os

import pytest

#: whether this is `make test-thorough`
THOROUGH = bool(os.environ.get("ZEROTPRUNE_THOROUGH"))

#: marks a test, a parameter or a module: one more case of what `make test` tests already
thorough = pytest.mark.skipif(not THOROUGH, reason="one case more: make test-thorough runs it")
