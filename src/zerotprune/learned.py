"""Weights that a method has of its own: where they lie on a model, and who puts them there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from .cost import Geometry
from .method import REGISTERED, Method

#: The model's submodule for them: they move, are copied and saved with its own weights, under the
#: names `zerotprune.METHOD.BLOCK.…`.
NEW = "zerotprune"


class Learned(nn.ModuleDict):
    """The weights of one method, by the block of their stage.

    `drawn`: nobody has trained or loaded them, so that they can be drawn again at any time.
    """

    def __init__(self, stages: Mapping[int, nn.Module], drawn: bool) -> None:
        super().__init__({str(block): held for block, held in stages.items()})
        self.drawn = drawn

    def at(self, block: int) -> nn.Module | None:
        found: nn.Module | None = self._modules.get(str(block))
        return found

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        self.drawn = self.drawn and not any(name.startswith(prefix) for name in state)
        super()._load_from_state_dict(state, prefix, *rest)


def name_in(method: Method) -> str:
    """Under which its weights lie."""
    kind = type(method)
    return getattr(kind, "name", kind.__name__)


def learned_by(model: nn.Module, method: Method) -> Learned | None:
    """What a transformer holds for a method."""
    held = getattr(model, NEW, None)
    found = held._modules.get(name_in(method)) if isinstance(held, nn.ModuleDict) else None
    return found if isinstance(found, Learned) else None


def learned_for(
    model: nn.Module, method: Method, blocks: Iterable[int], geometry: Geometry
) -> Learned | None:
    """Weights for stages at these blocks: those that the transformer holds, else drawn by the
    method; None for a method that has none. Nothing is put on the model yet."""
    blocks, held = list(blocks), learned_by(model, method)
    if held is not None and not held.drawn:
        if missing := [block for block in blocks if held.at(block) is None]:
            raise ValueError(
                f"this model learned {name_in(method)} for stages at blocks {', '.join(held)}, and "
                f"has no weights for a stage at block {missing[0]}"
            )
        return held
    stages = {block: method.new_weights(block, geometry) for block in blocks}
    drawn = {block: weights for block, weights in stages.items() if weights is not None}
    if not drawn:
        return None
    like = next((each for each in model.parameters() if each.is_floating_point()), None)
    made = Learned(drawn, drawn=True).train(model.training)
    return made if like is None else made.to(like.device, like.dtype)


def put_on(model: nn.Module, method: Method, weights: Learned) -> None:
    """They become a submodule of the transformer, beside those of other methods."""
    if not hasattr(model, NEW):
        model.add_module(NEW, nn.ModuleDict())
    held = getattr(model, NEW)
    held[name_in(method)] = weights


def drop_drawn(model: nn.Module) -> None:
    """Take off what was only drawn; what was learned stays."""
    held = getattr(model, NEW, None)
    if not isinstance(held, nn.ModuleDict):
        return
    for name, weights in list(held.items()):
        if isinstance(weights, Learned) and weights.drawn:
            del held[name]
    if not held:
        delattr(model, NEW)


def make_room(model: nn.Module, state: Mapping[str, Tensor], geometry: Geometry) -> None:
    """Put on a transformer what a state dict has learned of methods, so that it can be loaded."""
    stages: dict[str, set[int]] = {}
    places = {str(block): block for block in range(1, geometry.depth + 1)}
    for name in state:
        if name.startswith(f"{NEW}.") and len(parts := name.split(".")) > 3 and parts[2] in places:
            stages.setdefault(parts[1], set()).add(places[parts[2]])
    for name, blocks in stages.items():
        if name in REGISTERED:
            method = REGISTERED[name]()
            weights = learned_for(model, method, sorted(blocks), geometry)
            if weights is not None:
                put_on(model, method, weights)
