"""The results pages are written from the rows of the newest runs, each claim with its verdict."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks import report, sections
from benchmarks.claims import newest, read, verdict
from benchmarks.inputs import MODELS
from benchmarks.inserts import inserts, refresh
from benchmarks.search.settings import SETTINGS
from benchmarks.speed import equal_speed, tables, throughput
from benchmarks.tables import ablations, gap, off_the_shelf, published, rule_or_counts
from benchmarks.tables.printed import TABLE_2
from benchmarks.tables.table import DRAWS, draws, pooled
from tests.families import plain_geometry
from zerotprune import Schedule, Stage
from zerotprune.measure.accuracy import Contender, Result
from zerotprune.measure.records import FIELDS
from zerotprune.plan import Plan
from zerotprune.plots.comparison import Point

DEIT, VIT = MODELS
EVEN = Schedule((Stage(3, 0.8), Stage(6, 0.8), Stage(9, 0.8)))
SAME = Schedule((Stage(4, 0.9, 7), Stage(8, 0.9, 7)))
UNEVEN = Schedule((Stage(3, 0.99), Stage(6, 0.3), Stage(9, 0.99)))


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


def shelf(model: str, names: list[str], **more: object) -> list[dict[str, object]]:
    """Make the rows of one run off the shelf: at 0.7 of the cost, 0.7 points are lost."""
    return [
        measured("off-the-shelf", model, f"{name} @ {cost}", -0.7, **more, method=f"{name}()",
                 gmacs=cost, images_per_second=200)
        for cost in (0.7, 0.55) for name in names
    ]  # fmt: skip


def test_a_later_run_of_one_method_adds_it_and_takes_nothing_away(tmp_path: Path) -> None:
    text = off_the_shelf.TABLE.claims[0].text
    first = {"gmacs": 1.0, "images_per_second": 100}
    rows = [measured("off-the-shelf", DEIT, "unpruned", 0, **first), *shelf(DEIT, ["fold", "tome"])]
    rows.append(claimed("off-the-shelf", DEIT, text, 2.0))
    late = {"commit": "late", "hardware": "a CPU"}
    rows.append(measured("off-the-shelf", DEIT, "unpruned", 0, **first, **late))
    rows += shelf(DEIT, ["atc"], **late)
    kept = newest(file_of(tmp_path, rows))
    names = [(row["name"], row["hardware"]) for row in kept]
    assert names[0] == ("unpruned", "a GPU")
    assert (text, "a GPU") in names
    assert ("atc @ 0.7", "a CPU") in names
    assert len(kept) == len(rows) - 1
    line = line_with(pages(tmp_path, rows)[0], "atc", "another run")
    assert "a CPU" in line
    assert "fold" not in line


def test_plots_start_from_the_unpruned_model_and_compare_speed_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, tuple[set[tuple[str, float]], float]] = {}

    def draw(points: list[Point], unpruned: float, by: str, *rest: object) -> Figure:
        drawn[by] = {(point.name, point.x) for point in points}, unpruned
        return Figure()

    monkeypatch.setattr(sections, "trade_off_figure", draw)
    rows = shelf(DEIT, ["ats"], commit="old")
    rows.append(measured("off-the-shelf", DEIT, "unpruned", 0, gmacs=1.0, images_per_second=100))
    rows += [*shelf(DEIT, ["fold"]), *shelf(DEIT, ["atc"], hardware="a CPU")]
    _, appendix = pages(tmp_path, rows)
    both = {(name, cost) for name in ("ats", "fold", "atc") for cost in (0.7, 0.55)}
    assert drawn["gmacs"] == (both, 1.0)
    assert drawn["speed"] == ({("ats", 2.0), ("fold", 2.0)}, 1.0)
    order = [line.split(" | ")[0] for line in appendix.splitlines() if " @ 0." in line]
    names = [f"| {name} @ {cost}" for cost in (0.7, 0.55) for name in ("ats", "fold", "atc")]
    assert order[:6] == names


def test_older_rows_of_zero_tprune_are_of_the_papers_form(tmp_path: Path) -> None:
    old, new = Schedule.preset("ablation-is"), Schedule((Stage(1, similar=9), Stage(10, 0.9)))
    rows = [measured("off-the-shelf", model, "zero-tprune @ 0.7", -1.0, schedule=form.one_line())
            for model, form in ((DEIT, old), (VIT, new))]  # fmt: skip
    names = [row["name"] for row in newest(file_of(tmp_path, rows))]
    assert names == ["zero-tprune-paper @ 0.7", "zero-tprune @ 0.7"]


@pytest.mark.parametrize(
    ("change", "judged"),
    [(0.9, "agrees"), (0.7, "inconclusive"), (-0.7, "inconclusive"), (-0.9, "disagrees")],
)
def test_two_standard_errors_decide(change: float, judged: str) -> None:
    row = {key: str(value) for key, value in claimed("fold", DEIT, "x", change).items()}
    assert verdict(row) == judged


def pages(folder: Path, rows: list[dict[str, object]]) -> tuple[str, str]:
    """Write both pages from rows; the line breaks of paragraphs do not matter."""
    report.write(file_of(folder, rows), folder)
    texts = ((folder / name).read_text("utf-8") for name in ("results.md", "results-appendix.md"))
    first, appendix = (text.replace("\n  ", " ") for text in texts)
    return first, appendix


def line_with(page: str, *facts: str) -> str:
    """Return the one line of a page that has all these facts."""
    (line,) = [line for line in page.splitlines() if all(fact in line for fact in facts)]
    return line


def test_claims_stand_on_the_first_page_with_their_outcome(tmp_path: Path) -> None:
    rows, name = [], published.TABLE.name
    for model in (DEIT, VIT):
        rows += [measured(name, model, "unpruned", 0.0), measured(name, model, "Zero-TP-a", -2.0)]
        rows.append(claimed(name, model, "Zero-TP-a beats ATS", 2.0))
        rows.append(claimed(name, model, "Zero-TP-a beats ToMe", -2.0 if model == VIT else 0.1))
        rows.append(claimed(name, model, "Zero-TP-a beats ATS, early form", 3.0))
        rows.append(claimed(name, model, "a claim that no table makes any more", 5.0))
        rows += [
            measured("metric", model, metric, -1.0) for metric in ("unpruned", "cosine", "dot")
        ]
        rows.append(claimed("metric", model, "cosine is at least as good as dot", 0.3))
    first, appendix = pages(tmp_path, rows)
    assert "holds on both" in line_with(first, "| Zero-TP-a beats ATS |")
    assert "fails on one" in line_with(first, "| Zero-TP-a beats ToMe |")
    assert "early form" not in first  # our question, not the paper's claim
    assert "no table makes" not in first + appendix
    undecided = line_with(first, "1 of 3 claims")
    assert "0.1 to 0.1" in undecided  # 79.351 against 79.257 in the paper
    assert "0.40 to 0.40" in undecided
    assert f"| {name} | 2 | 1 | 1 |" in appendix  # ours is not counted
    assert f"| {TABLE_2.cell('Zero-TP-a')} |" in appendix
    assert "| yes |" in appendix
    assert "`all`" in line_with(appendix, "one run", "commit new")


def test_the_largest_gap_has_readings_and_what_the_paper_leaves_free(tmp_path: Path) -> None:
    rows, table = [], gap.TABLE.name
    for model in (DEIT, VIT):
        rows += [measured(table, model, name, -9.0, schedule=form.one_line())
                 for name, form in (("unpruned", Schedule()), ("paper's form", SAME))]  # fmt: skip
        rows += [measured(table, model, name, -5.0) for name in ("early form", "searched")]
        rows.append(measured(table, model, gap.ROUNDS, -9.5))
        rows.append(measured(table, model, gap.FREE[0], -6.0 if model == DEIT else -2.0))
        rows.append(measured(table, model, "no S-stage", 0.0))  # Sec. 4.2 has an S-stage
    first, _ = pages(tmp_path, rows)
    line = line_with(first, "zero-tprune-paper", "-9.00 ± 0.40 (DeiT-Ti)", "-9.00 ± 0.40 (ViT-Ti)")
    assert re.search(r"blocks 4, 8\b.*\b7 similar", line)  # as its row has them
    assert "-0.5 to -0.5" in line
    assert "+3.0 to +7.0" in line


def test_speed_and_plots_stand_on_the_first_page(tmp_path: Path) -> None:
    rows = [measured("curve", model, name, -1.0)
            for model in (DEIT, VIT) for name in ("unpruned", "fold @ 0.7")]  # fmt: skip
    drawn = {"early form": EVEN, "setting 1": EVEN, "setting 2": UNEVEN}
    rows += [measured(SETTINGS, model, name, -1.0, schedule=schedule.one_line())
             for model in (DEIT, VIT) for name, schedule in drawn.items()]  # fmt: skip
    rows += [measured("off-the-shelf", DEIT, name, -1.5)
             for name in ("unpruned", "fold @ 0.7", "tome @ 0.7")]  # fmt: skip
    for name, rate in (("unpruned", 100.0), ("ToMe", 150.0), ("Zero-TP-a", 125.0)):
        rows.append({"table": throughput.NAME, "model": "deit_small", "name": name,
                     "command": "all", "commit": "new", "hardware": "a GPU", "measure": "speed",
                     "mode": "graph", "precision": "bfloat16", "batch": 512, "gmacs_paper": 3.0,
                     "images_per_second": rate})  # fmt: skip
    first, appendix = pages(tmp_path, rows)
    assert "| Zero-TP-a | 3.00 | 1.25× | 1.45× |" in first
    assert "-1.50 ± 0.40" in line_with(first, "| fold |")
    assert "125 (1.25×)" in appendix
    figures = set(re.findall(r"\]\((\S+\.png)\)", first + appendix))
    assert {"curve.png", "sensitivity.png", "off-the-shelf-deit_tiny-gmacs.png"} <= figures
    for figure in figures:
        assert (tmp_path / figure).read_bytes().startswith(b"\x89PNG")


def test_random_settings_are_told_with_and_without_the_papers_condition(tmp_path: Path) -> None:
    """More than two stages with similar rates: settings 1 and 3, not 2 and 4."""
    two = Schedule((Stage(3, 0.7), Stage(9, 0.7)))
    settings = {"setting 1": (EVEN, -3.0), "setting 2": (UNEVEN, -12.0), "setting 3": (EVEN, -5.0),
            "setting 4": (two, -1.0)}  # fmt: skip
    rows = [measured(SETTINGS, DEIT, name, change, schedule=schedule.one_line())
            for name, (schedule, change) in settings.items()]  # fmt: skip
    _, appendix = pages(tmp_path, rows)
    assert "| 4 | -12.00 | -4.00 | -1.00 | 4.15 | 0.40 |" in line_with(appendix, "DeiT-Ti, all")
    assert "| 2 | -5.00 | -4.00 | -3.00 | 1.00 | 0.40 |" in line_with(appendix, "σ ≤ 0.25")


def test_claims_are_the_papers_only_where_it_prints_both_sides() -> None:
    """Table 2 has rivals only near 3 G of 4.55, and cells for all that an ablation claims."""
    claims = [claim for claim in off_the_shelf.TABLE.claims if not claim.ours]
    assert {claim.first for claim in claims} == {"zero-tprune-paper @ 0.7"}
    assert {claim.second for claim in claims} == {"ats @ 0.7", "tome @ 0.7"}
    for claim in published.TABLE.claims:
        assert claim.ours or {claim.first, claim.second} <= TABLE_2.cells.keys()
    features = next(table for table in ablations.TABLES if table.name == "features")
    assert features.printed is not None
    for claim in features.claims:
        assert {claim.first, claim.second} <= features.printed.cells.keys()


def test_untrained_methods_are_held_to_random_dropping_case_by_case(tmp_path: Path) -> None:
    rows = [measured("off-the-shelf", DEIT, "unpruned", 0.0)]
    losses = {"random": (-5.0, -18.0), "dynamicvit": (-9.0, -15.0), "a-vit": (-20.0, -30.0)}
    for name, changes in losses.items():
        rows += [measured("off-the-shelf", DEIT, f"{name} @ {cost}", change)
                 for cost, change in zip((0.7, 0.55), changes, strict=True)]  # fmt: skip
    first, _ = pages(tmp_path, rows)
    line = line_with(first, "random dropping", " 1 of 2 ")
    assert re.search(r"A-ViT\b.* 2 of 2\b", line), line


def test_draws_are_one_row_whose_image_is_the_mean_of_the_draws() -> None:
    schedule = Schedule((Stage(1, 0.5),))
    plan = Plan(schedule, plain_geometry(4, 4, 1, 64))
    alone = Result(Contender("alone"), plan, hits=[1, 0], hits5=[1, 1], kl=[0.0, 0.0])
    drawn = [
        Result(contender, plan, hits=[1, at % 2], hits5=[1, 1], kl=[0.1 * at, 0.2])
        for at, contender in enumerate(draws(lambda seed: Contender("random", schedule)))
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
    rows += [measured("rule or counts", VIT, rule_or_counts.label("tome", "fold", 0.55), -2.5)]
    for page in ("measuring.md", "searching.md", "fold.md"):
        text = "before\n<!-- rows -->\nold\n<!-- end of rows -->\nafter\n"
        (tmp_path / page).write_text(text, encoding="utf-8")
    with (tmp_path / "fold.md").open("a", encoding="utf-8") as file:
        file.write(
            "<!-- rows by rule and counts --><!-- end of rows by rule and counts -->\nafter\n"
        )
    refresh(inserts(), newest(file_of(tmp_path, rows)), tmp_path)
    shelf, search, nearest = (
        (tmp_path / page).read_text("utf-8").splitlines()
        for page in ("measuring.md", "searching.md", "fold.md")
    )
    changes = "-1.50 ± 0.40 | -1.50 ± 0.40 |  | "
    assert f"| **fold** | {changes} | {changes} |" in shelf
    assert line_with("\n".join(search), "| 0.9 G | 0.7 G |")
    row = line_with("\n".join(search), "ViT-Ti", "early form", "top-1")
    assert row.endswith("| +0.10 ± 0.40 | **+4.00 ± 0.40** |")
    assert "| 0.7 | **fold** | -1.50 ± 0.40 | 0.1150 | -1.50 ± 0.40 | 0.1150 |" in nearest
    assert "| tome | fold's |  |  |  | 0.1250 |" in nearest
    for lines in (shelf, search, nearest):
        assert (lines[0], lines[-1]) == ("before", "after")
        assert "old" not in lines


def test_tables_at_equal_speed_have_the_newest_row_of_every_case(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for page, mark in (("README.md", "8 images"), ("docs/measuring.md", "equal speed")):
        text = f"before\n<!-- {mark} -->\nold\n<!-- end of {mark} -->\nafter\n"
        (tmp_path / page).write_text(text, encoding="utf-8")
    rows = []
    for model in (DEIT, VIT):
        rows.append(measured(equal_speed.TABLE, model, "unpruned", 0, gmacs=1.2))
        rows += [
            measured(equal_speed.TABLE, model, "fold", change, batch=8, speedup=speedup,
                     measure=equal_speed.measure(1.5))
            for change, speedup in ((-9.0, 1.4), (-0.86, 1.513))
        ]  # fmt: skip
    rows.append(
        measured(equal_speed.TABLE, DEIT, "tome", -3.0, batch=8, speedup=1.5, kl="",
                 measure=equal_speed.measure(1.5), failure="out of reach")
    )  # fmt: skip
    refresh(tables.inserts(), read(file_of(tmp_path, rows)), docs)
    readme, page = (tmp_path / "README.md").read_text(), (docs / "measuring.md").read_text()
    assert "| 1.5× | **fold** | 1.51× | −0.86 ± 0.40 | −0.86 ± 0.40 | 0.1086 | 0.75 |" in readme
    assert "| 1.5× | 8 | fold | 1.51× | 0.75 | −0.86 ± 0.40 | 0.1086 | −0.86" in page
    assert "tome" not in readme + page
    assert readme.startswith("before\n")
    assert page.endswith("after\n")


def test_on_a_gpu_speeds_and_accuracy_are_interpolated() -> None:
    shelf = {("m", "fold", cost): {"change": str(change), "kl": str(kl)}
             for cost, change, kl in ((0.85, 0, 0.01), (0.7, -1, 0.04), (0.55, -2, 0.1),
                                      (0.45, -4, 0.2))}  # fmt: skip
    speeds = {("fold", 0.85): 1.2, ("fold", 0.7): 1.6, ("fold", 0.55): 2.0, ("fold", 0.45): 2.2}
    assert tables.between(speeds, shelf, "m", "fold", 1.4) == ("−0.5", "0.020")
    assert tables.between(speeds, shelf, "m", "fold", 2.5) == ("–", "–")
