"""Test oracle: a brute-force float64 NumPy twin of the pruning layer and of a pruned ViT."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Bounds = tuple[float, float] | None
erf = np.vectorize(math.erf, otypes=[np.float64])


class Layer(NamedTuple):
    """Result of one pruning layer. Indices are patch indices (prefix tokens are not counted)."""

    kept: Indices  # ascending
    similar: Indices  # dropped by S, most similar pair first
    partner: Indices  # for each of `similar`, the token that made it redundant (-1: none)
    unimportant: Indices  # dropped by I, ascending
    pre_importance: Floats | None  # I' importance; None if I' did not run
    importance: Floats | None  # I importance, NaN for tokens I did not see; None if I did not run
    seen: Indices | None = None  # `vit_logits` only: original indices of the tokens it was given


def descending(scores: Floats) -> Indices:
    """Positions from the highest score to the lowest, ties by lower position."""
    return np.array(sorted(range(len(scores)), key=lambda i: (-scores[i], i)), dtype=np.int64)


def vote(graph: Floats, scores: Floats, rounds: int) -> Floats:
    """Scores of one head after `rounds` votes s <- A^T s, each scaled to sum 1."""
    for _ in range(rounds):
        received = np.zeros_like(scores)
        for voter, row in enumerate(graph):
            received += scores[voter] * row
        total = received.sum()
        scores = received / total if total > 0 else received
    return scores


def passing_heads(scores: Floats, bounds: Bounds) -> list[int]:
    """VHF: heads whose variance, scores scaled to mean 1, is in bounds; all if none."""
    everyone = list(range(len(scores)))
    if bounds is None:
        return everyone
    passing = []
    for head in everyone:
        mean = scores[head].mean()
        variance = ((scores[head] / mean - 1) ** 2).mean() if mean > 0 else 0.0
        if bounds[0] <= variance <= bounds[1]:
            passing.append(head)
    return passing or everyone


def combine_heads(scores: Floats, how: str) -> Floats:
    """One importance per token from scores (heads, tokens)."""
    if how == "eir":
        return np.asarray(np.sqrt((scores**2).mean(axis=0)))
    if how == "mean":
        return np.asarray(scores.mean(axis=0))
    if how == "max":
        return np.asarray(scores.max(axis=0))
    raise ValueError(f"unknown head combination {how!r}")


def page_rank(
    graph: Floats,
    prefix: int,
    rounds: int,
    cls_weight: float,
    heads: str,
    vhf: Bounds,
    vhf_over: str = "patches",
) -> Floats:
    """WPR importance of the patch tokens; token 0 starts with `cls_weight`, any other with 1."""
    start = np.ones(graph.shape[-1])
    start[0] = cls_weight
    start /= start.sum()
    scores = np.stack([vote(head, start, rounds) for head in graph])
    passing = passing_heads(scores if vhf_over == "all" else scores[:, prefix:], vhf)
    return combine_heads(scores[passing, prefix:], heads)


def restrict(graph: Floats, patches: Indices, prefix: int, rescale: bool = True) -> Floats:
    """The graph among the prefix tokens and `patches`, its rows scaled to sum 1 (0 stays 0)."""
    tokens = np.concatenate([np.arange(prefix), prefix + patches])
    small = graph[:, tokens][:, :, tokens].copy()
    for head in small if rescale else ():
        for row in head:
            if row.sum() > 0:
                row /= row.sum()
    return small


def candidates(importance: Floats, partition: str, noise: Floats | None) -> dict[int, Indices]:
    """For each token of A, the tokens it may be matched with (ascending): B, except for `none`."""
    n = len(importance)
    if partition == "none":
        return {a: np.flatnonzero(importance > importance[a]) for a in range(n)}
    if partition == "none-both":
        return {int(a): np.delete(np.arange(n), a) for a in descending(-importance)}
    if partition == "sequential-u":
        b = descending(importance)[: n // 2]
    elif partition == "sequential-i":
        b = descending(-importance)[: n // 2]
    elif partition == "alternate":
        b = descending(-importance)[1::2]
    elif partition == "alternate-top":
        b = descending(importance)[0::2]
    elif partition == "random" and noise is not None:
        b = descending(noise)[: n // 2]
    else:
        raise ValueError(f"unknown partition {partition!r}, or no noise given")
    return {a: np.sort(b) for a in range(n) if a not in b}


def similarity(x: Floats, y: Floats, metric: str) -> float:
    """Return the similarity of two feature vectors; distances are negated."""
    if metric == "dot":
        return float(x @ y)
    if metric == "cosine":
        norms = math.sqrt(x @ x) * math.sqrt(y @ y)
        return float(x @ y) / norms if norms > 0 else 0.0
    kind, _, p = metric.partition("-")
    if kind != "minkowski" or p not in ("1", "2", "3", "4", "5", "inf"):
        raise ValueError(f"unknown metric {metric!r}")
    gaps = np.abs(x - y)
    return -float(gaps.max() if p == "inf" else (gaps ** int(p)).sum() ** (1 / int(p)))


def redundant(
    features: Floats, choices: dict[int, Indices], count: int, metric: str
) -> tuple[Indices, Indices]:
    """S: the A tokens of the `count` most similar pairs, and their partners."""
    if count > len(choices):
        raise ValueError(f"cannot prune {count} similar tokens: A has {len(choices)}")
    pairs = []
    for a, others in choices.items():
        similarities = [(similarity(features[a], features[b], metric), -int(b)) for b in others]
        best, minus_b = max(similarities, default=(-math.inf, 1))
        pairs.append((-best, a, -minus_b))
    pairs.sort(key=lambda pair: pair[0])  # of equal ones the first in the order of A
    chosen = np.array([pair[1:] for pair in pairs[:count]], dtype=np.int64).reshape(-1, 2)
    return chosen[:, 0], chosen[:, 1]


def attention_received(graph: Floats, prefix: int) -> Floats:
    """Attention each patch token receives, averaged over all rows and heads."""
    return np.asarray(graph.mean(axis=(0, 1))[prefix:])


def pruning_layer(
    graph: Floats,
    features: Floats,
    *,
    prefix: int,
    cls: bool = True,
    keep: float,
    similar: int,
    rounds: int,
    start: str = "cls",
    pre_start: str = "uniform",
    cls_weight: float | None = None,
    heads: str = "eir",
    vhf: Bounds = (0.01, 0.7),
    order: str = "i-s-i",
    partition: str = "sequential-u",
    metric: str = "cosine",
    ranking: str = "wpr",
    rescale: bool = True,
    vhf_over: str = "patches",
    pre_vhf: bool = False,
    history: Floats | None = None,
    noise: Floats | None = None,
) -> Layer:
    """One pruning layer on one image: graph (heads, N, N), features (n, d) of the patch tokens."""
    graph, features = np.asarray(graph, np.float64), np.asarray(features, np.float64)
    n = graph.shape[-1] - prefix

    def first_weight(name: str, tokens: int) -> float:
        """Weight of token 0 in the start called `name`."""
        if name != "cls" or not cls:
            return 1.0
        return math.sqrt(tokens) if cls_weight is None else cls_weight

    def rank(alive: Indices) -> Floats:
        """I importance of the patch tokens `alive`."""
        if ranking == "random" and noise is not None:
            return noise[alive]
        if ranking == "accumulated":
            total = attention_received(graph, prefix) + (0.0 if history is None else history)
            return np.asarray(total[alive])
        small = restrict(graph, alive, prefix, rescale or ranking == "cls")
        if ranking == "average":
            return np.asarray(
                np.mean([vote(head, np.ones(len(head)), 1) for head in small], axis=0)
            )[prefix:]
        if ranking == "cls" and cls:
            return np.asarray(small[:, 0].mean(axis=0)[prefix:])
        if ranking == "wpr":
            weight = first_weight(start, small.shape[-1])
            return page_rank(small, prefix, rounds, weight, heads, vhf, vhf_over)
        raise ValueError(f"unknown ranking {ranking!r}, or it lacks its noise or CLS token")

    def drop_similar(alive: Indices, scores: Floats) -> tuple[Indices, Indices, Indices]:
        """Survivors of S among `alive` (whose importance is `scores`), the dropped, partners."""
        choices = candidates(scores, partition, None if noise is None else noise[alive])
        a, b = redundant(features[alive], choices, similar, metric)
        partners = np.array([alive[i] if i >= 0 else -1 for i in b], dtype=np.int64)
        return np.delete(alive, a), alive[a], partners

    def drop_unimportant(alive: Indices, scores: Floats) -> tuple[Indices, Indices, Floats]:
        """Survivors of I among `alive`, the dropped, and the scores spread over all n tokens."""
        ranked = alive[descending(scores)]
        count = math.floor(keep * len(alive) + 1e-9)
        spread = np.full(n, np.nan)
        spread[alive] = scores
        return np.sort(ranked[:count]), np.sort(ranked[count:]), spread

    alive = np.arange(n)
    dropped = partners = unimportant = np.array([], dtype=np.int64)
    pre_importance: Floats | None = None
    importance: Floats | None = None
    if order == "i-s":
        if keep < 1 or similar:
            alive, unimportant, importance = drop_unimportant(alive, rank(alive))
        if similar and importance is not None:
            alive, dropped, partners = drop_similar(alive, importance[alive])
    elif order == "i-s-i":
        if similar:
            weight = first_weight(pre_start, graph.shape[-1])
            filtered = vhf if pre_vhf else None
            pre_importance = page_rank(graph, prefix, 1, weight, "eir", filtered, vhf_over)
            alive, dropped, partners = drop_similar(alive, pre_importance)
        if keep < 1:
            alive, unimportant, importance = drop_unimportant(alive, rank(alive))
    else:
        raise ValueError(f"unknown order {order!r}")
    return Layer(alive, dropped, partners, unimportant, pre_importance, importance)


def layer_norm(x: Floats, weights: Mapping[str, Floats], name: str) -> Floats:
    """LayerNorm over the last axis, eps 1e-6."""
    centered = x - x.mean(-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6)
    return np.asarray(scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"])


def linear(x: Floats, weights: Mapping[str, Floats], name: str) -> Floats:
    """x W^T + b, without b where the layer has no bias."""
    return np.asarray(x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0))


def embed(weights: Mapping[str, Floats], image: Floats) -> Floats:
    """Tokens of an image (3, H, W): CLS, then the patches row by row, plus positions."""
    kernel = weights["patch_embed.proj.weight"]
    p, (_, height, width) = kernel.shape[-1], image.shape
    corners = [(top, left) for top in range(0, height, p) for left in range(0, width, p)]
    pixels = np.stack([image[:, i : i + p, j : j + p].ravel() for i, j in corners])
    patches = pixels @ kernel.reshape(len(kernel), -1).T + weights["patch_embed.proj.bias"]
    return np.asarray(np.concatenate([weights["cls_token"][0], patches]) + weights["pos_embed"][0])


def block(
    x: Floats, weights: Mapping[str, Floats], name: str, heads: int
) -> tuple[Floats, Floats, dict[str, Floats]]:
    """One pre-norm block: its output, its attention graph and its features over all tokens."""
    width = x.shape[1]
    qkv = linear(layer_norm(x, weights, f"{name}.norm1"), weights, f"{name}.attn.qkv")
    q, k, v = qkv[:, :width], qkv[:, width : 2 * width], qkv[:, 2 * width :]
    graph, mixed = [], []
    for qh, kh, vh in zip(*(np.split(t, heads, axis=1) for t in (q, k, v)), strict=True):
        logits = qh @ kh.T / math.sqrt(width // heads)
        attention = np.exp(logits - logits.max(axis=1, keepdims=True))
        graph.append(attention / attention.sum(axis=1, keepdims=True))
        mixed.append(graph[-1] @ vh)
    update = linear(np.concatenate(mixed, axis=1), weights, f"{name}.attn.proj")
    middle = x + update * weights.get(f"{name}.ls1.gamma", 1.0)
    hidden = linear(layer_norm(middle, weights, f"{name}.norm2"), weights, f"{name}.mlp.fc1")
    gelu = hidden * (1 + erf(hidden / math.sqrt(2))) / 2
    update = linear(gelu, weights, f"{name}.mlp.fc2")
    out = middle + update * weights.get(f"{name}.ls2.gamma", 1.0)
    return out, np.stack(graph), {"query": q, "key": k, "value": v, "x-pre": x, "x": out}


def vit_logits(
    weights: Mapping[str, npt.NDArray[Any]],
    image: npt.NDArray[Any],
    *,
    heads: int,
    stages: Mapping[int, Mapping[str, Any]] | None = None,
    layer_options: Mapping[str, Any] | None = None,
    feature: str = "key",
) -> tuple[Floats, dict[int, Layer]]:
    """Logits of one image, and each stage's layer in original patch indices.

    `noise` in the options is over the original patch grid: each stage uses its tokens' part of it.
    """
    params = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    x = embed(params, np.asarray(image, np.float64))
    depth = len({name.split(".")[1] for name in params if name.startswith("blocks.")})
    source = np.arange(len(x) - 1)
    history = np.zeros(len(source))
    layers: dict[int, Layer] = {}
    for number in range(1, depth + 1):
        x, graph, features = block(x, params, f"blocks.{number - 1}", heads)
        kept = np.arange(len(source))
        if stages and number in stages:
            options = {"history": history, **(layer_options or {}), **stages[number]}
            if options.get("noise") is not None:
                options["noise"] = np.asarray(options["noise"])[source]
            layer = pruning_layer(graph, features[feature][1:], prefix=1, **options)
            kept = layer.kept
            layers[number] = layer._replace(
                kept=source[kept],
                similar=source[layer.similar],
                partner=np.where(layer.partner >= 0, source[layer.partner], -1),
                unimportant=source[layer.unimportant],
                seen=source,
            )
        history = (history + attention_received(graph, 1))[kept]
        source = source[kept]
        x = x[np.concatenate([[0], 1 + kept])]
    pooled = layer_norm(x[0], params, "norm")
    return (linear(pooled, params, "head") if "head.weight" in params else pooled), layers
