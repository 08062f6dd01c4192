"""docs/results.md from rows: of the newest run alone, and each claim counted as it is."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.claims import newest, verdict
from benchmarks.inputs import MODELS
from benchmarks.inserts import refresh
from benchmarks.search.settings import SETTINGS
from benchmarks.speed import throughput
from benchmarks.tables import gap, published
from benchmarks.tables.printed import TABLE_2
from benchmarks.tables.table import DRAWS, draws, pooled
from tests.families import plain_geometry
from zerotprune import Schedule, Stage
from zerotprune.measure.accuracy import Contender, Result
from zerotprune.measure.records import FIELDS
from zerotprune.plan import Plan

DEIT, VIT = MODELS


def measured(table: str, model: str, name: str, change: float, **more: object) -> dict[str, object]:
    pruned = name != "unpruned"
    return {"table": table, "model": model, "name": name, "command": "all", "commit": "new",
            "hardware": "a GPU", "measure": "top1", "schedule": "{}" if pruned else "",
            "gmacs": 0.9, "gmacs_needed": 0.8, "top1": 70 + change, "change": change,
            "change_error": 0.4, "kl": 0.1 - change / 100, "kl_error": 0.01, "images": 2000,
            **more}  # fmt: skip


def claimed(table: str, model: str, name: str, change: float) -> dict[str, object]:
    kl = {"kl": change / 10, "kl_error": 0.01}
    return measured(table, model, name, change, measure="one − other", schedule="", **kl)


def file_of(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_rows_of_an_older_run_are_left_out(tmp_path: Path) -> None:
    old = [measured("fold", DEIT, name, -1.0, commit="old") for name in ("a", "gone")]
    other = measured("fold", VIT, "a", -3.0, commit="old")
    kept = newest(file_of(tmp_path, [*old, other, measured("fold", DEIT, "a", -2.0)]))
    assert [(row["model"], row["name"], row["change"]) for row in kept] == [
        (VIT, "a", "-3.0"),
        (DEIT, "a", "-2.0"),
    ]


def test_older_rows_of_zero_tprune_are_of_the_papers_form(tmp_path: Path) -> None:
    old, new = Schedule.preset("ablation-is"), Schedule((Stage(1, similar=9), Stage(10, 0.9)))
    rows = [measured("off-the-shelf", model, "zero-tprune @ 0.7", -1.0, schedule=each.one_line())
            for model, each in ((DEIT, old), (VIT, new))]  # fmt: skip
    names = [row["name"] for row in newest(file_of(tmp_path, rows))]
    assert names == ["zero-tprune-paper @ 0.7", "zero-tprune @ 0.7"]


@pytest.mark.parametrize(
    ("change", "told"),
    [(0.9, "agrees"), (0.7, "does not tell"), (-0.7, "does not tell"), (-0.9, "disagrees")],
)
def test_two_standard_errors_decide(change: float, told: str) -> None:
    row = {key: str(value) for key, value in claimed("fold", DEIT, "x", change).items()}
    assert verdict(row) == told


def test_the_page_says_what_holds_and_puts_the_papers_cells_beside(tmp_path: Path) -> None:
    rows = []
    for model in (DEIT, VIT):
        name = published.TABLE.name
        rows += [measured(name, model, "unpruned", 0.0), measured(name, model, "Zero-TP-a", -2.0)]
        rows.append(claimed(name, model, "Zero-TP-a beats ATS", 2.0))
        rows.append(claimed(name, model, "Zero-TP-a beats ToMe", -2.0 if model == VIT else 0.1))
        rows.append(claimed(name, model, "a claim that no table makes any more", 5.0))
        rows.append(claimed(name, model, "Zero-TP-a beats ATS, early form", 3.0))
        rows += [measured(gap.TABLE.name, model, each, -9.0)
                 for each in ("paper's form", "early form", "searched")]  # fmt: skip
        rows.append(measured(gap.TABLE.name, model, gap.ROUNDS, -9.5))
        rows += [measured("curve", model, each, -1.0) for each in ("unpruned", "fold @ 0.7")]
        rows += [measured(SETTINGS, model, each, -1.0)
                 for each in ("early form", "setting 1", "setting 2")]  # fmt: skip
    for name, rate in (("unpruned", 100.0), ("ToMe", 150.0), ("Zero-TP-a", 125.0)):
        rows.append({"table": throughput.NAME, "model": "deit_small", "name": name,
                     "command": "all", "commit": "new", "hardware": "a GPU", "measure": "speed",
                     "mode": "graph", "precision": "bfloat16", "batch": 512, "gmacs_paper": 3.0,
                     "images_per_second": rate})  # fmt: skip
    report.write(file_of(tmp_path, rows), tmp_path)
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "**Holds on both models:** Zero-TP-a beats ATS." in page
    assert "**Does not hold,** on one model at least: Zero-TP-a beats ToMe." in page
    assert "no table makes" not in page
    assert f"| {published.TABLE.name} | 2 | 1 | 1 |" in page  # ours is not counted
    assert f"| {TABLE_2.cell('Zero-TP-a')} |" in page
    assert "loses -9.00 ± 0.40 (DeiT-Ti) and -9.00 ± 0.40 (ViT-Ti)" in page
    assert "leaves open moves it by -0.5 to -0.5 points" in page
    assert "+25 % and +50 %" in page
    assert "125 (1.25×)" in page
    assert "All rows are from one run of `all` at commit new on one a GPU." in page
    for figure in ("curve.png", "sensitivity.png"):
        assert (tmp_path / figure).read_bytes().startswith(b"\x89PNG")


def test_draws_are_one_row_whose_image_is_the_mean_of_the_draws() -> None:
    schedule = Schedule((Stage(1, 0.5),))
    plan = Plan(schedule, plain_geometry(4, 4, 1, 64))
    alone = Result(Contender("alone"), plan, hits=[1, 0], hits5=[1, 1], kl=[0.0, 0.0])
    drawn = [
        Result(each, plan, hits=[1, at % 2], hits5=[1, 1], kl=[0.1 * at, 0.2])
        for at, each in enumerate(draws(lambda seed: Contender("random", schedule)))
    ]
    assert len(drawn) == DRAWS == 5
    one, many = pooled([alone, *drawn])
    assert one is alone
    assert many.contender == Contender("random", schedule)
    assert many.hits == [1, 2 / 5]
    assert many.kl == pytest.approx([0.2, 0.2])
    assert many.change(one).value == pytest.approx(20)


def test_tables_of_other_pages_are_read_off_the_rows(tmp_path: Path) -> None:
    places = ((model, cost) for model in (DEIT, VIT) for cost in (0.85, 0.7))
    rows = [measured("off-the-shelf", model, f"fold @ {cost}", -1.5) for model, cost in places]
    forms = ("paper's form", "early form")
    for model in (DEIT, VIT):
        rows += [claimed("searched", model, f"searched beats {form} at {budget} G", change)
                 for form in forms for budget, change in ((0.9, 0.1), (0.7, 4.0))]  # fmt: skip
    for page in ("measuring.md", "searching.md"):
        text = "before\n<!-- rows -->\nold\n<!-- end of rows -->\nafter\n"
        (tmp_path / page).write_text(text, encoding="utf-8")
    refresh(newest(file_of(tmp_path, rows)), tmp_path)
    shelf, search = (
        (tmp_path / page).read_text("utf-8").splitlines()
        for page in ("measuring.md", "searching.md")
    )
    told = "-1.50 ± 0.40 | -1.50 ± 0.40 |  | "
    assert f"| **fold** | {told} | {told} |" in shelf
    assert "| searched against | 0.9 G | 0.7 G |" in search
    assert "| ViT-Ti, early form: top-1 | +0.10 ± 0.40 | **+4.00 ± 0.40** |" in search
    for lines in (shelf, search):
        assert (lines[0], lines[-1]) == ("before", "after")
        assert "old" not in lines
