"""Importance by block and head, on one image: what each head votes for, and whom VHF leaves out.

The paper shows that heads differ: some spread their votes evenly, some give all to a few tokens,
and neither helps to find the object. Expected: nearly flat maps (small variance) in the first
blocks, maps with a few bright patches (large variance) in the last ones; VHF leaves both out. The
paper's Fig. 12 has 30 rounds in every block (--rounds 30).
Command: python -m benchmarks.figures.heads --out docs/figure-heads.svg
"""

from __future__ import annotations

from benchmarks.figures.figure import RANGE, Subject, Votes, arguments, load_subject, save, votes
from zerotprune.backbones import backbone
from zerotprune.scoring.graph import heads_in_range
from zerotprune.show.layout import draw_strips
from zerotprune.show.scene import Scene
from zerotprune.show.story import HeadsView, Story


def views(block: Votes, grid: tuple[int, int]) -> list[HeadsView]:
    """Return one view for each image."""
    relative = block.scores / block.scores.mean(dim=-1, keepdim=True)
    used = heads_in_range(block.variance, *RANGE)
    return [
        HeadsView(block.block, RANGE, importance.reshape(-1, *grid), tuple(spread.tolist()),
                  tuple(counted.tolist()))
        for importance, spread, counted in zip(relative, block.variance, used, strict=True)
    ]  # fmt: skip


def scene_of(subject: Subject, rounds: int | None) -> Scene:
    grid = backbone(subject.model).geometry.grid
    blocks = [views(block, grid) for block in votes(subject.model, subject.images, rounds)]
    stories = [
        Story(grid, [], [], [], [block[at] for block in blocks])
        for at in range(len(subject.images))
    ]
    images = [subject.image(at) for at in range(len(stories))]
    taken = "30, 5 or 1 rounds by depth" if rounds is None else f"{rounds} rounds in every block"
    about = f"the unpruned model; {taken}"
    return Scene(f"Importance by block and head: {subject.name}", about, images, stories,
                 subject.captions)  # fmt: skip


def main() -> None:
    options = arguments(__doc__, "figure-heads.svg", 1)
    options.add_argument("--rounds", type=int, help="in every block; else 30, 5 or 1 by depth")
    chosen = options.parse_args()
    save(draw_strips(scene_of(load_subject(chosen), chosen.rounds)), chosen.out)


if __name__ == "__main__":
    main()
