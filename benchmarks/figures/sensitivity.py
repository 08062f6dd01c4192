"""How sensitive is Zero-TPrune to its schedule? 100 random settings by rank (the paper's Fig. 18).

Each has a stage in each third of the blocks. If nothing else about the schedule mattered, the line
would be flat within the error of one setting.
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
from benchmarks.summary import SHORT
from zerotprune.plots.figures import COLOURS, new_figure, save

REFERENCES = {"paper's ablation": "--", "early form": "-", "searched": ":"}


def _settings(rows: Sequence[Row]) -> list[Row]:
    """Return the random settings, best first."""
    own = [row for row in rows if row["name"].startswith("setting ")]
    return sorted(own, key=lambda row: -float(row["change"]))


def described(rows: Sequence[Row]) -> list[str]:
    """Describe the settings in words, one line per model."""
    lines = [
        "How much depends on the schedule? Random settings at the cost of the ablation's I + S, "
        "with a stage in each third of the blocks. The paper's Fig. 18 draws 100 and prints no "
        "numbers; its settings also have a limited variance of pruning rates (G.5), which these "
        "need not have.\n"
    ]
    for model in models_of(rows):
        own = [row for row in rows if row["model"] == model]
        changes = [float(row["change"]) for row in _settings(own)]
        error = statistics.fmean(float(row["change_error"]) for row in _settings(own))
        named = {row["name"]: signed(row) for row in own if row["name"] in REFERENCES}
        lines.append(
            f"- {SHORT.get(model, model)}: {len(changes)} settings from {min(changes):+.2f} to "
            f"{max(changes):+.2f}, median {statistics.median(changes):+.2f}, spread (standard "
            f"deviation) {statistics.pstdev(changes):.2f}; the error of one is {error:.2f}. "
            + "; ".join(f"{name} {value}" for name, value in named.items())
            + "."
        )
    return lines


def drawn(rows: Sequence[Row]) -> Figure:
    """Draw one panel per model."""
    models = models_of(rows)
    figure = new_figure(5.4 * len(models), 4.0)
    for axis, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        own = [row for row in rows if row["model"] == model]
        ranked = _settings(own)
        changes, errors = (
            [float(row[key]) for row in ranked] for key in ("change", "change_error")
        )
        axis.errorbar(range(1, len(ranked) + 1), changes, errors, fmt=".", ms=4, lw=0.6,
                      color="#999999", label=f"{len(ranked)} random settings")  # fmt: skip
        for number, (name, dashes) in enumerate(REFERENCES.items()):
            for row in own:
                if row["name"] == name:
                    axis.axhline(float(row["change"]), ls=dashes, lw=1.4, color=COLOURS[number],
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
