"""The choice on the second half, and how it is shown."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console

from zerotprune import Schedule, Stage
from zerotprune.cli.search import choice_remarks, comparison_table
from zerotprune.plots.search import search_figure
from zerotprune.search.choice import Judged, choose, expected_curse, front, pick_finalists, thin_out
from zerotprune.search.objective import Outcome
from zerotprune.search.study import FinishedTrial


def test_the_curse_of_equals_is_that_of_the_best_of_many_draws() -> None:
    """Among equally good candidates the best of k looks better by the expected largest of k normal
    draws, which is 1.4236 standard errors for 8."""
    dice = torch.Generator().manual_seed(0)
    table = torch.randn(8, 4000, generator=dice, dtype=torch.float64)
    table -= table.mean(dim=1, keepdim=True)
    wanted = 1.4236 / 4000**0.5
    assert expected_curse(table, table) == pytest.approx(wanted, rel=0.05)
    assert expected_curse(table[:1], table[:1]) == pytest.approx(0, abs=0.1 * wanted)


def a_judged(name: str, cut: int, first: float, second: float) -> Judged:
    def outcome(kl: float) -> Outcome:
        return Outcome(torch.full((4,), kl), torch.ones(4).bool(), None)

    schedule = Schedule((Stage(1, 1.0, cut),) if cut else ())
    return Judged(name, schedule, 1.0, outcome(first), outcome(second))


def test_the_widest_table_is_whole_in_80_columns() -> None:
    def outcome(hits: int) -> Outcome:
        right = torch.arange(20) < hits
        return Outcome(torch.full((20,), 0.05), right, right)

    def row(name: str, first: int, second: int) -> Judged:
        return Judged(name, Schedule(), 1.0, outcome(first), outcome(second))

    unpruned, default = row("unpruned", 20, 20), row("method's form", 10, 10)
    trials = [row("trial 1234", 13, 6), row("trial 1999", 11, 12)]
    choice = choose(unpruned, default, trials)
    console = Console(width=80, file=io.StringIO(), highlight=False)
    console.print(comparison_table("title", choice))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("→ trial 1999", "same %", "100.0", "65.0 ± 10.9", "-70.0 ± 10.5", "-20.0 ± 9.2"):
        assert text in shown
    assert "Inconclusive: on 20 images" in choice_remarks(choice, 2000)[-1]


@pytest.mark.parametrize(
    ("of_default", "chosen"),
    [(0.3, "default"), (0.4, "default"), (0.5, "second"), (None, "second")],
)
def test_the_default_stays_where_nothing_better_is_found(
    of_default: float | None, chosen: str
) -> None:
    unpruned = a_judged("unpruned", 0, 0.0, 0.0)
    default = None if of_default is None else a_judged("default", 9, 0.25, of_default)
    candidates = [a_judged("first", 1, 0.1, 0.6), a_judged("second", 2, 0.2, 0.4)]
    choice = choose(unpruned, default, candidates)
    assert choice.chosen.name == chosen
    assert choice.lost == pytest.approx(0.35)  # of those ranked on the first half
    trials = [FinishedTrial(at, candidate.schedule, 1.0, None, candidate.first.mean_kl)
              for at, candidate in enumerate(candidates)]  # fmt: skip
    drawn = search_figure(trials, choice, "title")
    star: Any = next(
        line for line in drawn.axes[0].lines if line.get_label() == "chosen, second half"
    )
    where = {"default": 3, "second": 2}[chosen]
    assert star.get_xdata()[0] == where
    assert star.get_ydata()[0] == pytest.approx(choice.chosen.second.mean_kl)


def trial(number: int, gmacs: float, top1: float, kl: float = 0.0) -> FinishedTrial:
    return FinishedTrial(number, Schedule((Stage(1, gmacs / 10),)), gmacs, top1, kl)


def test_finalists_are_distinct_and_the_front_is_undominated() -> None:
    trials = [trial(0, 1, 70), trial(1, 2, 80, 0.2), trial(2, 2, 80, 0.1), trial(3, 3, 75),
              trial(4, 4, 90)]  # fmt: skip
    assert [trial.number for trial in pick_finalists(trials, 3)] == [4, 2, 3]
    assert [trial.number for trial in front(trials)] == [0, 2, 4]
    assert [trial.number for trial in thin_out(trials, 3)] == [0, 2, 4]
    assert [trial.number for trial in thin_out(trials, 9)] == [0, 1, 2, 3, 4]
