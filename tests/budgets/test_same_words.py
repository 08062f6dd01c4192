"""The same words give the same schedule in Python, on the command line and on the page."""

from __future__ import annotations

import pytest

import zerotprune as ztp
from tests.thorough import thorough
from zerotprune.app.catalog import CatalogEntry, generate_examples
from zerotprune.app.view_model import Selection, build_view_model
from zerotprune.cli.options import BudgetOptions
from zerotprune.data import demo


@pytest.mark.parametrize("cost", [pytest.param(0.85, marks=thorough), 0.6])
@pytest.mark.parametrize("method", ["zero-tprune", "tome", "evit", "random"])
def test_python_the_command_line_and_the_page_agree(method: str, cost: float) -> None:
    model = demo.model()
    schedule = ztp.schedule_for(model, cost=cost, method=method)
    assert BudgetOptions(cost=cost).solve(model, method, list, pytest.fail) == schedule  # type: ignore[arg-type]
    entry = CatalogEntry("demo", model)
    shown = entry.prepare(generate_examples()[0][1])
    view = build_view_model(entry, shown, Selection("demo", method, cost=cost))
    assert view.methods[0].schedule == schedule
    ztp.prune_(model, cost=cost, method=method)
    assert ztp.gmacs(model) == pytest.approx(ztp.gmacs(demo.untrained(), schedule))
