"""All methods off the shelf, at matched budgets: the comparison that counts.

The paper (DeiT-S at 2.5 to 4 G, Table 2) has Zero-TPrune ahead of ATS and ToMe without training;
for large models at half of the cost it has ToMe ahead itself (Table 14). It does not speak of the
other methods here. Ours: DeiT-Ti and ViT-Ti at 0.85, 0.70, 0.55 and 0.45 of the unpruned cost, each
method set to the budget by its own knob, scoring included; where it cannot be, it is left out.
Command: python -m benchmarks.tables.off_the_shelf --shared DIR [--methods fold tome]. What it gave:
docs/results.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from benchmarks.inputs import measuring_images, parsed
from benchmarks.tables.table import Claim, Table, about, run, within_reach
from zerotprune import methods, schedule_for
from zerotprune.measure.accuracy import Contender

COSTS = (0.85, 0.7, 0.55, 0.45)


def table(name: str, doc: str, among: Sequence[str], models: Sequence[str] = ()) -> Table:
    """Of some methods; the paper's claims about those that it compares Zero-TPrune with."""

    def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
        wanted = [
            (
                f"{name} @ {cost:g}",
                partial(schedule_for, model, cost=cost, method=name, images=some),
            )
            for cost in COSTS
            for name in among
        ]
        return list(within_reach(wanted))

    if models:
        return Table(name, doc, contenders, models=models)
    return Table(name, doc, contenders, _claims(among) if "zero-tprune-paper" in among else ())


def _claims(among: Sequence[str]) -> tuple[Claim, ...]:
    """The paper's are about its own form of schedule; of ours the same is asked."""
    return tuple(
        Claim(f"Zero-TPrune{suffix} beats {name} at {cost:g}", f"{own} @ {cost:g}",
              f"{name} @ {cost:g}", ours=own == "zero-tprune")
        for own, suffix in (("zero-tprune-paper", ""), ("zero-tprune", ", early form,"))
        for cost in COSTS[:3]  # the paper goes to 0.55
        for name in ("ats", "tome")
        if name in among
    )  # fmt: skip


TABLE = table("off-the-shelf", about(__doc__), methods.names())


def main() -> None:
    options = measuring_images(__doc__)
    options.add_argument("--methods", nargs="+", choices=methods.names(), default=methods.names())
    chosen = parsed(options)
    run([table(TABLE.name, TABLE.about, chosen.methods)], chosen)


if __name__ == "__main__":
    main()
