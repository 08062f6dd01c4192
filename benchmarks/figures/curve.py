"""How far a model can be pruned: Fold and Zero-TPrune at every cost, both models in one figure.

The paper's answer is to take a smaller model below half of the cost. Expected: Fold stays near zero
down to about 0.6 and then falls, Zero-TPrune falls earlier.
Command: python -m benchmarks.figures.curve --out docs/curve.png (from the rows of "curve")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.claims import Row, models_of
from benchmarks.figures.from_rows import asked, rows_of
from benchmarks.summary import SHORT
from zerotprune.plots.figures import save, single_axis, style_of


def drawn(rows: Sequence[Row]) -> Figure:
    """Draw a line for each method and model: colors are methods, dashes the second model."""
    images = rows[0]["images"]
    figure, axis = single_axis(f"How far can it be pruned? {images} images, no search")
    names = list(dict.fromkeys(row["name"].partition(" @")[0] for row in rows if row["schedule"]))
    for model, dashes in zip(models_of(rows), ("-", "--", ":"), strict=False):
        of_model = [row for row in rows if row["model"] == model]
        unpruned = float(next(row["gmacs"] for row in of_model if not row["schedule"]))
        for number, name in enumerate(names):
            line = sorted((float(row["gmacs"]) / unpruned, float(row["change"]),
                           float(row["change_error"])) for row in of_model
                          if row["name"].partition(" @")[0] == name)  # fmt: skip
            cost, change, error = zip(*line, strict=True)
            label = f"{name}, {SHORT.get(model, model)}"
            axis.errorbar(cost, change, error, ls=dashes, ms=4, capsize=2, lw=1.6, label=label,
                          **style_of(number))  # fmt: skip
    axis.axhline(0, color="#444444", lw=1, ls=":")
    axis.set_xlabel("cost, as a share of the unpruned model's")
    axis.set_ylabel("change in accuracy, points (paired standard error)")
    axis.set_ylim(bottom=max(-30.0, axis.get_ylim()[0]))
    axis.legend(fontsize=8, ncols=2)
    return figure


def main() -> None:
    chosen = asked(__doc__, Path("curve.png"))
    save(drawn(rows_of("curve", chosen.csv)), chosen.out)


if __name__ == "__main__":
    main()
