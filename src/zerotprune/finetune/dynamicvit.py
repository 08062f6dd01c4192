"""DynamicViT: small networks learn which tokens to drop (Rao et al., NeurIPS 2021).

The method, its predictors, where a model stores them, and how they are trained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backbones import backbone
from ..block import Task
from ..cost import Geometry
from ..dials import Dial
from ..method import Method, Part, Seen
from ..schedule import Schedule, Stage, share_that_keeps
from ..scoring.attention import Heads, output
from ..scoring.graph import no_autocast, widen
from ..shapes import Float
from ..tokens import Reduction, Tokens
from .forms import FORMS, InPlace

#: The submodule of the transformer that holds what methods have learned. It moves and is saved
#: with the model, under the names `zerotprune.METHOD.BLOCK.…`.
SUBMODULE = "zerotprune"


class Predictor(nn.Module):
    """Predict log-probabilities of staying and of going for each patch token: half of the features
    are the token's own, the other half the mean over the tokens that are still kept."""

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
        local, shared = x[..., : x.shape[-1] // 2], widen(x[..., x.shape[-1] // 2 :])
        if kept is None:
            mean = shared.mean(dim=1, keepdim=True)
        else:
            weight = kept.to(shared.dtype).unsqueeze(-1)
            total = weight.sum(dim=1, keepdim=True).clamp_min(torch.finfo(shared.dtype).tiny)
            mean = (shared * weight).sum(dim=1, keepdim=True) / total
        x = torch.cat((local, mean.to(local.dtype).expand_as(shared)), dim=-1)
        x = widen(F.gelu(self.second(F.gelu(self.first(x)))))
        # In half precision many tokens would have equal scores.
        logits = F.linear(x, widen(self.last.weight), widen(self.last.bias))
        return logits.log_softmax(dim=-1)


def _linear(inputs: int, outputs: int, source: torch.Generator) -> nn.Linear:
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    nn.init.trunc_normal_(layer.weight, std=0.02, generator=source)
    nn.init.zeros_(layer.bias)
    return layer


class Predictors(nn.ModuleDict):
    """The predictors of a model, by the block of their stage.

    `drawn`: neither trained nor loaded, so they can be drawn again at any time.
    """

    def __init__(self, stages: Mapping[int, nn.Module], drawn: bool) -> None:
        super().__init__({str(block): predictor for block, predictor in stages.items()})
        self.drawn = drawn

    def at(self, block: int) -> nn.Module | None:
        predictor: nn.Module | None = self._modules.get(str(block))
        return predictor

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        self.drawn = self.drawn and not any(name.startswith(prefix) for name in state)
        super()._load_from_state_dict(state, prefix, *rest)


def predictors_of(model: nn.Module) -> Predictors | None:
    """Return the predictors stored on a transformer, or None."""
    learned = getattr(model, SUBMODULE, None)
    if not isinstance(learned, nn.ModuleDict):
        return None
    predictors = learned._modules.get(DynamicViT.name)
    return predictors if isinstance(predictors, Predictors) else None


@dataclass(frozen=True)
class DynamicViT(Method):
    """Score the patch tokens at the end of a block with the stage's own predictor, and keep the
    stage's share with the highest scores.

    The predictors are weights of the model, under `model.zerotprune.dynamicvit`. Until they are
    trained they are random, drawn from `seed`, and so is their choice.

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
    searchable = None  # a search would fit the schedule to untrained predictors
    seed: int = 0

    def dials(self, geometry: Geometry) -> Iterator[Dial]:
        """Keep ρ, ρ² and ρ³ of the tokens after a quarter, half and three quarters of the depth."""
        yield partial(_powers, geometry, self)

    def decides_after(self) -> Part:
        return "mlp"

    def bind(self, model: nn.Module, blocks: Collection[int], geometry: Geometry) -> DynamicViT:
        predictors = predictors_of(model)
        if predictors is None or predictors.drawn:
            predictors = self._draw(model, blocks, geometry)
        elif missing := [block for block in blocks if predictors.at(block) is None]:
            raise ValueError(
                f"this model has predictors for stages at blocks {', '.join(predictors)}, "
                f"and none for a stage at block {missing[0]}"
            )
        return BoundDynamicViT(self, predictors)

    def _draw(self, model: nn.Module, blocks: Collection[int], geometry: Geometry) -> Predictors:
        """Draw predictors on the model's device, in its precision."""
        drawn = {block: Predictor(geometry.dim, self.seed * 4096 + block) for block in blocks}
        predictors = Predictors(drawn, drawn=True).train(model.training)
        weights = (weight for weight in model.parameters() if weight.is_floating_point())
        like = next(weights, None)
        return predictors if like is None else predictors.to(like.device, like.dtype)

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        raise ValueError("DynamicViT needs its predictors: use prune_, which puts them on a model")

    def macs(self, stage: Stage, patches: int, geometry: Geometry) -> int:
        width = geometry.dim
        half, quarter = width // 2, width // 4
        return patches * (width * (width + half) + half * quarter + quarter * 2)


class BoundDynamicViT(DynamicViT):
    """DynamicViT with the predictors of one model."""

    def __init__(self, method: DynamicViT, predictors: Predictors) -> None:
        super().__init__(method.seed)
        object.__setattr__(self, "predictors", predictors)

    predictors: Predictors

    def reduce(self, seen: Seen, stage: Stage) -> Reduction:
        predictor = self.predictors.at(stage.block)
        assert predictor is not None
        score = predictor(seen.tokens.x[:, seen.prefix :])[..., 0]
        return Reduction(seen.scorer.top(score, self.kept(stage, seen.patches)), score)

    def put_on(self, model: nn.Module) -> None:
        if not hasattr(model, SUBMODULE):
            model.add_module(SUBMODULE, nn.ModuleDict())
        getattr(model, SUBMODULE)[self.name] = self.predictors

    def take_off(self, model: nn.Module) -> None:
        """Remove predictors that were only drawn; trained ones stay."""
        learned = getattr(model, SUBMODULE, None)
        if self.predictors.drawn and isinstance(learned, nn.ModuleDict) and self.name in learned:
            del learned[self.name]
            if not learned:
                delattr(model, SUBMODULE)


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


#: keeps a row of which nothing is kept from being 0/0
_SMOOTHING = 1e-6


def masked_attention(
    part: Heads, kept: Float[Tensor, "batch tokens"], smoothing: float = _SMOOTHING
) -> Float[Tensor, "batch heads tokens width"]:
    """Attend to kept tokens, and from every token to itself, so that gradients reach the decision:
    a product with 0 or a logarithm of 0 would stop them."""
    with no_autocast(part.q):
        logits = (widen(part.q) * part.scale) @ widen(part.k).transpose(-2, -1)
        if part.bias is not None:
            logits = logits + part.bias
        diagonal = torch.eye(kept.shape[1], dtype=logits.dtype, device=logits.device)
        column = kept.to(logits.dtype)[:, None, None]
        mask = column + (1 - column) * diagonal
        paid = (logits - logits.amax(dim=-1, keepdim=True)).exp() * mask
        total = paid.sum(dim=-1, keepdim=True) + smoothing
        graph = (paid + smoothing / kept.shape[1]) / total
    return F.dropout(graph, part.dropout).to(part.v.dtype) @ part.v


def ratio_loss(
    decisions: list[Float[Tensor, "batch patches"]], shares: list[float]
) -> Float[Tensor, ""]:
    """Return the squared distance of each stage from the share of all patches that it should keep,
    as a mean over images and stages.

    >>> float(ratio_loss([torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])], [0.5, 0.25]))
    0.03125
    """
    pairs = zip(decisions, shares, strict=True)
    apart = [(kept.mean(dim=1) - share).square().mean() for kept, share in pairs]
    return torch.stack(apart).mean()


class Decisions(InPlace):
    """Decide for each token by a predictor's log-probabilities and noise; a dropped token does not
    come back. With `draw=False` the likeliest stay, as many as the schedule keeps: as at inference,
    with all tokens in place.

    >>> import timm, zerotprune as ztp
    >>> model = timm.create_model("test_vit", num_classes=5)
    >>> form = Decisions(ztp.methods.DynamicViT())
    >>> form.put_on(model, ztp.schedule_for(model, cost=0.7, method=form.method))
    >>> loss = model.train()(torch.zeros(2, 3, 160, 160)).sum() + form.extra_loss(model)
    >>> loss.backward()
    >>> all(weight.grad is not None for weight in form.new_parameters(model))
    True
    """

    def __init__(self, method: Method, ratio_weight: float = 2.0, draw: bool = True) -> None:
        super().__init__(method)
        self.ratio_weight, self.draw = ratio_weight, draw

    def put_on(self, model: nn.Module, schedule: Schedule) -> None:
        super().put_on(model, schedule)
        predictors = predictors_of(backbone(model).model)
        assert predictors is not None
        predictors.drawn = False  # trained from now on, so keep them

    def new_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        predictors = predictors_of(backbone(model).model)
        return [] if predictors is None else list(predictors.parameters())

    def extra_loss(self, model: nn.Module) -> Tensor:
        if not self._noted:
            return super().extra_loss(model)
        patches = backbone(model).geometry.patches
        shares = [kept / patches for shown, kept in self._counts.values() if kept < shown]
        return self.ratio_weight * ratio_loss(self._noted, shares)

    def attend(
        self, task: Task, tokens: Tokens, heads: list[Heads]
    ) -> tuple[list[Tensor], Tensor | None]:
        if tokens.size is None:
            return [output(part) for part in heads], None
        smoothing = _SMOOTHING if self.draw else 0.0
        return [masked_attention(part, tokens.size, smoothing) for part in heads], None

    def weigh(self, task: Task, tokens: Tokens, heads: list[Heads], graph: Tensor | None) -> Tokens:
        if task.stage is None:
            return tokens
        assert isinstance(task.method, BoundDynamicViT)
        predictor = task.method.predictors.at(task.stage.block)
        assert predictor is not None
        prefix = task.geometry.prefix
        x, before = widen(tokens.x[:, prefix:]), tokens.size
        alive = None if before is None else before[:, prefix:]
        chances = predictor(x, alive)
        if self.draw:
            stays = F.gumbel_softmax(chances, hard=True, dim=-1)[..., 0]
            kept = stays if alive is None else stays * alive
        else:
            score = chances[..., 0]
            score = score if alive is None else score.masked_fill(alive == 0, -torch.inf)
            likeliest = score.topk(self._counts[task.stage.block][1], dim=1).indices
            kept = torch.zeros_like(score).scatter(1, likeliest, 1.0)
        self._noted.append(kept)
        return tokens._replace(size=torch.cat((torch.ones_like(kept[:, :prefix]), kept), dim=1))


FORMS[DynamicViT] = Decisions
