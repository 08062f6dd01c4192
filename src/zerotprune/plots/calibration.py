"""Plot a calibration: score distributions by rounds, divergence by block, VHF ranges."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ..calibrate.survey import EDGES, ROUNDS, SETTLED, BlockRounds, BlockSurvey
from ..calibrate.vhf import DEFAULT_VHF, Verdict
from .figures import COLORS, MARKERS, literal, new_figure, single_axis

#: fewest rounds first; dashes keep overlapping lines apart
DASHES = ("-", "--", "-.", ":")
PANELS = 6


def distributions_figure(blocks: Sequence[BlockSurvey], title: str) -> Figure:
    """Plot the distribution of importance after 1 to 50 rounds, in several blocks."""
    last = len(blocks) - 1
    chosen = sorted({round(last * at / (PANELS - 1)) for at in range(PANELS)})
    columns = min(3, len(chosen))
    edges, centers = EDGES.tolist(), (EDGES[1:] * EDGES[:-1]).sqrt().tolist()
    rows = -(-len(chosen) // columns)
    figure = new_figure(3.4 * columns, 2.7 * rows + 0.9)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for axis, number in zip(axes.flat, chosen, strict=False):
        counts = blocks[number].counts.sum(dim=0)
        shares = (100 * counts / counts.sum(dim=-1, keepdim=True)).tolist()
        axis.stairs(shares[-1], edges, fill=True, color="#CCCCCC", label=f"{SETTLED} rounds")
        for at, rounds in enumerate(ROUNDS[:-1]):
            axis.plot(centers, shares[at], color=COLORS[at], ls=DASHES[at], lw=1.6,
                      label=f"{rounds} round{'s' * (rounds > 1)}")  # fmt: skip
        axis.set_xscale("log")
        axis.set_xlim(edges[0], edges[-1])
        axis.set_title(f"block {number + 1}", fontsize=10)
        axis.grid(alpha=0.25)
    for axis in axes.flat[len(chosen) :]:
        axis.set_visible(False)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("importance, 1 is the mean")
    figure.supylabel("patch tokens, %", fontsize=10)
    figure.suptitle(literal(title), fontsize=11)
    return figure


def divergence_figure(rows: Sequence[BlockRounds], threshold: float, title: str) -> Figure:
    """Plot KL(importance after 50 rounds ‖ after r) by block, and the threshold."""
    figure, axis = single_axis(title)
    numbers = [row.block for row in rows]
    for at, rounds in enumerate(ROUNDS[:-1]):
        means = [row.divergence[at] for row in rows]
        # Exactly 0 has no place on a logarithmic axis.
        values = [mean.value or float("nan") for mean in means]
        errors = [mean.error for mean in means]
        axis.errorbar(numbers, values, errors, color=COLORS[at], marker=MARKERS[at],
                      ls=DASHES[at], ms=5, lw=1.4, capsize=2,
                      label=f"{rounds} round{'s' * (rounds > 1)}")  # fmt: skip
    limits = [threshold * row.spread.value for row in rows]
    axis.plot(numbers, limits, "k_", ms=16, mew=2, label=f"enough: {threshold:g} of the spread")
    axis.set_yscale("log")
    axis.set_xticks(numbers)
    for edge in (3.5, len(rows) - 2.5):  # the paper's three groups of blocks
        if 3.5 <= edge < len(rows):
            axis.axvline(edge, color="#999999", lw=1, ls=":")
    axis.set_xlabel("block (dotted: the paper's groups, 30–50, 5–10 and 1 rounds)")
    axis.set_ylabel(f"KL({SETTLED} rounds ‖ r rounds), nats")
    axis.legend(fontsize=8, ncols=2)
    return figure


def ranges_figure(verdict: Verdict, title: str) -> Figure:
    """Plot every range that was tried by its two bounds, colored by its result."""
    figure, axis = single_axis(title)
    low, high = zip(*verdict.trials, strict=True)
    scale = 100 if verdict.labels else 1
    values = [scale * value for value in verdict.trials.values()]
    drawn = axis.scatter(low, high, c=values, cmap="cividis", s=70, edgecolors="#444444", lw=0.6)
    marks = [(DEFAULT_VHF, "s", "default"), (verdict.best, "*", "best here")]
    for place, marker, label in marks:
        axis.plot(*place, marker, ms=19, mfc="none", mec="#D55E00", mew=1.8, ls="", label=label)
    axis.set_xscale("log")
    axis.set_yscale("log")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(LogLocator(subs=(1, 2, 5)))
        side.set_major_formatter("{x:g}")
        side.set_minor_formatter("")
    axis.set_xlabel("lowest variance of a head that counts")
    axis.set_ylabel("highest variance")
    figure.colorbar(drawn, label=f"{verdict.measure}, on {verdict.searched} images")
    axis.legend(fontsize=9, labelspacing=1.2, borderpad=0.9)
    return figure
