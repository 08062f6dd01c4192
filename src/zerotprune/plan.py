"""A schedule worked out for one model: token counts, what each block does and when, cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from .block import Task
from .cost import Compute, Convention, Geometry, Load, total_macs
from .grid import Outputs, check_outputs
from .method import Method
from .schedule import Schedule, Stage
from .scoring.backends import Backend


class Plan:
    """All that follows from it before an image is seen."""

    def __init__(self, schedule: Schedule, geometry: Geometry, outputs: Outputs = "tokens") -> None:
        check_outputs(outputs)
        self.outputs = outputs
        self.schedule, self.method, self.geometry = schedule, schedule.method, geometry
        method = self.method
        acting = (stage for stage in schedule.stages if stage.prunes or method.adaptive)
        self.stages = {stage.block: stage for stage in acting}
        self.last_stage = max(self.stages, default=0)
        #: may the last block be computed for the prefix tokens alone?
        grid = outputs == "grid"
        changes_last = method.acts == "start" and self.last_stage == geometry.depth
        self.prefix_only = bool(self.stages) and not (
            geometry.pools_patches or grid or changes_last
        )
        #: may tokens reach the head that stand for several patches, or for none?
        self.uneven = bool(schedule.stages) and (method.merges or method.adaptive)
        #: must the head weigh them?
        self.size_weighted = self.uneven and geometry.pools_patches and not grid

    def check(self) -> None:
        """Raise ValueError if the model cannot follow the schedule."""
        patches, depth = self.geometry.patches, self.geometry.depth
        # What acts inside a block can still spare the last block's MLP.
        last = depth - 1 if self.method.acts == "end" else depth
        for stage in self.schedule.stages:
            if stage.block > last:
                raise ValueError(
                    f"a stage at block {stage.block}: stages go after blocks 1 to {last}, "
                    f"this model has {depth} blocks"
                )
            self.method.check(stage, patches, self.geometry)
            patches = self.method.kept(stage, patches)
            if patches < 1:
                raise ValueError(f"the stage at block {stage.block} leaves no patch token")
        if self.geometry.needs_grid and self.schedule.stages and self.outputs == "tokens":
            raise ValueError(
                "this model makes feature maps of every patch, and some would be gone: prune it "
                'with outputs="grid"'
            )
        if self.size_weighted and not self.geometry.weighs_sizes:
            raise ValueError(
                "this model's head reads the patch tokens in a way of its own, and would take "
                f"{'merged ones' if self.method.merges else 'padding'} for single patches; the "
                "method needs one that reads the prefix tokens alone, or that pools by mean, "
                'maximum or attention; zero-tprune takes any, and outputs="grid" gives any head '
                "every patch"
            )

    @property
    def first(self) -> int:
        """The first block that has something to do, where any has."""
        return 1 if self.method.wants_history() else min(self.stages)

    def skips_mlp(self, compute: Compute) -> bool:
        """Do stages come before their block's MLP? The MLP takes each token by itself, so what is
        dropped after it need not go through it, unless the choice depends on what comes out."""
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
        """Return what each block has to do; None for the blocks that the library runs itself.

        Args:
            method: The schedule's, bound to a model, see `Method.bind`.
            first: The first block that the library does not run, if not that of the first stage.
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
        """How many tokens enter the first block, and how many leave each: those of hidden states
        that a model shows."""
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
            kept: The patch tokens that each stage left, if they differ from image to image.
            compute: What affects the output, or all that the paper counts.
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
                scoring += self._grid_macs(stage, before, patches)
                if compute == "all":  # else what runs here counts, and these rows run
                    scoring -= self.method.spared_macs(stage, before, patches, self.geometry)
            after = prefix + patches if skips_mlp else tokens
            loads.append(Load(tokens, tokens, after, scoring))
        if compute == "needed" and self.prefix_only:
            loads[-1] = Load(loads[-1].attention, prefix, prefix, 0)
            return loads, prefix
        return loads, self.geometry.tokens if self.outputs == "grid" else prefix + patches

    def _grid_macs(self, stage: Stage, before: int, after: int) -> int:
        """To find for each token that a stage drops those that stand for it, see `grid`."""
        if self.outputs != "grid" or after == before:
            return 0
        after -= self.method.fuses  # the token of the others' sum stands for none of them
        merged = min(stage.similar, before - after) if self.method.merges else 0
        looking = before if self.method.adaptive else before - after - merged
        return looking * after * self.geometry.dim

    def gmacs(
        self,
        convention: Convention = "full",
        kept: Sequence[int] | None = None,
        compute: Compute = "all",
    ) -> float:
        if convention not in get_args(Convention):
            raise ValueError(f'convention must be "full" or "paper", got {convention!r}')
        loads, left = self.loads(kept, compute)
        return total_macs(self.geometry, loads, left, convention) / 1e9

    def price(self, convention: Convention = "full") -> float | None:
        """The GMACs; None if the model cannot follow the schedule."""
        try:
            self.check()
        except ValueError:
            return None
        return self.gmacs(convention)
