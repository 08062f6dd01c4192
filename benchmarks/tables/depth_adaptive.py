"""DeiT-Ti at 0.9 G, beside methods that adapt its depth or its tokens and were trained for it.

In the paper (Table 12) Zero-TPrune has 70.4 % of 71.3 %, that is −0.9, without training. Ours: the
same budget on 2,000 images, in both forms of schedule, searched, and by Fold.
Command: python -m benchmarks.tables.depth_adaptive --shared DIR. Results: docs/results-appendix.md.
"""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.inputs import MODELS
from benchmarks.tables.printed import TABLE_12
from benchmarks.tables.table import Table, about, main
from zerotprune import ZeroTPrune, methods, schedule_for
from zerotprune.measure.accuracy import Contender

GMACS = 0.9


def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
    kinds = {
        "Zero-TPrune, paper's form": (ZeroTPrune(form="paper"), False),
        "Zero-TPrune": (ZeroTPrune(), False),
        "Zero-TPrune, searched": (ZeroTPrune(), True),
        "Fold": (methods.Fold(), False),
    }
    return [
        Contender(name, schedule_for(model, gmacs=GMACS, method=method, tuned=tuned))
        for name, (method, tuned) in kinds.items()
    ]


TABLE = Table("DeiT-T at 0.9 G", about(__doc__), contenders, models=tuple(MODELS)[:1],
              quoted=TABLE_12)  # fmt: skip

if __name__ == "__main__":
    main(__doc__, [TABLE])
