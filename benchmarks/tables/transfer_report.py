"""The section of docs/results-appendix.md on transfer, and its figures."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures.training import Trained, training_figure
from benchmarks.sections import runs
from benchmarks.tables import transfer
from benchmarks.tables.table import about
from benchmarks.tables.transfer import (
    AFTERWARDS,
    DATA,
    GMACS,
    METHODS,
    OFF_THE_SHELF,
    TABLE,
    TRAINED,
)
from zerotprune import Schedule
from zerotprune.measure.accuracy import Mean
from zerotprune.plots.figures import save

Row = dict[str, str]
#: The paper's Table 6: DeiT-T fine-tuned on all of the set, pruned to 0.90 G (Zero-TPrune 0.91)
PAPER = {
    "pets": {"unpruned": 88.6, "ats": 86.1, "tome": 84.7, "zero-tprune-paper": 86.9},
    "flowers": {"unpruned": 97.3, "ats": 94.6, "tome": 93.2, "zero-tprune-paper": 95.1},
}
READING = """Mean top-1 over the seeds, with the standard error of that mean, which shows how much
training differs between seeds; the error of one accuracy on these images is about 1.5 points. In
brackets: the change against the unpruned model of the same seed. Seconds are of one training on a
device that several runs shared. The paper's column is its Table 6: DeiT-T fine-tuned and measured
on the whole sets, at 0.90 G. Compare the order of the methods, not their level.

- **Zero-TPrune** has our form of schedule off the shelf (`zero-tprune`) and the paper's
  (`zero-tprune-paper`). {trained}
- **DynamicViT and A-ViT** off the shelf are untrained: what they drop means nothing. A-ViT's `beta`
  is solved for the budget; its authors fix it at −30 and let the ponder loss find the cost.{prior}
- **ATS** was not trained, nor was the paper's form of Zero-TPrune, which has S-stages.
"""


#: how the rows of trained Zero-TPrune came about, by whether their schedules have S-stages
WITHOUT_S = """Trained, it has I-stages alone, in training and in use, as in the paper: their rates
  meet the budget."""
WITH_S = """Trained rows are of schedules with S-stages, off in training and on in use: at 0.65 G it
  trained with 115 of 196 patch tokens left and is used with 53. The paper leaves the S-stage out
  of both, so these rows do not show its method."""
#: the run in which A-ViT was trained with another prior than its authors'
OTHER_PRIOR_RUN = "6624e12"
OTHER_PRIOR = """ Trained rows of commit 6624e12 had another prior than its authors': {cells}."""


def rows_in(path: Path) -> list[Row]:
    """Return the newest row of each case."""
    latest: dict[tuple[str, ...], Row] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["table"] == TABLE:
                key = (row["model"], row["data"], row["name"], row["mode"], row["seed"])
                latest[key] = row
    return list(latest.values())


def section(path: Path, docs: Path) -> str:
    """Return the section and save its figures; empty without rows."""
    rows = rows_in(path)
    if not rows:
        return ""
    trained = WITH_S if _has_s_stages(rows) else WITHOUT_S
    reading = READING.format(trained=trained, prior=_other_prior(rows))
    lines = [f"## {TABLE}\n", about(transfer.__doc__), "", reading, runs(rows)]
    for data in DATA:
        of_data = [row for row in rows if row["data"] == data]
        if of_data:
            lines += [f"### {data}: {of_data[0]['images']} images\n", *_table(data, of_data), ""]
            lines += [
                *_papers(of_data),
                "",
                *_verdicts(of_data),
                "",
                *_figure(data, of_data, docs),
                "",
            ]
    return "\n".join(lines)


def _has_s_stages(rows: Sequence[Row]) -> bool:
    """Were rows of trained Zero-TPrune made with schedules that prune similar tokens?"""
    return any(
        stage.similar
        for row in rows
        if row["name"].startswith("zero-tprune @") and row["mode"] == AFTERWARDS
        for stage in Schedule.from_json(row["schedule"]).stages
    )


def _other_prior(rows: Sequence[Row]) -> str:
    """Name the trained rows of A-ViT that had another prior; "" without any."""
    cells = dict.fromkeys(
        f"{row['model'].partition('_patch')[0]} on {row['data']}, {row['name'].partition(' @ ')[2]}"
        for row in rows
        if row["name"].startswith("a-vit @")
        and row["mode"] == AFTERWARDS
        and row["commit"] == OTHER_PRIOR_RUN
    )
    return OTHER_PRIOR.format(cells="; ".join(cells)) if cells else ""


def _models(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in rows))


def _chosen(rows: Sequence[Row], model: str, name: str, mode: str) -> list[Row]:
    return [row for row in rows
            if (row["model"], row["name"], row["mode"]) == (model, name, mode)]  # fmt: skip


def _mean(rows: Sequence[Row], column: str = "top1") -> Mean:
    return Mean.of([float(row[column]) for row in rows])


def _names() -> list[tuple[str, str]]:
    named = [(f"{method} @ {gmacs:g} G", method) for gmacs in GMACS for method in METHODS]
    return [("unpruned", "unpruned"), *named]


def _table(data: str, rows: Sequence[Row]) -> list[str]:
    models = _models(rows)
    short = [model.partition("_patch")[0] for model in models]
    head = ["", *(f"{name} {mode}" for name in short for mode in (OFF_THE_SHELF, AFTERWARDS)),
            "seconds", "paper, DeiT-T"]  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, method in _names():
        cells, seconds = [], list[float]()
        for model in models:
            for mode in (OFF_THE_SHELF, AFTERWARDS):
                seeds = _chosen(rows, model, name, mode)
                cells.append(_cell(seeds))
                seconds += [float(row["train_seconds"]) for row in seeds if row["train_seconds"]]
        if any(cells):
            paper = PAPER[data].get(method) if "0.65" not in name else None
            cells.append(f"{statistics.mean(seconds):.0f}" if seconds else "")
            lines.append(f"| {name} | {' | '.join(cells)} | {'' if paper is None else paper} |")
    return lines


def _cell(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    value, error = _mean(rows)
    text = f"{value:.1f} ± {error:.1f}"
    return text if not rows[0]["schedule"] else f"{text} ({_mean(rows, 'change').value:+.1f})"


def _papers(rows: Sequence[Row]) -> list[str]:
    """Test what the paper claims, seed by seed: Table 6 off the shelf, Fig. 6 trained."""
    lines = ["| claim of the paper | model | difference | |", "|---|---|---|---|"]
    cases = [("zero-tprune-paper", rival, GMACS[0], OFF_THE_SHELF) for rival in ("tome", "ats")]
    cases += [("zero-tprune", rival, gmacs, AFTERWARDS)
              for gmacs in GMACS for rival in ("dynamicvit", "a-vit")]  # fmt: skip
    for method, rival, gmacs, mode in cases:
        for model in _models(rows):
            first, other = (_chosen(rows, model, f"{name} @ {gmacs:g} G", mode)
                            for name in (method, rival))  # fmt: skip
            if first and other:
                apart = _difference(first, other)
                judged = ("agrees" if apart.value > 2 * apart.error else
                          "disagrees" if apart.value < -2 * apart.error else
                          "inconclusive")  # fmt: skip
                lines.append(f"| {method} beats {rival} @ {gmacs:g} G, {mode} | "
                             f"{model.partition('_patch')[0]} | {apart.value:+.1f} ± "
                             f"{apart.error:.1f} | {judged} |")  # fmt: skip
    return lines if len(lines) > 2 else []


def _verdicts(rows: Sequence[Row]) -> list[str]:
    """Compare Fold with the best trained rival at the lower cost, seed by seed."""
    lines, at = [], f"@ {GMACS[-1]:g} G"
    for model in _models(rows):
        trained = {method: _chosen(rows, model, f"{method} {at}", AFTERWARDS) for method in TRAINED}
        rivals = {name: _mean(seeds).value for name, seeds in trained.items()
                  if seeds and name != "fold"}  # fmt: skip
        off = _chosen(rows, model, f"fold {at}", OFF_THE_SHELF)
        if not rivals or not off or not trained["fold"]:
            lines.append(f"- {model} {at}: no rival was trained")
            continue
        best = max(rivals, key=lambda name: rivals[name])
        for label, seeds in (("off the shelf", off), ("trained", trained["fold"])):
            apart = _difference(seeds, trained[best])
            lines.append(f"- {model} {at}: Fold {label} − {best} trained, the best trained rival "
                         f"of {', '.join(rivals)}: {apart.value:+.1f} ± {apart.error:.1f} "
                         "points")  # fmt: skip
    return lines


def _difference(one: Sequence[Row], other: Sequence[Row]) -> Mean:
    theirs = {row["seed"]: float(row["top1"]) for row in other}
    return Mean.of([float(row["top1"]) - theirs[row["seed"]] for row in one
                    if row["seed"] in theirs])  # fmt: skip


def _figure(data: str, rows: Sequence[Row], docs: Path) -> list[str]:
    panels = {}
    for model in _models(rows):
        whole = _chosen(rows, model, "unpruned", OFF_THE_SHELF)
        points = []
        for name, method in _names()[1:]:
            for mode in (OFF_THE_SHELF, AFTERWARDS):
                if seeds := _chosen(rows, model, name, mode):
                    value, error = _mean(seeds)
                    cost = _mean(seeds, "gmacs").value
                    points.append(Trained(method, cost, value, error, mode == AFTERWARDS))
        panels[model.partition("_patch")[0]] = (
            float(whole[0]["gmacs"]), _mean(whole).value, points)  # fmt: skip
    file = f"transfer-{data}.png"
    save(training_figure(panels, f"{data}, off the shelf and trained"), docs / file)
    shown = f"Transfer to {data}: accuracy against GMACs, dashed off the shelf, solid trained"
    return [f"![{shown}]({file})"]
