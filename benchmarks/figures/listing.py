"""Which of our figures answer the paper's: a section of docs/results-appendix.md."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from benchmarks.search.settings import SETTINGS
from benchmarks.tables import transfer

PHOTOGRAPH = "DeiT-Ti, photographs that come with the package (CC0, public domain)"


class Answer(NamedTuple):
    """What the paper shows, where ours is, what it is drawn from, and the table of its rows."""

    shows: str
    ours: str
    drawn_from: str
    table: str = ""


ANSWERS = (
    Answer("one pruning layer by example (Figs. 2, 4)",
           "[the framework](figures.md#the-framework-by-example)", PHOTOGRAPH),
    Answer("the signal on the attention graph (Fig. 3)",
           "[round by round](figures.md#the-signal-on-the-attention-graph-round-by-round)",
           PHOTOGRAPH),
    Answer("what is pruned, stage by stage (Fig. 5)",
           "[stages](figures.md#what-is-pruned-stage-by-stage)", PHOTOGRAPH),
    Answer("accuracy and cost, off the shelf and trained (Fig. 6)", "[transfer](#transfer)",
           "DeiT-Ti and ViT-Ti, pets and flowers", transfer.TABLE),
    Answer("a background that overwhelms an object (Figs. 8, 9)",
           "[I → S against I′ → S → I](figures.md#i--s-against-i--s--i)", PHOTOGRAPH),
    Answer("importance averaged over images (Fig. 11)",
           "[means](figures.md#importance-averaged-over-thousands-of-images)",
           "DeiT-Ti, 1,000 ImageNet images"),
    Answer("importance by block and head (Figs. 12, 13)",
           "[heads](figures.md#importance-by-block-and-head)", PHOTOGRAPH),
    Answer("score distributions by rounds (Fig. 14)",
           "[rounds](figures.md#score-distributions-by-rounds)", PHOTOGRAPH),
    Answer("the range of the head filter (Fig. 16)", "[calibration](calibration.md#vhf)",
           "numbers, no figure: DeiT-Ti and ViT-Ti: searched on 50 images, tested on 50 others"),
    Answer("random settings by rank (Fig. 18)", "[random settings](#random-settings)",
           "DeiT-Ti and ViT-Ti, 2,000 ImageNet images", SETTINGS),
)  # fmt: skip


def section(tables: Collection[str]) -> list[str]:
    """List the answers; those drawn from rows only if there are any."""
    lines = ["## The paper's figures\n", "Ours use other models and other images.\n",
             "| the paper shows | ours | drawn from |", "|---|---|---|"]  # fmt: skip
    lines += [f"| {each.shows} | {each.ours} | {each.drawn_from} |" for each in ANSWERS
              if not each.table or each.table in tables]  # fmt: skip
    return [*lines, ""]
