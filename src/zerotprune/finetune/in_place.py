"""Training forms in which every token stays in its place, and counts for as much as a mask says."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast

from torch import Tensor, nn

from ..backbones import backbone
from ..backbones.stand_in import as_forward
from ..method import Method
from ..pruning import prune_
from ..schedule import Schedule, Stage
from ..scoring.attention import Heads, output
from ..scoring.precision import no_autocast
from ..shapes import Float
from ..surgery import retask
from ..task import Parts, Task
from ..tokens import Tokens
from .forms import Form


class InPlace(Form):
    """While the model is in training mode its blocks run so, from the first stage on: what leaves a
    stage are all tokens, with a mask as their `size` or `valid`. In eval mode the model is
    hard-pruned, as ever.

    What a forward notes for the losses is forgotten at the next, and is not copied with the model.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self._noted: list[Any] = []
        self._final: Tensor | None = None
        self._model: nn.Module | None = None
        self._counts: dict[int, tuple[int, int]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_noted": [], "_final": None}

    def put_on(self, model: nn.Module, schedule: Schedule) -> None:
        """All tokens leave the last block, for a loss that compares them with a teacher's."""
        vit = backbone(model)
        pooled = vit.size_weighted(1.0) if vit.geometry.pools_patches else None
        if vit.geometry.pools_patches and (pooled is None or not vit.geometry.weighs_sizes):
            raise ValueError(
                "this model's head reads the patch tokens in a way of its own, which cannot be "
                "told how much of each is kept while it learns: fold and tome train with any head"
            )
        prune_(model, schedule, compute="all")
        self._model, patches = vit.model, vit.geometry.patches
        for stage in schedule.stages:
            kept = self.left(stage, patches)
            self._counts[stage.block], patches = (patches, kept), kept
        retask(model, learning=self)
        if pooled is not None:
            cast(Any, vit.model).forward = as_forward(pooled)

    def left(self, stage: Stage, patches: int) -> int:
        """How many of so many patch tokens a stage leaves while the model learns."""
        return self.method.kept(stage, patches)

    def kept(self, model: nn.Module) -> Float[Tensor, "batch patches"] | None:
        return self._final

    @property
    def on(self) -> bool:
        return self._model is not None and self._model.training

    def run(
        self,
        parts: Parts,
        task: Task,
        x: Tensor | Tokens,
        given: dict[str, Any],
        left: list[Tokens] | None = None,
    ) -> Tensor | Tokens:
        """One block, as `block.run` has it."""
        prefix = task.geometry.prefix
        if not task.follows:
            self._noted, self._final = [], None
        tokens = Tokens.of(x, prefix)
        heads = parts.attend(tokens, given)
        outputs, graph = self.attend(task, tokens, heads)
        now = tokens._replace(x=parts.feed(parts.join(tokens.x, heads, outputs)))
        with no_autocast(now.x):
            now = self.weigh(task, now, heads, graph)
        if not task.last:
            return now
        now = now._replace(x=now.read(prefix), mixture=None)
        if (weight := now.weight()) is not None:
            self._final = weight[:, prefix:]
        if left is not None:
            left.append(now)
        return now.x

    def attend(
        self, task: Task, tokens: Tokens, heads: list[Heads]
    ) -> tuple[list[Tensor], Tensor | None]:
        """Each attention's output, and the graph of all heads where the stage goes by it."""
        weight = tokens.weight()
        return [output(part._replace(size=weight)) for part in heads], None

    @abstractmethod
    def weigh(self, task: Task, tokens: Tokens, heads: list[Heads], graph: Tensor | None) -> Tokens:
        """The tokens after a block with the mask that they go on with."""
