"""Test oracle: brute-force float64 NumPy twins of the rivals, each in a whole ViT on one image.

Written from the rivals' papers. An image is a list of tokens, each of which knows which patches of
the original grid are in it; what a rival drops is simply no longer in the list.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tests.oracle import Floats, descending, embed, erf, layer_norm, linear, similarity

Weights = Mapping[str, Floats]


@dataclass(frozen=True)
class Token:
    x: Floats
    patches: tuple[int, ...] = ()  # of the original grid; none in a prefix token
    place: int = -1  # the patch whose place in the grid it has
    received: float = 0.0  # mean attention it received, summed over the blocks so far
    weight: float | None = None  # in later attention, where that is not the number of patches
    spent: float = 0.0  # the shares that blocks had in it, and …
    mixed: Floats | float = 0.0  # … their sum, where what is read of it is a mean over blocks

    @property
    def size(self) -> float:
        return (len(self.patches) or 1) if self.weight is None else self.weight


class Attention(NamedTuple):
    """What the attention of one block computed."""

    graph: Floats  # (heads, tokens, tokens), rows sum to 1
    queries: Floats  # (heads, tokens, width)
    keys: Floats
    values: Floats
    sizes: Floats  # what the sizes of the tokens add to the logits
    stream: Floats  # (tokens, width), what came into the block


class Forward(NamedTuple):
    logits: Floats
    features: Floats  # all tokens after the final norm
    left: dict[int, list[Token]]  # the patch tokens that leave each block


Rival = Callable[[int, list[Token], Attention], list[Token]]


def forward(
    weights: Mapping[str, npt.NDArray[Any]],
    image: npt.NDArray[Any],
    rival: Rival,
    *,
    heads: int,
    acts: str,
    proportional: float = 0.0,
) -> Forward:
    """Run a plain pre-norm ViT; the rival acts before attention, between attention and MLP, or at
    each block's end."""
    params = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    tokens = first_tokens(params, np.asarray(image, np.float64))
    depth = len({name.split(".")[1] for name in params if name.startswith("blocks.")})
    left = {}
    for number in range(1, depth + 1):
        name = f"blocks.{number - 1}"
        before = tokens
        tokens, attention = attend(before, params, name, heads, proportional)
        if acts == "start":
            tokens = attend_merged(
                before, rival(number, before, attention), attention, params, name
            )
        if acts == "middle":
            tokens = rival(number, tokens, attention)
        update = mlp(np.stack([token.x for token in tokens]), params, name)
        tokens = [replace(token, x=token.x + update[at]) for at, token in enumerate(tokens)]
        if acts == "end":
            tokens = rival(number, tokens, attention)
        left[number] = [token for token in tokens if token.patches]
    features = layer_norm(np.stack([token.x for token in tokens]), params, "norm")
    logits = linear(features[0], params, "head")
    if "head_dist.weight" in params:
        logits = (logits + linear(features[1], params, "head_dist")) / 2
    return Forward(logits, features, left)


def first_tokens(weights: Weights, image: Floats) -> list[Token]:
    """Return CLS, then a distillation token or registers, then the patches row by row; with
    positions, which some models give to the patches alone."""
    names = [name for name in ("cls_token", "dist_token", "reg_token") if name in weights]
    prefix = np.concatenate([weights[name][0] for name in names])
    nothing = {"cls_token": np.zeros((1, 0, prefix.shape[1])), "pos_embed": np.zeros((1, 1))}
    patches, position = embed({**weights, **nothing}, image), weights["pos_embed"][0]
    if len(position) > len(patches):
        prefix = prefix + position[: len(prefix)]
        position = position[len(prefix) :]
    grid = enumerate(patches + position)
    return [Token(x) for x in prefix] + [Token(x, (at,), at) for at, x in grid]


def attend(
    tokens: list[Token], weights: Weights, name: str, heads: int, proportional: float
) -> tuple[list[Token], Attention]:
    """Return the tokens after attention, and what it computed."""
    x = np.stack([token.x for token in tokens])
    qkv = linear(layer_norm(x, weights, f"{name}.norm1"), weights, f"{name}.attn.qkv")
    q, k, v = (np.stack(np.split(part, heads, axis=1)) for part in np.split(qkv, 3, axis=1))
    sizes = np.array([proportional * math.log(token.size) for token in tokens])
    graph = np.zeros((heads, len(tokens), len(tokens)))
    for head in range(heads):
        for i in range(len(tokens)):
            graph[head, i] = paid_by(q[head, i], k[head], sizes)
    mixed = np.concatenate([graph[head] @ v[head] for head in range(heads)], axis=1)
    update = linear(mixed, weights, f"{name}.attn.proj") * weights.get(f"{name}.ls1.gamma", 1.0)
    received = graph.mean(axis=(0, 1))
    after = [
        replace(token, x=token.x + update[at], received=token.received + float(received[at]))
        for at, token in enumerate(tokens)
    ]
    return after, Attention(graph, q, k, v, sizes, x)


def paid_by(query: Floats, keys: Floats, sizes: Floats) -> Floats:
    """The attention that one query pays to all tokens."""
    logits = keys @ query / math.sqrt(len(query)) + sizes
    row = np.exp(logits - logits.max())
    return np.asarray(row / row.sum())


def attend_merged(
    tokens: list[Token], merged: list[Token], attention: Attention, weights: Weights, name: str
) -> list[Token]:
    """Return the merged tokens after attention, from the attention of the tokens in them: they
    receive its sum and pay its mean, weighted by attention received times size. Values are their
    own."""
    informative = attention.graph.mean(axis=(0, 1))
    prefix = len(parted(tokens)[0])
    members = [
        [at for at, token in enumerate(tokens) if token.patches and token.place in group.patches]
        if group.patches
        else [number]
        for number, group in enumerate(merged)
    ]
    assert all(not group.patches for group in merged[:prefix])
    x = np.stack([group.x for group in merged])
    qkv = linear(layer_norm(x, weights, f"{name}.norm1"), weights, f"{name}.attn.qkv")
    values = np.stack(np.split(np.split(qkv, 3, axis=1)[2], len(attention.graph), axis=1))
    mixed = np.zeros_like(x)
    for number, indices in enumerate(members):
        weight = np.array([informative[at] * tokens[at].size for at in indices])
        paid = np.einsum("i,hij->hj", weight / weight.sum(), attention.graph[:, indices])
        received = np.stack([paid[:, other].sum(axis=1) for other in members], axis=1)
        mixed[number] = np.concatenate([row @ v for row, v in zip(received, values, strict=True)])
    update = linear(mixed, weights, f"{name}.attn.proj") * weights.get(f"{name}.ls1.gamma", 1.0)
    return [replace(group, x=group.x + update[at]) for at, group in enumerate(merged)]


def mlp(x: Floats, weights: Weights, name: str) -> Floats:
    hidden = linear(layer_norm(x, weights, f"{name}.norm2"), weights, f"{name}.mlp.fc1")
    gelu = hidden * (1 + erf(hidden / math.sqrt(2))) / 2
    out = linear(gelu, weights, f"{name}.mlp.fc2")
    return np.asarray(out * weights.get(f"{name}.ls2.gamma", 1.0))


def parted(tokens: Sequence[Token]) -> tuple[list[Token], list[Token]]:
    """Split into prefix tokens and patch tokens."""
    return [token for token in tokens if not token.patches], [t for t in tokens if t.patches]


def share(keep: float, count: int) -> Fraction:
    """Return the product, exact for the decimal as written."""
    return Fraction(str(keep)) * count


def mean(host: Token, guests: Sequence[Token], keeps_length: bool = False) -> Token:
    """Average guests into their host, each weighted by its number of patches; keeping lengths, the
    result is as long as they are on average."""
    group = [host, *guests]
    total = sum(token.size for token in group)
    x = sum((token.size / total * token.x for token in group), np.zeros_like(host.x))
    if keeps_length:
        length = sum(token.size / total * np.linalg.norm(token.x) for token in group)
        x = x * length / np.linalg.norm(x)
    return replace(host, x=x, patches=tuple(p for token in group for p in token.patches))


def cls_attention(tokens: Sequence[Token], attention: Attention) -> Floats:
    """Return what CLS pays to each patch token, averaged over heads."""
    row = attention.graph[:, 0].mean(axis=0)
    return np.array([row[at] for at, token in enumerate(tokens) if token.patches])


def tome(tokens: list[Token], attention: Attention, r: int) -> list[Token]:
    """Token Merging: bipartite soft matching by the keys' mean over heads."""
    prefix, patches = parted(tokens)
    if r == 0:
        return tokens
    metric = attention.keys.mean(axis=0)
    a = [at for at in range(0, len(tokens), 2) if tokens[at].patches]
    b = [at for at in range(1, len(tokens), 2) if tokens[at].patches]
    edges = []
    for i in a if b else []:
        likeness, target = max((similarity(metric[i], metric[j], "cosine"), j) for j in b)
        edges.append((likeness, i, target))
    edges.sort(reverse=True)
    edges = edges[: min(r, len(patches) // 2)]
    merged = [i for _, i, _ in edges]
    stay = [tokens[i] for i in a if i not in merged]
    hosts = [mean(tokens[j], [tokens[i] for _, i, to in edges if to == j]) for j in b]
    return prefix + stay + hosts


def fold(
    tokens: list[Token],
    attention: Attention,
    count: int,
    *,
    importance: str,
    features: str,
    of_partner: float,
    keeps_length: bool,
) -> list[Token]:
    """Fold: every second patch token may go, at the price of its importance times what is lost."""
    if count == 0:
        return tokens
    prefix, patches = parted(tokens)
    first = len(prefix)
    received = attention.graph.mean(axis=(0, 1))[first:]
    by_cls = cls_attention(tokens, attention)
    step = max(1, len(patches) // 32)
    sampled = attention.graph[:, first + step // 2 :: step].mean(axis=(0, 1))[first:]
    count_of_runs = min(14, len(patches))
    runs = [
        [first + at for at in range(len(patches)) if at * count_of_runs // len(patches) == run]
        for run in range(count_of_runs)
    ]
    pooled = np.mean([
        paid_by(queries[run].mean(axis=0), keys, attention.sizes)[first:]
        for queries, keys in zip(attention.queries, attention.keys, strict=True)
        for run in runs
    ], axis=0)  # fmt: skip
    parts = {
        "auto": [by_cls, received],  # these models have few patches
        "both": [by_cls, received],
        "rows": [by_cls, sampled],
        "pooled": [by_cls, pooled],
        "cls": [by_cls],
        "received": [received],
    }[importance]
    weight = sum(part / part.mean() for part in parts)
    metric = {
        "x-pre": attention.stream[first:],
        "x": np.stack([token.x for token in patches]),
        "key": np.concatenate(list(attention.keys), axis=1)[first:],
    }[features]
    edges = []
    for i in range(1, len(patches), 2):
        prices = []
        for j in range(0, len(patches), 2):
            lost = 1 - similarity(metric[i], metric[j], "cosine")
            prices.append((lost * (weight[i] + of_partner * weight[j]), j))
        price, target = min(prices)
        edges.append((price, i, target))
    edges = sorted(edges)[:count]
    folded = {i: to for _, i, to in edges}
    stay = [patches[i] for i in range(1, len(patches), 2) if i not in folded]
    hosts = [
        mean(patches[j], [patches[i] for i, to in folded.items() if to == j], keeps_length)
        for j in range(0, len(patches), 2)
    ]
    return prefix + stay + hosts


def mctf(tokens: list[Token], attention: Attention, r: int) -> list[Token]:
    """Multi-criteria token fusion. Tokens are dealt out into two groups. First half of r go from
    one to the other, then the rest the opposite way, each into the token with which the product of
    similarity, 1/informativeness^(1/20) and 1/size^(1/40) of both is highest; a host may go on with
    its guests. A group becomes its mean, weighted by informativeness times size."""
    prefix, patches = parted(tokens)
    r = min(r, len(patches) // 2)
    informative = attention.graph.mean(axis=(0, 1))  # what a token receives

    def attraction(i: int, j: int) -> float:
        likeness = (similarity(attention.stream[i], attention.stream[j], "cosine") + 1) / 2
        uninformative = (1 / (informative[i] * informative[j])) ** (1 / 20)
        small = (1 / (tokens[i].size * tokens[j].size)) ** (1 / 40)
        return float(likeness * uninformative * small)

    def hosts(guests: list[int], among: list[int], count: int) -> dict[int, int]:
        nearest = [max((attraction(i, j), -j) for j in among) for i in guests]
        ranked = sorted(range(len(guests)), key=lambda at: -nearest[at][0])
        return {guests[at]: -nearest[at][1] for at in ranked[:count]}

    a = [at for at in range(0, len(tokens), 2) if tokens[at].patches]
    b = [at for at in range(1, len(tokens), 2) if tokens[at].patches]
    there = hosts(a, b, r // 2) if r else {}
    stay = [at for at in a if at not in there]
    back = hosts(b, stay, r - r // 2) if r else {}
    if not r:
        return tokens
    groups: dict[int, list[int]] = {at: [at] for at in (*stay, *b) if at not in back}
    for at in b:
        groups[back.get(at, at)] += [at] if at in back else []
        groups[back.get(at, at)] += [i for i, host in there.items() if host == at]
    fused = []
    for host, members in groups.items():
        weights = np.array([informative[at] * tokens[at].size for at in members])
        x = weights @ np.stack([tokens[at].x for at in members]) / weights.sum()
        patches_in = tuple(patch for at in members for patch in tokens[at].patches)
        fused.append(replace(tokens[host], x=x, patches=patches_in))
    return prefix + fused


def pitome(tokens: list[Token], attention: Attention, r: int, margin: float) -> list[Token]:
    """PiToMe. A token's energy is the mean over all tokens of their cosine where that is at least
    the margin, and of exp(cosine − margin) − 1 where it is less; keys are averaged over heads. Of
    the 2r tokens with the most energy the first, third, … go, each into the nearest of the second,
    fourth, …; the others are protected."""
    prefix, patches = parted(tokens)
    r = min(r, len(patches) // 2)
    keys = attention.keys.mean(axis=0)[len(prefix) :]
    similarities = [[similarity(one, other, "cosine") for other in keys] for one in keys]
    energy = [
        sum(x if x >= margin else math.exp(x - margin) - 1 for x in row) / len(row)
        for row in similarities
    ]
    ranked = sorted(range(len(patches)), key=lambda at: -energy[at])
    goes, hosts = ranked[: 2 * r : 2], ranked[1 : 2 * r : 2]
    host = {at: max(hosts, key=lambda other: similarities[at][other]) for at in goes}
    merged = [mean(patches[at], [patches[i] for i in goes if host[i] == at]) for at in hosts]
    return prefix + merged + [patches[at] for at in ranked[2 * r :]] if r else tokens


def atc(tokens: list[Token], attention: Attention, r: int, linkage: str) -> list[Token]:
    """ATC. Two tokens are as far apart as 1 − the cosine of their keys, averaged over heads; two
    clusters as far as their nearest tokens (single), their farthest (complete), or all pairs on
    average. The two nearest clusters become one until r tokens are gone."""
    prefix, patches = parted(tokens)
    keys = attention.keys.mean(axis=0)[len(prefix) :]
    apart = np.array([[1 - similarity(one, other, "cosine") for other in keys] for one in keys])
    linkages: dict[str, Callable[[Floats], float]] = {
        "single": np.min, "complete": np.max, "average": np.mean
    }  # fmt: skip
    between = linkages[linkage]
    clusters = [[at] for at in range(len(patches))]
    for _ in range(min(r, len(patches) - 1)):
        one, other = min(combinations(clusters, 2), key=lambda pair: between(apart[np.ix_(*pair)]))
        clusters.remove(other)
        clusters[clusters.index(one)] = one + other
    return prefix + [
        mean(patches[min(group)], [patches[at] for at in group if at != min(group)])
        for group in clusters
    ]


def evit(tokens: list[Token], attention: Attention, keep: float, fuses: bool = True) -> list[Token]:
    """Attentive tokens stay; the others are fused into one more token, or dropped."""
    prefix, patches = parted(tokens)
    score = cls_attention(tokens, attention)
    order = descending(score)
    count = math.ceil(share(keep, len(patches)))
    stay, gone = order[:count], order[count:]
    if len(gone) == 0 or not fuses:
        return prefix + [patches[at] for at in stay]
    extra = Token(
        x=sum((score[at] * patches[at].x for at in gone), np.zeros_like(tokens[0].x)),
        patches=tuple(patch for at in gone for patch in patches[at].patches),
        place=patches[gone[0]].place,
    )
    return prefix + [patches[at] for at in stay] + [extra]


def diffrate(
    tokens: list[Token], attention: Attention, keep: float, similar: int, weighted: bool
) -> list[Token]:
    """Sort by CLS attention: the last are pruned; of the rest, the last are merged by a plain mean,
    and the host grows by the guest's size times their similarity. If weighted, means and sizes are
    as in ToMe."""
    prefix, patches = parted(tokens)
    order = descending(cls_attention(tokens, attention))
    rest = [patches[at] for at in order[: math.floor(share(keep, len(patches)))]]
    hosts, guests = rest[: len(rest) - similar], rest[len(rest) - similar :]
    visits: dict[int, list[Token]] = {at: [] for at in range(len(hosts))}
    sizes = [host.size for host in hosts]
    for guest in guests:
        similarities = [similarity(guest.x, host.x, "cosine") for host in hosts]
        at = similarities.index(max(similarities))
        visits[at].append(guest)
        sizes[at] += guest.size * max(0.0, similarities[at])
    if weighted:
        return prefix + [mean(host, visits[at]) for at, host in enumerate(hosts)]
    merged = []
    for at, host in enumerate(hosts):
        group = [host, *visits[at]]
        x = sum((token.x for token in group), np.zeros_like(host.x)) / len(group)
        patches_in = tuple(patch for token in group for patch in token.patches)
        merged.append(replace(host, x=x, patches=patches_in, weight=sizes[at]))
    return prefix + merged


def ats_draw(significance: Floats, samples: int) -> list[int]:
    """Inverse transform sampling at fixed points; a token that is drawn twice counts once."""
    score = significance / significance.sum()
    ascending = sorted(range(len(score)), key=lambda at: (score[at], at))
    drawn = set()
    for k in range(1, samples + 1):
        reached = 0.0
        for at in ascending:
            reached += score[at]
            if reached >= (2 * k - 1) / (2 * samples):
                drawn.add(at)
                break
        else:
            drawn.add(ascending[-1])
    return sorted(drawn)


def ats(tokens: list[Token], attention: Attention, samples: int) -> list[Token]:
    """Adaptive token sampling by CLS attention times the length of the value."""
    prefix, patches = parted(tokens)
    significance = []
    for at, token in enumerate(tokens):
        if token.patches:
            paid = sum(head[0, at] for head in attention.graph)
            value = np.concatenate([head[at] for head in attention.values])
            significance.append(paid * math.sqrt(value @ value))
    return prefix + [patches[at] for at in ats_draw(np.array(significance), samples)]


def top_k(
    tokens: list[Token], attention: Attention, keep: float, similar: int, by: str, noise: Floats
) -> list[Token]:
    """Keep the tokens with the highest scores, the highest first."""
    prefix, patches = parted(tokens)
    if by == "cls":
        score = cls_attention(tokens, attention)
    elif by == "average":
        column = attention.graph.mean(axis=(0, 1))
        score = np.array([column[at] for at, token in enumerate(tokens) if token.patches])
    elif by == "accumulated":
        score = np.array([token.received for token in patches])
    elif by == "random":
        score = noise
    else:
        raise ValueError(f"unknown score {by!r}")
    count = math.floor(share(keep, len(patches) - similar))
    return prefix + [patches[at] for at in descending(score)[:count]]


def predictor(x: Floats, weights: Weights, name: str) -> Floats:
    """Return DynamicViT's log-probability that a token stays, with all tokens kept."""
    mean, spread = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    x = (x - mean) / np.sqrt(spread + 1e-5) * weights[f"{name}.norm.weight"]
    x = gelu(linear(x + weights[f"{name}.norm.bias"], weights, f"{name}.inner"))
    half = x.shape[1] // 2
    everyone = np.tile(x[:, half:].mean(axis=0), (len(x), 1))
    x = gelu(linear(np.concatenate([x[:, :half], everyone], axis=1), weights, f"{name}.first"))
    stay, go = linear(gelu(linear(x, weights, f"{name}.second")), weights, f"{name}.last").T
    return np.asarray(stay - np.logaddexp(stay, go))


def gelu(x: Floats) -> Floats:
    return np.asarray(x * (1 + erf(x / math.sqrt(2))) / 2)


def dynamicvit(tokens: list[Token], weights: Weights, block: int, keep: float) -> list[Token]:
    """Keep the tokens that its predictor rates highest, the highest first."""
    prefix, patches = parted(tokens)
    x = np.stack([token.x for token in patches])
    score = predictor(x, weights, f"zerotprune.dynamicvit.{block}")
    count = math.floor(share(keep, len(patches)))
    return prefix + [patches[at] for at in descending(score)[:count]]


def a_vit(tokens: list[Token], gamma: float, beta: float, rest: float, last: bool) -> list[Token]:
    """Halt by the first channel. A halted patch is gone; CLS goes on, but no longer counts in the
    output."""
    left = []
    for token in tokens:
        h = 1.0 if last else 1 / (1 + math.exp(-(gamma * token.x[0] + beta)))
        p = 1 - token.spent if token.spent + h > 1 - rest else h
        if token.spent > 1 - rest:
            p = 0.0
        token = replace(token, spent=token.spent + p, mixed=token.mixed + p * token.x)
        if token.patches and (last or token.spent <= 1 - rest):
            left.append(token)
        elif not token.patches:
            left.append(replace(token, x=np.asarray(token.mixed)) if last else token)
    return left
