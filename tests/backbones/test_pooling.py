"""Heads that pool: a merged token counts with the patches in it, padding does not count.

Oracle: where patches are equal in groups, positions as well, tokens of one group stay equal, and a
token that was merged from some of them is each of them. Then merging changes nothing at all.
"""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch

import zerotprune as ztp
from tests.equal_patches import equal_patches
from tests.families import FAMILIES, SMALL, build, images_for, precise, stirred
from tests.methods.rivals import spared, traveling
from tests.test_cost import counted_by_torch
from zerotprune.method import Method
from zerotprune.methods import ATS, DiffRate, EViT, Fold, ToMe, TopK

VIT, EVA, BEIT = "vit_base_patch16_224", "eva02_tiny_patch14_224", "beit_base_patch16_224"
#: heads that are not those of the families
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "mean, then norm": (VIT, {"global_pool": "avg"}),
    "norm, then mean": (VIT, {"global_pool": "avg", "fc_norm": False}),
    "mean with CLS": (VIT, {"global_pool": "avg", "pool_include_prefix": True}),
    "mean beside registers": (VIT, {"global_pool": "avg", "reg_tokens": 4}),
    "maximum": (VIT, {"global_pool": "max"}),
    "mean and maximum": (VIT, {"global_pool": "avgmax"}),
    "attention": (VIT, {"global_pool": "map"}),
    "attention with CLS": (VIT, {"global_pool": "map", "pool_include_prefix": True}),
    "refined CLS": (VIT, {"global_pool": "prr"}),
    "refined mean, no CLS": (VIT, {"global_pool": "prr", "class_token": False}),
    "eva, norm, then mean": (EVA, {"global_pool": "avg", "use_fc_norm": False, "img_size": 84}),
    "eva, maximum": (EVA, {"global_pool": "max", "img_size": 84}),
    "eva, mean and maximum": (EVA, {"global_pool": "avgmax", "img_size": 84}),
    "eva, attention": (EVA, {"global_pool": "map", "img_size": 84}),
    "beit, norm, then mean": (BEIT, {"use_abs_pos_emb": True, "use_rel_pos_bias": False}),
}
POOLING = ["mean, then norm", "mean with CLS", "mean and maximum", "attention", "refined CLS"]
MEAN = ["mean, then norm", "norm, then mean", "mean with CLS", "beit, norm, then mean"]


def model_with(head: str) -> Any:
    """Build a family as it comes or with another head, in float64 if timm can run it."""
    if head in FAMILIES:
        return precise(build(head))
    name, options = HEADS[head]
    torch.manual_seed(0)
    return precise(stirred(timm.create_model(name, **(SMALL | options))).eval())


def at_block(block: int, similar: int) -> ztp.Schedule:
    return ztp.Schedule((ztp.Stage(block, similar=similar),))


def assert_nothing_changes(model: Any, group: int, *pruning: tuple[Method, ztp.Schedule]) -> None:
    images = images_for(model)
    bound = 1e-9 if images.dtype == torch.float64 else 1e-5
    with torch.inference_mode(), equal_patches(model, group):
        expected = model(images)
        for method, schedule in pruning:
            actual = ztp.prune_(model, schedule.by(method))(images)
            torch.testing.assert_close(actual, expected, rtol=bound, atol=bound)
        assert torch.equal(ztp.restore_(model)(images), expected)


@pytest.mark.parametrize("head", [*FAMILIES, *HEADS])
def test_merging_equal_patches_changes_nothing(head: str) -> None:
    """Merge seven of the pairs: sizes are 1 and 2, and a mean that ignored them would be wrong."""
    early, late = (ToMe(), at_block(1, 7)), (Fold(), at_block(3, 7))
    assert_nothing_changes(model_with(head), 2, early, late)


@pytest.mark.parametrize("head", [*POOLING, "siglip, no cls"])
def test_larger_groups_and_the_last_block(head: str) -> None:
    """Merge three of four equal patches; only the head follows a stage in the last block."""
    model = model_with(head)
    for group, block in ((4, 2), (2, 5)):
        schedule = at_block(block, 7)
        assert_nothing_changes(model, group, (ToMe(), schedule), (Fold(), schedule))


@pytest.mark.parametrize("head", ["mean, then norm", "attention"])
def test_whatever_fold_compares(head: str) -> None:
    others = [(Fold(features="x"), at_block(2, 7)), (Fold(features="key"), at_block(2, 7))]
    assert_nothing_changes(model_with(head), 2, *others)


@pytest.mark.parametrize("head", ["deit", "eva, attention", *POOLING])
def test_diffrate_merging_the_least_important_group(head: str) -> None:
    """Equal tokens are equally important: three of the last four go into the fourth. Their cosine
    is 1, so the published sizes are those of the patches."""
    merged = at_block(2, 3)
    assert_nothing_changes(
        model_with(head), 4, (DiffRate(), merged), (DiffRate(weighted=True), merged)
    )


@pytest.mark.parametrize("head", MEAN)
def test_a_mean_goes_by_size_without_proportional_attention(head: str) -> None:
    """As in ToMe's own code, the option concerns attention alone."""
    assert_nothing_changes(model_with(head), 2, (ToMe(proportional=False), at_block(5, 7)))


#: methods that merge, drop and pad, with what they do to 36 patches before the last block
UNEVEN: list[tuple[Method, ztp.Schedule]] = [
    (ToMe(), ztp.Schedule((ztp.Stage(1, similar=12), ztp.Stage(3, similar=7)))),
    (Fold(), ztp.Schedule((ztp.Stage(2, similar=12), ztp.Stage(4, similar=9)))),
    (DiffRate(weighted=True), ztp.Schedule((ztp.Stage(2, 0.8, 9), ztp.Stage(4, 0.9, 5)))),
    (ATS(samples=12), ztp.Schedule((ztp.Stage(2, 0.5), ztp.Stage(4, 0.5)))),
]
uneven = pytest.mark.parametrize(("method", "schedule"), UNEVEN, ids=[m.name for m, _ in UNEVEN])
WITH_CLS = [head for head in HEADS if "no CLS" not in head]


@pytest.mark.parametrize("head", WITH_CLS)
def test_a_merged_token_is_pooled_as_so_many_patches(head: str) -> None:
    """Compare with the library's own head over every token, repeated once per patch in it."""
    model = model_with(head)
    images = images_for(model)
    for method, schedule in UNEVEN:
        ztp.prune_(model, schedule.by(method))
        with torch.inference_mode():
            actual = model(images)
            features, passed = traveling(model, images)
            weight = passed[4].weight()
            assert weight is not None
            assert torch.equal(weight, weight.round())
            for at in range(len(images)):
                repeated = features[at : at + 1].repeat_interleave(weight[at].long(), dim=1)
                expected = type(model).forward_head(model, repeated)[0]
                torch.testing.assert_close(actual[at], expected, rtol=1e-9, atol=1e-10)
            if weight.unique().numel() > 1 and "maximum" not in head:
                plain = type(model).forward_head(model, features)
                assert (actual - plain).abs().max() > 1e-6


@pytest.mark.parametrize("head", [*POOLING, "eva, attention"])
def test_published_diffrate_is_pooled_by_its_own_sizes(head: str) -> None:
    """Its sizes do not count patches, but add by the cosine. Round them to sixteenths, and compare
    with the library's own head over every token, repeated once per sixteenth."""
    model = model_with(head)
    images = images_for(model)
    ztp.prune_(model, UNEVEN[2][1].by(DiffRate()))
    with torch.inference_mode():
        features, passed = traveling(model, images)
        size = passed[4].size
        assert size is not None
        assert not torch.equal(size, size.round())
        rounded = (16 * size).round() / 16
        pooled = model.forward.args[0].head(features, [passed[4]._replace(size=rounded)])
        for at in range(len(images)):
            often = (16 * rounded[at]).long()
            if head in ("mean, then norm", "mean and maximum", "attention"):
                often[0] = 1  # these leave out one token, CLS
            repeated = features[at : at + 1].repeat_interleave(often, dim=1)
            expected = type(model).forward_head(model, repeated)[0]
            torch.testing.assert_close(pooled[at], expected, rtol=1e-9, atol=1e-10)
        exact = model.forward.args[0].head(features, [passed[4]])
        torch.testing.assert_close(model(images), exact, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("head", POOLING)
def test_an_image_does_not_depend_on_its_batch(head: str) -> None:
    model = model_with(head)
    images = images_for(model, 4)
    for method, schedule in UNEVEN:
        ztp.prune_(model, schedule.by(method))
        with torch.inference_mode():
            together = model(images)
            for at in range(4):
                alone = model(images[at : at + 1])[0]
                torch.testing.assert_close(together[at], alone, rtol=1e-10, atol=1e-12)


DROPPING: list[tuple[Method, ztp.Schedule]] = [
    (ztp.ZeroTPrune(), ztp.Schedule((ztp.Stage(1, 1.0, 4), ztp.Stage(3, 0.5)))),
    (TopK("average"), ztp.Schedule((ztp.Stage(2, 0.6),))),
    (EViT(), ztp.Schedule((ztp.Stage(2, 0.6), ztp.Stage(4, 0.5)))),
]


@pytest.mark.parametrize("head", WITH_CLS)
def test_what_is_not_merged_is_pooled_as_ever(head: str) -> None:
    """The library's own head gives the same bits; EViT's fused token counts as one."""
    model = model_with(head)
    images = images_for(model)
    for method, schedule in DROPPING:
        ztp.prune_(model, schedule.by(method))
        assert "forward" not in model.__dict__
        with torch.inference_mode():
            assert torch.equal(model(images), model.forward_head(model.forward_features(images)))


@pytest.mark.parametrize("compute", ["all", "needed"])
@pytest.mark.parametrize("head", ["mean, then norm", "attention", "refined CLS"])
def test_gmacs_are_what_torch_counts(head: str, compute: Any) -> None:
    """The head's work counts too; so does a padded batch, where images keep different numbers."""
    model = model_with(head)
    for method, schedule in UNEVEN:
        ztp.prune_(model, schedule.by(method), compute=compute)
        counted = counted_by_torch(model)
        if compute == "all":  # rows that run here, and that the method never needs
            counted -= spared(method, schedule, model.num_prefix_tokens)
        assert round(ztp.gmacs(model, compute=compute) * 1e9) == counted


@pytest.mark.parametrize("head", ["mean, then norm", "attention"])
def test_budgets(head: str) -> None:
    model = model_with(head)
    unpruned = ztp.gmacs(model)
    for method in ("tome", "tome-uni", "fold", "diffrate-even", "evit"):
        ztp.prune_(model, cost=0.7, method=method)
        assert ztp.gmacs(model) == pytest.approx(0.7 * unpruned, rel=0.02)
