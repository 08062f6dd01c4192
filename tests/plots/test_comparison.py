"""Crowded figures: the default method and the strongest rivals in color, the others gray."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from zerotprune.methods import DEFAULT
from zerotprune.plots.comparison import (
    Pace,
    Point,
    choose_fast,
    find_named,
    speed_figure,
    trade_off_figure,
)
from zerotprune.plots.figures import FEW, GRAY, NAMED, choose_named, save

COSTS = (0.5, 0.7, 0.9)


def points(rivals: int) -> list[Point]:
    """Make the default method the worst; rival 7 is best at the lowest cost, rival 3 after it."""
    worth = {f"rival {at}": -4.0 - at / 10 for at in range(rivals)} | {DEFAULT: -15.0}
    worth |= {"rival 7": -1.0, "rival 3": -2.0} if rivals > 7 else {}
    return [Point(name, cost, change * (1 - cost), 0.1)
            for name, change in worth.items() for cost in COSTS]  # fmt: skip


def colored(figure: Figure) -> set[str]:
    """Return the labels of the lines with a color; error bars are drawn by other means."""
    axis: Any = figure.axes[0]
    labels, handles = axis.get_legend_handles_labels()[::-1]
    lines = {label: getattr(handle, "lines", [handle])[0]
             for label, handle in zip(labels, handles, strict=True)}  # fmt: skip
    return {
        label for label, line in lines.items() if line.get_color() not in (GRAY, "k", "#000000")
    }


def test_of_thirteen_lines_three_have_a_name_and_a_color() -> None:
    many = points(12)
    expected = [DEFAULT, "rival 7", "rival 3"]
    assert find_named(many, "gmacs") == expected
    figure = trade_off_figure(many, 1.0, "gmacs", "a title")
    axis: Any = figure.axes[0]
    assert colored(figure) == set(expected)
    assert len(expected) == NAMED
    gray = [line for line in axis.get_lines() if line.get_color() == GRAY]
    assert len(gray) == 13 - NAMED
    written = {text.get_text(): text.get_color() for text in axis.texts}
    assert set(written) == set(expected)
    assert len(set(written.values())) == NAMED
    others = " ".join(axis.get_legend().get_texts()[-1].get_text().split())
    assert others == "others: " + ", ".join(f"rival {at}" for at in range(12) if at not in (3, 7))


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    """Whatever is in them, and whatever the font lacks."""
    odd = "a$x$ {y} \\ <b> 猫"
    title = f"{odd}\x1b\udcff"
    many = [point._replace(name=f"{odd} {point.name}") for point in points(1)]
    paces = [Pace(point.name, "eager", "float32", 1, 1.5) for point in many]
    for figure in (trade_off_figure(many, 1.0, "gmacs", title),
                   speed_figure(paces, "slicing", "x", title)):  # fmt: skip
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            save(figure, tmp_path / "odd.svg")
        written = set(ElementTree.parse(tmp_path / "odd.svg").getroot().itertext())
        assert {f"{odd}\ufffd\ufffd", f"{odd} rival 0"} <= written


def test_the_caller_may_say_which() -> None:
    figure = trade_off_figure(points(12), 1.0, "speed", "a title", ["rival 1", DEFAULT])
    assert colored(figure) == {"rival 1", DEFAULT}


def test_of_few_lines_all_have_colors() -> None:
    few = points(FEW - 1)
    names = list(dict.fromkeys(point.name for point in few))
    figure = trade_off_figure(few, 1.0, "gmacs", "a title")
    assert colored(figure) == set(names)
    axis: Any = figure.axes[0]
    assert not [line for line in axis.get_lines() if line.get_color() == GRAY]


def test_the_best_is_found_where_all_lines_are() -> None:
    """A line that begins at a higher cost is not best for that reason; between points it is
    linear."""
    lines = {name: [(0.0, -float(rank)), (2.0, 0.0)] for rank, name in enumerate("abcdef")}
    lines["late"] = [(1.0, -0.2), (2.0, 0.0)]
    lines["a"] = [(0.0, 9.0), (1.0, -9.0), (2.0, 0.0)]
    assert choose_named(lines, first="none of them") == ["late", "b", "c"]
    assert choose_named(lines, first="f", count=2) == ["f", "late"]


def test_fast_means_cheap() -> None:
    many = [point._replace(x=1000 / point.x) for point in points(12)]
    assert find_named(many, "speed") == [DEFAULT, "rival 7", "rival 3"]


def test_of_many_speeds_the_fastest_have_colors() -> None:
    names = ["unpruned", "slicing", DEFAULT, *(f"rival {at}" for at in range(9))]
    paces = [Pace(name, mode, "float32", batch, 1.0 + at / 10)
             for at, name in enumerate(names) for mode in ("eager", "graph")
             for batch in (1, 8)]  # fmt: skip
    assert choose_fast(paces, "slicing") == [DEFAULT, "rival 8", "rival 7"]
    figure = speed_figure(paces, "slicing", "the model", "a title")
    for panel in figure.axes:
        axis: Any = panel
        gray = [line for line in axis.get_lines() if line.get_color() == GRAY]
        assert len(gray) == len(names) - 2 - NAMED
    assert figure.legends[0].get_texts()[-1].get_text().startswith("others: rival 0")
