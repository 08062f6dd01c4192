"""What each part of Zero-TPrune contributes: random, WPR, + EIR, + VHF, + S.

The paper (DeiT-S, all of ImageNet) has each part add accuracy at about the same cost, for
Zero-TPrune and for Zero-TPrune-uni. Ours: DeiT-Ti and AugReg ViT-Ti on 2,000 images.
Command: python -m benchmarks.tables.contribution --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from benchmarks.tables.table import Claim, Table, about, main
from zerotprune import Schedule, ZeroTPrune
from zerotprune.measure.accuracy import Contender


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    i, both = Schedule.preset("ablation-i"), Schedule.preset("ablation-is")
    found = [Contender("random", i.by(ZeroTPrune(ranking="random")))]
    for full, suffix in ((ZeroTPrune(), ""), (ZeroTPrune(start="uniform"), ", uni")):
        eir = replace(full, vhf=None)
        plain = replace(eir, heads="mean")
        found += [
            Contender(f"WPR{suffix}", i.by(plain)),
            Contender(f"WPR + EIR{suffix}", i.by(eir)),
            Contender(f"WPR + EIR + VHF{suffix}", i.by(full)),
            Contender(f"WPR + EIR + VHF + S{suffix}", both.by(full)),
            Contender(f"WPR + EIR + S{suffix}", both.by(eir)),
        ]
    return found


TABLE = Table(
    "contribution",
    about(__doc__),
    contenders,
    (
        Claim("WPR beats random dropping", "WPR", "random"),
        Claim("EIR helps", "WPR + EIR", "WPR"),
        Claim("VHF helps", "WPR + EIR + VHF", "WPR + EIR"),
        Claim("the S-stage helps", "WPR + EIR + VHF + S", "WPR + EIR + VHF"),
        Claim("the CLS start helps", "WPR + EIR + VHF + S", "WPR + EIR + VHF + S, uni"),
    ),
)

if __name__ == "__main__":
    main(__doc__, [TABLE])
