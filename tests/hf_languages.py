"""transformers' vision-language models, tiny and with random weights: 6 × 6 patches an image."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn

from tests.families import stirred

IMAGE = 99  # the id of an image token
_VISION: dict[str, Any] = {
    "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 3, "intermediate_size": 96,
    "image_size": 96, "patch_size": 16,
}  # fmt: skip
_TEXT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 64, "head_dim": 16, "vocab_size": 128, "pad_token_id": 0,
}  # fmt: skip


class Language(NamedTuple):
    kind: str
    vision: str  # the class of the tower's config
    text: str
    tower: str  # where it is in the model
    tokens: int  # of an image, in the prompt
    options: dict[str, Any]


_SIGLIP = "SiglipVisionConfig"
LANGUAGES = {
    "llava": Language("Llava", "CLIPVisionConfig", "LlamaConfig", "vision_tower", 36, {}),
    "paligemma": Language(
        "PaliGemma", _SIGLIP, "GemmaConfig", "vision_tower", 36, {"projection_dim": 32}
    ),
    "gemma3": Language(
        "Gemma3", _SIGLIP, "Gemma3TextConfig", "vision_tower", 9, {"mm_tokens_per_image": 9}
    ),
    "idefics3": Language(
        "Idefics3", "Idefics3VisionConfig", "LlamaConfig", "vision_model", 9, {"scale_factor": 2}
    ),
    "smolvlm": Language(
        "SmolVLM", "SmolVLMVisionConfig", "LlamaConfig", "vision_model", 9, {"scale_factor": 2}
    ),
}


def build(name: str, attention: str = "sdpa", **options: Any) -> tuple[Any, Any]:
    """Build the model; return it and its tower."""
    kind, vision, text, tower, _, extra = LANGUAGES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vision_config=getattr(transformers, vision)(**_VISION),
        text_config=getattr(transformers, text)(**_TEXT),
        image_token_id=IMAGE,
        **extra | options,
    )
    model: nn.Module = getattr(transformers, f"{kind}ForConditionalGeneration")._from_config(
        config, attn_implementation=attention
    )
    model.generation_config.eos_token_id = None  # type: ignore[union-attr]
    return stirred(model).eval(), model.get_submodule(f"model.{tower}")


def prompt_for(name: str, tokens: int | None = None) -> dict[str, Tensor]:
    """Return two images, each with a prompt of `tokens` image tokens."""
    count = LANGUAGES[name].tokens if tokens is None else tokens
    ids = torch.tensor([[1, *[IMAGE] * count, 5, 6, 7]] * 2)
    images = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    if LANGUAGES[name].tower == "vision_model":  # they take several images for each prompt
        images = images.unsqueeze(1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": images}
    if "gemma" in name:
        inputs["token_type_ids"] = (ids == IMAGE).long()
    return inputs
