"""Similar tokens first or unimportant tokens first: I′ → S → I against I → S.

The paper says that in I → S a large background overwhelms a small object, and that I′ → S → I
fixes it. With the same schedule I → S leaves fewer tokens, so it also runs at the same cost.
Command: python -m benchmarks.tables.order --shared DIR. Results: docs/results-appendix.md.
"""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.tables.table import ALL_IMAGES, Claim, Table, about, main, on_any_model, preset_for
from zerotprune import ZeroTPrune, gmacs, schedule_for
from zerotprune.measure.accuracy import Contender


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    schedule, reverse = preset_for(model, "ablation-is"), ZeroTPrune(order="i-s", form="paper")
    return [
        Contender("I′ → S → I", schedule),
        Contender("I → S, same schedule", schedule.by(reverse)),
        Contender(
            "I → S, same cost",
            schedule_for(model, gmacs=gmacs(model, schedule), method=reverse),
        ),
    ]


TABLE = Table(
    "order",
    about(__doc__),
    contenders,
    (
        Claim("I′ → S → I beats I → S on the same schedule", "I′ → S → I", "I → S, same schedule"),
        Claim("I′ → S → I beats I → S at the same cost", "I′ → S → I", "I → S, same cost"),
    ),
    data=ALL_IMAGES,
    anywhere=on_any_model("order"),
)

if __name__ == "__main__":
    main(__doc__, [TABLE])
