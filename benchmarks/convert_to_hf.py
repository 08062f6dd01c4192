"""Convert a timm model with local weights to a folder of Hugging Face transformers.

A plain ViT becomes a `ViTForImageClassification`, one with layer scale and without a classifier a
`Dinov2Model`; preprocessing and class names come along:

    python -m benchmarks.convert_to_hf deit_tiny_patch16_224 FOLDER --weights FILE
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor

from benchmarks.inputs import parser
from zerotprune.backbones import backbone
from zerotprune.data.models import load

#: timm's names → those of ViT and of DINOv2
_NAMES = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    r"patch_embed\.proj": "embeddings.patch_embeddings.projection",
    r"blocks\.(\d+)\.norm1": r"{row}.\1.{norm}1",
    r"blocks\.(\d+)\.norm2": r"{row}.\1.{norm}2",
    r"blocks\.(\d+)\.attn\.proj": r"{row}.\1.attention.o_proj",
    r"blocks\.(\d+)\.attn\.([qkv])": r"{row}.\1.attention.\2_proj",
    r"blocks\.(\d+)\.mlp\.fc": r"{row}.\1.mlp.fc",
    r"blocks\.(\d+)\.ls([12])\.gamma": r"{row}.\1.layer_scale\2.lambda1",
    "norm": "layernorm",
}


def convert(model: Any) -> Any:
    """Return the same model, with the same weights, as one of transformers."""
    vit, scaled = backbone(model), hasattr(model.blocks[0].ls1, "gamma")
    block, (_, height, width) = model.blocks[0], vit.input_shape
    shape: dict[str, Any] = {
        "hidden_size": model.embed_dim,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": block.attn.num_heads,
        "image_size": height if height == width else (height, width),
        "patch_size": model.patch_embed.patch_size[0],
        "layer_norm_eps": block.norm1.eps,
    }
    hidden = block.mlp.fc1.out_features
    if scaled and not vit.outputs:
        config = transformers.Dinov2Config(
            **shape, mlp_ratio=hidden // model.embed_dim, use_mask_token=False
        )
        converted: Any = transformers.Dinov2Model(config)
        state = renamed(model.state_dict(), row="encoder.layer", norm="norm")
    elif not scaled and vit.outputs:
        names = vit.class_names() or [f"LABEL_{at}" for at in range(vit.outputs)]
        config = transformers.ViTConfig(
            **shape, intermediate_size=hidden, id2label=dict(enumerate(names))
        )
        converted = transformers.ViTForImageClassification(config)
        inside = renamed(model.state_dict(), row="layers", norm="layernorm_")
        swapped = {"layernorm_1": "layernorm_before", "layernorm_2": "layernorm_after"}
        for old, new in swapped.items():
            inside = {key.replace(old, new): value for key, value in inside.items()}
        state = {
            key.replace("head.", "classifier.") if key.startswith("head.") else f"vit.{key}": value
            for key, value in inside.items()
        }
    else:
        raise ValueError("a plain ViT with a classifier is wanted, or a DINOv2 without one")
    converted.load_state_dict(state)
    return converted.eval()


def renamed(state: dict[str, Tensor], **words: str) -> dict[str, Tensor]:
    """Split q, k and v, and rename all weights as transformers does."""
    converted: dict[str, Tensor] = {}
    for key, value in state.items():
        if ".attn.qkv." in key:
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                converted[_rename(key.replace("qkv", part), words)] = rows
        else:
            converted[_rename(key, words)] = value
    return converted


def _rename(key: str, words: dict[str, str]) -> str:
    for old, new in _NAMES.items():
        if re.match(old + r"(?![a-z_])", key):
            return re.sub(f"^{old}", new.format(**words), key)
    return key


def save(model: Any, folder: Path) -> None:
    """Save the converted model with timm's preprocessing."""
    folder.mkdir(parents=True, exist_ok=True)
    convert(model).save_pretrained(folder)
    vit = backbone(model)
    _, height, width = vit.input_shape
    mean, std = vit.normalization
    crop = float((getattr(model, "pretrained_cfg", None) or {}).get("crop_pct") or 1.0)
    transformers.BitImageProcessor(
        size={"shortest_edge": int(min(height, width) / crop)},
        crop_size={"height": height, "width": width},
        resample=3,
        image_mean=list(mean),
        image_std=list(std),
    ).save_pretrained(folder)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("model", help="timm's name")
    options.add_argument("folder", type=Path)
    options.add_argument("--weights", type=Path, required=True)
    options.add_argument("--size", type=int, help="side of the images: positions are resampled")
    chosen = options.parse_args()
    save(load(chosen.model, weights=chosen.weights, size=chosen.size), chosen.folder)
    print(chosen.folder)


if __name__ == "__main__":
    main()
