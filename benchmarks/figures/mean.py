"""Importance averaged over thousands of images, block by block: where do patches matter?

Photographers put the object in the middle, so if importance finds objects its mean is highest
there, and lowest at the edges; the built-in model's digits lie anywhere but for a margin, so its
mean should be flat with a dark frame. What stands out against that is the model's own habit
(patches used as scratch space), and not the images.
Command: python -m benchmarks.figures.mean --out docs/figure-mean.svg
Real: … --model deit_tiny_patch16_224 --weights FILE --data FOLDER --images 1000
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.figures.figure import RANGE, Subject, arguments, load_subject, save, votes
from zerotprune.backbones import backbone
from zerotprune.scoring.graph import combine_heads, heads_in_range
from zerotprune.show.figure import QUIET, Drawing
from zerotprune.show.layout import GAP, HEADING, MARGIN, TITLE, add_scale

EDGE, ACROSS, SPAN = 150.0, 6, 2.0


def means(subject: Subject) -> list[Tensor]:
    """Return each block's importance (EIR, VHF), averaged over the images and scaled to mean 1."""
    totals: list[Tensor] = []
    for part in subject.images.split(8):  # a graph for every head: few at a time
        sums = []
        for block in votes(subject.model, part):
            counted = heads_in_range(block.variance, *RANGE)
            importance = combine_heads(block.scores, "eir", counted)
            sums.append((importance / importance.mean(dim=-1, keepdim=True)).double().sum(dim=0))
        totals = sums if not totals else [a + b for a, b in zip(totals, sums, strict=True)]
    grid = backbone(subject.model).geometry.grid
    return [(total / len(subject.images)).float().reshape(grid) for total in totals]


def inner_share(mean: Tensor) -> float:
    """Return the importance of the middle quarter of the image, relative to an even share."""
    rows, cols = mean.shape
    inner = mean[rows // 4 : rows - rows // 4, cols // 4 : cols - cols // 4]
    return (inner.mean() / mean.mean()).item()


def draw_means(subject: Subject, importance: list[Tensor]) -> Drawing:
    title = f"Mean importance over {len(subject.images)} images: {subject.name}"
    about = "the unpruned model; under each block, what the middle of the image gets (1 is even)"
    drawing = Drawing(ACROSS * (EDGE + GAP) - GAP + 2 * MARGIN, title=title)
    drawing.text(MARGIN, 34, title, size=TITLE, bold=True)
    drawing.text(MARGIN, 57, about, color=QUIET)
    add_scale(drawing, 82, SPAN)
    height = EDGE * importance[0].shape[0] / importance[0].shape[1]
    for number, mean in enumerate(importance):
        row, column = divmod(number, ACROSS)
        x, y = MARGIN + column * (EDGE + GAP), 120 + row * (height + 54)
        drawing.text(x, y - 8, f"block {number + 1}", size=HEADING, bold=True)
        drawing.heat((x, y, EDGE, height), mean, reach=SPAN)
        drawing.text(x, y + height + 18, f"{inner_share(mean):.2f}", color=QUIET)
    drawing.height = 120 + -(-len(importance) // ACROSS) * (height + 54)
    return drawing


def main() -> None:
    chosen = arguments(__doc__, "figure-mean.svg", 4000).parse_args()
    subject = load_subject(chosen)
    with torch.inference_mode():
        importance = means(subject)
    print(*(f"block {at}: middle {inner_share(mean):.2f}" for at, mean in enumerate(importance, 1)))
    save(draw_means(subject, importance), chosen.out)


if __name__ == "__main__":
    main()
