"""What a block of a pruned model is made of, what it has to do, and how it runs while it learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from .cost import Geometry
from .grid import Outputs
from .method import Method, Part
from .schedule import Stage
from .scoring.attention import Heads
from .scoring.backends import Backend
from .tokens import Tokens


@runtime_checkable
class Parts(Protocol):
    """A library's block, taken apart. Putting the parts together again gives the block, bit for
    bit in float32."""

    def attend(
        self, tokens: Tokens, given: dict[str, Any], queries: int | None = None
    ) -> list[Heads]:
        """Norm, projections, q/k norm and positions of each attention in the block.

        With `queries`, only so many prefix tokens ask: keys and values are those of all tokens.
        """

    def join(self, x: Tensor, heads: list[Heads], outputs: list[Tensor]) -> Tensor:
        """The residual stream of the tokens that asked, after attention: projection, layer scale,
        drop path, sum."""

    def feed(self, x: Tensor) -> Tensor:
        """The residual stream after the MLP."""


@runtime_checkable
class Learning(Protocol):
    """How blocks run while their model learns, where that is not as they run at inference."""

    @property
    def on(self) -> bool: ...

    def run(
        self,
        parts: Parts,
        task: Task,
        x: Tensor | Tokens,
        given: dict[str, Any],
        left: list[Tokens] | None = None,
    ) -> Tensor | Tokens:
        """In place of `block.run`."""


@dataclass(frozen=True)
class Task:
    """What one block has to do in a pruned model, worked out by `Plan`."""

    method: Method
    stage: Stage | None  # None: only pass the tokens on
    geometry: Geometry
    last: bool  # hands back a plain tensor
    decides_after: Part = "attention"  # where in the block the method has seen enough
    skips_mlp: bool = False  # do tokens that the stage drops skip the block's MLP?
    remember: bool = False  # add this block's attention to the tokens' history
    backend: Backend = "auto"
    outputs: Outputs = "tokens"
    follows: bool = False  # has a block before it tokens to hand on?
    weights: nn.Module | None = None  # the method's own at this stage; they lie on the model
    learning: Learning | None = None  # where it learns in another form than it is used in
