"""The framework by example: what one pruning layer I′ → S → I does to an image, step by step.

The paper's overview figure. I′ sorts the patches by one vote; S drops, of the less important half,
those that are most like one of the more important half; I votes again among the rest, to the end,
and keeps the most important. Expected: what is left covers the object, not the ground.
Command: python -m benchmarks.figures.framework --out docs/figure-framework.svg
"""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.figures.figure import Subject, arguments, load_subject, save
from zerotprune import Schedule, Stage, prune_, restore_, trace
from zerotprune.backbones import backbone
from zerotprune.show.figure import QUIET, Drawing
from zerotprune.show.layout import GAP, MARGIN, add_header
from zerotprune.show.scene import Scene
from zerotprune.show.story import StageView, stage_view, tell
from zerotprune.tracing import Fate

EDGE = 168.0


def draw_framework(subject: Subject, stage: Stage) -> Drawing:
    """Draw six panels, each with a title above and two lines below."""
    schedule = Schedule((stage,))
    story = tell(subject.model, subject.images[:1], schedule)[0]
    seen = trace(prune_(subject.model, schedule), subject.images[:1])[0]
    restore_(subject.model)
    grid, view = story.grid, stage_view(seen, 0, story.grid)
    before = seen.pre_importance[0].reshape(grid)
    half = (before >= before.flatten().sort(descending=True).values[story.patches // 2 - 1]).float()
    similar = torch.where(view.fate == Fate.SIMILAR, Fate.SIMILAR, Fate.KEPT)
    rounds = stage.votes(backbone(subject.model).geometry.depth)
    left = story.patches - stage.similar
    panels: list[tuple[StageView | torch.Tensor | None, str, str, str]] = [
        (None, "what it sees", f"block {stage.block} has", f"{story.patches} patches"),
        (before / before.mean(), "I′: one vote", "s ← Aᵀs sorts them;", "bright is important"),
        (0.2 + 4.8 * half, "S: two groups", "bright: B, the better", "half; dark: A"),
        (replace(view, fate=similar), "S: the most alike", f"{stage.similar} of A are like",
         "one of B: dropped"),
        (view.importance / view.importance.nanmean(), f"I: {rounds} votes",
         f"the {left} that are left", "vote again"),
        (replace(view, partner=torch.full_like(view.partner, -1)), "what it keeps",
         f"the best {100 * stage.keep:.0f} % of them:", f"{view.kept} patches"),
    ]  # fmt: skip
    title = f"One pruning layer of Zero-TPrune, after block {stage.block}"
    scene = Scene(title, subject.name, [subject.image(0)], [story], subject.captions, lines=True)
    drawing = Drawing(len(panels) * (EDGE + GAP) - GAP + 2 * MARGIN, title=title)
    y = add_header(drawing, scene) + 20
    for number, (shown, title, first, second) in enumerate(panels):
        x = MARGIN + number * (EDGE + GAP)
        drawing.text(x, y - 8, title, size=15, bold=True)
        place = (x, y, EDGE, EDGE)
        if isinstance(shown, torch.Tensor):
            drawing.heat(place, shown)
        else:
            drawing.panel(place, scene.images[0], shown, lines=True)
        drawing.text(x, y + EDGE + 19, first, color=QUIET)
        drawing.text(x, y + EDGE + 38, second, color=QUIET)
    drawing.height = y + EDGE + 56
    return drawing


def main() -> None:
    parser = arguments(__doc__, "figure-framework.svg", 1)
    parser.add_argument("--block", type=int, default=6)
    parser.add_argument("--keep", type=float, default=0.5)
    parser.add_argument("--similar", type=int, default=30)
    chosen = parser.parse_args()
    stage = Stage(chosen.block, chosen.keep, chosen.similar)
    save(draw_framework(load_subject(chosen), stage), chosen.out)


if __name__ == "__main__":
    main()
