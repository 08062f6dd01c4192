"""What a search is made ready with: the two halves of the images; and how its workers end."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.search.studies import FORTY, Opener
from zerotprune.methods import Fold
from zerotprune.search import session
from zerotprune.search.objective import Stack, split_halves
from zerotprune.search.session import WorkerJob, run_workers
from zerotprune.search.storage import StudyLocation


@given(st.lists(st.integers(0, 5), min_size=2, max_size=40), st.integers(0, 3))
def test_halves_share_every_class(labels: list[int], seed: int) -> None:
    first, second = split_halves(labels, len(labels), seed)
    assert sorted(first + second) == list(range(len(labels)))
    assert 0 <= len(first) - len(second) <= 1
    for kind in set(labels):
        counts = [sum(labels[at] == kind for at in half) for half in (first, second)]
        assert abs(counts[0] - counts[1]) <= 1
    assert split_halves(labels, len(labels), seed) == (first, second)


def test_halves_depend_on_the_seed_and_need_two_images() -> None:
    assert split_halves(None, 40, 0) != split_halves(None, 40, 1)
    with pytest.raises(ValueError, match="two images"):
        split_halves(None, 1, 0)


def test_an_error_of_a_worker_ends_the_search(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised in the parent, with its type and traceback, for one sentence at the end."""

    class Process:
        exitcode, pid = 0, 1

        def __init__(self, target: Callable[..., None], args: Any, daemon: bool) -> None:
            self.start = lambda: target(*args)
            self.is_alive = self.kill = self.join = lambda: False

    def fail(*args: object) -> None:
        raise PermissionError("the worker's")

    monkeypatch.setattr(session, "_work", fail)
    monkeypatch.setattr(
        multiprocessing, "get_context", lambda kind: SimpleNamespace(Process=Process)
    )
    job = WorkerJob({}, "cpu", torch.float32, Fold(), FORTY, StudyLocation("x"), {}, 0, 1)
    stack = Stack([torch.zeros(1)], None)
    with pytest.raises(PermissionError, match="the worker's") as caught:
        run_workers(job, stack, 2, opened(FORTY), lambda trials: None)
    assert "in fail" in "".join(traceback.format_exception(caught.value))
