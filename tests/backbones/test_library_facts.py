"""torchvision, open_clip and LV-ViT: what a backbone says of them, whole CLIP models, refusals."""

from __future__ import annotations

from typing import Any

import open_clip
import pytest
import torch
import torchvision
from open_clip.model import CLIP, CustomTextCLIP
from PIL import Image
from torch import Tensor, nn

import zerotprune as ztp
from tests.backbones.test_libraries import METHODS, models
from tests.libraries import build, images_for, stir
from zerotprune.backbones import backbone, create
from zerotprune.methods import Fold, ToMe

TEXT = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 2}
TOWER = {"image_size": 96, "patch_size": 16, "width": 64, "layers": 4, "head_width": 16}
TRUNK = {"timm_model_name": "test_vit", "timm_pool": "avg", "timm_proj": "linear",
         "image_size": 160}  # fmt: skip


@pytest.mark.parametrize("kind", [CLIP, CustomTextCLIP])
@pytest.mark.parametrize("vision", [TOWER, TRUNK], ids=["own tower", "timm trunk"])
def test_a_whole_clip_model(kind: Any, vision: dict[str, Any]) -> None:
    """The image tower is pruned, the text tower is left alone, and nothing stays behind."""
    torch.manual_seed(0)
    model: Any = stir(kind(24, vision, TEXT)).eval()
    images = torch.randn(2, 3, vision["image_size"], vision["image_size"])
    texts = torch.randint(0, 50, (2, 8))
    with torch.inference_mode():
        before, text_features = model.encode_image(images), model.encode_text(texts)
        assert ztp.prune_(model, cost=0.6) is model
        assert not torch.allclose(model.encode_image(images), before)
        assert torch.equal(model.encode_text(texts), text_features)
        assert ztp.gmacs(model) == ztp.gmacs(model.visual)
        assert len(ztp.trace(model, images)) > 0
        with pytest.raises(ValueError, match=r"forward_intermediates.*grid"):
            model.forward_intermediates(images, texts)
        assert torch.equal(ztp.restore_(model).encode_image(images), before)


def test_a_tower_in_a_sequential_and_a_clip_in_a_module() -> None:
    tower = build("open_clip")
    model = nn.Sequential(nn.Identity(), tower)
    with torch.inference_mode():
        images = images_for(tower)
        assert torch.equal(ztp.prune_(model, cost=0.7)(images), tower(images))

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.clip = CLIP(24, TOWER, TEXT)

    with pytest.raises(TypeError, match=r"an? open_clip VisionTransformer at \.clip\.visual"):
        ztp.prune_(Wrapped(), cost=0.7)


@models
def test_facts_are_those_of_the_model(name: str) -> None:
    model = build(name)
    vit = backbone(model)
    assert vit.input_shape == (3, 96, 96)
    assert vit.outputs == (0 if name.startswith("open_clip") else 7)
    assert vit.class_names() == []
    seen = vit.transform()(Image.new("RGB", (200, 100)))
    mean, std = (torch.tensor(values) for values in vit.normalization)
    assert seen.shape == (3, 96, 96)
    torch.testing.assert_close(seen[:, 50, 50], -mean / std)
    vit.resize_(64)
    assert backbone(model).input_shape == (3, 64, 64)
    assert backbone(model).geometry.grid == (4, 4)
    with torch.inference_mode():
        model(torch.randn(1, 3, 64, 64))
    with pytest.raises(ValueError, match=r"16.*65"):
        vit.resize_(65)


SWAG = "torchvision:vit_b_16.imagenet1k_swag"
PUBLISHED = {
    "torchvision:vit_b_16": (256, 224, "bilinear"),
    f"{SWAG}_e2e_v1": (384, 384, "bicubic"),
    f"{SWAG}_LINEAR_V1": (224, 224, "bicubic"),
    "torchvision:vit_h_14": (518, 518, "bicubic"),
    "lvvit:lvvit_s": (248, 224, "bicubic"),
    "lvvit:lvvit_m": (224, 224, "bicubic"),
}


def test_published_preprocessing_and_classes() -> None:
    with torch.device("meta"):
        made = {name: backbone(create(name, pretrained=False)) for name in PUBLISHED}
        # a model that was not made by us is known by its shape
        transform: Any = backbone(torchvision.models.vit_b_16(image_size=384)).transform()
    for name, vit in made.items():
        kind: Any = vit.transform()
        actual = (kind.resize_size[0], kind.crop_size[0], kind.interpolation.value)
        assert actual == PUBLISHED[name]
    assert transform.resize_size == [384]
    plain, swag, small = (made[name] for name in ("torchvision:vit_b_16", f"{SWAG}_e2e_v1",
                                                  "lvvit:lvvit_s"))  # fmt: skip
    assert swag.input_shape == (3, 384, 384)
    assert plain.name == "vit_b_16"
    for vit in (plain, small):
        assert vit.class_names()[:2] == ["tench", "goldfish"]
        assert len(vit.class_names()) == 1000


def test_open_clip_s_own_preprocessing() -> None:
    """Compare with open_clip's own transform, also in a timm trunk: SigLIP's is not OpenAI's."""
    image = Image.effect_mandelbrot((300, 200), (-2, -1.5, 1, 1.5), 50).convert("RGB")
    for name, mean in (("ViT-B-32", 0.48145466), ("ViT-B-16-SigLIP", 0.5)):
        with torch.device("meta"):
            tower = create(f"open_clip:{name}", pretrained=False)
        vit = backbone(tower)
        assert vit.normalization[0][0] == mean
        assert vit.outputs == 0
        config = open_clip.transform.PreprocessCfg(**tower.preprocess_cfg)  # type: ignore[arg-type]
        expected = open_clip.transform.image_transform_v2(config, is_train=False)(image)
        torch.testing.assert_close(vit.transform()(image), expected, rtol=0.01, atol=0.02)


def test_the_published_sizes() -> None:
    """Compare with the published GMACs."""
    known = {"torchvision:vit_b_16": 17.56, "torchvision:vit_l_16": 61.55, f"{SWAG}_e2e_v1": 55.48,
             "lvvit:lvvit_s": 6.6, "open_clip:ViT-B-32": 4.4}  # fmt: skip
    with torch.device("meta"):
        for name, gmacs in known.items():
            assert ztp.gmacs(create(name, pretrained=False)) == pytest.approx(gmacs, rel=0.01)


class CustomVit(torchvision.models.VisionTransformer):  # type: ignore[misc]
    def forward(self, x: Tensor) -> Tensor:
        return x


def _exchanged(block: str, part: str) -> Any:
    def change(model: Any) -> None:
        model.get_submodule(block).add_module(part, nn.Linear(48, 48))

    return change


def _sequence_first(model: Any) -> None:
    model.transformer.resblocks[1].attn.batch_first = False


def _dropping(model: Any) -> None:
    model.patch_dropout = open_clip.transformer.PatchDropout(0.5)


def _cosine(model: Any) -> None:
    model.transformer.resblocks[0].attn.logit_scale = nn.Parameter(torch.ones(3, 1, 1))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("torchvision", _exchanged("encoder.layers.encoder_layer_1", "self_attention"), "block 2"),
        ("torchvision", _exchanged("encoder.layers", "encoder_layer_2"), "block 3.*Linear"),
        ("torchvision", _exchanged("", "encoder"), "encoder"),
        ("open_clip", _exchanged("transformer.resblocks.1", "ln_1_kv"), "ln_1_kv"),
        ("open_clip", _exchanged("transformer.resblocks.1", "attn"), "no packed matrix"),
        ("open_clip", _sequence_first, "batch_first"),
        ("open_clip", _dropping, "patch dropout"),
        ("open_clip, own attention", _cosine, "cosine"),
        ("lvvit", _exchanged("blocks", "0"), "block 1.*Linear"),
    ],
)
def test_what_cannot_be_right_is_refused(name: str, change: Any, message: str) -> None:
    model = build(name)
    change(model)
    with pytest.raises(TypeError, match=message) as refusal:
        ztp.prune_(model, METHODS[0][1])
    assert ". " not in str(refusal.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torchvision.models.resnet18(), "ResNet"),
        (lambda: torchvision.models.swin_t(), "SwinTransformer"),
        (lambda: CustomVit(32, 16, 2, 2, 48, 96), "CustomVit.*forward"),
        (lambda: open_clip.create_model("RN50", load_weights=False, device="meta").visual,
         "ModifiedResNet"),
    ],
)  # fmt: skip
def test_other_models_are_refused(make: Any, message: str) -> None:
    with torch.device("meta"):
        model = make()
    with pytest.raises(TypeError, match=message):
        ztp.prune_(model, METHODS[0][1])


def test_masks_and_heads_of_somebody_else_s() -> None:
    tower = ztp.prune_(build("open_clip"), METHODS[0][1])
    with pytest.raises(ValueError, match="attention mask"):
        tower.transformer(torch.randn(1, 37, 48), attn_mask=torch.zeros(37, 37))
    merging = ztp.Schedule((ztp.Stage(2, similar=5),), ToMe())
    whole = build("open_clip")
    whole.pool_type = "none"
    with pytest.raises(ValueError, match="custom head"):
        ztp.prune_(whole, merging)
    assert ztp.prune_(whole, METHODS[0][1])(images_for(whole)).shape[1] < 37
    mean = ztp.prune_(build("open_clip, mean"), merging)
    mean.pool_type = "none"
    with pytest.raises(ValueError, match="head was replaced"):
        mean(images_for(mean))


def test_tokens_beside_the_features() -> None:
    """With `output_tokens` the last block is whole, and the features stay the same."""
    model = build("open_clip").double()
    images = images_for(model)
    schedule = METHODS[2][1].by(Fold())
    with torch.inference_mode():
        expected = ztp.prune_(model, schedule)(images)
        model.output_tokens = True
        pooled, tokens = ztp.prune_(ztp.restore_(model), schedule)(images)
    torch.testing.assert_close(pooled, expected)
    assert tokens.shape == (2, 36 - 12 - 9, 48)
