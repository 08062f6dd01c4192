"""How many rounds the stop of the paper's Algorithm 1 takes, block by block, beside 30, 5 and 1.

Tokens vote in each block until a round changes no head's scores by more than ε (the sum of the
changes over the tokens; scores sum to 1), from Zero-TPrune's own start. The mean over the first
images of `tune`, and the most that one took; 100 is the end in any case. The model is nearly
unpruned: each block but the last drops one token.
Command: python -m benchmarks.search.epsilon --shared DIR --limit 40. Results: docs/calibration.md.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor, nn

from benchmarks.inputs import MODELS, TUNE, add_shared, decoded, parser, real_model
from zerotprune import Schedule, Stage, ZeroTPrune, prune_
from zerotprune.backbones import backbone
from zerotprune.method import Seen
from zerotprune.methods.zero_tprune import vote_until
from zerotprune.scoring.graph import Graph

EPSILONS = (0.1, 0.01, 0.001)
#: the rounds of each image, by block
TAKEN = defaultdict[int, list[int]](list)


@dataclass(frozen=True)
class Counting(ZeroTPrune):
    """Zero-TPrune that counts its rounds."""

    def importance(self, seen: Seen, stage: Stage, graph: Graph | None, dead: int = 0) -> Tensor:
        assert graph is not None
        assert self.epsilon is not None
        start = graph.start(self._cls_weight(self.start, seen, dead))
        TAKEN[stage.block].append(vote_until(graph, start, self.epsilon)[1])
        return super().importance(seen, stage, graph, dead)


def main() -> None:
    options = parser(__doc__)
    add_shared(options)
    options.add_argument("--only", nargs="+", default=list(MODELS), help="models")
    chosen = options.parse_args()
    print("model,epsilon,block,mean rounds,most rounds,rounds by default")
    for name in chosen.only:
        model = real_model(name, chosen)
        images = [image for image, _, _ in decoded(model, chosen.shared / TUNE, 1, chosen.limit)]
        for epsilon in EPSILONS:
            count(model, images, epsilon)
            for block, rounds in TAKEN.items():
                default = Stage(block).votes(backbone(model).geometry.depth)
                print(name, epsilon, block, f"{mean(rounds):.1f}", max(rounds), default, sep=",",
                      flush=True)  # fmt: skip


def count(model: nn.Module, images: list[Tensor], epsilon: float) -> None:
    """Run the images one by one."""
    TAKEN.clear()
    geometry = backbone(model).geometry
    stages = (Stage(block, keep=1 - 1 / geometry.patches) for block in range(1, geometry.depth))
    prune_(model, Schedule(tuple(stages), Counting(epsilon=epsilon)))
    with torch.inference_mode():
        for image in images:
            model(image)


if __name__ == "__main__":
    main()
