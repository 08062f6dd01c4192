"""DynamicViT: small networks between blocks learn which tokens go (Rao et al., NeurIPS 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cost import Geometry
from ..knobs import Dial
from ..method import Method, Part, Seen
from ..schedule import Schedule, Stage, share_that_keeps
from ..scoring.precision import widened
from ..shapes import Float
from ..tokens import Reduction


class Predictor(nn.Module):
    """Log-probabilities of staying and of going, for each patch token: half of what it goes by is
    the token's own, the other half the mean over the tokens that are still kept."""

    def __init__(self, width: int, seed: int = 0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, device="cpu")
        # Not from the generator that all share: drawing them twice gives the same.
        source = torch.Generator().manual_seed(seed)
        self.inner = _linear(width, width, source)
        self.first = _linear(width, width // 2, source)
        self.second = _linear(width // 2, width // 4, source)
        self.last = _linear(width // 4, 2, source)

    def forward(
        self,
        x: Float[Tensor, "batch patches width"],
        kept: Float[Tensor, "batch patches"] | None = None,
    ) -> Float[Tensor, "batch patches 2"]:
        x = F.gelu(self.inner(self.norm(x.to(self.norm.weight.dtype))))
        own, shared = x[..., : x.shape[-1] // 2], widened(x[..., x.shape[-1] // 2 :])
        if kept is None:
            mean = shared.mean(dim=1, keepdim=True)
        else:
            weight = kept.to(shared.dtype).unsqueeze(-1)
            total = weight.sum(dim=1, keepdim=True).clamp_min(torch.finfo(shared.dtype).tiny)
            mean = (shared * weight).sum(dim=1, keepdim=True) / total
        x = torch.cat((own, mean.to(own.dtype).expand_as(shared)), dim=-1)
        x = widened(F.gelu(self.second(F.gelu(self.first(x)))))
        # In half precision many tokens would have equal scores.
        logits = F.linear(x, widened(self.last.weight), widened(self.last.bias))
        return logits.log_softmax(dim=-1)


def _linear(inputs: int, outputs: int, source: torch.Generator) -> nn.Linear:
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    nn.init.trunc_normal_(layer.weight, std=0.02, generator=source)
    nn.init.zeros_(layer.bias)
    return layer


@dataclass(frozen=True)
class DynamicViT(Method):
    """At the end of a block a predictor of the stage's own gives each patch token a score, and the
    stage's share with the highest stays.

    The predictors are weights of the model, under `model.zerotprune.dynamicvit`. Until they are
    trained they are drawn from `seed`, and what they drop means nothing.

    >>> import timm, zerotprune as ztp
    >>> model = timm.create_model("deit_tiny_patch16_224")
    >>> schedule = ztp.schedule_for(model, cost=0.7, method="dynamicvit")
    >>> [stage.block for stage in schedule.stages]
    [3, 6, 9]
    >>> _ = ztp.prune_(model, schedule)
    >>> sum(weight.numel() for weight in model.zerotprune.parameters())
    182166
    """

    name = "dynamicvit"
    searchable = None  # it would be searching for what suits predictors that know nothing
    seed: int = 0

    def dials(self, geometry: Geometry) -> Iterator[Dial]:
        """ρ, ρ² and ρ³ of the patch tokens after a quarter, half, three quarters of the depth."""
        yield partial(_powers, geometry, self)

    def decides_after(self) -> Part:
        return "mlp"

    def new_weights(self, block: int, geometry: Geometry) -> Predictor:
        return Predictor(geometry.dim, self.seed * 4096 + block)

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        assert seen.weights is not None
        score = seen.weights(seen.tokens.x[:, seen.prefix :])[..., 0]
        return Reduction(seen.scorer.top(score, self.kept(stage, seen.patches)), score)

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        width = geometry.dim
        half, quarter = width // 2, width // 4
        return patches * (width * (width + half) + half * quarter + quarter * 2)


def _powers(geometry: Geometry, method: DynamicViT, cut: float) -> Schedule | None:
    depth, before, stages = geometry.depth, geometry.patches, []
    quarters = (min(max(round(depth * at / 4), 1), depth - 1) for at in (1, 2, 3))
    for power, block in enumerate(dict.fromkeys(quarters), start=1):
        count = int(geometry.patches * (1 - cut) ** power + 1e-9)
        if count < 1 or block < 1:
            return None
        stages.append(Stage(block, share_that_keeps(count, of=before)))
        before = count
    return Schedule(tuple(stages), method)
