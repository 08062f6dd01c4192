"""In how many images the head filter (VHF) leaves heads out, block by block.

The unpruned model votes as Zero-TPrune does by default: 30, 5 or 1 rounds by block, from CLS. VHF
acts on an image if some of its heads pass and others do not. If no head passes, all of them count.
Command: python -m benchmarks.tables.vhf --shared DIR --limit 40. Results: docs/calibration.md.
"""

from __future__ import annotations

from benchmarks.inputs import MODELS, TUNE, Bench, measuring_images, parsed
from zerotprune import ZeroTPrune
from zerotprune.calibrate.survey import ROUNDS, survey
from zerotprune.schedule import papers_rounds


def shares(bench: Bench) -> list[tuple[float, float]]:
    """Return for each block the percentages of images in which VHF acts, and no head passes."""
    low, high = ZeroTPrune().vhf or (0.0, 0.0)
    blocks = survey(bench.model, bench.held(TUNE), bench.chosen.device)
    found = []
    for number, block in enumerate(blocks, start=1):
        rounds, _ = papers_rounds(number, len(blocks))
        variance = block.variance[:, ROUNDS.index(rounds)]
        passing = ((variance >= low) & (variance <= high)).sum(dim=1)
        acts = ((passing > 0) & (passing < variance.shape[1])).float().mean()
        none = (passing == 0).float().mean()
        found.append((100 * float(acts), 100 * float(none)))
    return found


def main() -> None:
    chosen = parsed(measuring_images(__doc__))
    found = [shares(Bench(name, chosen)) for name in MODELS]
    print("| block | " + " | ".join(f"{name}: acts | no head passes" for name in MODELS) + " |")
    print("|---" * (1 + 2 * len(MODELS)) + "|")
    for number, cells in enumerate(zip(*found, strict=True), start=1):
        told = " | ".join(f"{acts:.0f} | {none:.0f}" for acts, none in cells)
        print(f"| {number} | {told} |")


if __name__ == "__main__":
    main()
