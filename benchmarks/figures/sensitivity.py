"""How sensitive is Zero-TPrune to its schedule? 100 random settings by rank (the paper's Fig. 18).

Each has a stage in each third of the blocks. The paper calls the method insensitive to the
schedule where there are more than two stages and their pruning rates vary little (G.5): those
settings are drawn dark. If that were all that mattered, they would lie on a line that is flat
within the error of one setting.
Command: python -m benchmarks.figures.sensitivity --out docs/sensitivity.png (from the rows of
"random settings")
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.claims import Row, models_of, signed
from benchmarks.figures.from_rows import asked, rows_of
from benchmarks.search.settings import BY_ACCURACY, BY_KL, rate_variation
from benchmarks.summary import SHORT
from zerotprune import Schedule
from zerotprune.plots.figures import COLORS, new_figure, save

REFERENCES = {"paper's ablation": "--", "early form": "-", BY_KL: ":", BY_ACCURACY: "-."}
#: standard deviation of the rates over their mean; the paper gives no number
LIMITS = (0.5, 0.25)
PATCHES = 196  # of all models that these rows are of


def _settings(rows: Sequence[Row]) -> list[Row]:
    """Return the random settings, best first."""
    settings = [row for row in rows if row["name"].startswith("setting ")]
    return sorted(settings, key=lambda row: -float(row["change"]))


def limited(rows: Sequence[Row], limit: float) -> list[Row]:
    """Return the settings that meet G.5's conditions."""
    evenly = []
    for row in rows:
        schedule = Schedule.from_json(row["schedule"])
        if len(schedule.stages) > 2 and rate_variation(schedule, PATCHES) <= limit:
            evenly.append(row)
    return evenly


def described(rows: Sequence[Row]) -> list[str]:
    """Describe the settings in numbers, with and without the paper's conditions."""
    lines = [
        "How much depends on the schedule? Random settings at the cost of the ablation's I + S, "
        "with a stage in each third of the blocks, and those of them that meet the conditions "
        "under which the paper calls the method insensitive (G.5, Fig. 18, no numbers): more than "
        "two stages, and a limited variance of their pruning rates. How limited is not said; here "
        "by their standard deviation (σ) as a share of their mean. Spread is the standard "
        "deviation of the changes; chance alone would give the error of one.\n",
        "| settings | how many | worst | median | best | spread | error of one |",
        "|---|---|---|---|---|---|---|",
    ]
    references = []
    for model in models_of(rows):
        of_model = [row for row in rows if row["model"] == model]
        short, every = SHORT.get(model, model), _settings(of_model)
        cases = {"all": every}
        cases |= {f"σ ≤ {limit:g} of the mean": limited(every, limit) for limit in LIMITS}
        for name, some in cases.items():
            if some:
                lines.append(f"| {short}, {name} | {_spread(some)} |")
        named = {row["name"]: signed(row) for row in of_model if row["name"] in REFERENCES}
        references.append(f"- {short}: " + "; ".join(f"{k} {v}" for k, v in named.items()))
    return [*lines, "", *references]


def _spread(rows: Sequence[Row]) -> str:
    changes = [float(row["change"]) for row in rows]
    error = statistics.fmean(float(row["change_error"]) for row in rows)
    cells = (min(changes), statistics.median(changes), max(changes))
    line = " | ".join(f"{cell:+.2f}" for cell in cells)
    return f"{len(changes)} | {line} | {statistics.pstdev(changes):.2f} | {error:.2f}"


def drawn(rows: Sequence[Row]) -> Figure:
    """Draw one panel per model."""
    models = models_of(rows)
    figure = new_figure(5.4 * len(models), 4.0)
    for axis, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        of_model = [row for row in rows if row["model"] == model]
        ranked = _settings(of_model)
        changes, errors = (
            [float(row[key]) for row in ranked] for key in ("change", "change_error")
        )
        axis.errorbar(range(1, len(ranked) + 1), changes, errors, fmt=".", ms=4, lw=0.6,
                      color="#999999", label=f"{len(ranked)} random settings")  # fmt: skip
        even = {row["name"] for row in limited(ranked, LIMITS[-1])}
        places = [at for at, row in enumerate(ranked, start=1) if row["name"] in even]
        axis.plot(places, [changes[at - 1] for at in places], "o", ms=4, color="#222222", zorder=3,
                  label=f"{len(even)} of even rates (σ ≤ {LIMITS[-1]:g})")  # fmt: skip
        for number, (name, dashes) in enumerate(REFERENCES.items()):
            for row in of_model:
                if row["name"] == name:
                    axis.axhline(float(row["change"]), ls=dashes, lw=1.4, color=COLORS[number],
                                 label=name)  # fmt: skip
        axis.set_title(f"{SHORT.get(model, model)} at {float(ranked[0]['gmacs']):.2f} GMACs, "
                       f"{ranked[0]['images']} images", fontsize=10)  # fmt: skip
        axis.set_xlabel("setting, by its rank")
        axis.set_ylabel("change in accuracy, points")
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8)
    return figure


def main() -> None:
    chosen = asked(__doc__, Path("sensitivity.png"))
    rows = rows_of("random settings", chosen.csv)
    for line in described(rows):
        print(line)
    save(drawn(rows), chosen.out)


if __name__ == "__main__":
    main()
