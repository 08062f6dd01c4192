"""DiffRate: prune and merge unimportant tokens by learned counts (Chen et al., ICCV 2023)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import ClassVar, Literal

import torch

from ..cost import Geometry
from ..dials import Dial, spread_evenly
from ..method import Method, Part, Seen
from ..schedule import Schedule, Stage, share_that_keeps
from ..scoring.graph import cls_attention
from ..tokens import Reduction

Counts = Literal["published", "even"]
#: the patch tokens left after pruning at block 1, after merging there, after pruning at block 2, …
Row = tuple[int, ...]

PATCHES = 196  # of the models with published counts
#: The published counts of DeiT-T, -S and -B, by width and GMACs: the tokens, CLS included, after
#: pruning at each block, and after merging there.
PUBLISHED: dict[int, dict[float, tuple[str, str]]] = {
    192: {
        1.0: ("197 197 196 194 188 184 178 164 156 137 129 21",
              "197 197 196 190 186 154 148 156 145 135 125 21"),
        0.9: ("197 197 196 190 182 166 141 125 113 105 99 3",
              "197 196 194 188 172 147 129 115 107 103 96 3"),
        0.8: ("197 197 196 186 166 147 117 103 92 80 74 3",
              "197 196 190 172 154 125 107 96 84 78 70 3"),
        0.7: ("197 196 194 180 150 123 98 82 68 60 52 3",
              "197 196 192 158 133 103 88 72 64 58 49 3"),
        0.6: ("197 196 180 157 130 107 86 73 63 51 40 3",
              "197 187 167 139 114 90 76 66 57 45 37 3"),
    },
    384: {
        3.1: ("197 197 194 180 160 147 137 129 115 92 76 3",
              "197 196 186 164 150 141 133 121 103 78 68 3"),
        2.9: ("197 196 190 168 150 139 129 117 99 78 58 3",
              "197 194 176 156 141 133 121 107 88 64 56 3"),
        2.7: ("197 196 182 160 141 127 115 105 88 66 49 3",
              "197 188 170 147 131 119 109 96 76 54 45 3"),
        2.5: ("197 192 174 156 131 115 111 99 76 50 39 3",
              "197 186 160 133 119 107 96 82 66 43 37 3"),
        2.3: ("197 192 168 143 121 105 92 74 62 45 33 3",
              "197 180 156 127 109 98 80 66 52 37 31 3"),
    },
    768: {
        12.5: ("197 197 196 192 184 170 154 139 129 94 58 3",
               "197 196 194 190 176 160 145 131 115 68 47 3"),
        11.5: ("197 197 197 188 170 154 139 123 107 72 43 3",
               "197 197 192 178 158 145 127 111 94 50 35 3"),
        10.4: ("197 196 188 174 156 141 121 103 90 58 25 3",
               "197 190 184 164 145 131 107 94 74 31 21 3"),
        10.0: ("197 194 182 168 148 129 113 101 82 49 25 3",
               "197 186 174 156 137 117 105 90 66 31 19 3"),
        8.7: ("197 192 172 156 131 107 90 72 56 33 17 3",
              "197 178 162 141 115 96 78 60 47 21 13 3"),
    },
}  # fmt: skip


@dataclass(frozen=True)
class DiffRate(Method):
    """Prune all but the share `keep` by the attention of CLS, then merge the `similar` least
    important tokens of the rest, each into the most similar of the others.

    The merged token is the plain mean. Each part adds its size times the cosine of the two. (A
    negative cosine adds nothing; the published method would subtract.)

    Args:
        counts: What meets a budget. "published" takes what DiffRate learned on ImageNet's training
            images for DeiT-T, -S and -B, and interpolates between these budgets. Below the lowest
            it extrapolates by a power law, which is ours. Models of another geometry have no
            published counts. "even" is ours, for any model: half pruned and half merged, the same
            counts at all blocks.
        weighted: Merge as ToMe and Fold do, by means weighted by size, and add whole sizes. Not as
            published, but a little closer to the unpruned model.
        proportional: Let attention be proportional to the size of a token.

    >>> DiffRate(counts="even").proportional
    True
    """

    name = "diffrate"
    variants: ClassVar = {"diffrate-even": {"counts": "even"}}
    acts = "middle"
    merges = True
    searchable = None
    counts: Counts = "published"
    weighted: bool = False
    proportional: bool = True

    def dials(self, geometry: Geometry) -> Iterator[Dial]:
        """Yield the published counts, for the budgets that they meet, then what is between them."""
        _check_geometry(geometry)
        if self.counts == "even":
            yield partial(self._even, geometry)
            return
        rows = published_rows(geometry)
        for row in rows:
            yield partial(self._fixed, row)
        yield partial(self._between, [(geometry.patches,) * len(rows[0]), *rows])

    def _even(self, geometry: Geometry, cut: float) -> Schedule:
        left, row = geometry.patches, list[int]()
        for count in spread_evenly(cut * geometry.patches / 4, geometry.depth):
            for _ in ("pruned", "merged"):
                left = max(1, left - count)
                row.append(left)
        return self._schedule(row, geometry.patches)

    def _fixed(self, row: Row, cut: float) -> Schedule:
        return self._schedule(row, PATCHES)

    def _between(self, rows: Sequence[Row], cut: float) -> Schedule:
        """Interpolate between no pruning and the rows, in their order. Beyond the last row, which
        leaves n of 196 tokens at a block, leave 196 · (n / 196)^t, with t growing from 1."""
        at, fraction = divmod(cut * len(rows), 1)
        if at < len(rows) - 1:
            more, less = rows[int(at)], rows[int(at) + 1]
            pairs = zip(more, less, strict=True)
            row = [round(high + fraction * (low - high)) for high, low in pairs]
        else:
            fraction = fraction if at < len(rows) else 1.0
            power = 1 / (1 - fraction * (1 - 1 / PATCHES))
            row = [max(1, round(PATCHES * (left / PATCHES) ** power)) for left in rows[-1]]
        return self._schedule(row, PATCHES)

    def _schedule(self, row: Sequence[int], patches: int) -> Schedule:
        turns = zip((patches, *row[1::2]), row[::2], row[1::2], strict=False)
        stages = (
            Stage(block, share_that_keeps(pruned, before), pruned - merged)
            for block, (before, pruned, merged) in enumerate(turns, start=1)
        )
        return Schedule(tuple(stage for stage in stages if stage.prunes), self)

    def kept(self, stage: Stage, patches: int) -> int:
        return stage.share(patches) - stage.similar

    def check(self, stage: Stage, patches: int, geometry: Geometry) -> None:
        _check_geometry(geometry)
        if stage.similar >= stage.share(patches):
            raise ValueError(
                f"the stage at block {stage.block} merges {stage.similar} tokens, but its pruning "
                f"leaves only {stage.share(patches)}"
            )

    def decides_after(self) -> Part:
        return "projection"

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        prefix, left = seen.prefix, stage.share(seen.patches)
        importance = cls_attention(seen.rows)[:, prefix:]
        order = seen.scorer.descending(importance)
        kept = left - stage.similar
        keep = order[:, :kept]
        if not stage.similar:
            return Reduction(keep, importance)
        merged = order[:, kept:left]
        x = seen.tokens.x[:, prefix:]
        cosine, into = seen.scorer.nearest(x, merged, keep)
        partner = torch.gather(keep, 1, into)
        adding = None if self.weighted else cosine.clamp(min=0)
        return Reduction(
            keep, importance, similar=merged, partner=partner, into=into, adding=adding
        )

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        pairs = stage.similar * self.kept(stage, patches)
        return geometry.row(stage.block, patches) + pairs * geometry.dim


def published_rows(geometry: Geometry) -> list[Row]:
    """Return the published counts for models of this geometry, those of the highest budget first.

    A count above an earlier one is replaced by it: there are no more tokens.
    """
    table = PUBLISHED.get(geometry.dim, {})
    if not table or (geometry.depth, geometry.patches, geometry.prefix) != (12, PATCHES, 1):
        raise ValueError(
            "diffrate has published counts only for the geometry of DeiT-T, -S and -B, with one "
            "prefix token and 196 patch tokens: use diffrate-even"
        )
    rows = []
    for pruned, merged in table.values():
        turns = chain.from_iterable(zip(pruned.split(), merged.split(), strict=True))
        rows.append(tuple(accumulate((int(count) - 1 for count in turns), min)))
    return rows


def _check_geometry(geometry: Geometry) -> None:
    if not geometry.cls:
        raise ValueError("DiffRate ranks by the attention of CLS: this model has no CLS token")
