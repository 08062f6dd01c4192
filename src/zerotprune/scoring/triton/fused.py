"""A scorer that never has the attention graph in memory: it recomputes tiles from q and k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...shapes import Float, Int
from ..attention import ColumnSums, Heads, sampled_rows
from ..graph import (
    ColumnGraph,
    DenseGraph,
    Graph,
    HeadRule,
    Over,
    alive_mask,
    attention_graph,
    start_scores,
)
from ..scorer import Scorer
from ..similarity import Among, Folding, Metric
from . import ranking, similarity, whole
from .sums import columns, log_sums, log_sums_without, row, sampled
from .tiles import LOG2_E
from .voting import vote


class FusedGraph(NamedTuple):
    """An attention graph as q, k and the sums of its rows."""

    q: Float[Tensor, "batch heads tokens width"]
    k: Float[Tensor, "batch heads tokens width"]
    scale: float
    sums: Float[Tensor, "batch heads tokens"]  # base-2 logarithms, over the living tokens
    alive: Float[Tensor, "batch tokens"] | None = None

    def without(self, dropped: Int[Tensor, "batch dropped"], rescaled: bool = True) -> Graph:
        if not rescaled:  # the kernels need rows that sum to 1
            return DenseGraph(attention_graph(self.q, self.k, self.scale)).without(dropped, False)
        alive = alive_mask(self.sums[:, 0], dropped)
        sums = log_sums_without(self.q, self.k, self.scale, self.sums, dropped, alive)
        return self._replace(sums=sums, alive=alive)

    def start(self, cls_weight: float | None = None) -> Float[Tensor, "batch heads tokens"]:
        return start_scores(self.sums, cls_weight, self.alive)

    def vote(
        self, scores: Float[Tensor, "batch heads tokens"], rounds: int
    ) -> Float[Tensor, "batch heads tokens"]:
        return vote(self.q, self.k, self.scale, self.sums, scores, rounds, self.alive)

    def row(self, token: int) -> Float[Tensor, "batch heads tokens"]:
        return row(self.q, self.k, self.scale, self.sums, token)

    def received(self) -> Float[Tensor, "batch heads tokens"]:
        return self.vote(self.start(), rounds=1)


@dataclass(frozen=True)
class FusedScorer(Scorer):
    """Score by Triton kernels. Fall back to torch for what they cannot do, unless `strict`."""

    strict: bool = False

    def attention(self, heads: list[Heads]) -> tuple[list[Tensor], Graph]:
        why_not = _why_no_graph(heads)
        if why_not is None and heads[0].size is not None:
            why_not = "the method wants the whole graph of merged tokens"
        if why_not is not None:
            self._leave(why_not)
            return super().attention(heads)
        (attn,) = heads
        out, sums = _attention(attn.q, attn.k, attn.v, attn.scale)
        q, k = (_dense_rows(x.detach()) for x in (attn.q, attn.k))
        if sums is None:
            sums = log_sums(q, k, attn.scale)
        return [out], FusedGraph(q, k, attn.scale, sums.detach().contiguous())

    def attention_sums(self, heads: list[Heads]) -> tuple[list[Tensor], ColumnGraph]:
        why_not = _why_no_graph(heads) or _why_no_attention(heads[0])
        if why_not is not None:
            self._leave(why_not)
            return super().attention_sums(heads)
        (attn,) = heads
        q, k, v = (_dense_rows(x) for x in (attn.q, attn.k, attn.v))
        if whole.fits(q, whole.MOST_SUMMED):
            out, received, first = whole.attend_with_columns(q, k, v, attn.scale, attn.size)
            return [out], ColumnSums.of(first, received)
        if whole.fits(q):
            out, sums = whole.attend(q, k, v, attn.scale, attn.size)
            return [out], columns(q, k, attn.scale, sums, attn.size)
        if attn.size is not None:
            q, k = with_sizes(q, k, attn.scale, attn.size)
        out, logs = _attention(q, k, v, attn.scale)
        sums = log_sums(q, k, attn.scale) if logs is None else logs.contiguous()
        return [out], columns(q, k, attn.scale, sums, None)

    def output(self, attn: Heads) -> Float[Tensor, "batch heads queries width"]:
        if attn.size is None or _why_no_graph([attn]) or _why_no_attention(attn):
            return super().output(attn)
        q, k, v = (_dense_rows(x) for x in (attn.q, attn.k, attn.v))
        if whole.fits(q):
            return whole.attend(q, k, v, attn.scale, attn.size)[0]
        q, k = with_sizes(q, k, attn.scale, attn.size)
        return F.scaled_dot_product_attention(q, k, v, scale=attn.scale)

    def sampled_attention(
        self, heads: list[Heads], count: int, prefix: int, cls: bool
    ) -> list[Float[Tensor, "batch tokens"]]:
        why_not = _why_no_graph(heads)
        if why_not is not None:
            self._leave(why_not)
            return super().sampled_attention(heads, count, prefix, cls)
        q, k = (_dense_rows(x.detach()) for x in (heads[0].q, heads[0].k))
        rows = sampled_rows(k.shape[2], count, prefix)
        mean, first = sampled(q, k, heads[0].scale, heads[0].size, rows, cls)
        return [row.mean(dim=1) for row in ((first, mean) if cls else (mean,))]

    def _leave(self, why: str) -> None:
        """Fall back to torch, unless `strict`."""
        if self.strict:
            raise ValueError(f"backend='triton' cannot score here: {why}")

    def importance(
        self,
        graph: Graph,
        scores: Float[Tensor, "batch heads tokens"],
        prefix: int,
        rule: HeadRule = "eir",
        variances: tuple[float, float] | None = None,
        over: Over = "patches",
    ) -> Float[Tensor, "batch patches"]:
        if rule != "eir" or over != "patches":
            return super().importance(graph, scores, prefix, rule, variances, over)
        return ranking.importance(scores, prefix, variances, graph.alive)

    def descending(self, values: Float[Tensor, "batch count"]) -> Int[Tensor, "batch count"]:
        return ranking.descending(values)

    def top(
        self, values: Float[Tensor, "batch patches"], count: int
    ) -> Int[Tensor, "batch {count}"]:
        return ranking.descending(values)[:, :count]

    def nearest(
        self,
        features: Float[Tensor, "batch patches width"],
        group_a: Int[Tensor, "batch group_a"],
        group_b: Int[Tensor, "batch group_b"],
        metric: Metric = "cosine",
        among: Among = "others",
    ) -> tuple[Float[Tensor, "batch group_a"], Int[Tensor, "batch group_a"]]:
        if metric != "cosine" or among != "others":
            return super().nearest(features, group_a, group_b, metric, among)
        return similarity.nearest(features, group_a, group_b)

    def fold(
        self,
        features: Float[Tensor, "batch tokens width"],
        count: int,
        weight: Float[Tensor, "batch patches"] | None = None,
        of_partner: float = 0.0,
        first: int = 1,
        prefix: int = 0,
    ) -> Folding:
        if features.shape[1] - prefix > similarity.ONE_TILE:
            return super().fold(features, count, weight, of_partner, first, prefix)
        return similarity.fold(features, count, weight, of_partner, first, prefix)

    def cheapest(
        self,
        features: Float[Tensor, "batch patches width"],
        first: int,
        weight: Float[Tensor, "batch patches"] | None,
        of_partner: float,
    ) -> tuple[Float[Tensor, "batch group_a"], Int[Tensor, "batch group_a"]]:
        place = torch.arange(features.shape[1], device=features.device)
        place = place.expand(features.shape[0], -1)
        groups = place[:, first::2], place[:, 1 - first :: 2]
        return similarity.nearest(features, *groups, weight, of_partner)

    def merge(
        self,
        x: Float[Tensor, "batch tokens width"],
        size: Float[Tensor, "batch tokens"] | None,
        keep: Int[Tensor, "batch kept"],
        gone: Int[Tensor, "batch gone"],
        into: Int[Tensor, "batch gone"],
        keeps_length: bool = False,
    ) -> tuple[Float[Tensor, "batch kept width"], Float[Tensor, "batch kept"]]:
        if x.requires_grad:  # the kernel has no backward pass
            return super().merge(x, size, keep, gone, into, keeps_length)
        return similarity.merge(x, size, keep, gone, into, keeps_length)


def _why_no_graph(heads: list[Heads]) -> str | None:
    """Say why the kernels cannot compute the graph of these heads; None if they can."""
    if len(heads) > 1:
        return "the block has parallel attentions"
    if heads[0].bias is not None:
        return "attention has a bias, such as relative positions"
    if heads[0].dropout > 0:
        return "attention has dropout"
    if heads[0].q.shape[-1] > 128:
        return f"heads are at most 128 wide, got {heads[0].q.shape[-1]}"
    return None


def _why_no_attention(attn: Heads) -> str | None:
    """Say why the kernels cannot compute this attention; None if they can."""
    if not attn.q.shape == attn.k.shape == attn.v.shape:
        return "queries, keys and values differ in number or width"
    if attn.size is not None and attn.q.shape[-1] > 120 and not whole.fits(attn.q):
        return f"heads of merged tokens are at most 120 wide, got {attn.q.shape[-1]}"
    if any(x.requires_grad for x in (attn.q, attn.k, attn.v)):
        return "the kernel has no backward pass, and gradients are enabled"
    return None


def _dense_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def with_sizes(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    scale: float,
    size: Float[Tensor, "batch tokens"],
) -> tuple[Float[Tensor, "batch heads tokens wider"], Float[Tensor, "batch heads tokens wider"]]:
    """Extend q and k so that their product includes the logarithm of the sizes: a bias would slow
    fused attention down.

    k gets the logarithm as two more channels, high and low bits in half precision, and q gets
    1 / scale there. Fused attention needs widths that are multiples of 8. The logarithm of padding,
    which has size 0, is clamped: of −inf the low bits would be NaN.
    """
    log = size.log().clamp_min(-1e4)
    high = log.to(k.dtype)
    low = (log - high.to(log.dtype)).to(k.dtype)
    batch, heads, tokens, width = k.shape
    more = 2 + -(width + 2) % 8
    wider = torch.stack((high, low), dim=-1)[:, None].expand(-1, heads, -1, -1)
    k = torch.cat((k, wider, k.new_zeros(batch, heads, tokens, more - 2)), dim=-1)
    ones = q.new_full((batch, heads, tokens, 2), 1 / scale)
    q = torch.cat((q, ones, q.new_zeros(batch, heads, tokens, more - 2)), dim=-1)
    return q, k


def _attention(
    q: Float[Tensor, "batch heads tokens width"],
    k: Float[Tensor, "batch heads tokens width"],
    v: Float[Tensor, "batch heads tokens values"],
    scale: float,
) -> tuple[Float[Tensor, "batch heads tokens values"], Float[Tensor, "batch heads tokens"] | None]:
    """Compute fused attention, with the logarithms of its row sums where torch returns them."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    if half and q.device.type == "cuda" and q.shape[-1] == v.shape[-1] and q.shape[-1] % 8 == 0:
        if q.shape[-1] <= 128 and _has_cudnn_attention(q.device.index):
            results = torch.ops.aten._scaled_dot_product_cudnn_attention(
                q, k, v, None, True, 0.0, False, False, scale=scale
            )
            return results[0], results[1].reshape(q.shape[:3]) * LOG2_E
        results = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, scale=scale)
        return results[0], results[1] * LOG2_E
    return F.scaled_dot_product_attention(q, k, v, scale=scale), None


@torch.compiler.assume_constant_result
def _has_cudnn_attention(device: int) -> bool:
    """Return whether cuDNN's attention is available and torch's fastest, as on Hopper and later."""
    recent = torch.cuda.get_device_capability(device) >= (9, 0)
    return (
        recent and torch.backends.cudnn.is_available() and torch.backends.cuda.cudnn_sdp_enabled()
    )
