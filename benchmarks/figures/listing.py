"""Which of our figures answer the paper's: a section of docs/results-appendix.md."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from benchmarks.search.settings import SETTINGS
from benchmarks.tables import off_the_shelf, scaling, transfer

PHOTOGRAPH = "DeiT-Ti, photographs that come with the package (CC0, public domain)"


class Answer(NamedTuple):
    """A figure of the paper by its number: where ours is, what it is drawn from, and the table of
    its rows. A drawing has no numbers to answer."""

    number: int
    shows: str
    ours: str
    drawn_from: str = ""
    table: str = ""


DRAWING = "a drawing, not repeated"
ORDERS = "[I → S against I′ → S → I](figures.md#i--s-against-i--s--i)"
FRAMEWORK = "[the framework](figures.md#the-framework-by-example)"
HEADS = "[heads](figures.md#importance-by-block-and-head)"
ROUNDS = "[rounds](figures.md#score-distributions-by-rounds)"
TUNE_IMAGES = "DeiT-Ti, 1,000 ImageNet images"
REPORT_IMAGES = "DeiT-Ti and ViT-Ti, 2,000 ImageNet images"
ANSWERS = (
    Answer(1, "methods by what they need", DRAWING),
    Answer(2, "the framework: pruning layers between blocks", FRAMEWORK, PHOTOGRAPH),
    Answer(3, "the signal on the attention graph",
           "[round by round](figures.md#the-signal-on-the-attention-graph-round-by-round)",
           PHOTOGRAPH),
    Answer(4, "one S-stage: order, groups, matching", FRAMEWORK, PHOTOGRAPH),
    Answer(5, "what is pruned, stage by stage",
           "[stages](figures.md#what-is-pruned-stage-by-stage)", PHOTOGRAPH),
    Answer(6, "accuracy and cost beside DynamicViT and A-ViT, off the shelf and trained",
           "[transfer](#transfer)", "DeiT-Ti and ViT-Ti, pets and flowers", transfer.TABLE),
    Answer(7, "loss against GFLOPS beside ATS and ToMe", "[off-the-shelf](#off-the-shelf)",
           REPORT_IMAGES, off_the_shelf.TABLE.name),
    Answer(8, "a large background outvotes a small object", ORDERS, PHOTOGRAPH),
    Answer(9, "I → S beside I′ → S → I on an image", ORDERS, PHOTOGRAPH),
    Answer(10, "an image and its importance by WPR", FRAMEWORK + ", its fifth panel", PHOTOGRAPH),
    Answer(11, "importance averaged over images",
           "[means](figures.md#importance-averaged-over-thousands-of-images)", TUNE_IMAGES),
    Answer(12, "importance by head on one image, 30 rounds", HEADS, PHOTOGRAPH),
    Answer(13, "heads with undesired distributions", HEADS, PHOTOGRAPH),
    Answer(14, "score distributions by rounds", ROUNDS, TUNE_IMAGES),
    Answer(15, "divergence from 50 rounds by block", ROUNDS, TUNE_IMAGES),
    Answer(16, "search of the head filter's range",
           "[the head filter](figures.md#the-head-filter)", "DeiT-Ti, 200 ImageNet images"),
    Answer(17, "where the S-stage's features come from",
           DRAWING + "; [readings](methods.md#where-the-paper-can-be-read-in-two-ways)"),
    Answer(18, "random settings by rank", "[random settings](#random-settings)",
           REPORT_IMAGES, SETTINGS),
    Answer(19, "accuracy against throughput beside ATS and ToMe",
           "[off-the-shelf](#off-the-shelf), its second plots", REPORT_IMAGES,
           off_the_shelf.TABLE.name),
    Answer(20, "ToMe on models by size, pruning against scaling",
           "ToMe's own curves, not measured; [how far tiny models can be pruned](#curve)",
           REPORT_IMAGES, scaling.TABLE.name),
)  # fmt: skip


def section(tables: Collection[str]) -> list[str]:
    """List all figures; ours that are drawn from rows only if there are any."""
    lines = ["## The paper's figures\n", "Ours use other models and other images.\n",
             "| Fig. | the paper shows | ours | drawn from |", "|---|---|---|---|"]  # fmt: skip
    for answer in ANSWERS:
        there = not answer.table or answer.table in tables
        ours, source = (answer.ours, answer.drawn_from) if there else ("not measured yet", "")
        lines.append(f"| {answer.number} | {answer.shows} | {ours} | {source} |")
    return [*lines, ""]
