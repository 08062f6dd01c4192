"""Settings that the paper allows for its comparisons, drawn by chance, and rules among them.

Sec. 4.2 leaves the number and the blocks of the stages free and asks for shares that are constant
or decline uniformly, and for the same S count in each stage. G.5 adds two conditions under which
settings differ little: more than two stages, and rates of limited variance. It compares with a
setting of about average performance among searched ones, close to one rate in all stages. So here:
3 to 6 stages at any blocks but the last, 1 to 20 similar tokens of 196 in each, shares constant or
declining along a line, and per stage a share of tokens gone (S and I together) whose standard
deviation is at most half of its mean; at a budget, met within half a percent.

Beside the draws stand rules that give a setting for every budget, each with the percentage of draws
that it beats by accuracy. `zero-tprune-paper` took the rule nearest to the mean of the draws over
both models and costs: five stages, one rate. As CSV on standard output: top-1 and KL to the
unpruned model on the first images of `tune`. Results: docs/budgets.md.
Command: python -m benchmarks.search.paper_settings --shared DIR --limit 250 --settings 20.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import nn

from benchmarks.inputs import MODELS, TUNE, add_shared, decoded, parser, real_model
from benchmarks.search.stages import answer, diverge
from zerotprune import Schedule, Stage, ZeroTPrune, prune_, restore_, schedule_for
from zerotprune.backbones import backbone
from zerotprune.budgets.solving import TOLERANCE, bisect
from zerotprune.cost import Geometry
from zerotprune.plan import Plan

METHOD = ZeroTPrune(form="paper")
#: the largest standard deviation of the stages' rates, in their mean
SPREAD = 0.5
#: blocks, similar tokens of 196, slope of the rates: 0 is one rate, 1 goes from 0 to twice the mean
RULES: dict[str, tuple[tuple[int, ...], int, float]] = {
    "3 6 9, similar 10, one rate": ((3, 6, 9), 10, 0.0),
    "2 5 8 11, similar 10, one rate": ((2, 5, 8, 11), 10, 0.0),
    "3 5 7 9, similar 10, one rate": ((3, 5, 7, 9), 10, 0.0),
    "2 4 6 8 10, similar 10, one rate": ((2, 4, 6, 8, 10), 10, 0.0),
    "1 3 6 9 11, similar 10, one rate": ((1, 3, 6, 9, 11), 10, 0.0),
    "1 3 6 9 11, similar 10, declining": ((1, 3, 6, 9, 11), 10, 1.0),
}


def main() -> None:
    options = parser(__doc__)
    add_shared(options)
    options.add_argument("--only", nargs="+", default=list(MODELS), help="models")
    options.add_argument("--costs", nargs="+", type=float, default=[0.7, 0.55])
    options.add_argument("--settings", type=int, default=20, help="how many are drawn")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = options.parse_args()
    print("model,cost,setting,top1,change,kl,better_than_percent,stages")
    for name in chosen.only:
        model = real_model(name, chosen)
        batches = decoded(model, chosen.shared / TUNE, 50, chosen.limit)
        model = model.to(chosen.device)
        images = [batch.to(chosen.device) for batch, _, _ in batches]
        labels = torch.cat([labels for _, labels, _ in batches]).to(chosen.device)
        restore_(model)
        exact = torch.cat([answer(model, batch) for batch in images])
        unpruned = accuracy(exact, labels)
        for cost in chosen.costs:
            schedules = settings(model, cost, chosen.settings)
            measured = []
            for setting, schedule in schedules:
                prune_(model, schedule)
                logits = torch.cat([answer(model, batch) for batch in images])
                kl = float(diverge(logits, exact).mean())
                measured.append((setting, accuracy(logits, labels), kl, schedule))
            drawn = [top1 for setting, top1, _, _ in measured if setting.startswith("drawn")]
            kls = [kl for setting, _, kl, _ in measured if setting.startswith("drawn")]
            for setting, top1, kl, schedule in measured:
                rank = (
                    100 * sum((top1 > other) + (top1 == other) / 2 for other in drawn) / len(drawn)
                )
                print(name, cost, f'"{setting}"', f"{top1:.2f}", f"{top1 - unpruned:+.2f}",
                      f"{kl:.4f}", f"{rank:.0f}", describe(schedule), sep=",",
                      flush=True)  # fmt: skip
            mean, deviation = statistics.mean(drawn), statistics.pstdev(drawn)
            kl = statistics.mean(kls)
            print(name, cost, '"mean of the draws"', f"{mean:.2f}", f"{mean - unpruned:+.2f}",
                  f"{kl:.4f}", f"±{deviation:.2f}", sep=",", flush=True)  # fmt: skip


def settings(model: nn.Module, cost: float, count: int) -> Iterator[tuple[str, Schedule]]:
    """Return the rules, the form of `zero-tprune-paper` and random draws, all at this cost."""
    geometry = backbone(model).geometry
    yield "zero-tprune-paper", schedule_for(model, cost=cost, method=METHOD)
    for name, (blocks, similar, slope) in RULES.items():
        schedule = solved(geometry, cost, blocks, similar, slope)
        if schedule is not None:
            yield name, schedule
    draws = draw(geometry, cost)
    for number in range(1, count + 1):
        yield f"drawn {number}", next(draws)


def draw(geometry: Geometry, cost: float) -> Iterator[Schedule]:
    """Yield random settings under the conditions, always the same ones at a cost."""
    chance = random.Random(f"settings at {cost}")
    while True:
        blocks = sorted(chance.sample(range(1, geometry.depth), chance.randint(3, 6)))
        similar = chance.randint(1, 20)
        slope = chance.choice((0.0, chance.random()))
        schedule = solved(geometry, cost, blocks, similar, slope)
        if schedule is not None and spread(schedule, geometry.patches) <= SPREAD:
            yield schedule


def solved(
    geometry: Geometry, cost: float, blocks: Sequence[int], similar: int, slope: float
) -> Schedule | None:
    """Return these stages with the mean rate that meets the cost; None if none does."""
    target = cost * Plan(Schedule(), geometry).gmacs()
    hit = bisect(partial(_turn, geometry, blocks, similar, slope), target)
    return hit.setting if hit is not None and hit.miss <= TOLERANCE / 2 else None


def _turn(
    geometry: Geometry, blocks: Sequence[int], similar: int, slope: float, cut: float
) -> tuple[Schedule, float] | None:
    last = len(blocks) - 1
    rates = [cut * (1 + slope * (2 * step / last - 1)) for step in range(len(blocks))]
    if max(rates) >= 1:
        return None
    stages = (
        Stage(block, round(1 - rate, 4), similar) for block, rate in zip(blocks, rates, strict=True)
    )
    schedule = Schedule(tuple(stages), METHOD)
    gmacs = Plan(schedule, geometry).price()
    return None if gmacs is None else (schedule, gmacs)


def spread(schedule: Schedule, patches: int) -> float:
    """Return the standard deviation of the stages' shares of tokens removed, relative to their
    mean."""
    rates = []
    for stage in schedule.stages:
        left = stage.kept(patches)
        rates.append(1 - left / patches)
        patches = left
    return statistics.pstdev(rates) / statistics.mean(rates)


def accuracy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Return top-1 in percent."""
    return float(100 * (logits.argmax(dim=1) == labels).double().mean())


def describe(schedule: Schedule) -> str:
    return " ".join(f"{stage.block}:{stage.keep:g}-{stage.similar}" for stage in schedule.stages)


if __name__ == "__main__":
    main()
