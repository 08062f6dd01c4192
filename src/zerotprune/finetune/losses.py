"""What a model learns by while its tokens are pruned: the labels, and what an unpruned teacher
says."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..shapes import Float, Shaped
from .final_tokens import FinalTokens


def label_loss(
    logits: Float[Tensor, "batch classes"], target: Shaped[Tensor, "batch ..."], smoothing: float
) -> Float[Tensor, ""]:
    """Cross-entropy to class indices; or to shares of the classes, which mixup has smoothed."""
    indices = target.dim() == 1
    return F.cross_entropy(logits.float(), target, label_smoothing=smoothing if indices else 0.0)


def logit_loss(
    logits: Float[Tensor, "batch classes"], taught: Float[Tensor, "batch classes"]
) -> Float[Tensor, ""]:
    """KL(teacher ‖ student) of the classes, the mean over images.

    >>> import torch
    >>> same = torch.tensor([[1.0, 2.0, 3.0]])
    >>> float(logit_loss(same, same))
    0.0
    """
    student, teacher = (each.float().log_softmax(dim=-1) for each in (logits, taught))
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True)


def token_loss(
    tokens: FinalTokens, taught: Float[Tensor, "batch patches width"]
) -> Float[Tensor, ""]:
    """Squared distance of each token that is left to the teacher's token of the same place, both
    brought to mean 0 and variance 1; a token counts for the patches that it stands for.

    The final norm's scale is left out: it is learned, and would be learned away.
    """
    place = tokens.source.unsqueeze(-1).expand(-1, -1, taught.shape[-1])
    own, other = (_normal(each) for each in (tokens.x, taught.gather(1, place)))
    apart = (own - other).square().mean(dim=-1)
    weight = tokens.weight.to(apart.dtype)
    return (apart * weight).sum() / weight.sum()


def _normal(x: Tensor) -> Tensor:
    return F.layer_norm(x.float(), x.shape[-1:])
