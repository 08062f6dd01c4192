"""What a search is made ready with: the two halves of the images."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotprune.search.objective import split_halves


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
