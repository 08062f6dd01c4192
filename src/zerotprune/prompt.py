"""The prompt of a vision-language model whose tower is pruned: how many image tokens it holds."""

from __future__ import annotations

from torch import nn

from .backbones import backbone, reading
from .methods import name_of
from .plan import Plan
from .schedule import Schedule
from .surgery import current_plan


def image_tokens(model: nn.Module) -> int:
    """How many image tokens the prompt of a vision-language model holds for each image: as many as
    its language model is handed vectors, at the layer that it reads, with or without CLS.

    It counts for LLaVA and PaliGemma of transformers, whose language model takes any number. With a
    tower that is pruned, and not with outputs="grid", the number is smaller, and the language model
    is faster too. Unpruned or with outputs="grid" it is what it ever was.

    >>> import transformers, zerotprune as ztp
    >>> small = dict(hidden_size=48, num_hidden_layers=6, num_attention_heads=3)
    >>> config = transformers.LlavaConfig(
    ...     vision_config=transformers.CLIPVisionConfig(**small, image_size=96, patch_size=16),
    ...     text_config=transformers.LlamaConfig(**small, vocab_size=64),
    ...     image_token_id=63,
    ... )
    >>> model = transformers.LlavaForConditionalGeneration(config).eval()
    >>> image_tokens(model)
    36
    >>> schedule = ztp.Schedule((ztp.Stage(2, similar=12), ztp.Stage(5, similar=8)), "fold")
    >>> tower = ztp.prune_(model.model.vision_tower, schedule)
    >>> image_tokens(model)
    16
    """
    read = reading(model)
    plan = current_plan(read.tower) or Plan(Schedule(), backbone(read.tower).geometry)
    if plan.method.adaptive and plan.outputs == "tokens":
        raise ValueError(
            f"{name_of(plan.method)} leaves as many tokens as an image needs, and a prompt holds a "
            'fixed number: prune the tower with outputs="grid"'
        )
    lengths = plan.lengths()
    counts = {lengths[state] - read.left_out for state in read.states}
    if len(counts) > 1:
        raise ValueError(
            f"the model reads several layers together, {', '.join(map(str, read.states))}, which "
            'have different numbers of tokens now: prune the tower with outputs="grid"'
        )
    return counts.pop()
