"""What a search adds, and how much depends on the schedule (the paper's Table 11 and Fig. 18).

The paper's search tries 2,000 settings by accuracy, each on 1,024 images drawn anew, and gains 0.1
points (79.4 to 79.5 %, DeiT-S), 0.2 for Zero-TPrune-uni (78.9 to 79.1 %). Its Fig. 18 shows 100
random settings without numbers. Ours, at the cost of the ablation's schedule I + S, two Monte-Carlo
searches on the 1,000 images of `tune`: "searched" is the best of 200 random settings by divergence
from the unpruned model; "searched as in the paper" that of 2,000 by accuracy, each on 1,024 images
drawn anew, with replacement, since there are no more than 1,000. Both are tested on `report`, as
are 100 settings with a stage in each third of the blocks.
Command: python -m benchmarks.search.settings --shared DIR; with --paper-trials 2000 the paper's
search too (a GPU: about a minute a model and start). Any other classifier: --model
deit_small_patch16_224 --weights FILE --data IMAGENET/val --tune IMAGENET/train. Results:
docs/results-appendix.md.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.inputs import (
    MODELS,
    TUNE,
    Bench,
    add_any_model,
    benches,
    measuring_images,
    parsed,
    say,
)
from benchmarks.tables.printed import SEARCH
from benchmarks.tables.table import Claim, Table, about, measure, preset_for
from zerotprune import Method, Schedule, ZeroTPrune, gmacs, restore_, schedule_for
from zerotprune.backbones import backbone
from zerotprune.measure.accuracy import Contender
from zerotprune.search.objective import Objective, Outcome, Stack

SETTINGS = "random settings"
STARTS: dict[str, Method] = {"I + S": ZeroTPrune(), "I + S, uni": ZeroTPrune(start="uniform")}
DRAWN = 1024  # images, anew for every setting of the paper's search
#: how the rows call what was found by divergence, and by accuracy
BY_KL, BY_ACCURACY = "searched", "searched as in the paper"
TABLE = Table(
    "what a search adds",
    about(__doc__),
    lambda model, some: [],
    (
        Claim("the paper's search helps", f"I + S, {BY_ACCURACY}", "I + S"),
        Claim("the paper's search helps, uni", f"I + S, uni, {BY_ACCURACY}", "I + S, uni"),
        Claim("the search helps", f"I + S, {BY_KL}", "I + S", ours=True),
        Claim("the search helps, uni", f"I + S, uni, {BY_KL}", "I + S, uni", ours=True),
    ),
    printed=SEARCH,
    anywhere="python -m benchmarks.search.settings --paper-trials 2000 --model "
    "deit_small_patch16_224 \\\n    --weights FILE --data IMAGENET/val --tune IMAGENET/train",
)


def add_options(to: argparse.ArgumentParser) -> None:
    add = to.add_argument
    add("--settings", type=int, default=100, help="random schedules; 0: only the search")
    add("--trials", type=int, default=200, help="of the search by divergence")
    add("--paper-trials", type=int, default=0, help="of the search by accuracy; 2,000 in the paper")
    add("--starts", nargs="+", choices=list(STARTS), default=list(STARTS), help="that are searched")


def main() -> None:
    options = measuring_images(__doc__)
    options.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    add_any_model(options)
    options.add_argument("--tune", type=Path, help="with --model: other images, to search on")
    add_options(options)
    chosen = parsed(options)
    for bench in benches(chosen.models, chosen):
        run(bench)


def run(bench: Bench) -> None:
    """Measure both tables on one model."""
    chosen, budget = bench.chosen, _budget(bench.model)
    results = {start: searched(bench, STARTS[start]) for start in chosen.starts}

    def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
        usual = preset_for(model, "ablation-is")
        rows = []
        for start, schedules in results.items():
            rows.append(Contender(start, usual.by(STARTS[start])))
            rows += [Contender(f"{start}, {how}", schedule) for how, schedule in schedules.items()]
        return rows

    measure(Table(TABLE.name, TABLE.about, contenders, TABLE.claims), bench)

    def settings(model: nn.Module, some: Tensor) -> list[Contender]:
        kept = (
            schedule for schedule in drawn(model, ZeroTPrune()) if evenly_spread(schedule, model)
        )
        best = next(iter(results.values()))
        return [
            Contender("paper's ablation", preset_for(model, "ablation-is")),
            Contender("early form", schedule_for(model, gmacs=budget, method=ZeroTPrune())),
            *(Contender(how, schedule) for how, schedule in best.items()),
            *(Contender(f"setting {number}", schedule)
              for number, schedule in enumerate(islice(kept, chosen.settings), start=1)),
        ]  # fmt: skip

    if chosen.settings:
        measure(Table(SETTINGS, "", settings), bench)


def _budget(model: nn.Module) -> float:
    """Return the cost of the paper's ablation, I + S."""
    return gmacs(model, preset_for(model, "ablation-is"))


def drawn(model: nn.Module, method: Method) -> Iterator[Schedule]:
    """Yield random schedules of the budget, always the same ones."""
    # The other parts of a whole run can do without Optuna.
    import optuna

    from zerotprune.search.surface import surface_of

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    surface, budget = surface_of(backbone(model).geometry, method), _budget(model)
    space = dict(surface.space(budget))
    for number in count():
        # A study that grows would take ever longer to ask.
        seed = random.Random(f"0 setting {number}").randrange(2**32)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        yield surface.propose(study.ask(space).params, budget)


def evenly_spread(schedule: Schedule, model: nn.Module) -> bool:
    """Is there a stage in each third of the blocks?"""
    depth = backbone(model).geometry.depth
    return len({(stage.block - 1) * 3 // depth for stage in schedule.stages}) == 3


def rate_variation(schedule: Schedule, patches: int) -> float:
    """Return the standard deviation of the stages' pruning rates, as a share of their mean.

    G.5 asks for more than two stages and a limited variance of these rates: how limited, it does
    not say.

    >>> from zerotprune import Stage
    >>> rate_variation(Schedule((Stage(3, 0.5), Stage(6, 0.5), Stage(9, 0.5))), 64)
    0.0
    >>> round(rate_variation(Schedule((Stage(3, 0.5), Stage(6, 0.75), Stage(9, 0.75))), 64), 2)
    0.35
    """
    rates = []
    for stage in schedule.stages:
        kept = schedule.method.kept(stage, patches)
        rates.append(1 - kept / patches)
        patches = kept
    mean = statistics.fmean(rates)
    return statistics.pstdev(rates) / mean if mean else 0.0


def searched(bench: Bench, method: Method) -> dict[str, Schedule]:
    """Return the best settings of both searches, which draw the same ones, on `tune`."""
    chosen, batches = bench.chosen, bench.batches(TUNE)
    # Large batches: a GPU waits for Python otherwise.
    images = list(torch.cat([images for images, _, _ in batches]).to(chosen.device).split(1000))
    best_by = {}
    objective = Objective(bench.model, method, Stack(images, None), memory=2e9)
    say(f"{bench.name}: {chosen.trials} settings by divergence")
    schedules = islice(drawn(bench.model, method), chosen.trials)
    best_by[BY_KL] = min(schedules, key=lambda schedule: objective(schedule).mean_kl)
    if chosen.paper_trials:
        labels = list(torch.cat([labels for _, labels, _ in batches]).split(1000))
        model = restore_(bench.model)
        if chosen.device != "cpu":  # the search alone: its winner is measured in float32
            model, images = copy.deepcopy(model).half(), [batch.half() for batch in images]
        accuracy = Objective(model, method, Stack(images, labels), memory=8e9)
        say(f"{bench.name}: {chosen.paper_trials} settings by accuracy")
        schedules = islice(drawn(bench.model, method), chosen.paper_trials)
        best = max(
            enumerate(schedules), key=lambda numbered: hit_rate(accuracy(numbered[1]), numbered[0])
        )
        best_by[BY_ACCURACY] = best[1]
    return best_by


def hit_rate(outcome: Outcome, number: int) -> float:
    """Return the accuracy on 1,024 images drawn anew for this setting, with replacement."""
    assert outcome.hits is not None
    among = len(outcome.hits)
    draw = torch.randint(among, (DRAWN,), generator=torch.Generator().manual_seed(number))
    return float(outcome.hits[draw].double().mean())


if __name__ == "__main__":
    main()
