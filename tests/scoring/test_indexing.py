"""Order and choice while exporting: the same as ever, of equals the first, without a sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from zerotprune.scoring import indexing

VALUES = {
    "no equals": torch.randn(3, 17),
    "many equals": torch.randint(0, 4, (5, 23)).float(),
    "all equal": torch.zeros(2, 9),
    "one place": torch.ones(2, 1),
    "infinite": torch.tensor([[1.0, -torch.inf, torch.inf, -torch.inf, torch.inf, 1.0]]),
    "double": torch.randint(0, 4, (5, 23)).double() / 3,
}


def stable(values: Tensor) -> Tensor:
    """Sort the negated values by NumPy's stable sort."""
    return torch.from_numpy(np.argsort(-values.double().numpy(), axis=-1, kind="stable"))


@pytest.mark.parametrize("exporting", [False, True])
@pytest.mark.parametrize("name", VALUES)
def test_of_equals_the_first(name: str, exporting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "exporting", lambda: exporting)
    values = VALUES[name]
    order, half = stable(values), values.shape[1] // 2
    assert torch.equal(indexing.descending(values), order)
    best, place = indexing.largest(values)
    assert torch.equal(place, order[:, 0])
    assert torch.equal(best, values.amax(dim=-1))
    gone, stay = indexing.split_top(values, half)
    assert torch.equal(gone, order[:, :half])
    assert torch.equal(stay, order[:, half:].sort(dim=-1).values)


def test_the_top_while_exporting_is_that_of_a_stable_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "exporting", lambda: True)
    for values in VALUES.values():
        half = values.shape[1] // 2
        assert torch.equal(indexing.top(values, half), stable(values)[:, :half])


@pytest.mark.parametrize("batch", [1, 2])
def test_sums(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    single, vectors = torch.randn(batch, 5).double(), torch.randn(batch, 6, 3).double()[:, :5]
    added, more = torch.randn(batch, 4).double(), torch.randn(batch, 4, 3).double()
    places = torch.tensor([[0, 3, 3, 1], [4, 4, 4, 4]])[:batch]
    pairs = ((single, added), (vectors, more))
    wanted = [values.numpy().copy() for values, _ in pairs]
    for total, (_, updates) in zip(wanted, pairs, strict=True):
        for image, place in ((i, p) for i in range(batch) for p in range(4)):
            total[image, places[image, place]] += updates[image, place].numpy()
    for exporting in (False, True):
        monkeypatch.setattr(indexing, "exporting", lambda exporting=exporting: exporting)
        for actual, total in zip(indexing.add_at(places, *pairs), wanted, strict=True):
            torch.testing.assert_close(actual, torch.from_numpy(total))


def test_sums_pass_gradients_on() -> None:
    values, updates = (torch.randn(2, n, 3, dtype=torch.double) for n in (5, 4))
    places = torch.tensor([[0, 3, 3, 1], [4, 4, 4, 4]])
    for batch in (1, 2):
        pair = (values[:batch].requires_grad_(), updates[:batch].requires_grad_())
        assert torch.autograd.gradcheck(
            lambda *pair, at=places[:batch]: indexing.add_at(at, pair)[0], pair
        )


def test_nothing_is_sorted_while_exporting() -> None:
    class Ordered(torch.nn.Module):
        def forward(self, values: Tensor) -> tuple[Tensor, ...]:
            gone, stay = indexing.split_top(values, 3)
            return gone, stay, indexing.descending(values), *indexing.largest(values)

    values = VALUES["many equals"]
    program = torch.export.export(Ordered(), (values,)).run_decompositions()
    called = " ".join(str(node.target) for node in program.graph.nodes)
    assert "cumsum" in called
    assert all(word not in called for word in ("sort", "topk", "argmax", "max.dim"))
    for exported, eager in zip(program.module()(values), Ordered()(values), strict=True):
        assert torch.equal(exported, eager)
