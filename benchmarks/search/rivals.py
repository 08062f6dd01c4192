"""How the rivals are set: choices that their authors leave to the user, made on `tune`.

ToMe spreads its r by `inflect`; EViT has a fused token or none; DiffRate has counts down to a
budget and none below; MCTF, before attention or after it, takes its own even counts or Fold's, and
so can ToMe; ATC has three linkages. For each cost: the divergence from the unpruned model (KL of
the logits, mean over the first images of `tune`) as CSV on standard output, with how many tokens go
where.
Command: python -m benchmarks.search.rivals --shared DIR --limit 500.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.inputs import MODELS, TUNE, add_shared, decoded, parser, real_model
from benchmarks.search.stages import answer, diverge
from zerotprune import Method, Schedule, prune_, restore_, schedule_for
from zerotprune.methods import ATC, MCTF, DiffRate, EarlyMCTF, EViT, Fold, PiToMe, ToMe

METHODS: dict[str, Method] = {
    "fold": Fold(),
    "tome, inflect +1": ToMe(inflect=1),
    "tome, inflect 0": ToMe(inflect=0),
    "tome, inflect -1": ToMe(inflect=-1),
    "mctf": EarlyMCTF(),
    "mctf-fold": EarlyMCTF(counts="fold"),
    "mctf-after": MCTF(),
    "mctf-after, not proportional": MCTF(proportional=False),
    "mctf-after-fold": MCTF(counts="fold"),
    "pitome": PiToMe(),
    "atc, average linkage": ATC(),
    "atc, complete linkage": ATC(linkage="complete"),
    "atc, single linkage": ATC(linkage="single"),
    "diffrate": DiffRate(),
    "evit": EViT(),
    "evit-drop": EViT(fuses=False),
}


def main() -> None:
    options = parser(__doc__)
    add_shared(options)
    options.add_argument("--only", nargs="+", default=list(MODELS), help="models")
    options.add_argument("--costs", nargs="+", type=float, default=[0.85, 0.7, 0.62, 0.55, 0.45])
    options.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = options.parse_args()
    print("model,cost,method,kl,error,counts")
    for name in chosen.only:
        model = real_model(name, chosen)
        batches = decoded(model, chosen.shared / TUNE, 50, chosen.limit)
        model = model.to(chosen.device)
        images = [batch.to(chosen.device) for batch, _, _ in batches]
        restore_(model)
        exact = torch.cat([answer(model, batch) for batch in images])
        for cost in chosen.costs:
            for method, schedule in schedules(model, cost, chosen.methods):
                prune_(model, schedule)
                logits = torch.cat([answer(model, batch) for batch in images])
                apart = diverge(logits, exact)
                error = float(apart.std() / len(apart) ** 0.5)
                print(name, cost, f'"{method}"', f"{float(apart.mean()):.4f}", f"{error:.4f}",
                      describe(schedule), sep=",", flush=True)  # fmt: skip


def schedules(model: nn.Module, cost: float, methods: list[str]) -> Iterator[tuple[str, Schedule]]:
    """Return the methods at this cost, and ToMe by Fold's counts; leave out those that cannot meet
    it."""
    for name in methods:
        try:
            yield name, schedule_for(model, cost=cost, method=METHODS[name])
        except ValueError as error:
            print(f"# {name} at {cost}: {error}")
    if "fold" in methods:
        yield "tome by fold's counts", schedule_for(model, cost=cost, method="fold").by("tome")


def describe(schedule: Schedule) -> str:
    return " ".join(f"{stage.block}:{stage.keep:g}-{stage.similar}" for stage in schedule.stages)


if __name__ == "__main__":
    main()
