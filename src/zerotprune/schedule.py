"""Stage and Schedule: where tokens are pruned, how many and by which method; checked, JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

from .files import parsed, replacing, text_of
from .method import Method, from_data, resolve, to_data
from .ranges import check_range

VERSION = 2


def _count(what: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{what} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{what} must be at least {least}, got {value}")
    return int(value)


@dataclass(frozen=True)
class Stage:
    """One pruning layer, at the end of a block.

    block:   after which block it acts; blocks are counted from 1
    keep:    share of the patch tokens that the I-stage keeps, in (0, 1]; 1 switches it off
    similar: how many tokens the S-stage prunes; 0 switches it off
    rounds:  votes in the I-stage; None means 30 in the first three blocks, 1 in the last three,
             5 between

    >>> Stage(3, keep=0.8, similar=10).kept(196)
    148
    """

    block: int
    keep: float = 1.0
    similar: int = 0
    rounds: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", _count("block", self.block, 1))
        object.__setattr__(self, "similar", _count("similar", self.similar, 0))
        if self.rounds is not None:
            object.__setattr__(self, "rounds", _count("rounds", self.rounds, 1))
            check_range("rounds", self.rounds)
        if isinstance(self.keep, bool) or not isinstance(self.keep, Real):
            raise TypeError(f"keep must be a number, got {self.keep!r}")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep must be in (0, 1], got {self.keep}")
        object.__setattr__(self, "keep", float(self.keep))

    @property
    def prunes(self) -> bool:
        return self.keep < 1 or self.similar > 0

    def share(self, patches: int) -> int:
        """⌊keep × patches⌋, exact for the decimal that was written: 0.29 of 100 is 29."""
        return math.floor(self.keep * patches + 1e-9)

    def kept(self, patches: int) -> int:
        """How many of so many patch tokens are left: first S, then I on what S left."""
        return self.share(patches - self.similar)

    def votes(self, depth: int) -> int:
        """The I-stage's rounds in a model of this depth."""
        return papers_rounds(self.block, depth)[0] if self.rounds is None else self.rounds


def share_that_keeps(kept: int, of: int) -> float:
    """A short decimal by which a stage keeps exactly so many.

    >>> share_that_keeps(29, of=100)
    0.29
    """
    if kept == of:
        return 1.0
    middle = (kept + 0.5) / of
    rounded = (round(middle, digits) for digits in (2, 3, 4, 6))
    fitting = (share for share in rounded if 0 < share < 1 and Stage(1, share).share(of) == kept)
    return next(fitting, middle)


def papers_rounds(block: int, depth: int) -> tuple[int, int]:
    """The fewest and the most rounds that the paper finds enough for a block (Sec. 4.1)."""
    if block <= 3:
        return 30, 50
    return (1, 1) if block > depth - 3 else (5, 10)


@dataclass(frozen=True)
class Schedule:
    """Stages, at most one at each block, and the method that acts at them.

    `method` is an object or a registered name; without one, Zero-TPrune.

    >>> Schedule([Stage(3, keep=0.8), Stage(6, keep=0.7)], method="evit").method
    EViT(fuses=True)
    """

    stages: tuple[Stage, ...] = ()
    method: Method = field(default_factory=lambda: resolve("zero-tprune"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", resolve(self.method))
        if not isinstance(self.stages, Iterable):
            raise TypeError(f"a Schedule takes an iterable of Stage, got {self.stages!r}")
        stages = tuple(self.stages)
        for stage in stages:
            if not isinstance(stage, Stage):
                raise TypeError(f"a Schedule holds Stage objects, got {stage!r}")
        stages = tuple(sorted(stages, key=lambda stage: stage.block))
        for first, second in pairwise(stages):
            if first.block == second.block:
                raise ValueError(f"two stages at block {first.block}: a block takes one at most")
        object.__setattr__(self, "stages", stages)

    @classmethod
    def preset(cls, name: str) -> Schedule:
        """A schedule of the paper by name: see ``zerotprune.schedule.PRESETS``."""
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}; the presets are {', '.join(PRESETS)}")
        return cls(PRESETS[name])

    def by(self, method: Method | str) -> Schedule:
        """The same stages by another method."""
        return replace(self, method=resolve(method))

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Version 2, or version 1, which had no method and is Zero-TPrune's."""
        try:
            data = parsed(text)
        except ValueError as error:
            raise ValueError(f"not a schedule: {error}") from None
        version = data.get("version") if isinstance(data, Mapping) else None
        keys = {"version", "stages"} if version == 1 else {"version", "method", "stages"}
        if version is not None and (type(version) is not int or version not in (1, VERSION)):
            raise ValueError(
                f"schedule version {version!r} is unknown; this release reads 1 and {VERSION}"
            )
        if not isinstance(data, Mapping) or set(data) != keys:
            raise ValueError(
                'a schedule is a JSON object with exactly "version", "method" and "stages"'
            )
        if not isinstance(data["stages"], list):
            raise ValueError('"stages" of a schedule must be a list')
        stages = tuple(_stage(entry) for entry in data["stages"])
        return cls(stages) if version == 1 else cls(stages, from_data(data["method"]))

    def to_json(self) -> str:
        """Stages and method, with a version."""
        stages = [asdict(stage) for stage in self.stages]
        data = {"version": VERSION, "method": to_data(self.method), "stages": stages}
        return json.dumps(data, indent=2) + "\n"

    def one_line(self) -> str:
        """The same JSON for a cell of a table; nothing for a schedule without stages."""
        return " ".join(self.to_json().split()) if self.stages else ""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schedule:
        """A schedule that was saved as JSON."""
        text = text_of(path, "schedule")
        try:
            return cls.from_json(text)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """As JSON; the file is whole, or as it was before."""
        with replacing(path) as temporary:
            temporary.write_text(self.to_json(), encoding="utf-8")


def _stage(entry: Any) -> Stage:
    if not isinstance(entry, Mapping):
        raise ValueError(f"a stage must be a JSON object, got {entry!r}")
    known = [field.name for field in fields(Stage)]
    unknown = sorted(set(entry) - set(known))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r} in a stage; fields are {', '.join(known)}")
    if "block" not in entry:
        raise ValueError('a stage needs a "block"')
    return Stage(**entry)


def _preset(
    similar: int,
    blocks: Sequence[int],
    keep: Sequence[float],
    rounds: Sequence[int] = (),
) -> tuple[Stage, ...]:
    shares = zip(blocks, keep, strict=True)
    stages = tuple(Stage(block, share, similar) for block, share in shares)
    if not rounds:
        return stages
    return tuple(replace(stage, rounds=votes) for stage, votes in zip(stages, rounds, strict=True))


_PLACES = (1, 3, 6, 9, 11)

#: The stages of the paper's schedules, rounds as printed. The three budgets "zero-tp-*" are
#: published for DeiT-S by their cost alone (2.97, 2.50 and 3.97 G): their stages are ours, what
#: ``schedule_for`` solves in the paper's form, with the rounds that stages have by default.
PRESETS: dict[str, tuple[Stage, ...]] = {
    "ablation-is": _preset(10, _PLACES, (1, 0.9, 0.8, 0.7, 1), (30, 5, 5, 1, 1)),
    "ablation-i": _preset(0, (3, 6, 9, 11), (0.8, 0.7, 0.7, 0.6), (5, 5, 1, 1)),
    "vhf-search": _preset(
        0, (1, 3, 5, 7, 9, 11), (0.9, 0.9, 0.85, 0.8, 0.7, 0.65), (50, 50, 5, 5, 1, 1)
    ),
    "zero-tp-a": _preset(10, _PLACES, (0.8965,) * 5),
    "zero-tp-b": _preset(10, _PLACES, (0.8281,) * 5),
    "zero-tp-c": _preset(10, _PLACES, (1,) * 5),
}
