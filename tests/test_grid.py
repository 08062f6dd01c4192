"""Outputs for every patch: against a twin that carries whole streams, and the exact cases."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zerotprune as ztp
from tests.families import build, images_for, precise
from tests.keep_all import EVERYWHERE
from tests.test_cost import counted_by_torch
from zerotprune.tokens import Reduction, Tokens, reduce_tokens, restore_grid, update_grid

STAGED = ztp.Schedule((ztp.Stage(1, 1.0, 4), ztp.Stage(2, 0.8, 4), ztp.Stage(4, 0.5)))
DROPPED = ztp.Schedule((ztp.Stage(1, 0.8), ztp.Stage(2, 0.6), ztp.Stage(4, 0.5)))
MERGED = ztp.Schedule(tuple(ztp.Stage(block, similar=6) for block in (1, 2, 3, 4)))
BOTH = ztp.Schedule((ztp.Stage(1, 0.9, 4), ztp.Stage(3, 0.8, 5)))
SCHEDULES = {
    "fold": MERGED.by("fold"),
    "tome": MERGED.by("tome"),
    "zero-tprune": STAGED.by("zero-tprune"),
    "average-attention": STAGED.by("average-attention"),
    "accumulated-attention": STAGED.by("accumulated-attention"),
    "evit": DROPPED.by("evit"),
    "diffrate-even": BOTH.by("diffrate-even"),
    "ats": DROPPED.by(ztp.methods.ATS(samples=20)),
}
FAMILIES = ["deit", "dinov2, registers", "siglip, no cls", "eva-02, rotary", "beit, relative bias"]


def prunable(model: Any, method: str) -> bool:
    no_cls = getattr(model, "cls_token", None) is None
    return not (no_cls and method in ("evit", "diffrate-even", "ats"))


class Twin:
    """A float64 twin from the description: every patch has its own stream, which gains the mean of
    what its representatives gain; a dropped patch has four, in order of similarity."""

    def __init__(self, x: Tensor) -> None:
        self.streams = x.numpy().copy()  # batch, patches, width
        self.standing = [[[at] * 4 for at in range(x.shape[1])] for _ in x]

    def gain(self, by: Tensor) -> None:
        for image, gains in enumerate(by.numpy()):
            for patch, tokens in enumerate(self.standing[image]):
                self.streams[image, patch] += sum(gains[token] for token in tokens) / 4

    def reduce(self, reduction: Reduction, before: Tensor) -> None:
        for image, old in enumerate(before.numpy()):
            keep = reduction.keep[image].tolist()
            valid = [True] * len(keep)
            if reduction.valid is not None:
                valid = reduction.valid[image].tolist()
            real = [token for token, counts in zip(keep, valid, strict=True) if counts]
            merged: dict[int, int] = {}
            if reduction.into is not None and reduction.similar is not None:
                pairs = zip(reduction.similar[image], reduction.into[image], strict=True)
                merged = {int(token): int(place) for token, place in pairs}
            for stand_ins in self.standing[image]:
                for slot, token in enumerate(stand_ins):
                    if token in merged:
                        stand_ins[slot] = merged[token]
                    elif token in real:
                        stand_ins[slot] = keep.index(token)
                    else:
                        stand_ins[slot] = keep.index(nearest(old, token, real)[slot])


def nearest(vectors: np.ndarray, token: int, among: list[int]) -> list[int]:
    """Return the four most similar; if there are fewer, repeat the first."""

    def cosine(other: int) -> float:
        a, b = vectors[token], vectors[other]
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    ranked = sorted(among, key=cosine, reverse=True)[:4]
    return ranked + ranked[:1] * (4 - len(ranked))


def drawn(kind: str, patches: int, generator: torch.Generator) -> Reduction:
    """Draw a random decision of the kind, for two images."""
    order = torch.stack([torch.randperm(patches, generator=generator) for _ in range(2)])
    keep, rest = order[:, : patches - 7], order[:, patches - 7 :]
    if kind == "drop":
        return Reduction(keep)
    if kind == "fuse":
        weight = torch.rand(2, patches, generator=generator).double()
        return Reduction(keep, fused=weight.scatter(1, keep, 0.0))
    if kind == "pad":
        valid = torch.rand(keep.shape, generator=generator) < 0.6
        valid[:, 0] = True
        return Reduction(keep, valid=valid)
    similar = rest if kind == "merge" else rest[:, :3]
    into = torch.randint(0, keep.shape[1], similar.shape, generator=generator)
    return Reduction(keep, similar=similar, into=into)


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize(
    "kinds",
    [("drop", "drop", "drop"), ("merge", "merge", "merge"), ("both", "drop", "merge"),
     ("fuse", "fuse", "drop"), ("pad",), ("merge", "both", "pad"), ("drop",) * 3 + ("merge",),
     ("merge", "merge", "both", "drop")],
    ids="-".join,
)  # fmt: skip
def test_the_rule_is_its_twins(kinds: tuple[str, ...], prefix: int) -> None:
    generator = torch.Generator().manual_seed(prefix)

    def gains(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype)

    x = torch.randn(2, prefix + 31, 6, generator=generator).double()
    tokens, twin = Tokens.of(x, prefix), Twin(x[:, prefix:])
    for kind in kinds:
        gained = gains(tokens.x)
        tokens = tokens._replace(x=tokens.x + gained)
        twin.gain(gained[:, prefix:])
        reduction = drawn(kind, tokens.source.shape[1], generator)
        twin.reduce(reduction, tokens.x[:, prefix:])
        left = reduce_tokens(tokens, reduction, prefix)
        tokens = left._replace(grid=update_grid(tokens, left, reduction, prefix))
        torch.testing.assert_close(
            restore_grid(tokens, prefix)[:, prefix:], torch.tensor(twin.streams)
        )
    gained = gains(tokens.x)
    twin.gain(gained[:, prefix:])
    actual = restore_grid(tokens._replace(x=tokens.x + gained), prefix)
    torch.testing.assert_close(actual[:, prefix:], torch.tensor(twin.streams))
    assert torch.equal(actual[:, :prefix], (tokens.x + gained)[:, :prefix])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", SCHEDULES)
def test_blocks_that_add_nothing_give_the_input_back_in_order(family: str, method: str) -> None:
    model: Any = precise(build(family))
    if not prunable(model, method):
        pytest.skip("the method needs a CLS token")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("attn.proj.", "mlp.fc2.")):
                parameter.zero_()
    images = images_for(model)
    with torch.inference_mode():
        before = model.forward_features(images)
        ztp.prune_(model, SCHEDULES[method], outputs="grid")
        actual = model.forward_features(images)
    torch.testing.assert_close(actual, before, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", SCHEDULES)
def test_prefix_and_surviving_patches_are_those_without_the_grid(family: str, method: str) -> None:
    model: Any = precise(build(family))
    if not prunable(model, method):
        pytest.skip("the method needs a CLS token")
    prefix, images = model.num_prefix_tokens, images_for(model)
    model.norm = torch.nn.Identity()
    with torch.inference_mode():
        whole = model.forward_features(images)
        ztp.prune_(model, SCHEDULES[method])
        with ztp.patches_left(model) as left:
            short = model.forward_features(images)
        ztp.prune_(model, SCHEDULES[method], outputs="grid")
        with ztp.patches_left(model) as again:
            grid = model.forward_features(images)
            assert torch.equal(grid, model.forward_features(images))
    assert grid.shape == whole.shape
    assert torch.equal(left[0], again[0])
    torch.testing.assert_close(grid[:, :prefix], short[:, :prefix])
    if method in ("zero-tprune", "average-attention", "accumulated-attention"):
        places = left[0].unsqueeze(-1).expand(-1, -1, short.shape[-1])
        torch.testing.assert_close(grid[:, prefix:].gather(1, places), short[:, prefix:])
    if method == "tome":  # what is apart cancels out: the sum over all patches is kept
        sizes: list[Any] = []
        model.blocks[-1].register_forward_pre_hook(
            lambda _, args: sizes.append(Tokens.of(args[0], prefix).size)
        )
        with torch.inference_mode():
            model(images)
        total = (short * sizes[0].unsqueeze(-1))[:, prefix:].sum(dim=1)
        torch.testing.assert_close(grid[:, prefix:].sum(dim=1), total)


@pytest.mark.parametrize("method", ["fold", "tome"])
@pytest.mark.parametrize("family", ["deit", "dinov2, registers"])
def test_pairs_of_equal_patches_merged_pair_by_pair_change_nothing(
    family: str, method: str
) -> None:
    model: Any = precise(build(family))
    half = images_for(model)[..., : model.patch_embed.img_size[1] // 2]
    side = model.patch_embed.patch_size[0]
    strips = half.unflatten(-1, (-1, side))  # each patch twice, side by side
    images = strips.repeat_interleave(2, dim=-2).flatten(-2)
    with torch.inference_mode():
        model.pos_embed.zero_()
        patches = model.patch_embed.num_patches
        before = model.forward_features(images)
        schedule = ztp.Schedule((ztp.Stage(2, similar=patches // 2),)).by(method)
        ztp.prune_(model, schedule, outputs="grid")
        torch.testing.assert_close(model.forward_features(images), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_pruned_is_bit_for_bit_the_model(family: str) -> None:
    model: Any = build(family)
    images = images_for(model)
    with torch.inference_mode():
        before = model.forward_intermediates(images)
        ztp.prune_(model, EVERYWHERE, outputs="grid")
        assert "forward" in vars(model.blocks[0])
        after = model.forward_intermediates(images)
    assert torch.equal(after[0], before[0])
    assert all(torch.equal(*pair) for pair in zip(after[1], before[1], strict=True))


@pytest.mark.parametrize("method", [name for name in SCHEDULES if name != "ats"])
def test_the_cost_is_what_torch_counts(method: str) -> None:
    for compute in ("all", "needed"):
        model: Any = ztp.prune_(build("deit"), SCHEDULES[method], compute=compute, outputs="grid")
        assert round(ztp.gmacs(model, compute=compute) * 1e9) == counted_by_torch(model)
        cost = ztp.gmacs(model, SCHEDULES[method], compute=compute, outputs="grid")
        assert cost == ztp.gmacs(model, compute=compute)


@pytest.mark.parametrize("method", ["fold", "zero-tprune"])
def test_a_budget_is_met_with_the_grid_counted_in(method: str) -> None:
    model = build("test_vit")
    ztp.prune_(model, cost=0.7, method=method, outputs="grid")
    cost = ztp.gmacs(model) / ztp.gmacs(model, ztp.Schedule())
    assert cost == pytest.approx(0.7, rel=0.01)


def test_any_head_takes_merged_tokens_once_the_grid_is_whole() -> None:
    """Every patch has weight 1, so a pooling head need not know of sizes."""
    model: Any = precise(build("mae, average pooling"))
    images = images_for(model)
    with torch.inference_mode():
        ztp.prune_(model, SCHEDULES["fold"], outputs="grid")
        features = model.forward_features(images)
        torch.testing.assert_close(model(images), model.forward_head(features))
        assert "forward" not in vars(model)


def test_a_copy_works_by_itself_and_restoring_leaves_no_trace() -> None:
    model: Any = build("deit")
    images = images_for(model)
    with torch.inference_mode():
        before = model(images)
        pruned = ztp.prune_(copy.deepcopy(model), SCHEDULES["fold"], outputs="grid")
        twin = copy.deepcopy(pruned)
        actual = pruned(images)
        ztp.restore_(pruned)
        assert torch.equal(pruned(images), before)
        assert torch.equal(twin(images), actual)


def test_gradients_pass_through_the_grid_and_checkpoints() -> None:
    model: Any = ztp.prune_(build("deit").double(), SCHEDULES["zero-tprune"], outputs="grid")
    images, gradients = images_for(model), []
    for checkpointing in (False, True):
        model.set_grad_checkpointing(checkpointing)
        model.zero_grad()
        model.forward_features(images)[:, 1:].square().sum().backward()
        gradients.append(model.patch_embed.proj.weight.grad.clone())
    torch.testing.assert_close(gradients[1], gradients[0])
    assert gradients[0].abs().min() > 0


def test_what_cannot_be_is_refused_in_one_sentence() -> None:
    model: Any = build("deit")
    with pytest.raises(ValueError, match=r'outputs.*"tokens".*"grid"'):
        ztp.prune_(model, STAGED, outputs="all")  # type: ignore[arg-type]
    ztp.prune_(model, STAGED, outputs="grid")
    hook = model.blocks[2].register_forward_hook(lambda _, inputs, out: out + 1)
    with pytest.raises(ValueError, match="hooks"):
        model(images_for(model))
    hook.remove()
    assert model(images_for(model)).isfinite().all()
