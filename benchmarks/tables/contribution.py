"""What each part of Zero-TPrune contributes: random, WPR, + EIR, + VHF, + S.

In the paper (DeiT-S, 3.08 G) each part adds accuracy, for Zero-TPrune and for Zero-TPrune-uni. Its
text has the whole method lose over 60 % less than random dropping. Its schedule with the I-stage
alone costs 2 % less than the one with both stages, so here it also runs at the cost of both. Ours:
DeiT-Ti and AugReg ViT-Ti; random is the mean of five draws per image.
Command: python -m benchmarks.tables.contribution --shared DIR --timed. Any other classifier:
--model deit_small_patch16_224 --weights FILE --data IMAGENET/val. Results:
docs/results-appendix.md.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from benchmarks.tables.printed import CONTRIBUTION
from benchmarks.tables.table import (
    ALL_IMAGES,
    Claim,
    Table,
    about,
    draws,
    main,
    on_any_model,
    preset_for,
    solved,
)
from zerotprune import Schedule, ZeroTPrune, gmacs
from zerotprune.measure.accuracy import Contender


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    i, both = preset_for(model, "ablation-i"), preset_for(model, "ablation-is")
    chance = ZeroTPrune(ranking="random", draw="image")
    contenders = draws(lambda seed: Contender("random", i.by(replace(chance, seed=seed))))
    for full, suffix in ((ZeroTPrune(), ""), (ZeroTPrune(start="uniform"), ", uni")):
        eir = replace(full, vhf=None)
        plain = replace(eir, heads="mean")
        contenders += [
            Contender(f"WPR{suffix}", i.by(plain)),
            Contender(f"WPR + EIR{suffix}", i.by(eir)),
            Contender(f"WPR + EIR + VHF{suffix}", i.by(full)),
            Contender(f"WPR + EIR + VHF, cost of I + S{suffix}", costing(model, both, i).by(full)),
            Contender(f"WPR + EIR + VHF + S{suffix}", both.by(full)),
            Contender(f"WPR + EIR + S{suffix}", both.by(eir)),
        ]
    return contenders


def costing(model: nn.Module, target: Schedule, schedule: Schedule) -> Schedule:
    """Return the schedule with less pruned in every stage, at the cost of `target`."""

    def turn(at: float) -> tuple[Schedule, float]:
        stages = [replace(stage, keep=1 - at * (1 - stage.keep)) for stage in schedule.stages]
        eased = Schedule(tuple(stages), schedule.method)
        return eased, gmacs(model, eased)

    return solved(turn, gmacs(model, target), within=0.005)


TABLE = Table(
    "contribution",
    about(__doc__),
    contenders,
    (
        Claim("WPR beats random dropping", "WPR", "random"),
        Claim("Zero-TPrune loses 60 % less than random dropping", "WPR + EIR + VHF + S", "random",
              less=0.6),
        Claim("EIR helps", "WPR + EIR", "WPR"),
        Claim("VHF helps", "WPR + EIR + VHF", "WPR + EIR"),
        Claim("the S-stage helps", "WPR + EIR + VHF + S", "WPR + EIR + VHF"),
        Claim("the S-stage helps at the same cost", "WPR + EIR + VHF + S",
              "WPR + EIR + VHF, cost of I + S"),
        Claim("the CLS start helps", "WPR + EIR + VHF + S", "WPR + EIR + VHF + S, uni"),
    ),
    printed=CONTRIBUTION,
    data=ALL_IMAGES,
    anywhere=on_any_model("contribution", "--timed"),
    timed=True,
)  # fmt: skip

if __name__ == "__main__":
    main(__doc__, [TABLE])
