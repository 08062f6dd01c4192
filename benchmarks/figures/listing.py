"""The paper's figures and which of ours answer them: a section of docs/results.md."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from benchmarks.search.settings import SETTINGS
from benchmarks.tables import transfer

PHOTOGRAPH = "DeiT-Ti, photographs that come with the package (CC0, public domain)"


class Answer(NamedTuple):
    """What the paper shows, where ours is, and what it is drawn from; if from rows, from which."""

    shows: str
    ours: str
    drawn_from: str
    table: str = ""


ANSWERS = (
    Answer("one pruning layer by example", "[the framework](figures.md#the-framework-by-example)",
           PHOTOGRAPH),
    Answer("the signal on the attention graph (Fig. 3)",
           "[round by round](figures.md#the-signal-on-the-attention-graph-round-by-round)",
           PHOTOGRAPH),
    Answer("what is pruned, stage by stage", "[stages](figures.md#what-is-pruned-stage-by-stage)",
           PHOTOGRAPH),
    Answer("a background that overwhelms an object", "[I → S against I′ → S → I]"
           "(figures.md#i--s-against-i--s--i)", PHOTOGRAPH),
    Answer("importance by block and head", "[heads](figures.md#importance-by-block-and-head)",
           PHOTOGRAPH),
    Answer("importance averaged over images",
           "[means](figures.md#importance-averaged-over-thousands-of-images)",
           "DeiT-Ti, 1,000 ImageNet images"),
    Answer("score distributions by rounds", "[rounds](figures.md#score-distributions-by-rounds)",
           PHOTOGRAPH),
    Answer("accuracy and cost, off the shelf and trained (Fig. 6)", "[transfer](#transfer)",
           "DeiT-Ti and ViT-Ti, pets and flowers", transfer.TABLE),
    Answer("the range of the head filter (Fig. 16)", "[calibration](calibration.md)",
           "DeiT-Ti, ViT-Ti, DINOv2-S, 100 images each"),
    Answer("random settings by rank (Fig. 18)", "[random settings](#random-settings)",
           "DeiT-Ti and ViT-Ti, 2,000 ImageNet images", SETTINGS),
)  # fmt: skip


def section(tables: Collection[str]) -> list[str]:
    """Of those from rows only the ones whose tables have any."""
    lines = ["## The paper's figures\n", "Ours are of other models and other images: what they "
             "show can be compared, not the images.\n", "| the paper shows | ours | drawn from |",
             "|---|---|---|"]  # fmt: skip
    lines += [f"| {each.shows} | {each.ours} | {each.drawn_from} |" for each in ANSWERS
              if not each.table or each.table in tables]  # fmt: skip
    return [*lines, ""]
