"""What a search adds, and how much depends on the schedule (the paper's Table 11 and Fig. 18).

The paper's search tries 2,000 settings by accuracy, each on 1,024 images drawn anew, and gains 0.1
points (79.4 to 79.5 %, DeiT-S), 0.2 for Zero-TPrune-uni (78.9 to 79.1 %). Its Fig. 18 shows 100
random settings without numbers. Ours, at the cost of the ablation's schedule I + S: a Monte-Carlo
search over 200 random settings, the choice made on the 1,000 images of `tune` by divergence from
the unpruned model; and 100 settings with a stage in each third of the blocks, on `report`.
Command: python -m benchmarks.search.settings --shared DIR. Results: docs/results-appendix.md.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from itertools import count, islice

from torch import Tensor, nn

from benchmarks.inputs import MODELS, TUNE, Bench, measuring_images, parsed, say
from benchmarks.tables.printed import SEARCH
from benchmarks.tables.table import Claim, Table, about, measure
from zerotprune import Method, Schedule, ZeroTPrune, gmacs, schedule_for
from zerotprune.backbones import backbone
from zerotprune.measure.accuracy import Contender
from zerotprune.search.objective import Objective, Stack

SETTINGS = "random settings"
METHODS: dict[str, Method] = {"I + S": ZeroTPrune(), "I + S, uni": ZeroTPrune(start="uniform")}
TABLE = Table(
    "what a search adds",
    about(__doc__),
    lambda model, some: [],
    (
        Claim("the search helps", "I + S, searched", "I + S"),
        Claim("the search helps, uni", "I + S, uni, searched", "I + S, uni"),
    ),
    printed=SEARCH,
)


def add_options(to: argparse.ArgumentParser) -> None:
    to.add_argument("--settings", type=int, default=100, help="random schedules")
    to.add_argument("--trials", type=int, default=200, help="of the Monte-Carlo search")


def main() -> None:
    options = measuring_images(__doc__)
    add_options(options)
    chosen = parsed(options)
    for name in MODELS:
        run(Bench(name, chosen))


def run(bench: Bench) -> None:
    """Both tables, on one model."""
    chosen, budget = bench.chosen, _budget(bench.model)
    found = {name: searched(bench, method) for name, method in METHODS.items()}

    def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
        usual = Schedule.preset("ablation-is")
        rows = []
        for name, method in METHODS.items():
            rows += [Contender(name, usual.by(method)), Contender(f"{name}, searched", found[name])]
        return rows

    measure(Table(TABLE.name, TABLE.about, contenders, TABLE.claims), bench)

    def settings(model: nn.Module, some: Tensor) -> list[Contender]:
        kept = (each for each in drawn(model, ZeroTPrune()) if evenly_spread(each, model))
        return [
            Contender("paper's ablation", Schedule.preset("ablation-is")),
            Contender("early form", schedule_for(model, gmacs=budget, method=ZeroTPrune())),
            Contender("searched", found["I + S"]),
            *(Contender(f"setting {number}", schedule)
              for number, schedule in enumerate(islice(kept, chosen.settings), start=1)),
        ]  # fmt: skip

    measure(Table(SETTINGS, "", settings), bench)


def _budget(model: nn.Module) -> float:
    """The cost of the paper's ablation, I + S."""
    return gmacs(model, Schedule.preset("ablation-is"))


def drawn(model: nn.Module, method: Method) -> Iterator[Schedule]:
    """One random schedule of the budget after the other, always the same ones."""
    # The other parts of a whole run can do without Optuna.
    import optuna

    from zerotprune.search.surface import surface_of

    surface, budget = surface_of(backbone(model).geometry, method), _budget(model)
    study = optuna.create_study()
    for number in count():
        seed = random.Random(f"0 setting {number}").randrange(2**32)
        study.sampler = optuna.samplers.RandomSampler(seed=seed)
        yield surface.propose(study.ask(dict(surface.space(budget))).params, budget)


def evenly_spread(schedule: Schedule, model: nn.Module) -> bool:
    """Is there a stage in each third of the blocks?"""
    depth = backbone(model).geometry.depth
    return len({(stage.block - 1) * 3 // depth for stage in schedule.stages}) == 3


def searched(bench: Bench, method: Method) -> Schedule:
    """Of so many random schedules the one that diverges least, on `tune`."""
    images = [images.to(bench.chosen.device) for images, _, _ in bench.held(TUNE)]
    divergence = Objective(bench.model, method, Stack(images, None), memory=2e9)
    schedules: Sequence[Schedule] = list(islice(drawn(bench.model, method), bench.chosen.trials))
    say(f"{bench.name}: {len(schedules)} trials of a search")
    return min(schedules, key=lambda each: divergence(each).mean_kl)


if __name__ == "__main__":
    main()
