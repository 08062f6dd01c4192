"""A schedule applied to one geometry: token counts, the task of each block, and the cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from .block import Task
from .cost import Compute, Convention, Geometry, Load, total_macs
from .method import Method, name_of
from .schedule import Schedule, Stage
from .scoring.scorer import Backend
from .tokens import Outputs, check_outputs


class Plan:
    """What a schedule means for a model, before any image is seen.

    Args:
        schedule: Stages and their method.
        geometry: Of the model.
        outputs: As for `prune_`.
    """

    def __init__(self, schedule: Schedule, geometry: Geometry, outputs: Outputs = "tokens") -> None:
        check_outputs(outputs)
        self.outputs = outputs
        self.schedule, self.method, self.geometry = schedule, schedule.method, geometry
        method = self.method
        self.stages = {
            stage.block: stage for stage in schedule.stages if stage.prunes or method.adaptive
        }
        self.last_stage = max(self.stages, default=0)
        #: may the last block be computed for the prefix tokens alone?
        grid = outputs == "grid"
        changes_last = method.acts == "start" and self.last_stage == geometry.depth
        self.prefix_only = bool(self.stages) and not (
            geometry.pools_patches or grid or changes_last
        )
        #: may merged tokens or padding reach the head?
        self.uneven = bool(schedule.stages) and (method.merges or method.adaptive)
        #: must the head weigh them?
        self.size_weighted = self.uneven and geometry.pools_patches and not grid

    def check(self) -> None:
        """Raise ValueError if the model cannot follow the schedule."""
        patches, depth = self.geometry.patches, self.geometry.depth
        # A method that acts inside a block can still save the MLP of the last one.
        last = depth - 1 if self.method.acts == "end" else depth
        for stage in self.schedule.stages:
            if stage.block > last:
                raise ValueError(
                    f"stages of {name_of(self.method)} must be at blocks 1 to {last} of this "
                    f"model, got {stage.block}"
                )
            self.method.check(stage, patches, self.geometry)
            patches = self.method.kept(stage, patches)
            if patches < 1:
                raise ValueError(f"the stage at block {stage.block} leaves no patch token")
        if self.geometry.needs_grid and self.schedule.stages and self.outputs == "tokens":
            raise ValueError(
                'this model returns feature maps of every patch: prune it with outputs="grid"'
            )
        if self.size_weighted and not self.geometry.weighs_sizes:
            raise ValueError(
                "this model has a custom head, which would read "
                f"{'merged tokens' if self.method.merges else 'padding'} as single patches; the "
                "method needs a head that reads the prefix tokens alone, or that pools by mean, "
                'maximum or attention: use zero-tprune, or outputs="grid"'
            )

    @property
    def first(self) -> int:
        """The first block that has something to do, if any has."""
        return 1 if self.method.wants_history() else min(self.stages)

    def skips_mlp(self, compute: Compute) -> bool:
        """Return whether dropped tokens skip the MLP of their block. It acts on each token by
        itself, so they can, unless the decision depends on its output."""
        if self.method.acts != "end":
            return True
        return compute == "needed" and self.method.decides_after() != "mlp"

    def tasks(
        self,
        compute: Compute,
        backend: Backend,
        method: Method | None = None,
        first: int | None = None,
    ) -> list[Task | None]:
        """Return the task of each block; None for blocks that keep the library's forward.

        Args:
            compute: As for `prune_`.
            backend: As for `prune_`.
            method: The schedule's method, bound to a model, see `Method.bind`.
            first: The first block with a task; default: that of the first stage.
        """
        if first is None:
            if not self.stages:
                return [None] * self.geometry.depth
            first = self.first
        remember, depth = self.method.wants_history(), self.geometry.depth
        return [
            Task(
                method=method or self.method,
                stage=self.stages.get(block),
                geometry=self.geometry,
                last=block == depth,
                decides_after=self.method.decides_after(),
                skips_mlp=self.skips_mlp(compute),
                remember=remember and block <= self.last_stage,
                backend=backend,
                outputs=self.outputs,
                follows=block > first,
                compute=compute,
                block=block,
            )
            if block >= first
            else None
            for block in range(1, depth + 1)
        ]

    def lengths(self) -> list[int]:
        """Return how many tokens enter the first block, and how many leave each block: the lengths
        of the hidden states."""
        patches, prefix, counts = self.geometry.patches, self.geometry.prefix, []
        for block in range(self.geometry.depth + 1):
            if (stage := self.stages.get(block)) is not None and self.outputs == "tokens":
                patches = self.method.kept(stage, patches)
            counts.append(prefix + patches)
        return counts

    def loads(
        self, kept: Sequence[int] | None = None, compute: Compute = "all"
    ) -> tuple[list[Load], int]:
        """Return the work of every block, and how many tokens reach the head.

        Args:
            kept: The patch tokens that each stage left; default: what the method plans.
            compute: As for `gmacs`.
        """
        counts = None if kept is None else iter(kept)
        remembers, skips_mlp = self.method.wants_history(), self.skips_mlp(compute)
        patches, prefix, loads = self.geometry.patches, self.geometry.prefix, []
        for block in range(1, self.geometry.depth + 1):
            scoring, tokens = 0, prefix + patches
            if remembers and block <= self.last_stage:
                scoring += self.geometry.votes(block, patches)
            if (stage := self.stages.get(block)) is not None:
                scoring += self.method.macs(stage, patches, self.geometry)
                before = patches
                patches = self.method.kept(stage, patches) if counts is None else next(counts)
                if self.outputs == "grid":
                    scoring += self._grid_macs(stage, before, patches)
                if compute == "all":  # "needed" counts what runs here, and this runs
                    scoring -= self.method.spared_macs(stage, before, patches, self.geometry)
            after = prefix + patches if skips_mlp else tokens
            loads.append(Load(tokens, tokens, after, scoring))
        if compute == "needed" and self.prefix_only:
            loads[-1] = Load(loads[-1].attention, prefix, prefix, 0)
            return loads, prefix
        return loads, self.geometry.tokens if self.outputs == "grid" else prefix + patches

    def _grid_macs(self, stage: Stage, before: int, after: int) -> int:
        """Count the search for stand-ins of the tokens that a stage drops, see `tokens`."""
        if after == before:
            return 0
        after -= self.method.fuses  # the fused token is no stand-in
        merged = min(stage.similar, before - after) if self.method.merges else 0
        searches = before if self.method.adaptive else before - after - merged
        return searches * after * self.geometry.dim

    def gmacs(
        self,
        convention: Convention = "full",
        kept: Sequence[int] | None = None,
        compute: Compute = "all",
    ) -> float:
        """Return the cost of one image, see `zerotprune.gmacs`."""
        if convention not in get_args(Convention):
            raise ValueError(f'convention must be "full" or "paper", got {convention!r}')
        loads, left = self.loads(kept, compute)
        return total_macs(self.geometry, loads, left, convention) / 1e9

    def price(self, convention: Convention = "full") -> float | None:
        """Return the GMACs; None if the model cannot follow the schedule."""
        try:
            self.check()
        except ValueError:
            return None
        return self.gmacs(convention)
