"""Shapes and types are checked at run time throughout the tests; fixtures that many tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

from tests import strictness  # noqa: F401  the hook below finds it by name

# Everything that computes. Left out is what users call and what says itself, in one sentence, what
# is wrong with their arguments: those sentences are what the tests want to see.
CHECKED = (
    "scoring.graph", "scoring.similarity", "scoring.attention", "scoring.scorer", "tokens", "block",
    "cost", "methods", "backbones", "measure.accuracy", "plots", "show",
)  # fmt: skip
jaxtyping.install_import_hook(
    [f"zerotprune.{module}" for module in CHECKED], "tests.strictness.checked"
)

if "PYTEST_XDIST_WORKER" in os.environ:  # each core has one: what it starts must not take them all
    os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first import of Triton: kernels on a CPU

hypothesis.settings.register_profile("ours", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ours")

SHARED = Path(os.environ.get("ZEROTPRUNE_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For tests beside a browser: it wants the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real weights and images, which are not part of the project."""
    if not (SHARED / "weights").is_dir():
        pytest.skip(f"real weights and images are not at {SHARED} (set ZEROTPRUNE_SHARED)")
    return SHARED
