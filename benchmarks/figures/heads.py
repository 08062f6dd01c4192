"""Importance by block and head, on one image: what each head votes for, and whom VHF leaves out.

The paper shows that heads differ: some spread their votes evenly, some give all to a few tokens,
and neither helps to find the object. Expected: nearly flat maps (small variance) in the first
blocks, maps with a few bright patches (large variance) in the last ones; VHF leaves both out.
Command: python -m benchmarks.figures.heads --out docs/figure-heads.svg
"""

from __future__ import annotations

from benchmarks.figures.figure import RANGE, Subject, Votes, arguments, save, subject, votes
from zerotprune.backbones import backbone
from zerotprune.scoring.graph import heads_in_range
from zerotprune.show.heads import HeadsView
from zerotprune.show.layout import draw_strips
from zerotprune.show.scene import Scene
from zerotprune.show.story import Story


def views(block: Votes, grid: tuple[int, int]) -> list[HeadsView]:
    """One for each image."""
    relative = block.scores / block.scores.mean(dim=-1, keepdim=True)
    used = heads_in_range(block.variance, *RANGE)
    return [
        HeadsView(block.block, RANGE, each.reshape(-1, *grid), tuple(spread.tolist()),
                  tuple(counted.tolist()))
        for each, spread, counted in zip(relative, block.variance, used, strict=True)
    ]  # fmt: skip


def scene_of(given: Subject) -> Scene:
    grid = backbone(given.model).geometry.grid
    blocks = [views(block, grid) for block in votes(given.model, given.images)]
    stories = [
        Story(grid, [], [], [], [block[at] for block in blocks]) for at in range(len(given.images))
    ]
    images = [given.image(at) for at in range(len(stories))]
    about = "the unpruned model; 30, 5 or 1 rounds by depth"
    return Scene(f"Importance by block and head: {given.name}", about, images, stories,
                 given.captions)  # fmt: skip


def main() -> None:
    chosen = arguments(__doc__, "figure-heads.svg", 1).parse_args()
    save(draw_strips(scene_of(subject(chosen))), chosen.out)


if __name__ == "__main__":
    main()
