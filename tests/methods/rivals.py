"""What the tests of the rivals share: cases, float64 twins, and what a model passes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests.families import SMALL, plain_geometry
from tests.rival_oracles import (
    Attention,
    Forward,
    Token,
    a_vit,
    atc,
    ats,
    diffrate,
    dynamicvit,
    evit,
    fold,
    forward,
    mctf,
    pitome,
    tome,
    top_k,
)
from tests.thorough import thorough
from zerotprune.method import Method, Seen
from zerotprune.methods import (
    ATC,
    ATS,
    MCTF,
    AViT,
    DiffRate,
    DynamicViT,
    EarlyMCTF,
    EViT,
    Fold,
    PiToMe,
    ToMe,
    TopK,
)
from zerotprune.scoring.attention import Heads
from zerotprune.scoring.graph import DenseGraph, noise
from zerotprune.tokens import Tokens

DEPTH, PATCHES = 5, 36
PLAIN = ["deit", "deit distilled", "deit-3, layer scale", "dinov2, registers"]


def every(*stages: tuple[float, int]) -> ztp.Schedule:
    """Make a stage (keep, similar) at each block from the first on."""
    numbered = enumerate(stages, start=1)
    return ztp.Schedule(tuple(ztp.Stage(block, keep, n) for block, (keep, n) in numbered))


def merging(*counts: int) -> ztp.Schedule:
    return every(*((1.0, r) for r in counts))


TWO = ztp.Schedule((ztp.Stage(2, 0.7), ztp.Stage(4, 0.5)))
DENSE = every((0.9, 0), (0.8, 0), (0.7, 0), (0.6, 0))
LAST = ztp.Schedule((ztp.Stage(1, 0.29), ztp.Stage(5, 0.5)))
MIXED = every((0.9, 4), (1.0, 5), (0.8, 0), (0.75, 3), (0.5, 1))
CASES: list[tuple[Method, ztp.Schedule]] = [
    (ToMe(), merging(3, 3, 3, 3, 3)),
    (ToMe(), merging(16, 1, 0, 5)),
    (ToMe(), merging(99, 99, 99, 99, 99)),
    (ToMe(), ztp.Schedule((ztp.Stage(2, similar=7), ztp.Stage(4, similar=6)))),
    (ToMe(proportional=False), merging(4, 4, 4, 4, 4)),
    (EViT(), TWO),
    (EViT(), DENSE),
    (EViT(), LAST),
    (EViT(), every((0.02, 0), (0.5, 0), (0.4, 0))),
    (DiffRate(), MIXED),
    (DiffRate(), TWO),
    (DiffRate(), merging(4, 4, 4, 4, 4)),
    (DiffRate(), every((0.5, 17))),
    (DiffRate(proportional=False), MIXED),
    (ATS(samples=30), TWO),
    (ATS(samples=12), DENSE),
    (ATS(samples=1), TWO),
    (ATS(samples=500), DENSE),
    (TopK("cls"), TWO),
    (TopK("cls"), DENSE),
    (TopK("average"), DENSE),
    (TopK("average"), every((0.9, 3), (0.5, 2))),
    (TopK("accumulated"), TWO),
    (TopK("accumulated"), DENSE),
    (TopK("random"), DENSE),
    (TopK("random", seed=7), TWO),
    (DiffRate(weighted=True), MIXED),
    (Fold(), merging(3, 3, 3, 3, 3)),
    (Fold(), merging(18, 0, 9, 2)),
    (
        Fold(of_partner=0, keeps_length=False),
        ztp.Schedule((ztp.Stage(2, similar=7), ztp.Stage(4, similar=6))),
    ),
    (Fold(importance="rows"), merging(5, 0, 4, 0, 3)),
    (Fold(importance="pooled"), merging(5, 0, 4, 0, 3)),
    (Fold(importance="cls", features="x", proportional=0.5), merging(4, 4, 4, 4, 4)),
    (Fold(importance="received", features="key", proportional=0), merging(4, 4, 4, 4, 4)),
    (DynamicViT(), DENSE),
    (DynamicViT(seed=3), TWO),
    (AViT(gamma=2, beta=-1), DENSE),
    (AViT(gamma=5, beta=0.5, rest=0.2), TWO),
    (EViT(fuses=False), LAST),
    (MCTF(), merging(5, 4, 0, 7, 3)),
    (MCTF(), merging(99, 99, 1, 99)),
    (MCTF(proportional=False), ztp.Schedule((ztp.Stage(2, similar=7), ztp.Stage(4, similar=6)))),
    (EarlyMCTF(), merging(5, 4, 0, 7, 3)),
    (EarlyMCTF(proportional=False), merging(0, 99, 1, 99)),
    (PiToMe(), merging(5, 4, 0, 7, 3)),
    (PiToMe(proportional=False), merging(99, 0, 1, 99)),
    (ATC(), merging(5, 20, 0, 7, 3)),
    (ATC(linkage="single"), merging(5, 20, 0, 7, 3)),
    (ATC(linkage="complete", proportional=False), merging(30, 0, 1, 99)),
]
NAMES = [
    f"{method}-{'-'.join(f'{s.block}:{s.keep:g}/{s.similar}' for s in schedule.stages)}"
    for method, schedule in CASES
]
ONE_PER_METHOD = [
    CASES[at] for at in (1, 4, 6, 9, 13, 14, 18, 21, 22, 24, 28, 32, 34, 35, 37, 39, 41, 43, 46)
]
#: merging, dropping, padding, halting
ONE_PER_WAY = [CASES[at] for at in (1, 6, 14, 37)]
ONE_PER_METHOD_NAMES = [str(method) for method, _ in ONE_PER_METHOD]
all_cases = pytest.mark.parametrize(("method", "schedule"), CASES, ids=NAMES)
one_per_method = pytest.mark.parametrize(
    ("method", "schedule"), ONE_PER_METHOD, ids=ONE_PER_METHOD_NAMES
)


def all_cases_in(first: str, *others: str, few: bool = False) -> pytest.MarkDecorator:
    """Return all cases in the first family, or `few`, one per method; and a case of each way to act
    in the others, where `make test-thorough` runs one per method."""
    cases = [
        pytest.param(
            first, *case, id=f"{first}-{name}",
            marks=thorough if few and case not in ONE_PER_METHOD else (),
        )
        for name, case in zip(NAMES, CASES, strict=True)
    ]  # fmt: skip
    cases += [
        pytest.param(
            family, *case, id=f"{family}-{name}", marks=() if case in ONE_PER_WAY else thorough
        )
        for family in others
        for name, case in zip(ONE_PER_METHOD_NAMES, ONE_PER_METHOD, strict=True)
    ]
    return pytest.mark.parametrize(("family", "method", "schedule"), cases)


def twin(model: Any, image: Tensor, schedule: ztp.Schedule, method: Method) -> Forward:
    stages = {stage.block: stage for stage in schedule.stages}
    weights = {name: value.numpy() for name, value in model.state_dict().items()}

    def rival(block: int, tokens: list[Token], attention: Attention) -> list[Token]:
        if isinstance(method, AViT) and (block in stages or block == DEPTH):
            return a_vit(tokens, method.gamma, method.beta, method.rest, last=block == DEPTH)
        if (stage := stages.get(block)) is None:
            return tokens
        if isinstance(method, ToMe):
            return tome(tokens, attention, stage.similar)
        if isinstance(method, Fold):
            return fold(
                tokens,
                attention,
                stage.similar,
                importance=method.importance,
                features=method.features,
                of_partner=method.of_partner,
                keeps_length=method.keeps_length,
            )
        if isinstance(method, EViT):
            return evit(tokens, attention, stage.keep, method.fuses)
        if isinstance(method, MCTF):
            return mctf(tokens, attention, stage.similar)
        if isinstance(method, PiToMe):
            return pitome(tokens, attention, stage.similar, 0.9 - 0.9 * (block - 1) / DEPTH)
        if isinstance(method, ATC):
            return atc(tokens, attention, stage.similar, method.linkage)
        if isinstance(method, DiffRate):
            return diffrate(tokens, attention, stage.keep, stage.similar, method.weighted)
        if isinstance(method, ATS):
            return ats(tokens, attention, method.samples)
        if isinstance(method, DynamicViT):
            return dynamicvit(tokens, weights, block, stage.keep)
        assert isinstance(method, TopK)
        count = sum(1 for token in tokens if token.patches)
        drawn = noise(count, method.seed * 4096 + block, torch.device("cpu")).double().numpy()
        return top_k(tokens, attention, stage.keep, stage.similar, method.by, drawn)

    return forward(
        weights,
        image.numpy(),
        rival,
        heads=model.blocks[0].attn.num_heads,
        acts=method.acts,
        proportional=float(method.merges and method.proportional),
    )


def traveling(model: Any, images: Tensor) -> tuple[Tensor, dict[int, Tokens]]:
    """Return the features of a pruned model, and the tokens after every block but the last."""
    tokens: dict[int, Tokens] = {}

    def look(block: int) -> Any:
        def hook(module: nn.Module, args: Any, out: Any) -> None:
            if isinstance(out, Tokens):
                tokens[block] = out

        return hook

    hooks = [
        block.register_forward_hook(look(number))
        for number, block in enumerate(model.blocks, start=1)
    ]
    with torch.inference_mode():
        features = model.forward_features(images)
    for hook in hooks:
        hook.remove()
    return features, tokens


def promised(method: Method, schedule: ztp.Schedule, patches: int = PATCHES) -> dict[int, int]:
    """Return the patch tokens that each block passes on."""
    counts, stages = {}, {stage.block: stage for stage in schedule.stages}
    for block in range(1, DEPTH + 1):
        if block in stages:
            patches = method.kept(stages[block], patches)
        counts[block] = patches
    return counts


def sight(tokens: int, prefix: int, spread: float = 1.0, batch: int = 2) -> Seen:
    """Make what a block with 3 heads might have seen."""
    q, k, v = torch.randn(3, batch, 3, tokens, 4, dtype=torch.float64)
    graph = (spread * q @ k.transpose(-2, -1) / 2).softmax(-1)
    x = torch.randn(batch, tokens, 12, dtype=torch.float64)
    source = torch.arange(tokens - prefix).expand(batch, -1)
    geometry = plain_geometry(12, 6, prefix, 12)
    return Seen(Tokens(x, source), x, [Heads(q, k, v, 0.5, True, 0.0)], DenseGraph(graph), geometry)


def spared(method: Method, schedule: ztp.Schedule, prefix: int) -> int:
    """ATS samples before attention meets the values: rows of tokens that go are neither weighed
    (a product with each value, of all heads) nor projected. Here they are, and count nothing.
    MCTF needs q and k of all tokens and v of the fused ones; here both have all three."""
    left, total, width = PATCHES, 0, SMALL["embed_dim"]
    if isinstance(method, EarlyMCTF):
        for stage in (staged for staged in schedule.stages if staged.similar):
            kept = left - min(stage.similar, left // 2)
            total += width * width * ((prefix + left) + 2 * (prefix + kept))
            left = kept
        return total
    if not isinstance(method, ATS):
        return 0
    for _ in schedule.stages:
        kept = min(method.samples, left)
        total += (left - kept) * (width * (prefix + left) + width * width)
        left = kept
    return total
