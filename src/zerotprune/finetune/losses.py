"""What a pruned model learns from: labels, and the logits and tokens of an unpruned teacher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backbones import backbone
from ..shapes import Float, Int, Shaped
from ..surgery import pruned_block
from ..tokens import Tokens


class FinalTokens(NamedTuple):
    """The patch tokens that leave the last block."""

    x: Float[Tensor, "batch left width"]
    source: Int[Tensor, "batch left"]  # their places in the original grid
    weight: Float[Tensor, "batch left"]  # how many patches a token stands for; 0: padding


class Watch:
    """Record what leaves the last block of a model, pruned or not.

    >>> import timm, zerotprune as ztp
    >>> model = timm.create_model("test_vit", num_classes=5).eval()
    >>> watch = Watch(ztp.prune_(model, cost=0.7, compute="all"))
    >>> with watch.looking() as seen:
    ...     logits = model(torch.zeros(1, 3, 160, 160))
    >>> seen[-1].x.shape[1] < 100, float(seen[-1].weight.sum())
    (True, 100.0)
    """

    def __init__(self, model: nn.Module) -> None:
        vit = backbone(model)
        self._last, self._prefix = vit.blocks[-1], vit.geometry.prefix

    @contextmanager
    def looking(self) -> Iterator[list[FinalTokens]]:
        """Record the tokens of every call while the context is open."""
        seen: list[FinalTokens] = []

        def ask(block: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            # A head that pools has asked already.
            return None if pruned_block(block) is None else (args, {"left": [], **kwargs})

        def look(_: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
            left: list[Tokens] | None = kwargs.get("left")
            tokens = left[-1] if left else Tokens.of(out, self._prefix)
            seen.append(self._final(tokens))

        hooks = (
            self._last.register_forward_pre_hook(ask, with_kwargs=True),
            self._last.register_forward_hook(look, with_kwargs=True),
        )
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()

    def _final(self, tokens: Tokens) -> FinalTokens:
        x, weight = tokens.x[:, self._prefix :], tokens.weight()
        counted = torch.ones_like(x[..., 0]) if weight is None else weight[:, self._prefix :]
        return FinalTokens(x, tokens.source, counted)


def label_loss(
    logits: Float[Tensor, "batch classes"], target: Shaped[Tensor, "batch ..."], smoothing: float
) -> Float[Tensor, ""]:
    """Return the cross-entropy with class indices, or with probabilities that mixup smoothed."""
    indices = target.dim() == 1
    return F.cross_entropy(logits.float(), target, label_smoothing=smoothing if indices else 0.0)


def logit_loss(
    logits: Float[Tensor, "batch classes"], taught: Float[Tensor, "batch classes"]
) -> Float[Tensor, ""]:
    """Return KL(teacher ‖ student) of the class probabilities, as a mean over images.

    >>> import torch
    >>> same = torch.tensor([[1.0, 2.0, 3.0]])
    >>> float(logit_loss(same, same))
    0.0
    """
    student, teacher = (one.float().log_softmax(dim=-1) for one in (logits, taught))
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True)


def token_loss(
    tokens: FinalTokens, taught: Float[Tensor, "batch patches width"]
) -> Float[Tensor, ""]:
    """Return the squared distance from every remaining token to the teacher's at its place.

    Both are normalised to mean 0 and variance 1. A token counts once for every patch that it stands
    for. The final norm's scale is left out: training would shrink it.
    """
    place = tokens.source.unsqueeze(-1).expand(-1, -1, taught.shape[-1])
    student, teacher = (_normalize(x) for x in (tokens.x, taught.gather(1, place)))
    distance = (student - teacher).square().mean(dim=-1)
    weight = tokens.weight.to(distance.dtype)
    return (distance * weight).sum() / weight.sum()


def _normalize(x: Tensor) -> Tensor:
    return F.layer_norm(x.float(), x.shape[-1:])
