"""Fingerprints: what tells one run from another, and how the difference is named."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from zerotprune.data import demo
from zerotprune.data.fingerprint import check_same, fingerprint_model, images_hash
from zerotprune.data.images import ImageDataset
from zerotprune.data.sources import Item
from zerotprune.data.weights import weights_hash


@pytest.mark.parametrize(
    ("there", "here", "difference"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "b 2 there, 3 here"),
        ({"b": 2, "a": 1}, {"a": 9, "b": 9}, "a 1 there, 9 here"),
        ({"a": 1}, {"a": 1, "b": 2}, "b None there, 2 here"),
        ({"a": 1, "b": 2}, {"a": 1}, "b 2 there, None here"),
        ({"a": "ab" * 32}, {"a": "cd" * 32}, "a abababababab… there, cdcdcdcdcdcd… here"),
    ],
)
def test_the_first_difference_is_named(
    there: dict[str, object], here: dict[str, object], difference: str
) -> None:
    with pytest.raises(ValueError, match=f"^a file: {difference}; remove it$"):
        check_same(there, here, "a file", "remove it")
    check_same(here, dict(reversed(here.items())), "a file")


def test_weights_are_told_apart_by_their_values() -> None:
    first, second = demo.model(), demo.model()
    assert weights_hash(first) == weights_hash(second)
    with torch.no_grad():
        next(iter(second.parameters())).flatten()[0] += 1e-6
    assert weights_hash(first) != weights_hash(second)


def test_an_outline_has_no_weights_to_compare() -> None:
    whole = fingerprint_model("demo", demo.model())
    outline = fingerprint_model("demo", demo.untrained().to("meta"))
    assert set(whole) - set(outline) == {"patches", "weights"}
    assert outline.items() <= whole.items()


def test_images_are_told_apart_by_what_they_show_and_not_by_where_they_lie() -> None:
    def some(*items: tuple[str, bytes, int]) -> ImageDataset:
        rows = [Item(path, partial(bytes, data), label) for path, data, label in items]
        return ImageDataset("some", rows, 10, True, lambda image: torch.zeros(3, 2, 2))

    first = some(("a", b"one", 1), ("b", b"two", 2))
    assert images_hash(first, True) == images_hash(some(("c", b"one", 1), ("d", b"two", 2)), True)
    relabeled = some(("a", b"one", 1), ("b", b"two", 3))
    assert images_hash(first, True) != images_hash(relabeled, True)
    assert images_hash(first, False) == images_hash(relabeled, False)
    assert images_hash(first, True) != images_hash(some(("b", b"two", 2), ("a", b"one", 1)), True)
