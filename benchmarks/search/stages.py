"""Fold's schedule by few stages: where they stand, how many, and by which importance; on `tune`.

Stages are spaced evenly from a first to a last block, and each folds the same share of its tokens.
For every cost, number of stages, first and last block: the divergence from the unpruned model (KL
of the logits; 1 − cosine of the features where there is no head), as CSV on standard output.
Command: python -m benchmarks.search.stages --shared DIR (a GPU; some minutes). On a CPU, with
--importances --precision float32 --limit 300: only how tokens are weighed, in some minutes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.inputs import DINOV2, MODELS, TUNE, add_shared, decoded, parser, real_model
from zerotprune import Schedule, Stage, prune_, restore_, schedule_for
from zerotprune.backbones import backbone
from zerotprune.cost import Geometry
from zerotprune.methods import Fold, Method
from zerotprune.methods.fold import Importance
from zerotprune.plan import Plan

COSTS = (0.85, 0.8, 0.7, 0.6, 0.55, 0.45, 0.35)
COUNTS = (3, 4, 5, 6, 7)
FIRSTS = (2, 3, 4, 5, 6, 7)
LASTS = (9, 10, 11)
IMPORTANCES: tuple[Importance, ...] = ("both", "cls", "rows", "pooled", "received")


def main() -> None:
    options = parser(__doc__)
    add_shared(options)
    options.add_argument("--only", nargs="+", default=[*MODELS, DINOV2])
    options.add_argument("--precision", default="float16")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--importances", action="store_true", help="only with stages at 5 to 10")
    chosen = options.parse_args()
    device, precision = chosen.device, getattr(torch, chosen.precision)
    print("model,cost,stages,first,last,importance,divergence,counts")
    for name in chosen.only:
        model = real_model(name, chosen)
        batches = decoded(model, chosen.shared / TUNE, 500, chosen.limit)
        model = model.to(device, precision)
        images = [batch.to(device, precision) for batch, _, _ in batches]
        for row in rows(model, images, [] if chosen.importances else COUNTS):
            print(name, *row, sep=",", flush=True)


def rows(
    model: nn.Module, images: Sequence[Tensor], numbers: Sequence[int] = COUNTS
) -> Iterator[tuple[object, ...]]:
    geometry = backbone(model).geometry
    restore_(model)
    exact = [answer(model, batch) for batch in images]

    def divergence(schedule: Schedule) -> str:
        prune_(model, schedule)
        divergences = [diverge(answer(model, batch), whole) for batch, whole in
                 zip(images, exact, strict=True)]  # fmt: skip
        return f"{float(torch.cat(divergences).mean()):.5f}"

    for cost in COSTS:
        formula = schedule_for(model, cost=cost, method="fold")
        yield cost, len(formula.stages), "formula", "", "both", divergence(formula), counts(formula)
        for number, first, last in itertools.product(numbers, FIRSTS, LASTS):
            if last - first + 1 < number:
                continue
            schedule = solve(places(number, first, last), cost, geometry, Fold())
            if schedule is not None:
                kl = divergence(schedule)
                yield cost, number, first, last, "both", kl, counts(schedule)
        for importance in IMPORTANCES:
            method = Fold(importance=importance)
            schedule = solve(places(5, 5, 10), cost, geometry, method)
            if schedule is not None:
                yield cost, 5, 5, 10, importance, divergence(schedule), counts(schedule)


def answer(model: nn.Module, images: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(images).float()  # type: ignore[no-any-return]


def diverge(pruned: Tensor, whole: Tensor) -> Tensor:
    if whole.shape[1] != 1000:
        return 1 - F.cosine_similarity(pruned, whole)
    logs = pruned.log_softmax(dim=1), whole.log_softmax(dim=1)
    return F.kl_div(*logs, reduction="none", log_target=True).sum(dim=1)


def counts(schedule: Schedule) -> str:
    return " ".join(f"{stage.block}:{stage.similar}" for stage in schedule.stages)


def places(number: int, first: int, last: int) -> list[int]:
    return [round(first + (last - first) * step / (number - 1)) for step in range(number)]


def staged(blocks: Sequence[int], share: float, patches: int, method: Method) -> Schedule:
    left, exact, stages = patches, float(patches), []
    for block in blocks:
        exact *= 1 - share
        similar = min(left - round(exact), left // 2)
        stages.append(Stage(block, similar=similar))
        left -= similar
    return Schedule(tuple(stage for stage in stages if stage.similar), method)


def solve(
    blocks: Sequence[int], cost: float, geometry: Geometry, method: Method
) -> Schedule | None:
    """Return the share by which stages at these blocks meet the cost; None if none does."""
    whole, low, high = Plan(Schedule(), geometry).gmacs(), 0.0, 0.5
    if (
        Plan(staged(blocks, high, geometry.patches, method), geometry).gmacs()
        > 1.005 * cost * whole
    ):
        return None
    for _ in range(30):
        middle = (low + high) / 2
        gmacs = Plan(staged(blocks, middle, geometry.patches, method), geometry).gmacs()
        low, high = (middle, high) if gmacs > cost * whole else (low, middle)
    return staged(blocks, high, geometry.patches, method)


if __name__ == "__main__":
    main()
