"""What each part of Zero-TPrune contributes: random, WPR, + EIR, + VHF, + S.

The paper (DeiT-S, all of ImageNet) has each part add accuracy at about the same cost, for
Zero-TPrune and for Zero-TPrune-uni. Ours: DeiT-Ti and AugReg ViT-Ti on 2,000 pictures.
Command: python benchmarks/contribution.py --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

from table import Claim, Table, main
from torch import Tensor, nn

from zerotprune import Schedule, ZeroTPrune
from zerotprune.budgets.contenders import Contender


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    i, both = Schedule.preset("ablation-i"), Schedule.preset("ablation-is")
    found = [Contender("random", i, ZeroTPrune(ranking="random"))]
    for start, suffix in (("auto", ""), ("uniform", ", uni")):
        plain = ZeroTPrune(start=start, heads="mean", vhf=None)  # type: ignore[arg-type]
        eir = ZeroTPrune(start=start, vhf=None)  # type: ignore[arg-type]
        full = ZeroTPrune(start=start)  # type: ignore[arg-type]
        found += [
            Contender(f"WPR{suffix}", i, plain),
            Contender(f"WPR + EIR{suffix}", i, eir),
            Contender(f"WPR + EIR + VHF{suffix}", i, full),
            Contender(f"WPR + EIR + VHF + S{suffix}", both, full),
            Contender(f"WPR + EIR + S{suffix}", both, eir),
        ]
    return found


TABLE = Table(
    "contribution",
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
