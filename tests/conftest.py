"""Check shapes and types at run time in all tests; fixtures that many tests share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

from tests import strictness  # noqa: F401  the hook below finds it by name

# Everything that computes. Not what users call: it explains in one sentence what is wrong with an
# argument, and tests check that sentence.
CHECKED = (
    "scoring.attention", "scoring.graph", "scoring.indexing", "scoring.scorer",
    "scoring.similarity", "tokens", "block", "cost", "methods", "backbones", "measure.accuracy",
    "plots", "show",
)  # fmt: skip
jaxtyping.install_import_hook(
    [f"zerotprune.{module}" for module in CHECKED], "tests.strictness.checked"
)

# Keep bytecode, whatever the shell says: hundreds of processes here import the same modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if "PYTEST_XDIST_WORKER" in os.environ:  # one per core: its children must not use all cores
    os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first import of Triton: kernels on a CPU

hypothesis.settings.register_profile("ours", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ours")

#: the slowest files run first: otherwise one process would end long after the others
LONGEST = (
    "export/test_real_weights.py", "export/test_executorch.py", "export/test_matrix.py",
    "embed/test_ray.py",
    "app/test_browser.py", "test_compile.py", "backbones/test_library_graphs.py",
    "export/test_library_models.py", "cli/test_valid_calls.py", "cli/test_ctrl_c.py",
    "backbones/transformers/test_heads.py", "search/test_command.py", "docs/test_commands.py",
    "docs/test_docs.py", "methods/test_rivals.py", "search/test_study.py",
    "search/test_kills.py", "search/test_lost.py", "cli/test_fuzz.py",
    "budgets/test_solving.py", "scoring/test_triton.py", "scoring/test_triton_folding.py",
    "export/test_exporting.py", "cli/test_evaluate.py", "measure/test_speed.py",
    "finetune/test_transfer.py", "finetune/test_command.py", "app/test_server.py",
    "data/test_demo.py", "test_real_weights.py", "show/test_command.py", "methods/test_twins.py",
    "measure/test_tables.py", "test_cost.py", "test_imports.py", "backbones/test_libraries.py",
)  # fmt: skip
SHARED = Path(os.environ.get("ZEROTPRUNE_SHARED", Path(__file__).parents[2] / "shared"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; all else keeps its order."""
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Restore Ctrl-C after a command, which takes it over until its process ends. A shell starts
    what it runs in the background without Ctrl-C: tests press it there as well."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


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
