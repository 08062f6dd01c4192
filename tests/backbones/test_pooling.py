"""Heads that pool: a merged token counts with the patches in it, padding does not count.

Oracle: where patches are equal in groups, positions as well, tokens of one group stay equal, and a
token that was merged from some of them is each of them. Then merging changes nothing at all.
"""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests.families import FAMILIES, SMALL, build, images_for, precise, stirred
from tests.test_cost import counted_by_torch
from zerotprune.backbones import backbone
from zerotprune.method import Method
from zerotprune.methods import ATS, DiffRate, EViT, Fold, ToMe, TopK
from zerotprune.tokens import Reduction

VIT, EVA, BEIT = "vit_base_patch16_224", "eva02_tiny_patch14_224", "beit_base_patch16_224"
#: heads that are not those of the families, all with a CLS token
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
    "eva, norm, then mean": (EVA, {"global_pool": "avg", "use_fc_norm": False, "img_size": 84}),
    "eva, maximum": (EVA, {"global_pool": "max", "img_size": 84}),
    "eva, mean and maximum": (EVA, {"global_pool": "avgmax", "img_size": 84}),
    "eva, attention": (EVA, {"global_pool": "map", "img_size": 84}),
    "beit, norm, then mean": (BEIT, {"use_abs_pos_emb": True, "use_rel_pos_bias": False}),
}
POOLING = ["mean, then norm", "mean with CLS", "mean and maximum", "attention", "refined CLS"]
MEAN = ["mean, then norm", "norm, then mean", "mean with CLS", "beit, norm, then mean"]


def model_with(head: str) -> Any:
    """A family as it comes, or with another head; in float64 where timm itself can."""
    if head in FAMILIES:
        return precise(build(head))
    name, options = HEADS[head]
    torch.manual_seed(0)
    return precise(stirred(timm.create_model(name, **(SMALL | options))).eval())


@contextmanager
def equal_patches(model: Any, group: int) -> Iterator[None]:
    """While it is open, every so many patch tokens in a row are one and the same to the model."""
    prefix = model.num_prefix_tokens

    def enter(block: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        x, *rest = args
        return (torch.cat((x[:, :prefix], alike(x[:, prefix:], group)), dim=1), *rest), given

    hook = model.blocks[0].register_forward_pre_hook(enter, with_kwargs=True)
    rope = getattr(model, "rope", None)
    if rope is not None:
        own = rope.get_embed
        rope.get_embed = lambda *args, **given: alike(own(*args, **given), group)
    with torch.no_grad():
        for name, table in model.named_parameters():
            if name.endswith("relative_position_bias_table"):
                table[:-3] = table[:1]  # the last three are between CLS and the patches
    yield
    hook.remove()
    if rope is not None:
        del rope.get_embed


def alike(rows: Tensor, group: int) -> Tensor:
    at = torch.arange(rows.shape[-2], device=rows.device)
    return rows[..., at - at % group, :]


def at_block(block: int, similar: int) -> ztp.Schedule:
    return ztp.Schedule((ztp.Stage(block, similar=similar),))


def assert_nothing_changes(model: Any, method: Method, schedule: ztp.Schedule, group: int) -> float:
    images = images_for(model)
    exact = images.dtype == torch.float64
    with torch.inference_mode(), equal_patches(model, group):
        expected = model(images)
        found = ztp.prune_(model, schedule.by(method))(images)
        bound = 1e-9 if exact else 1e-4
        torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
        assert torch.equal(ztp.restore_(model)(images), expected)
    return float((found - expected).abs().max())


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("method", [ToMe(), Fold(), Fold(features="x"), Fold(features="key")], ids=str)
@pytest.mark.parametrize("head", [*FAMILIES, *HEADS])
def test_merging_equal_patches_changes_nothing(head: str, method: Method, block: int) -> None:
    """Seven of the pairs: the sizes are 1 and 2, and a mean that ignored them would be wrong."""
    assert_nothing_changes(model_with(head), method, at_block(block, 7), group=2)


@pytest.mark.parametrize("method", [ToMe(), Fold()], ids=str)
@pytest.mark.parametrize("head", POOLING + ["siglip, no cls", "mae, average pooling"])
def test_larger_groups_and_the_last_block(head: str, method: Method) -> None:
    """Where four are alike, three become one; and a stage in the last block meets no attention but
    the head's."""
    for group, block in ((4, 2), (2, 5)):
        assert_nothing_changes(model_with(head), method, at_block(block, 7), group)
