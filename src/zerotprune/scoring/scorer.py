"""The scorer: the steps of scoring that depend on the hardware, and the choice of a backend.

`Scorer` is plain torch, for any device, and the oracle of every faster backend. The Triton kernels
for GPUs (`triton.fused`) are imported only where they are used.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import Tensor

from ..safety.ranges import check_choice
from ..shapes import Float, Int
from . import indexing, similarity
from .attention import Heads, output, outputs_with_graph, outputs_with_sums, sampled_attention
from .graph import (
    ColumnGraph,
    Graph,
    HeadRule,
    Over,
    combine_heads,
    head_variance,
    heads_in_range,
    widen,
)
from .indexing import add_at, exporting, take
from .similarity import AMONG, Among, Folding, Matching, Metric, Partition, normalize

Backend = Literal["auto", "reference", "triton"]

INSTALLED = find_spec("triton") is not None

#: opposite tokens add up to nothing, which has no direction to scale
SHORTEST = 1e-6


class Scorer:
    """What a method scores with. This one writes the attention graph to memory."""

    def attention(self, heads: list[Heads]) -> tuple[list[Tensor], Graph]:
        """Return the output of each attention, and the graph of all their heads."""
        return outputs_with_graph(heads)

    def attention_sums(self, heads: list[Heads]) -> tuple[list[Tensor], ColumnGraph]:
        """Return the output of each attention, and only the first row and the column means of the
        graph."""
        return outputs_with_sums(heads)

    def output(self, attn: Heads) -> Float[Tensor, "batch heads queries width"]:
        """Return the output of one attention, without its graph."""
        return output(attn)

    def sampled_attention(
        self, heads: list[Heads], count: int, prefix: int, cls: bool
    ) -> list[Float[Tensor, "batch tokens"]]:
        """Return the attention that each token receives from CLS and from a sample of `count` patch
        tokens, see `attention.sampled_attention`."""
        return sampled_attention(heads, count, prefix, cls)

    def importance(
        self,
        graph: Graph,
        scores: Float[Tensor, "batch heads tokens"],
        prefix: int,
        rule: HeadRule = "eir",
        variances: tuple[float, float] | None = None,
        over: Over = "patches",
    ) -> Float[Tensor, "batch patches"]:
        """Return one importance for each patch token, from the heads whose variance is between
        `variances`."""
        mask = None
        if variances is not None:
            variance = head_variance(scores, prefix if over == "patches" else 0, graph.alive)
            mask = heads_in_range(variance, *variances)
        return combine_heads(scores, rule, mask)[:, prefix:]

    def descending(self, values: Float[Tensor, "batch count"]) -> Int[Tensor, "batch count"]:
        """Return the indices that sort each row from largest to smallest; ties keep their order."""
        return indexing.descending(values)

    def top(
        self, values: Float[Tensor, "batch patches"], count: int
    ) -> Int[Tensor, "batch {count}"]:
        """Return the indices of the `count` largest values, the largest first."""
        return indexing.top(values, count)

    def nearest(
        self,
        features: Float[Tensor, "batch patches width"],
        group_a: Int[Tensor, "batch group_a"],
        group_b: Int[Tensor, "batch group_b"],
        metric: Metric = "cosine",
        among: Among = "others",
    ) -> tuple[Float[Tensor, "batch group_a"], Int[Tensor, "batch group_a"]]:
        """Return the most similar token of B for each token of A, see `similarity.nearest`."""
        return similarity.nearest(features, group_a, group_b, metric, among)

    def match(
        self,
        features: Float[Tensor, "batch patches width"],
        importance: Float[Tensor, "batch patches"],
        count: int,
        partition: Partition = "sequential-u",
        metric: Metric = "cosine",
    ) -> Matching:
        """Run the S-stage (Sec. 3.3): pair each token of A with its most similar one of B, and drop
        the A of the `count` most similar pairs."""
        group_a, group_b = similarity.split(importance, partition, self.descending)
        among = AMONG.get(partition, "others")
        best, choice = self.nearest(features, group_a, group_b, metric, among)
        order = self.descending(best)
        out, stay = order[:, :count], order[:, count:]
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
        """Choose `count` of every second patch token, and for each the cheapest of the others to
        fold it into.

        Folding costs (1 − cosine) · (weight of the token + `of_partner` · weight of its partner).

        Args:
            features: What is compared, prefix tokens first.
            count: How many tokens to fold, the cheapest.
            weight: The importance of each patch token; 1 without it.
            of_partner: The share of the partner's weight in the cost.
            first: The index of the first patch token that may be folded, 0 or 1.
            prefix: The number of prefix tokens. Indices are counted without them.
        """
        features = features[:, prefix:]
        batch, patches, _ = features.shape
        gain, choice = self.cheapest(features, first, weight, of_partner)
        gone, stay = indexing.split_top(gain, count)
        target = choice.gather(1, gone)
        others = torch.arange(1 - first, patches, 2, device=features.device).expand(batch, -1)
        into = target + stay.shape[1]
        # From places in a group to indices: first + 2 · place, in one step.
        stay, gone = torch.rsub(stay, first, alpha=-2), torch.rsub(gone, first, alpha=-2)
        partner = torch.rsub(target, 1 - first, alpha=-2)
        return Folding(torch.cat((stay, others), dim=1), gone, partner, into)

    def cheapest(
        self,
        features: Float[Tensor, "batch patches width"],
        first: int,
        weight: Float[Tensor, "batch patches"] | None,
        of_partner: float,
    ) -> tuple[Float[Tensor, "batch group_a"], Int[Tensor, "batch group_a"]]:
        """Return for every second token, from `first` on, its lowest cost of folding, negated, and
        the index of its partner among the others."""
        a, b = slice(first, None, 2), slice(1 - first, None, 2)
        unit = normalize(widen(features))
        # The partners are rows: on a CPU, a maximum over rows is faster than one over columns.
        gain = torch.bmm(unit[:, b], unit[:, a].transpose(1, 2))
        if weight is not None:
            both = torch.add(weight[:, None, a], weight[:, b, None], alpha=of_partner)
            gain = gain.sub_(1).mul_(both)
        return indexing.largest(gain, dim=1)

    def merge(
        self,
        x: Float[Tensor, "batch tokens width"],
        size: Float[Tensor, "batch tokens"] | None,
        keep: Int[Tensor, "batch kept"],
        gone: Int[Tensor, "batch gone"],
        into: Int[Tensor, "batch gone"],
        keeps_length: bool = False,
    ) -> tuple[Float[Tensor, "batch kept width"], Float[Tensor, "batch kept"]]:
        """Merge tokens into kept ones by means weighted by size; return the kept tokens and their
        new sizes.

        Args:
            x: All tokens.
            size: Their sizes; all 1 if None.
            keep: The indices of the tokens to keep.
            gone: The indices of the tokens to merge.
            into: For each of `gone`, the index in `keep` to merge it into.
            keeps_length: Scale each mean, which is shorter than the tokens in it, to their mean
                length.
        """
        kept, both = keep.shape[1], torch.cat((keep, gone), dim=1)
        tokens = widen(take(x, both))
        if size is None:
            sizes = tokens.new_ones(both.shape)
        else:
            sizes = size.gather(1, both)
            tokens = tokens * sizes.unsqueeze(-1)
        pairs = [(tokens[:, :kept], tokens[:, kept:]), (sizes[:, :kept], sizes[:, kept:])]
        if keeps_length:
            length = torch.linalg.vector_norm(tokens, dim=-1)
            pairs.append((length[:, :kept], length[:, kept:]))
        mixed, total, *lengths = add_at(into, *pairs)
        divisor = total
        if keeps_length:
            shortened = torch.linalg.vector_norm(mixed, dim=-1) / lengths[0].clamp_min(SHORTEST)
            divisor = total * shortened.clamp_min(SHORTEST)
        mixed = mixed / divisor.unsqueeze(-1)
        return mixed if mixed.dtype == x.dtype else mixed.to(x.dtype), total


#: the one instance: the compiler can trace a global, but not an instance made by a default
REFERENCE = Scorer()

# Made ahead by `prepare`: the compiler traces the choice of a scorer, but cannot trace its making.
_fused: dict[Backend, Scorer] = {}


def prepare(backend: str) -> None:
    """Import the kernels if the backend may use them here.

    Raises ValueError for an unknown backend, and for "triton" without Triton.
    """
    check_choice("backend", backend, get_args(Backend))
    if backend == "triton" and not INSTALLED:
        raise ValueError("backend='triton' needs the package triton: pip install triton")
    wanted = backend == "triton" or (backend == "auto" and torch.cuda.is_available())
    if wanted and INSTALLED and not _fused:
        fused = import_module(".triton.fused", __package__).FusedScorer
        _fused.update({"auto": fused(), "triton": fused(strict=True)})


def scorer_for(backend: Backend, heads: list[Heads]) -> Scorer:
    """Choose the scorer for these heads. "auto" takes the kernels wherever they can run."""
    if backend == "reference" or (backend == "auto" and heads[0].q.device.type == "cpu"):
        return REFERENCE
    why_not = _why_no_kernels(heads[0].q, backend)
    if why_not is None:
        if not _fused:
            prepare(backend)  # the model was unpickled, and prune_ was not called
        return _fused[backend]
    if backend == "triton":
        raise ValueError(f"backend='triton' cannot score here: {why_not}")
    return REFERENCE


def used_on(device: torch.device) -> str:
    """Name the backend that "auto" chooses on a device."""
    if device.type == "cuda" and INSTALLED:
        return "triton"
    return "reference"


def _why_no_kernels(x: Tensor, backend: Backend) -> str | None:
    """Say why the kernels cannot take such tensors; None if they can."""
    device = x.device.type
    if not INSTALLED:
        return "the package triton is not installed"
    if device != "cuda" and not (device == "cpu" and backend == "triton" and _interpreted()):
        return f"the model is on the device {device}, not on a GPU"
    if exporting():
        return "an exported model must run without this library"
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the kernels take float32, float16 and bfloat16, got {x.dtype}"
    if x.dtype == torch.bfloat16 and device == "cpu":
        return "Triton's interpreter cannot multiply bfloat16"
    return None


def _interpreted() -> bool:
    """Return whether kernels run on the CPU, slowly, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"
