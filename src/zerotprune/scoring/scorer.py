"""The steps of scoring that hardware matters to, in plain torch: the oracle of every faster way."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batching import take
from ..shapes import Float, Int
from . import ordering, similarity
from .adding import add_at
from .attention import Heads, output, outputs_with_graph, outputs_with_sums, sampled_attention
from .graph import ColumnGraph, Graph, HeadRule, Over, combine_heads, head_variance, heads_in_range
from .precision import widened
from .similarity import AMONG, Among, Folding, Matching, Metric, Partition


class Scorer:
    """What a method scores with, on any device. The graph is written to memory."""

    def attention(self, heads: list[Heads]) -> tuple[list[Tensor], Graph]:
        """Each attention's output, and the graph of all their heads."""
        return outputs_with_graph(heads)

    def attention_sums(self, heads: list[Heads]) -> tuple[list[Tensor], ColumnGraph]:
        """The same for those who look at the first row and at the sums of the columns alone."""
        return outputs_with_sums(heads)

    def output(self, part: Heads) -> Float[Tensor, "batch heads queries width"]:
        """One attention's output, where nobody looks at its graph."""
        return output(part)

    def sampled_attention(
        self, heads: list[Heads], count: int, prefix: int, cls: bool
    ) -> list[Float[Tensor, "batch tokens"]]:
        """Attention received from CLS and from `count` patch tokens, see `attention`."""
        return sampled_attention(heads, count, prefix, cls)

    def importance(
        self,
        graph: Graph,
        score: Float[Tensor, "batch heads tokens"],
        prefix: int,
        rule: HeadRule = "eir",
        variances: tuple[float, float] | None = None,
        over: Over = "patches",
    ) -> Float[Tensor, "batch patches"]:
        """One importance for each patch token, from the heads whose variance is in the range."""
        counted = None
        if variances is not None:
            variance = head_variance(score, prefix if over == "patches" else 0, graph.alive)
            counted = heads_in_range(variance, *variances)
        return combine_heads(score, rule, counted)[:, prefix:]

    def descending(self, values: Float[Tensor, "batch count"]) -> Int[Tensor, "batch count"]:
        """The places of the values, the largest first; of equal values the first one first."""
        return ordering.descending(values)

    def top(
        self, values: Float[Tensor, "batch patches"], count: int
    ) -> Int[Tensor, "batch {count}"]:
        """The places of the largest values, the largest first."""
        return ordering.top(values, count)

    def nearest(
        self,
        features: Float[Tensor, "batch patches width"],
        group_a: Int[Tensor, "batch group_a"],
        group_b: Int[Tensor, "batch group_b"],
        metric: Metric = "cosine",
        among: Among = "others",
    ) -> tuple[Float[Tensor, "batch group_a"], Int[Tensor, "batch group_a"]]:
        """Each token's most similar one of the other group, see `similarity.nearest`."""
        return similarity.nearest(features, group_a, group_b, metric, among)

    def match(
        self,
        features: Float[Tensor, "batch patches width"],
        importance: Float[Tensor, "batch patches"],
        count: int,
        partition: Partition = "sequential-u",
        metric: Metric = "cosine",
    ) -> Matching:
        """The S-stage (Sec. 3.3): each token of A meets its most similar one of B, and the `count`
        most similar pairs lose their A."""
        group_a, group_b = similarity.split(importance, partition, self.descending)
        among = AMONG.get(partition, "others")
        best, choice = self.nearest(features, group_a, group_b, metric, among)
        ranked = self.descending(best)
        out, stay = ranked[:, :count], ranked[:, count:]
        left = group_a.gather(1, stay)
        if among == "others":
            left = torch.cat((group_b, left), dim=1)
        return Matching(group_a.gather(1, out), group_b.gather(1, choice.gather(1, out)), left)

    def fold(
        self,
        features: Float[Tensor, "batch tokens width"],
        count: int,
        weight: Float[Tensor, "batch patches"] | None = None,
        of_partner: float = 0.0,
        first: int = 1,
        prefix: int = 0,
    ) -> Folding:
        """Every second patch token, from place `first` on, meets the one of the others into which
        it is folded at the least cost; the `count` cheapest are. Places are counted without the
        prefix tokens, whose features come first.

        The cost is (1 − cosine), times the weight of the token and so much of its partner's.
        """
        features = features[:, prefix:]
        batch, patches, _ = features.shape
        gain, choice = self.cheapest(features, first, weight, of_partner)
        gone, stay = ordering.parted(gain, count, self.descending)
        target = choice.gather(1, gone)
        others = torch.arange(1 - first, patches, 2, device=features.device).expand(batch, -1)
        keep = torch.cat((2 * stay + first, others), dim=1)
        partner = 2 * target + (1 - first)
        return Folding(keep, 2 * gone + first, partner, target + stay.shape[1])

    def cheapest(
        self,
        features: Float[Tensor, "batch patches width"],
        first: int,
        weight: Float[Tensor, "batch patches"] | None,
        of_partner: float,
    ) -> tuple[Float[Tensor, "batch group_a"], Int[Tensor, "batch group_a"]]:
        """For every second token, from place `first` on, the place among the others of the one
        into which it is folded at the least cost, and that cost, negated."""
        a, b = slice(first, None, 2), slice(1 - first, None, 2)
        unit = F.normalize(widened(features), dim=-1)
        gain = torch.bmm(unit[:, a], unit[:, b].transpose(1, 2))
        if weight is not None:
            partner = (of_partner * weight[:, b]).unsqueeze(1)
            gain = (gain - 1) * (weight[:, a].unsqueeze(2) + partner)
        return ordering.largest(gain)

    def merge(
        self,
        x: Float[Tensor, "batch tokens width"],
        size: Float[Tensor, "batch tokens"] | None,
        keep: Int[Tensor, "batch kept"],
        gone: Int[Tensor, "batch gone"],
        into: Int[Tensor, "batch gone"],
    ) -> tuple[Float[Tensor, "batch kept width"], Float[Tensor, "batch kept"]]:
        """The kept tokens, each the mean of itself and what is merged into it, weighted by size;
        and their sizes. `into` are places in `keep`; without sizes all are 1."""
        kept, both = keep.shape[1], torch.cat((keep, gone), dim=1)
        tokens = widened(take(x, both))
        if size is None:
            sizes = tokens.new_ones(both.shape)
        else:
            sizes = size.gather(1, both)
            tokens = tokens * sizes.unsqueeze(-1)
        total = add_at(sizes[:, :kept], into, sizes[:, kept:])
        mixed = add_at(tokens[:, :kept], into, tokens[:, kept:])
        return (mixed / total.unsqueeze(-1)).to(x.dtype), total


#: One for all. The compiler follows an object that has a name, and none that a default made.
REFERENCE = Scorer()
