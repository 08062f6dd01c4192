"""What transformers' vision-language models read of their towers: LLaVA and PaliGemma."""

from __future__ import annotations

from typing import Any

from ..reading import Reading

#: where the tower is in those models whose language model takes any number of tokens
_TOWERS = {
    "LlavaModel": "vision_tower",
    "LlavaForConditionalGeneration": "model.vision_tower",
    "PaliGemmaModel": "vision_tower",
    "PaliGemmaForConditionalGeneration": "model.vision_tower",
}


def reading(model: Any) -> Reading:
    kind, config = type(model), model.config
    if kind.__name__ not in _TOWERS or not kind.__module__.startswith("transformers.models."):
        raise TypeError(
            f"image tokens are counted for LLaVA and PaliGemma, got {kind.__name__}: prune the "
            'towers of others with outputs="grid", and their prompts stay as they are'
        )
    layers = getattr(config, "vision_feature_layer", -1)  # PaliGemma reads the last one's
    return Reading(
        tower=model.get_submodule(_TOWERS[kind.__name__]),
        states=(layers,) if isinstance(layers, int) else tuple(layers),
        left_out=int(getattr(config, "vision_feature_select_strategy", "full") == "default"),
    )
