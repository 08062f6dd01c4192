"""In how many images the head filter (VHF) leaves heads out, block by block.

The unpruned model votes as Zero-TPrune does by default: 30, 5 or 1 rounds by block, from CLS. VHF
acts on an image if some of its heads pass and others do not. If no head passes, all of them count.
Command: python -m benchmarks.tables.vhf --shared DIR --limit 200. Results: docs/calibration.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from benchmarks.inputs import MODELS, TUNE, Bench, measuring_images, parsed
from zerotprune import ZeroTPrune
from zerotprune.calibrate.survey import ROUNDS, survey
from zerotprune.schedule import papers_rounds
from zerotprune.shapes import Float


class Shares(NamedTuple):
    """Percentages of the images in one block: which heads pass?"""

    every: float
    acts: float  # some do, some do not
    none: float


def shares_of(variance: Float[Tensor, "images heads"]) -> Shares:
    """Count the images by how many of their heads pass.

    >>> import torch
    >>> shares_of(torch.tensor([[0.1, 0.2], [0.1, 9.0], [8.0, 9.0], [8.0, 0.001]]))
    Shares(every=25.0, acts=25.0, none=50.0)
    """
    low, high = ZeroTPrune().vhf or (0.0, 0.0)
    passing = ((variance >= low) & (variance <= high)).sum(dim=1)
    every, none = (float((passing == count).float().mean()) for count in (variance.shape[1], 0))
    return Shares(100 * every, 100 * (1 - every - none), 100 * none)


def shares(bench: Bench) -> list[Shares]:
    """Return the shares in each block, on `tune`."""
    blocks = survey(bench.model, bench.batches(TUNE), bench.chosen.device)
    shares = []
    for number, block in enumerate(blocks, start=1):
        rounds, _ = papers_rounds(number, len(blocks))
        shares.append(shares_of(block.variance[:, ROUNDS.index(rounds)]))
    return shares


def print_table(by_model: Mapping[str, Sequence[Shares]]) -> None:
    heads = (f"{name}: VHF acts % | no head passes %" for name in by_model)
    print(f"| block | {' | '.join(heads)} |")
    print("|---" * (1 + 2 * len(by_model)) + "|")
    for number, cells in enumerate(zip(*by_model.values(), strict=True), start=1):
        line = " | ".join(f"{cell.acts:.0f} | {cell.none:.0f}" for cell in cells)
        print(f"| {number} | {line} |")


def main() -> None:
    chosen = parsed(measuring_images(__doc__))
    print_table({name: shares(Bench(name, chosen)) for name in MODELS})


if __name__ == "__main__":
    main()
