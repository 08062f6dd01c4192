"""Every family of transformers' Vision Transformers: right, or refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import zerotprune as ztp
from tests.hf_families import (
    CLASSIFIERS,
    FAMILIES,
    SMALL,
    answers,
    build,
    enable_checkpointing,
    images_for,
)
from zerotprune.backbones import backbone
from zerotprune.backbones.transformers.families import blocks_of, refuse_old
from zerotprune.block import PrunedBlock, Task
from zerotprune.plan import Plan
from zerotprune.surgery import pruned_blocks
from zerotprune.tokens import Tokens
from zerotprune.tracing import patches_left

SCHEDULE = ztp.Schedule((ztp.Stage(2, 0.8, 4, 5), ztp.Stage(3, 0.7, 2, 2), ztp.Stage(4, 0.9)))
MERGING = ztp.Schedule((ztp.Stage(2, similar=12), ztp.Stage(4, similar=9)))
PARTLY = torch.arange(36).view(1, 6, 6).expand(2, -1, -1) < 30


def calls_of_blocks(model: Any, inputs: dict[str, Any]) -> list[tuple[Any, tuple[Any, ...], Any]]:
    """Return the arguments that the model passes to each of its blocks."""
    calls: list[tuple[Any, tuple[Any, ...], Any]] = []
    hooks = [
        block.register_forward_pre_hook(
            lambda block, args, kwargs: calls.append((block, args, kwargs)), with_kwargs=True
        )
        for block in blocks_of(model)
    ]
    model(**inputs)
    for hook in hooks:
        hook.remove()
    return calls


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_parts_make_the_block_bit_for_bit(family: str, attention: str) -> None:
    model = build(family, attention=attention)
    vit = backbone(model)
    task = Task(ztp.ZeroTPrune(), None, vit.geometry, last=True)
    plan = Plan(ztp.Schedule(), vit.geometry)
    with torch.inference_mode():
        calls = calls_of_blocks(model, images_for(family))
        assert len(calls) == vit.geometry.depth == 5
        for block, args, kwargs in calls:
            if family.startswith("siglip2"):  # its mask masks nothing
                args = (args[0], None)
            x, others = vit.call.read(args, kwargs)
            pruned = PrunedBlock(vit, block, task, plan)
            out = pruned.run(x, others)
            assert isinstance(out, Tensor)
            assert torch.equal(out, block(*args, **kwargs))


@pytest.mark.parametrize("family", FAMILIES)
def test_pruned_model_equals_masking_the_dropped_tokens(family: str) -> None:
    """Compare with the library's own blocks on all tokens, attention to dropped ones masked."""
    model = build(family).double()
    inputs = images_for(family, dtype=torch.float64)
    ztp.prune_(model, SCHEDULE, compute="all")
    with torch.inference_mode():
        pruned, left = hidden(model, inputs)
        ztp.restore_(model)
        assert not torch.allclose(pruned[:, 0], hidden(model, inputs)[0][:, 0])
        for image in range(len(pruned)):
            one = {name: value[image : image + 1] for name, value in inputs.items()}
            torch.testing.assert_close(pruned[image], masked(model, one, left, image))


def hidden(model: Any, inputs: dict[str, Any]) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the output of the last block, and the patches left after each stage."""
    outputs: dict[int, Any] = {}
    blocks = list(blocks_of(model))
    hooks = [
        block.register_forward_hook(
            lambda block, _, out: outputs.update({blocks.index(block): out})
        )
        for block in blocks
    ]
    model(**inputs)
    for hook in hooks:
        hook.remove()
    left = {at + 1: out.source for at, out in outputs.items() if isinstance(out, Tokens)}
    return outputs[4], left


def masked(model: Any, inputs: dict[str, Any], left: dict[int, Tensor], image: int) -> Tensor:
    calls = calls_of_blocks(model, inputs)
    x, prefix = calls[0][1][0], backbone(model).geometry.prefix
    alive = torch.ones(x.shape[1], dtype=torch.bool)
    order = torch.arange(x.shape[1])
    for number, (block, _, kwargs) in enumerate(calls, start=1):
        mask = torch.zeros(1, 1, len(alive), len(alive), dtype=x.dtype)
        mask = mask.masked_fill(~alive, -torch.inf)
        attention_mask = kwargs.get("attention_mask")
        kwargs = {name: value for name, value in kwargs.items() if name != "attention_mask"}
        x = block(
            x, attention_mask=mask if attention_mask is None else attention_mask + mask, **kwargs
        )
        if number in left:
            order = torch.cat((torch.arange(prefix), left[number][image] + prefix))
            alive = torch.zeros_like(alive).index_fill(0, order, True)
    rows: Tensor = x[0, order]
    return rows


METHODS = [("fold", MERGING), ("zero-tprune", SCHEDULE), ("tome", MERGING)]


@pytest.mark.parametrize("family", FAMILIES)
def test_methods_run_and_restoring_leaves_no_trace(family: str) -> None:
    model, inputs = build(family), images_for(family)
    before, plain = set(model.state_dict()), repr(model)
    with torch.inference_mode():
        expected = answers(model(**inputs))
        assert equal(answers(ztp.prune_(model, ztp.Schedule())(**inputs)), expected)
        for method, schedule in METHODS:
            ztp.prune_(model, schedule.by(method))
            actual = answers(model(**inputs))
            assert all(answer.isfinite().all() for answer in actual)
            assert not equal(actual, expected)
            assert set(model.state_dict()) == before
            assert "pruned by" in repr(model)
        ztp.restore_(model)
        assert equal(answers(model(**inputs)), expected)
    assert repr(model) == plain
    assert not any("forward" in vars(module) for module in model.modules())


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize("family", ["vit", "dinov2, base", "siglip", "beit", "dinov3"])
def test_hidden_states_are_recorded_with_what_is_left(family: str) -> None:
    model, inputs = build(family), images_for(family)
    with torch.inference_mode():
        plain = model(**inputs, output_hidden_states=True).hidden_states
        ztp.prune_(model, MERGING.by("tome"))
        alone = answers(model(**inputs))
        out = model(**inputs, output_hidden_states=True)
    prefix = backbone(model).geometry.prefix
    lengths = [state.shape[1] - prefix for state in out.hidden_states]
    assert lengths == [36, 36, 24, 24, 15, 15]
    assert torch.equal(out.hidden_states[1], plain[1])
    for one, other in zip(alone, answers(out), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("family", ["vit", "dinov2", "siglip"])
def test_gradient_checkpointing_gives_the_same_gradients(family: str) -> None:
    model, inputs = build(family), images_for(family)
    ztp.prune_(model, MERGING.by("fold")).train()
    gradients, runs = [], list[int]()
    for layer in (module for module in model.modules() if isinstance(module, nn.LayerNorm)):
        layer.register_forward_hook(lambda *_: runs.append(1))
    for checkpointing in (False, True):
        if checkpointing:
            once = len(runs)
            enable_checkpointing(model)
        model.zero_grad()
        torch.cat(
            [answer.flatten() for answer in answers(model(**inputs))]
        ).square().sum().backward()
        gradients.append(
            [
                parameter.grad.clone()
                for parameter in model.parameters()
                if parameter.grad is not None
            ]
        )
    assert len(runs) - once >= once + 2 * len(blocks_of(model)), "nothing was computed again"
    assert len(gradients[0]) > 50
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_pruned_blocks_of_a_model_set_to_flash_attention_are_fused_by_torch() -> None:
    """All blocks are ours here, so the kernels themselves are not needed."""
    model, inputs = build("vit"), images_for("vit")
    ztp.prune_(model, ztp.Schedule((ztp.Stage(1, similar=9),)).by("fold"))
    with torch.inference_mode():
        expected = model(**inputs).logits
        model.config._attn_implementation = "flash_attention_2"
        assert torch.equal(model(**inputs).logits, expected)


@pytest.mark.filterwarnings("ignore:None of the inputs:UserWarning")  # before transformers 5.23
def test_reentrant_checkpointing_is_refused() -> None:
    model = ztp.prune_(build("vit"), MERGING.by("fold")).train()
    enable_checkpointing(model, use_reentrant=True)
    with pytest.raises(ValueError, match="use_reentrant"):
        model(torch.randn(2, 3, 96, 96, requires_grad=True))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["vit", "deit, teacher", "beit, cls"])
def test_the_last_block_for_the_prefix_tokens_alone(family: str, attention: str) -> None:
    model = build(family, attention=attention).double()
    inputs = images_for(family, dtype=torch.float64)
    seen: list[int] = []
    last = blocks_of(model)[-1].mlp
    forward = type(last).forward

    def fed(x: Tensor) -> Any:
        seen.append(x.shape[1])
        return forward(last, x)

    last.forward = fed
    with torch.inference_mode():
        for method, schedule in METHODS:
            whole = answers(ztp.prune_(model, schedule.by(method), compute="all")(**inputs))
            exact = answers(ztp.prune_(model, schedule.by(method))(**inputs))
            for one, other in zip(exact, whole, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        prefix = backbone(model).geometry.prefix
        assert seen[1::2] == [prefix] * 3
        assert min(seen[::2]) > prefix
        # A hook in the last block is there to see all tokens, and hidden states are of all.
        hook = blocks_of(model)[-1].register_forward_hook(lambda *_: None)
        model(**inputs)
        hook.remove()
        model(**inputs, output_hidden_states=True)
        assert min(seen[-2:]) > prefix
        model(**inputs)
        assert seen[-1] == prefix


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in CLASSIFIERS])
def test_base_models_show_all_tokens_that_are_left(family: str) -> None:
    """Users read their last hidden states, in the order of `patches_left`."""
    model = ztp.prune_(build(family), MERGING.by("fold"))
    prefix = backbone(model).geometry.prefix
    with torch.inference_mode(), patches_left(model) as left:
        out = model(**images_for(family))
    assert out.last_hidden_state.shape[1] == prefix + 15 == prefix + left[-1].shape[1]


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("SwinModel", "SwinConfig", "SwinModel.*windows"),
        ("ViTForMaskedImageModeling", "ViTConfig", "ViTForMaskedImageModeling.*every patch"),
        ("VitDetBackbone", "VitDetConfig", "VitDetBackbone.*supported"),
        ("CLIPModel", "CLIPConfig", r"CLIPVisionModel.*pass model\.vision_model"),
        ("BertModel", "BertConfig", "BertModel.*supported"),
        ("Qwen2VLModel", "Qwen2VLConfig", "Qwen2VLModel.*packs"),
    ],
)
def test_what_cannot_be_right_is_refused(kind: str, config: str, message: str) -> None:
    with torch.device("meta"):
        model = getattr(transformers, kind)(getattr(transformers, config)())
    with pytest.raises(TypeError, match=message):
        ztp.prune_(model, SCHEDULE)


def test_subclasses_and_replaced_blocks_are_refused() -> None:
    class Custom(transformers.ViTModel):  # type: ignore[misc]
        def forward(self, pixel_values: Tensor) -> Tensor:
            return pixel_values

    with pytest.raises(TypeError, match=r"Custom.*forward"):
        ztp.prune_(Custom(transformers.ViTConfig(**SMALL)), SCHEDULE)
    model = build("vit")
    model.vit.layers[1].attention = nn.Linear(3, 3)
    with pytest.raises(TypeError, match=r"block 2.*Linear"):
        ztp.prune_(model, SCHEDULE)
    model = build("vit")
    model.vit.layers[2].forward = lambda x: x
    with pytest.raises(TypeError, match=r"forward of block 3"):
        ztp.prune_(model, SCHEDULE)


def test_old_versions_are_refused() -> None:
    refuse_old("5.17.0")
    refuse_old("6.0.0.dev0")
    with pytest.raises(TypeError, match=r"5\.9\.0.*5\.17"):
        refuse_old("5.9.0")
    model = build("dinov2")
    del model.dinov2.encoder.layer[0].attention.q_proj
    with pytest.raises(TypeError, match="q_proj"):
        ztp.prune_(model, SCHEDULE)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("vit, base", {"bool_masked_pos": torch.zeros(2, 36)}, "bool_masked_pos"),
        ("vit", {"attention_mask": torch.ones(2, 37)}, "attention mask"),
        ("beit, base", {"attention_mask": torch.ones(2, 37)}, "attention mask"),
        ("dinov2", {"output_attentions": True}, "attentions"),
        ("siglip2", {"pixel_attention_mask": torch.eye(2, 36)}, "padded images"),
        ("smolvlm", {"patch_attention_mask": PARTLY}, "padded images"),
    ],
)
def test_calls_that_cannot_be_served(family: str, options: dict[str, Any], message: str) -> None:
    model = ztp.prune_(build(family), SCHEDULE)
    with pytest.raises(ValueError, match=message):
        model(**images_for(family) | options)


def test_a_mask_to_the_transformer_inside_is_refused() -> None:
    model = ztp.prune_(build("vit"), SCHEDULE)
    mask = torch.ones(2, 37, dtype=torch.long)
    mask[:, -3:] = 0
    with pytest.raises(ValueError, match="attention mask"):
        model.vit(**images_for("vit"), attention_mask=mask)


def test_images_of_another_size_than_it_was_pruned_for() -> None:
    model = ztp.prune_(build("dinov2"), SCHEDULE)
    with pytest.raises(ValueError, match=r"36 patches, got 16: .*budget"):
        model(torch.randn(1, 3, 64, 64))


@pytest.mark.parametrize("family", ["vit", "dinov2", "registers", "dinov3", "clip", "siglip"])
def test_a_model_set_to_another_size(family: str) -> None:
    """Compare with the library's own interpolation in the call."""
    model, images = build(family), torch.randn(2, 3, 64, 64)
    resampled = {} if "dino" in family or family == "registers" else {"interpolate_pos_encoding": 1}
    with torch.inference_mode():
        expected = answers(model(images, **resampled))
        backbone(model).resize_(64)
        assert backbone(model).input_shape == (3, 64, 64)
        assert backbone(model).geometry.grid == (4, 4)
        for one, other in zip(answers(model(images)), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        ztp.prune_(model, ztp.Schedule((ztp.Stage(2, 0.5),)))(images)


def test_a_model_whose_positions_cannot_be_resampled() -> None:
    with pytest.raises(ValueError, match=r"BeitForImageClassification.*size"):
        backbone(build("beit")).resize_(64)


def test_only_the_blocks_from_the_first_stage_on_are_ours() -> None:
    model = ztp.prune_(build("clip"), SCHEDULE)
    assert [pruned.block for pruned in pruned_blocks(model)] == list(model.encoder.layers)[1:]
