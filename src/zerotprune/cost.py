"""Multiply-accumulates in closed form: a model's geometry and its token counts → GMACs.

Two conventions, to be named with every figure:
"full"   all matrix products and convolutions, with patch embedding and head; what torch counts
"paper"  the paper's (fvcore's without the patch embedding): norms count 5 per value
Both include what the pruning itself costs: votes and matching.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .schedule import Schedule, Stage

Convention = Literal["full", "paper"]
Compute = Literal["needed", "all"]  # what somebody reads, or all that the paper counts
TOLERANCE = 0.01


@dataclass(frozen=True)
class BlockShape:
    """One block, in multiply-accumulates."""

    attention: int  # of its attention's linear layers, for each token
    queries: int  # … that part of it which only tokens that ask need: q, output, gate
    mlp: int  # of its MLP's linear layers, for each token
    width: int  # of all its heads together; attention itself costs twice this for a pair of tokens
    heads: int
    attention_norms: int  # normalised values for each token
    query_norms: int  # … those of them which only tokens that ask need
    mlp_norms: int


@dataclass(frozen=True)
class Geometry:
    """All that the cost of a Vision Transformer depends on."""

    blocks: tuple[BlockShape, ...]
    grid: tuple[int, int]
    prefix: int  # tokens that are not patches: CLS, distillation, registers
    cls: bool  # is token 0 a CLS token?
    pools_patches: bool  # does the head, for all we know, read more than the prefix tokens?
    dim: int
    stem: int  # patch embedding
    stem_norms: int  # normalised values between patch embedding and first block, for each token
    head: int  # after the last block, whatever the number of tokens
    head_token: int  # … for each token (attention pooling)
    head_pair: int  # … for each pair of tokens
    head_norms: int  # normalised values of the final norm, for each token
    head_norms_once: int  # … for each picture

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        return self.prefix + self.patches

    def votes(self, block: int, patches: int) -> int:
        """One round of votes over the graph of a block."""
        return self.blocks[block - 1].heads * (self.prefix + patches) ** 2

    def row(self, block: int, patches: int) -> int:
        """One row of that graph, where the rest of it is not at hand."""
        return self.blocks[block - 1].width * (self.prefix + patches)


class Load(NamedTuple):
    """What one block has to handle."""

    attention: int  # tokens in its attention
    queries: int  # those of them that ask: all, but for the exact last block's
    mlp: int  # tokens in its MLP
    method: int  # multiply-accumulates of the pruning itself


def block_macs(shape: BlockShape, load: Load, convention: Convention = "full") -> int:
    silent = load.attention - load.queries
    total = load.attention * shape.attention - silent * shape.queries
    total += load.mlp * shape.mlp + load.method
    total += 2 * load.attention * load.queries * shape.width
    if convention == "paper":
        norms = load.attention * shape.attention_norms - silent * shape.query_norms
        total += 5 * (norms + load.mlp * shape.mlp_norms)
    return total


def total_macs(
    geometry: Geometry, loads: Sequence[Load], left: int, convention: Convention = "full"
) -> int:
    """The whole model for one picture; `left` tokens reach the head."""
    pairs = zip(geometry.blocks, loads, strict=True)
    total = sum(block_macs(shape, load, convention) for shape, load in pairs)
    total += geometry.head + left * geometry.head_token + left**2 * geometry.head_pair
    if convention == "full":
        return total + geometry.stem
    norms = geometry.tokens * geometry.stem_norms + left * geometry.head_norms
    return total + 5 * (norms + geometry.head_norms_once)


#: what a schedule costs, in GMACs; None if the model and the method cannot follow it
Price = Callable[[Schedule], float | None]


def solve(geometry: Geometry, budget: float, price: Price, unpruned: float) -> Schedule:
    """The schedule of the paper's form whose price is nearest to the budget.

    The form: stages at 1/12, 3/12, 6/12, 9/12 and 11/12 of the depth with 30, 5, 5, 1 and 1
    rounds as in the paper's ablation, `similar` the same in all of them, and shares that decline
    uniformly over the stages between the first and the last; for budgets too small for that, one
    constant share in all stages. The paper's share of similar tokens is taken where it comes
    within half a percent, else the nearest to it that does.
    """
    if abs(budget - unpruned) <= TOLERANCE / 2 * unpruned:
        return Schedule()
    found = _Search(geometry, price)
    for form in (_declining, _constant):
        for similar in _similar_counts(geometry.patches):
            best, error = found.nearest(form, similar, budget)
            if error <= TOLERANCE / 2:
                return best
    if error <= TOLERANCE:
        return best
    found.nearest(_constant, 0, 0.0)
    low, gap = min(found.prices.values()), ""
    if low < budget < unpruned:
        gap = f"; with so few tokens the nearest to it is {found.prices[best]:.4g}"
    raise ValueError(
        f"a budget of {budget:.4g} GMACs cannot be met: this model takes {unpruned:.4g} unpruned "
        f"and {low:.4g} at least{gap}"
    )


Form = Callable[[int, float], list[float]]


def _declining(stages: int, cut: float) -> list[float]:
    """Shares kept, from all (cut 0) down to 0.4 in the last stage that cuts (cut 1).

    Below that a constant share is more accurate: tried with DeiT-Ti at half of its cost.
    """
    inner = stages - 2 if stages > 3 else stages
    shares = [1 - 0.6 * cut * step / inner for step in range(1, inner + 1)]
    return [1.0, *shares, 1.0] if stages > 3 else shares


def _constant(stages: int, cut: float) -> list[float]:
    return [1 - cut] * stages


def _similar_counts(patches: int) -> list[int]:
    """The paper's 10 of 196 first, then the others by their distance from it."""
    wanted = round(patches * 10 / 196)
    return sorted(range(2 * wanted + 1), key=lambda similar: abs(similar - wanted))


class _Search:
    """Bisection of the cut, with a memory of all that was priced."""

    def __init__(self, geometry: Geometry, price: Price) -> None:
        depth = geometry.depth
        if depth < 2:
            raise ValueError(f"a model of depth {depth} has no place for a stage")
        twelfths = {11: 1, 9: 1, 6: 5, 3: 5, 1: 30}  # the paper's rounds at its places
        self.rounds = {
            min(max(round(depth * at / 12), 1), depth - 1): votes for at, votes in twelfths.items()
        }
        self.places = sorted(self.rounds)
        self.patches, self.price = geometry.patches, price
        self.prices: dict[Schedule, float] = {}

    def nearest(self, form: Form, similar: int, budget: float) -> tuple[Schedule, float]:
        """The nearest schedule so far, and by which part of the budget it misses."""
        low, high = 0.0, 1.0
        for step in range(21):
            cut = (low + high) / 2 if step else 0.0
            schedule = self._schedule(form(len(self.places), cut), similar)
            price = None if schedule is None else self.price(schedule)
            if schedule is not None and price is not None:
                self.prices[schedule] = price
            if price is not None and price >= budget:
                low = cut
            else:
                high = cut if step else high
        best = min(self.prices, key=lambda schedule: abs(self.prices[schedule] - budget))
        return best, abs(self.prices[best] - budget) / max(budget, 1e-12)

    def _schedule(self, shares: list[float], similar: int) -> Schedule | None:
        """The schedule with these shares, or None if Zero-TPrune could not follow it: methods that
        are compared get schedules of one form."""
        stages, patches = [], self.patches
        for place, share in zip(self.places, shares, strict=True):
            if not round(share, 4) > 0 or similar > patches - patches // 2:
                return None
            stage = Stage(place, round(share, 4), similar, self.rounds[place])
            patches = stage.kept(patches)
            if patches < 1:
                return None
            stages.append(stage)
        return Schedule(tuple(stages))
