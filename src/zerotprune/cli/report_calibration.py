"""What `calibrate` prints: rounds block by block beside the paper's, and what became of VHF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from ..calibrate.survey import ROUNDS, SETTLED, BlockRounds
from ..calibrate.vhf import DEFAULT, ENOUGH, Range, Verdict
from .console import new_table


def rounds_table(rows: Sequence[BlockRounds], title: str) -> Table:
    table = new_table(title)
    for column in ("block", "spread", *(f"r = {rounds}" for rounds in ROUNDS[:-1])):
        table.add_column(column, justify="right")
    for column in ("needed", "paper's", "verdict"):
        table.add_column(column)
    for row in rows:
        low, high = row.paper
        means = [f"{kl.value:.1e}" for kl in row.divergence]
        paper = f"{low}" if low == high else f"{low}–{high}"
        table.add_row(str(row.block), f"{row.spread.value:.3f}", *means, str(row.needed), paper,
                      row.verdict)  # fmt: skip
    return table


def rounds_lines(rows: Sequence[BlockRounds], threshold: float) -> list[str]:
    tally = Counter(row.verdict for row in rows)
    return [
        f"r: mean KL({SETTLED} rounds ‖ r rounds); spread: KL({SETTLED} rounds ‖ flat)",
        f"needed: the fewest rounds with a KL of at most {threshold:g} of the spread",
        f"the paper's rounds hold in {tally['holds']} of {len(rows)} blocks, are too many in "
        f"{tally['too many']} and too few in {tally['too few']}",
    ]


def vhf_lines(verdict: Verdict | None, head: bool) -> list[str]:
    if verdict is None:
        why = "the search was left out" if head else "the model has no head to search by"
        return [f"VHF range: the default, {_between(DEFAULT)}; {why}"]
    best, gain, judged = verdict.best, verdict.gain, verdict.judged
    tried = f"VHF range: {_between(best)} is the best of {len(verdict.trials)}"
    lines = [f"{tried} on {verdict.searched} images ({verdict.measure})"]
    if best == DEFAULT:
        return [*lines, "that is the default, so nothing has to be judged on the others"]
    scale = 100 if verdict.labels else 1
    own, default = scale * verdict.best_value.value, scale * verdict.default_value.value
    said = f"{scale * gain.value:+.3g} ± {scale * gain.error:.2g} (paired)"
    lines.append(f"on the other {judged}: {own:.4g}, the default {default:.4g}: {said}")
    if verdict.holds:
        return [*lines, f"that is more than two standard errors: {_between(best)} is recommended"]
    few = "too few images to tell" if judged < ENOUGH else "within two standard errors"
    return [*lines, f"{few}: the default, {_between(DEFAULT)}, is recommended"]


def _between(place: Range) -> str:
    return f"{place[0]:g} to {place[1]:g}"
