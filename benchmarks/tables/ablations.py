"""One option of Zero-TPrune at a time: features, partition and metric of the S-stage, the ranking.

A table for each option, all values with one schedule, on DeiT-Ti and ViT-Ti. Random variants are
the mean of five draws per image.
Command: python -m benchmarks.tables.ablations --shared DIR --timed. Any other classifier:
--model deit_small_patch16_224 --weights FILE --data IMAGENET/val. Results:
docs/results-appendix.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from torch import Tensor, nn

from benchmarks.tables import printed
from benchmarks.tables.printed import Printed
from benchmarks.tables.table import ALL_IMAGES, Claim, Table, draws, main, on_any_model, preset_for
from zerotprune import methods
from zerotprune.measure.accuracy import Contender
from zerotprune.methods.top_k import Score
from zerotprune.methods.zero_tprune import Feature
from zerotprune.scoring.similarity import Metric, Partition

LABELS = {"wpr": "WPR"}  # names of values that differ from how Python writes them


def ablation(
    name: str,
    about: str,
    option: str,
    values: Sequence[str],
    claim: str,
    preset: str = "ablation-is",
    unclaimed: Sequence[str] = (),
    beside: Printed | None = None,
    ours: bool = False,
    timed: bool = False,
) -> Table:
    """Make a table with a contender for each value. The first is the paper's choice, claimed to be
    better than all others but the `unclaimed`."""
    labels = {value: LABELS.get(value, value) for value in values}

    def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
        def contender(value: str, **others: object) -> Contender:
            data = {"name": "zero-tprune", "options": {option: value, **others}}
            return Contender(labels[value], preset_for(model, preset).by(methods.from_data(data)))

        contenders = []
        for value in labels:
            if value == "random":
                contenders += draws(lambda seed: contender("random", seed=seed, draw="image"))
            else:
                contenders.append(contender(value))
        return contenders

    best, *others = labels.values()
    claims = [
        Claim(claim.format(other), best, other, ours) for other in others if other not in unclaimed
    ]
    options = (f'--only "{name}"', *["--timed"][:timed])
    return Table(name, about, contenders, claims, printed=beside, data=ALL_IMAGES, timed=timed,
                 anywhere=on_any_model("ablations", *options))  # fmt: skip


TABLES = (
    ablation(
        "features",
        "Which features the S-stage compares: key, query, value, X_pre or X.\n\n"
        "The paper (DeiT-S) finds the keys slightly best. Its X_pre are vectors between a block's\n"
        "parts: the stream between attention and MLP (x-mid), which its cell stands beside; x-pre\n"
        "is the block's input. Ours: DeiT-Ti and ViT-Ti, schedule ablation-is.",
        "features",
        get_args(Feature),
        "key is at least as good as {}",
        unclaimed=("x-pre",),
        beside=printed.FEATURES,
    ),
    ablation(
        "partition",
        "How the S-stage splits tokens: sequential-U, sequential-I, alternate, random, none.\n\n"
        "The paper (DeiT-S) finds sequential-U best: tokens of the less important half are pruned\n"
        'if they are like one of the more important half. Its "no partition" puts every token in\n'
        "both groups; read literally, both tokens of a pair may go (none-both), which is what the\n"
        "claim is tested with. In `none` only the less important one may. An odd token may be in\n"
        "either group (alternate, alternate-top). Ours: DeiT-Ti and ViT-Ti, schedule ablation-is.",
        "partition",
        (*get_args(Partition), "random"),
        "sequential-U beats {}",
        unclaimed=("none", "alternate-top"),
        beside=printed.PARTITION,
    ),
    ablation(
        "metric",
        "Which metric the S-stage uses: cosine, dot product or Minkowski distance.\n\n"
        "The paper (DeiT-S) finds cosine best and most others close. Ours: DeiT-Ti and ViT-Ti,\n"
        "schedule ablation-is.",
        "metric",
        get_args(Metric),
        "cosine is at least as good as {}",
        beside=printed.METRIC,
    ),
    ablation(
        "attention, S-stage on",
        "Ranking by WPR against ranking by plain attention: CLS, average, accumulated average.\n\n"
        "In the paper (DeiT-S) WPR beats them all, with the S-stage on in every row. Ours:\n"
        "DeiT-Ti and ViT-Ti, schedule ablation-is.",
        "ranking",
        ("wpr", *get_args(Score)),
        "WPR beats {} attention",
        unclaimed=("random",),
        beside=printed.ATTENTION,
        timed=True,
    ),
    ablation(
        "attention",
        "The same rankings without the S-stage, so that the ranking alone decides.\n\n"
        "Not in the paper. DeiT-Ti and ViT-Ti, schedule ablation-i.",
        "ranking",
        ("wpr", *get_args(Score)),
        "WPR beats {} attention",
        preset="ablation-i",
        unclaimed=("random",),
        ours=True,
    ),
)

if __name__ == "__main__":
    main(__doc__, TABLES)
