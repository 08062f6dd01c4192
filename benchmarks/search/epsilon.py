"""How many rounds the stop of the paper's Algorithm 1 takes, block by block, beside 30, 5 and 1.

Tokens vote in each block of the unpruned model until a round changes no head's scores by more than
ε (the sum of the changes over the tokens; scores sum to 1), from Zero-TPrune's own start. Mean over
the first images of `tune`, and the most that one took; 100 is the end in any case.
Command: python -m benchmarks.search.epsilon --shared DIR --limit 40. Results: docs/calibration.md.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import mean
from typing import Any

import torch

from benchmarks.inputs import MODELS, TUNE, add_shared, decoded, parser, real_model
from zerotprune import Schedule, Stage, ZeroTPrune, prune_
from zerotprune.methods import zero_tprune

EPSILONS = (0.1, 0.01, 0.001)


def main() -> None:
    options = parser(__doc__)
    add_shared(options)
    options.add_argument("--only", nargs="+", default=list(MODELS), help="models")
    chosen = options.parse_args()
    print("model,epsilon,block,mean rounds,most rounds,rounds by default")
    for name in chosen.only:
        model = real_model(name, chosen)
        held = decoded(model, chosen.shared / TUNE, 1, chosen.limit)
        for epsilon in EPSILONS:
            for block, rounds in rounds_taken(model, [batch for batch, _, _ in held], epsilon):
                default = Stage(block).votes(len(rounds_by := model.blocks))
                assert len(rounds_by) >= block
                print(name, epsilon, block, f"{mean(rounds):.1f}", max(rounds), default, sep=",",
                      flush=True)  # fmt: skip


def rounds_taken(model: Any, images: list[torch.Tensor], epsilon: float) -> Any:
    """For each block but the last, the rounds of each image. No stage prunes more than one token:
    the blocks see what they see unpruned, but for that."""
    taken = defaultdict[int, list[int]](list)
    depth = len(model.blocks)
    patches = model.patch_embed.num_patches
    method = ZeroTPrune(epsilon=epsilon)
    counted = zero_tprune.vote_until
    for block in range(1, depth):
        schedule = Schedule([Stage(block, keep=1 - 1 / patches)], method)
        prune_(model, schedule, compute="all")

        def noting(*args: Any, block: int = block) -> Any:
            score, rounds = counted(*args)
            taken[block].append(rounds)
            return score, rounds

        zero_tprune.vote_until = noting
        try:
            with torch.inference_mode():
                for image in images:
                    model(image)
        finally:
            zero_tprune.vote_until = counted
    return taken.items()


if __name__ == "__main__":
    main()
