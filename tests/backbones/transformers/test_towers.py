"""Towers of vision-language models, pruned: the language model reads them as ever, or fewer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from torch import Tensor

import zerotprune as ztp
from tests.hf_languages import IMAGE, LANGUAGES, build, prompt_for
from tests.keep_all import EVERYWHERE

MERGED = ztp.Schedule((ztp.Stage(2, similar=6), ztp.Stage(3, similar=5), ztp.Stage(4, similar=7)))


def generate(model: Any, prompt: dict[str, Tensor]) -> Tensor:
    out: Tensor = model.generate(**prompt, max_new_tokens=3, do_sample=False)
    return out


@pytest.mark.parametrize(
    ("name", "attention"), [*((name, "sdpa") for name in LANGUAGES), ("smolvlm", "eager")]
)
def test_with_the_grid_the_prompt_stays_as_it_is(name: str, attention: str) -> None:
    model, tower = build(name, attention)
    prompt = prompt_for(name)
    with torch.inference_mode():
        before, text = model(**prompt).logits, generate(model, prompt)
        ztp.prune_(tower, EVERYWHERE, outputs="grid")  # nothing goes: to the last bit
        assert torch.equal(model(**prompt).logits, before)
        ztp.prune_(tower, cost=0.6, outputs="grid")
        after = model(**prompt).logits
        assert after.shape == before.shape
        assert after.isfinite().all()
        assert not torch.allclose(after, before, atol=1e-3)
        assert generate(model, prompt).shape == text.shape
        ztp.restore_(tower)
        assert torch.equal(model(**prompt).logits, before)
        assert torch.equal(generate(model, prompt), text)


def test_a_whole_model_is_refused_and_told_of_its_tower() -> None:
    for name, path in (("llava", "vision_tower"), ("smolvlm", "vision_model")):
        with pytest.raises(TypeError, match=rf"pass model\.model\.{path}"):
            ztp.prune_(build(name)[0], cost=0.6)


@pytest.mark.parametrize("strategy", ["default", "full"])
@pytest.mark.parametrize(
    ("layer", "patches"), [(-2, 18), (-1, 18), (-3, 25), (3, 25), (0, 36), ([-2, -1], 18)]
)
def test_llava_reads_as_many_tokens_as_are_counted(layer: Any, patches: int, strategy: str) -> None:
    options = {"vision_feature_layer": layer, "vision_feature_select_strategy": strategy}
    model, tower = build("llava", **options)
    pixels = prompt_for("llava")["pixel_values"]
    try:
        model.get_image_features(pixels)
    except TypeError:
        assert layer == 0
        pytest.skip("this transformers takes layer 0 for no layer, unpruned as well")
    extra = 0 if strategy == "default" else 1
    assert ztp.image_tokens(model) == ztp.image_tokens(model.model) == 36 + extra
    ztp.prune_(tower, MERGED.by("fold"))
    count = ztp.image_tokens(model)
    assert count == patches + extra
    with torch.inference_mode():
        read = model.get_image_features(pixels)
        assert [len(features) for features in read.pooler_output] == [count] * 2
        states = torch.cat([read.hidden_states[at] for at in np.atleast_1d(layer)], dim=-1)
        assert states.shape[1] == patches + 1
        expected = model.model.multi_modal_projector(states[:, 1 - extra :])
        torch.testing.assert_close(torch.stack(list(read.pooler_output)), expected)


@pytest.mark.parametrize("method", ["fold", "tome", "zero-tprune"])
@pytest.mark.parametrize("name", ["llava", "paligemma"])
def test_a_prompt_with_as_many_image_tokens_as_are_left(name: str, method: str) -> None:
    model, tower = build(name)
    ztp.prune_(tower, cost=0.6, method=method)
    count = ztp.image_tokens(model)
    assert 0 < count < 36
    prompt = prompt_for(name, count)
    with torch.inference_mode():
        logits = model(**prompt).logits
        assert logits.shape[1] == count + 4
        assert logits.isfinite().all()
        assert generate(model, prompt).shape[1] == count + 7
        with pytest.raises((ValueError, RuntimeError), match="do not match"):
            model(**prompt_for(name))
        ztp.prune_(tower, cost=0.6, method=method, outputs="grid")
        assert ztp.image_tokens(model) == 36
        model(**prompt_for(name))


def test_the_processor_of_llava_puts_in_as_many() -> None:
    """Use the setting that the page on dense features names."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<image>": IMAGE, "see": 5, "[UNK]": 0}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, additional_special_tokens=["<image>"]
    )
    processor = transformers.LlavaProcessor(
        transformers.CLIPImageProcessor(size={"shortest_edge": 96}, crop_size=96),
        fast, patch_size=16, vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )  # fmt: skip
    model, tower = build("llava")
    before = ztp.image_tokens(model)
    image = np.random.default_rng(0).integers(0, 255, (120, 120, 3), dtype=np.uint8)
    for wanted in (before, 18):
        processor.num_additional_image_tokens += ztp.image_tokens(model) - before
        inputs = processor(images=image, text="<image> see", return_tensors="pt")
        assert int((inputs["input_ids"] == IMAGE).sum()) == wanted
        with torch.inference_mode():
            assert model(**inputs).logits.isfinite().all()
        ztp.prune_(tower, MERGED.by("fold"))


def test_what_cannot_be_counted_is_refused_in_one_sentence() -> None:
    with pytest.raises(TypeError, match=r'Gemma3.*outputs="grid"'):
        ztp.image_tokens(build("gemma3")[0])
    with pytest.raises(TypeError, match="VisionTransformer"):
        ztp.image_tokens(timm.create_model("test_vit"))
    with pytest.raises(TypeError, match="Linear"):
        ztp.image_tokens(torch.nn.Linear(2, 2))
    model, tower = build("llava", vision_feature_layer=[2, -2])
    ztp.prune_(tower, MERGED.by("fold"))
    with pytest.raises(ValueError, match="2, -2"):
        ztp.image_tokens(model)
    ztp.prune_(tower, MERGED.by("fold"), outputs="grid")
    assert ztp.image_tokens(model) == 36
    ztp.prune_(tower, ztp.Schedule((ztp.Stage(2, 0.5),), ztp.methods.ATS(samples=20)))
    with pytest.raises(ValueError, match="ats"):
        ztp.image_tokens(model)
