"""One option of Zero-TPrune at a time: features, partition and metric of the S-stage, the ranking.

A table for each option, with all its values by the same schedule, on DeiT-Ti and ViT-Ti. What is
left to chance is drawn five times for each image.
Command: python -m benchmarks.tables.ablations --shared DIR. What it gave: docs/results.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from torch import Tensor, nn

from benchmarks.tables import printed
from benchmarks.tables.printed import Printed
from benchmarks.tables.table import ALL_IMAGES, Claim, Table, draws, main
from zerotprune import Schedule, methods
from zerotprune.measure.accuracy import Contender
from zerotprune.methods.top_k import Score
from zerotprune.methods.zero_tprune import Feature
from zerotprune.scoring.similarity import Metric, Partition

LABELS = {"wpr": "WPR"}  # what a value is called, if not as it is written in Python


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
) -> Table:
    """A contender for each value. The first is the paper's own, and claimed to be better than each
    of the others but `unclaimed`."""
    labels = {value: LABELS.get(value, value) for value in values}

    def contender(value: str, **others: object) -> Contender:
        data = {"name": "zero-tprune", "options": {option: value, **others}}
        return Contender(labels[value], Schedule.preset(preset).by(methods.from_data(data)))

    def contenders(model: nn.Module, some: Tensor) -> list[Contender]:
        found = []
        for value in labels:
            if value == "random":
                found += draws(lambda seed: contender("random", seed=seed, draw="image"))
            else:
                found.append(contender(value))
        return found

    best, *others = labels.values()
    claims = [
        Claim(claim.format(each), best, each, ours) for each in others if each not in unclaimed
    ]
    return Table(name, about, contenders, claims, printed=beside, data=ALL_IMAGES)


TABLES = (
    ablation(
        "features",
        "Which features the S-stage should compare: key, query, value, X_pre or X.\n\n"
        "The paper (DeiT-S) finds the keys best, by little. Its X_pre are intermediate vectors:\n"
        "the block's input (x-pre), or the stream between attention and MLP (x-mid). Ours:\n"
        "DeiT-Ti and ViT-Ti, schedule ablation-is.",
        "features",
        get_args(Feature),
        "key is at least as good as {}",
        unclaimed=("x-mid",),
        beside=printed.FEATURES,
    ),
    ablation(
        "partition",
        "How the S-stage should part the tokens: sequential-U, sequential-I, alternate, random, "
        "none.\n\n"
        "The paper (DeiT-S) finds sequential-U best: the less important half is pruned for being\n"
        "like the more important one. Two can be read in two ways: without a partition both of a\n"
        "pair may go (none-both); of an odd number the odd one may be in the other group\n"
        "(alternate-top). Ours: DeiT-Ti and ViT-Ti, schedule ablation-is.",
        "partition",
        (*get_args(Partition), "random"),
        "sequential-U beats {}",
        unclaimed=("none-both", "alternate-top"),
        beside=printed.PARTITION,
    ),
    ablation(
        "metric",
        "Which metric the S-stage should use: cosine, dot product, or Minkowski distance.\n\n"
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
        "The paper (DeiT-S) has WPR beat them all, with the S-stage on in every row. Ours:\n"
        "DeiT-Ti and ViT-Ti, schedule ablation-is.",
        "ranking",
        ("wpr", *get_args(Score)),
        "WPR beats {} attention",
        unclaimed=("random",),
        beside=printed.ATTENTION,
    ),
    ablation(
        "attention",
        "The same rankings without the S-stage, so that nothing but the ranking decides.\n\n"
        "No table of the paper. DeiT-Ti and ViT-Ti, schedule ablation-i.",
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
