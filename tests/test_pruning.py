"""prune_ and restore_: nothing changes that should not, and what should does."""

from __future__ import annotations

import copy
import functools
import pickle
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import zerotprune as ztp
from tests.families import FAMILIES, build, images_for, same
from zerotprune.methods import Slicing, TopK

SCHEDULE = ztp.Schedule((ztp.Stage(1, 1.0, 4), ztp.Stage(2, 0.8, 4), ztp.Stage(4, 0.5)))
METHODS = [
    ztp.ZeroTPrune(),
    ztp.ZeroTPrune(order="i-s"),
    ztp.ZeroTPrune(ranking="accumulated"),
    TopK("average"),
    TopK("accumulated"),
    TopK("random"),
    Slicing(),
]


@pytest.fixture
def model() -> Any:
    return build("deit")


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_that_prune_nothing_change_no_bit(family: str) -> None:
    model: Any = build(family)
    images = images_for(model)
    with torch.inference_mode():
        before = model(images)
        idle = ztp.Schedule(tuple(ztp.Stage(block) for block in range(1, len(model.blocks))))
        for schedule in (ztp.Schedule(), idle):
            ztp.prune_(model, schedule)
            assert torch.equal(model(images), before)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_restore_leaves_no_trace(model: Any, method: Any) -> None:
    images = images_for(model)
    with torch.inference_mode():
        before = model(images)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        inside = [sorted(module.__dict__) for module in model.modules()]
        ztp.prune_(model, SCHEDULE.by(method))
        assert not torch.equal(model(images), before)
        assert list(model.state_dict()) == list(state)
        ztp.restore_(model)
        assert torch.equal(model(images), before)
        assert [sorted(module.__dict__) for module in model.modules()] == inside
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


class Wrapper(nn.Module):
    """A user's model around a Vision Transformer."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Any) -> Any:
        return self.backbone(images)


def inside(model: nn.Module) -> list[list[str]]:
    return [sorted(module.__dict__) for module in model.modules()]


@pytest.mark.parametrize("family", ["deit", "siglip, no cls"])
def test_restoring_a_model_restores_a_pruned_part(family: str) -> None:
    part = build(family)
    whole, images = Wrapper(part), images_for(part)
    with torch.inference_mode():
        before, state = whole(images), inside(whole)
        ztp.prune_(part, cost=0.7)
        assert not torch.equal(whole(images), before)
        ztp.restore_(whole)
        assert inside(whole) == state
        assert torch.equal(whole(images), before)


def test_a_part_of_a_pruned_model() -> None:
    import transformers

    shape: Any = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 3}
    config = transformers.ViTConfig(**shape, image_size=96, patch_size=16)
    whole: Any = transformers.ViTForImageClassification(config).eval()
    images, state = torch.rand(2, 3, 96, 96), inside(whole)
    with torch.inference_mode():
        before = whole(images).logits
        pruned = ztp.pruned(whole, cost=0.7)(images).logits
        ztp.prune_(whole, cost=0.7)
        ztp.restore_(whole.vit)
        assert inside(whole) == state
        assert torch.equal(whole(images).logits, before)
        ztp.prune_(whole, cost=0.8)
        ztp.prune_(whole.vit, cost=0.6)  # takes the other off
        ztp.prune_(whole, cost=0.7)
        assert torch.equal(whole(images).logits, pruned)
        ztp.restore_(whole.vit.layers[-1])
        assert inside(whole) == state


def test_pruning_again_replaces(model: Any) -> None:
    images = images_for(model)
    other = ztp.Schedule((ztp.Stage(3, 0.4),))
    with torch.inference_mode():
        expected = ztp.prune_(copy.deepcopy(model), other)(images)
        ztp.prune_(model, SCHEDULE)
        ztp.prune_(model, other)
        assert same(model(images), expected)
        assert ztp.gmacs(model) == ztp.gmacs(copy.deepcopy(model), other)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("family", ["deit", "siglip, no cls", "eva-02, rotary"])
def test_an_image_does_not_depend_on_its_batch(family: str, method: Any) -> None:
    model: Any = build(family).double()
    images = images_for(model, 5)
    ztp.prune_(model, SCHEDULE.by(method))
    with torch.inference_mode():
        together = model(images)
        alone = torch.cat([model(image.unsqueeze(0)) for image in images])
        torch.testing.assert_close(together, alone)
        assert torch.equal(model(images), together)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_large_batches_are_scored_in_turns(model: Any, method: Any) -> None:
    images = images_for(model, 19)  # the CPU takes 4 images at a time
    ztp.prune_(model, SCHEDULE.by(method))
    with torch.inference_mode():
        parts = [model(part) for part in images.split(7)]
        torch.testing.assert_close(model(images), torch.cat(parts))
    assert all(stage.fate.shape == (19, 36) for stage in ztp.trace(model, images))


@pytest.mark.parametrize("method", [ztp.ZeroTPrune(), Slicing()], ids=repr)
def test_queries_and_keys_do_not_wait_for_the_mlp(model: Any, method: Any) -> None:
    """The MLP takes most of a block's memory: attention's tensors are freed by then."""
    ztp.prune_(model, SCHEDULE.by(method))
    storages: dict[int, StorageWeakRef] = {}
    freed = []

    def note(at: int, module: nn.Module, args: Any, out: torch.Tensor) -> None:
        storages[at] = StorageWeakRef(out.untyped_storage())

    def look(at: int, module: nn.Module, args: Any) -> None:
        freed.append(storages[at].expired())

    for at, block in enumerate(model.blocks[:-1]):
        block.attn.qkv.register_forward_hook(functools.partial(note, at))
        block.mlp.register_forward_pre_hook(functools.partial(look, at))
    with torch.inference_mode():
        model(images_for(model, 2))
    assert freed == [True] * (len(model.blocks) - 1)


def test_a_broken_image_stays_alone(model: Any) -> None:
    images = images_for(model, 3)
    ztp.prune_(model, SCHEDULE)
    with torch.inference_mode():
        expected = model(images)
        images[1] = torch.nan
        actual = model(images)
    assert actual[1].isnan().all()
    torch.testing.assert_close(actual[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_copy_and_pickle(model: Any, method: Any) -> None:
    images = images_for(model)
    ztp.prune_(model, SCHEDULE.by(method))
    with torch.inference_mode():
        expected = model(images)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert same(twin(images), expected)
            with torch.no_grad():
                twin.blocks[3].mlp.fc1.weight.zero_()
            assert not torch.equal(twin(images), expected)
            assert torch.equal(model(images), expected)
            ztp.restore_(twin)
            assert "forward" not in twin.blocks[1].__dict__
            assert "forward" in model.blocks[1].__dict__


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(model: Any, precision: torch.dtype) -> None:
    images = images_for(model)
    ztp.prune_(model, SCHEDULE)
    with torch.inference_mode():
        exact = model(images)
        with torch.autocast("cpu", dtype=precision):
            mixed = model(images)
        narrow = copy.deepcopy(model).to(precision)(images.to(precision))
    # A rounded score may swap two tokens of nearly equal importance, so this is about sanity.
    for logits in (mixed, narrow):
        assert logits.dtype == precision
        assert torch.nn.functional.cosine_similarity(logits.float(), exact).min() > 0.9


def test_gradients_reach_every_weight(model: Any) -> None:
    ztp.prune_(model.train(), SCHEDULE)
    model(images_for(model)).square().sum().backward()
    without = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert without == []


def test_gradient_checkpointing_gives_the_same_gradients(model: Any) -> None:
    images = images_for(model)
    gradients = []
    for checkpointed in (False, True):
        twin: Any = ztp.prune_(copy.deepcopy(model), SCHEDULE).train()
        twin.set_grad_checkpointing(checkpointed)
        twin(images).square().sum().backward()
        gradients.append([weight.grad for weight in twin.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


def test_distributed_data_parallel(model: Any, tmp_path: Any) -> None:
    images = images_for(model)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        ztp.prune_(wrapped, SCHEDULE)
        torch.testing.assert_close(wrapped(images), model(images))
        wrapped(images).sum().backward()
        assert ztp.gmacs(wrapped) < ztp.gmacs(model, ztp.Schedule())
        ztp.restore_(wrapped)
        assert "forward" not in model.blocks[1].__dict__
    finally:
        dist.destroy_process_group()


def test_forward_features_and_intermediates(model: Any) -> None:
    images = images_for(model)
    full = [kept.shape for kept in model.forward_intermediates(images, intermediates_only=True)]
    ztp.prune_(model, SCHEDULE)
    features = model.forward_features(images)
    assert features.shape == (2, 1 + 11, 48)
    torch.testing.assert_close(model.forward_head(features), model(images))
    with pytest.raises(ValueError, match="forward_intermediates"):
        model.forward_intermediates(images)
    ztp.restore_(model)
    again = [kept.shape for kept in model.forward_intermediates(images, intermediates_only=True)]
    assert again == full


def test_masks_are_refused(model: Any) -> None:
    ztp.prune_(model, SCHEDULE)
    mask = torch.zeros(37, 37)
    with pytest.raises(ValueError, match="takes no attention mask"):
        model(images_for(model), attn_mask=mask)


def test_dynamic_image_sizes() -> None:
    """tests/test_sizes.py covers budgets."""
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=96, dynamic_img_size=True, depth=5, num_classes=7
    ).eval()
    ztp.prune_(model, SCHEDULE)
    with torch.inference_mode():
        assert model(torch.randn(2, 3, 96, 96)).shape == (2, 7)
        with pytest.raises(ValueError, match=r"36 patches, got 80: .*budget"):
            model(torch.randn(2, 3, 128, 160))


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([ztp.Stage(5, 0.5)], "blocks 1 to 4 .*got 5"),
        ([ztp.Stage(99, 0.5)], "blocks 1 to 4 .*got 99"),
        ([ztp.Stage(1, 1.0, 19)], "at most 18 .*36 .*got 19"),
        ([ztp.Stage(1, 0.5), ztp.Stage(2, 1.0, 10)], "at most 9 .*18 .*got 10"),
        ([ztp.Stage(1, 0.05), ztp.Stage(2, 0.5)], "the stage at block 2 leaves no patch token"),
    ],
)
def test_impossible_schedules_leave_the_model_alone(
    model: Any, stages: list[ztp.Stage], message: str
) -> None:
    images = images_for(model)
    ztp.prune_(model, SCHEDULE)
    with torch.inference_mode():
        before = model(images)
        with pytest.raises(ValueError, match=message):
            ztp.prune_(model, ztp.Schedule(tuple(stages)))
        assert torch.equal(model(images), before)


def test_wrong_arguments(model: Any) -> None:
    with pytest.raises(TypeError, match=r"got str: .*Schedule\.load\('s\.json'\)"):
        ztp.prune_(model, "s.json")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got float: .*cost=0\.7"):
        ztp.prune_(model, 0.7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="class ZeroTPrune"):
        ztp.prune_(model, cost=0.7, method=ztp.ZeroTPrune)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got 3"):
        SCHEDULE.by(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"schedule.*budget"):
        ztp.prune_(model, SCHEDULE, cost=0.6)
    with pytest.raises(ValueError, match=r"schedule\.by\(method\)"):
        ztp.prune_(model, SCHEDULE, method="tome")
    with pytest.raises(ValueError, match=r"budget.*cost=.*gmacs="):
        ztp.prune_(model)
    with pytest.raises(TypeError, match=r"must be a Schedule, got list"):
        ztp.gmacs(model, [ztp.Stage(2)])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a Budget, got 0\.5"):
        ztp.Schedule((ztp.Stage(2),), "fold", 0.5, 36)  # type: ignore[arg-type]


def test_a_block_that_runs_twice_is_refused(model: Any) -> None:
    model.blocks[3] = model.blocks[2]
    with pytest.raises(TypeError, match="one module"):
        ztp.prune_(model, cost=0.7)
    assert "pruned by" not in repr(model)


@pytest.mark.parametrize("call", [ztp.restore_, ztp.gmacs, partial(ztp.pruned, cost=0.7),
                                  partial(ztp.trace, images=torch.rand(1, 3, 96, 96))])  # fmt: skip
def test_what_is_no_model(call: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, got str"):
        call("deit_tiny_patch16_224")


@pytest.mark.parametrize("name", ["images", "example"])
def test_what_is_no_batch_of_images(model: Any, name: str) -> None:
    budget: Any = {"images": {"cost": 0.8, "method": "ats"}, "example": {"speedup": 1.2}}[name]
    batch = images_for(model)
    for wrong in ("cat.jpg", [batch], batch[0], batch.long(), batch[:0]):
        with pytest.raises((TypeError, ValueError), match=f"{name} must"):
            ztp.schedule_for(model, **(budget | {name: wrong}))
    with pytest.raises(TypeError, match="speedup must be a number, got '2'"):
        ztp.schedule_for(model, speedup="2", example=batch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method", [ztp.ZeroTPrune(start="cls"), ztp.ZeroTPrune(ranking="cls"), TopK("cls")]
)
def test_no_cls_token_to_look_at(method: Any) -> None:
    with pytest.raises(ValueError, match="CLS token"):
        ztp.prune_(build("siglip, no cls"), SCHEDULE.by(method))
