"""Images of other sizes: what a pruned model's blocks do for each number of patches it meets.

A schedule is worked out for one number of patches, and its counts would come to another cost with
any other. Some models take images of any size (timm's `dynamic_img_size`, transformers'
`interpolate_pos_encoding`): then a schedule that knows its budget is solved anew, once for each
size, and every other schedule is refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from .block import PrunedBlock
from .knobs import dials_of
from .plan import Plan
from .schedule import Schedule

#: a plan and another number of patches → the schedule for it; ValueError says why there is none
Solve = Callable[[Plan, int], Schedule]

#: places of a dial at which a method shows the blocks that it may put stages at
_PLACES = (0.25, 0.5, 0.75)


class Sizes:
    """The blocks of a pruned model for every size it has met.

    model: the Transformer itself
    plan:  for the size that the model was pruned at
    solve: finds the schedule for another size; None refuses them all
    """

    def __init__(self, model: nn.Module, plan: Plan, solve: Solve | None) -> None:
        self.model, self.plan, self.solve = model, plan, solve
        self._own: list[PrunedBlock] = []
        self._made: dict[int, dict[int, PrunedBlock]] = {}

    def first(self) -> int | None:
        """Return the first block that may have a stage at any size; None for that of the plan.

        A method that spreads a few tokens over all blocks leaves some blocks out at one size, and
        not at another.
        """
        plan = self.plan
        if self.solve is None or plan.schedule.budget is None or not plan.stages:
            return None
        dial = next(iter(dials_of(plan.method, plan.geometry)))
        shown = [schedule for place in _PLACES if (schedule := dial(place)) is not None]
        blocks = [stage.block for schedule in shown for stage in schedule.stages if stage.prunes]
        return min([plan.first, *blocks])

    def hold(self, blocks: Sequence[PrunedBlock]) -> None:
        """Take the blocks for the size that the model was pruned at."""
        self._own = list(blocks)

    def block(self, number: int, patches: int) -> PrunedBlock:
        """Return a block, counted from 1, as it is for images of so many patches."""
        self._meet(patches)
        return self._made[patches][number]

    def _meet(self, patches: int) -> None:
        """Solve for a size that is new; a compiler does not look into it."""
        if patches not in self._made:
            self._made[patches] = self._make(patches)

    def _make(self, patches: int) -> dict[int, PrunedBlock]:
        try:
            plan = self._plan_at(patches)
            method = plan.method.bind(self.model, plan.stages, plan.geometry)
        except ValueError as error:
            raise ValueError(
                f"the model was pruned for images of {self.plan.geometry.patches} patches and got "
                f"some of {patches}: {error}"
            ) from None
        first, own = self._own[0].task, self._own
        tasks = plan.tasks(first.compute, first.backend, method, first.block)
        made = {task.block: task for task in tasks if task is not None}
        return {
            each.task.block: PrunedBlock(
                each.block, each.parts, made[each.task.block], plan, each.call
            )
            for each in own
        }

    def _plan_at(self, patches: int) -> Plan:
        plan = self.plan
        if self.solve is None:
            raise ValueError("this run is for one size; set the model to that of the images first")
        if plan.geometry.needs_grid and plan.geometry.head:
            raise ValueError("what its feature maps cost at another size is not known")
        found = Plan(self.solve(plan, patches), plan.geometry.at(patches), plan.outputs)
        found.check()
        if found.stages and found.first < self._own[0].task.block:
            raise ValueError(
                f"its method would begin at block {found.first}, and at the size that the model "
                f"was pruned for it begins at block {self._own[0].task.block}"
            )
        return found


# As `torch.compiler.assume_constant_result` marks it, which would import the whole compiler.
Sizes._meet._dynamo_marked_constant = True  # type: ignore[attr-defined]
