"""Stage, Budget and Schedule: where tokens are pruned, how many, by which method; as JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, get_args

from .cost import Convention
from .method import Method, from_data, resolve, to_data
from .safety.files import parse_json, replacing, text_of
from .safety.ranges import check_number, check_range

#: the version of a schedule that knows its budget; without one it is written as version 2
VERSION = 3


def _count(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


@dataclass(frozen=True)
class Stage:
    """One pruning layer.

    Args:
        block: The block it is at, counted from 1.
        keep: The share of the patch tokens that the I-stage keeps, in (0, 1]; 1 disables it.
        similar: How many tokens the S-stage prunes; 0 disables it.
        rounds: Votes in the I-stage. None means 30 in the first three blocks, 1 in the last three,
            and 5 in between.

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
        """Return ⌊keep × patches⌋, exact for decimals: 0.29 of 100 is 29."""
        return math.floor(self.keep * patches + 1e-9)

    def kept(self, patches: int) -> int:
        """Return how many of `patches` tokens are left after S, and then I."""
        return self.share(patches - self.similar)

    def votes(self, depth: int) -> int:
        """Return the rounds of the I-stage in a model of this depth."""
        return papers_rounds(self.block, depth)[0] if self.rounds is None else self.rounds


def share_that_keeps(kept: int, of: int) -> float:
    """Return a short decimal `keep` by which a stage keeps exactly `kept` tokens.

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
    """Return the range of rounds that the paper uses at a block (Sec. 4.1)."""
    if block <= 3:
        return 30, 50
    return (1, 1) if block > depth - 3 else (5, 10)


@dataclass(frozen=True)
class Budget:
    """What a pruned model may cost.

    Args:
        cost: The share of the unpruned model's compute, above 0 and at most 1.
        gmacs: The compute in GMACs. Give either this or `cost`.
        convention: How GMACs are counted, as for `schedule_for`.

    >>> Budget(cost=0.6).to_gmacs(unpruned=5.0)
    3.0
    """

    cost: float | None = None
    gmacs: float | None = None
    convention: Convention = "full"

    def __post_init__(self) -> None:
        if (self.cost is None) == (self.gmacs is None):
            raise ValueError("a budget needs either cost=…, a share of the compute, or gmacs=…")
        for name, value in self.options.items():
            check_number(name, value)
        if self.convention not in get_args(Convention):
            raise ValueError(f'convention must be "full" or "paper", got {self.convention!r}')

    @property
    def options(self) -> dict[str, float]:
        """`cost` or `gmacs`, whichever is set, by name."""
        both = {"cost": self.cost, "gmacs": self.gmacs}
        return {name: value for name, value in both.items() if value is not None}

    def to_gmacs(self, unpruned: float) -> float:
        """Return the budget in GMACs for a model that takes `unpruned` GMACs unpruned."""
        return float(self.gmacs) if self.cost is None else float(self.cost * unpruned)  # type: ignore[arg-type]

    def to_data(self) -> dict[str, Any]:
        """Return the budget as JSON data."""
        paper = {"convention": self.convention} if self.convention != "full" else {}
        return {name: float(value) for name, value in self.options.items()} | paper

    @classmethod
    def from_data(cls, data: object) -> Budget:
        """Return the budget that `to_data` wrote."""
        known = {option.name for option in fields(cls)}
        if not isinstance(data, Mapping) or not set(data) <= known:
            raise ValueError('"budget" must be a JSON object with "cost" or "gmacs"')
        return cls(**data)


@dataclass(frozen=True)
class Schedule:
    """Stages, at most one at each block, and the method that acts at them.

    Schedules with the same stages and method are equal, whatever their budgets.

    Args:
        stages: In any order.
        method: A method or its name; default: Zero-TPrune.
        budget: What the stages were solved for, if they were.
        patches: The number of patches that they were solved for. With any other number the budget
            is solved again.

    >>> Schedule([Stage(3, keep=0.8), Stage(6, keep=0.7)], method="evit").method
    EViT(fuses=True)
    """

    stages: tuple[Stage, ...] = ()
    method: Method = field(default_factory=lambda: resolve("zero-tprune"))
    budget: Budget | None = field(default=None, compare=False)
    patches: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", resolve(self.method))
        if not isinstance(self.stages, Iterable):
            raise TypeError(f"stages must be an iterable of Stage, got {self.stages!r}")
        stages = tuple(self.stages)
        for stage in stages:
            if not isinstance(stage, Stage):
                raise TypeError(f"stages must be Stage objects, got {stage!r}")
        stages = tuple(sorted(stages, key=lambda stage: stage.block))
        for first, second in pairwise(stages):
            if first.block == second.block:
                raise ValueError(f"a block has at most one stage, got two at block {first.block}")
        object.__setattr__(self, "stages", stages)
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise TypeError(f"budget must be a Budget, got {self.budget!r}")
        if (self.budget is None) != (self.patches is None):
            raise ValueError("give both budget and patches, or neither")
        if self.patches is not None:
            object.__setattr__(self, "patches", _count("patches", self.patches, 1))

    @classmethod
    def preset(cls, name: str) -> Schedule:
        """Return a schedule of the paper by name, see ``zerotprune.schedule.PRESETS``."""
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}: expected one of {', '.join(PRESETS)}")
        return cls(PRESETS[name])

    def by(self, method: Method | str) -> Schedule:
        """Return the same stages with another method, and without the budget, as the cost may
        differ."""
        return replace(self, method=resolve(method), budget=None, patches=None)

    @classmethod
    def from_json(cls, text: str, method: object = None) -> Schedule:
        """Read a schedule from JSON.

        Version 2 had no budget; version 1 had no method either, and is for Zero-TPrune.

        Args:
            text: What `to_json` returned.
            method: Your method, if the schedule names it by its file: `FILE.py:CLASS`, or an object
                of the class. A file is imported only if you name it here.
        """
        try:
            data = parse_json(text)
        except ValueError as error:
            raise ValueError(f"not a schedule: {error}") from None
        version = data.get("version") if isinstance(data, Mapping) else None
        if version is not None and (type(version) is not int or version not in _KEYS):
            raise ValueError(
                f"unknown schedule version {version!r}: this release reads 1 to {VERSION}"
            )
        keys = _KEYS[version or VERSION]
        if not isinstance(data, Mapping) or set(data) != set(keys):
            raise ValueError(
                f"a schedule of version {version or 2} is a JSON object with exactly "
                + " and ".join(f'"{key}"' for key in _KEYS[version or 2])
            )
        if not isinstance(data["stages"], list):
            raise ValueError('"stages" of a schedule must be a list')
        stages = tuple(_stage(entry) for entry in data["stages"])
        if version == 1:
            return cls(stages)
        resolved = from_data(data["method"], method)
        if version == 2:
            return cls(stages, resolved)
        return cls(stages, resolved, Budget.from_data(data["budget"]), data["patches"])

    def to_json(self) -> str:
        """Return stages, method and budget as JSON, with a version."""
        stages = [asdict(stage) for stage in self.stages]
        data: dict[str, Any] = {"version": 2, "method": to_data(self.method), "stages": stages}
        if self.budget is not None:
            data |= {"version": VERSION, "budget": self.budget.to_data(), "patches": self.patches}
        return json.dumps(data, indent=2) + "\n"

    def one_line(self) -> str:
        """Return stages and method as one line of JSON, for a table; "" without stages."""
        plain = replace(self, budget=None, patches=None)
        return " ".join(plain.to_json().split()) if self.stages else ""

    @classmethod
    def load(cls, path: str | os.PathLike[str], method: object = None) -> Schedule:
        """Load a schedule that `save` wrote; `method` is as for `from_json`."""
        text = text_of(path, "schedule")
        try:
            return cls.from_json(text, method)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save as JSON. The file is replaced as a whole or left as it was."""
        with replacing(path) as temporary:
            temporary.write_text(self.to_json(), encoding="utf-8")


#: the keys of a schedule's JSON by version
_KEYS: dict[int, tuple[str, ...]] = {
    1: ("version", "stages"),
    2: ("version", "method", "stages"),
    3: ("version", "method", "stages", "budget", "patches"),
}


def _stage(entry: Any) -> Stage:
    if not isinstance(entry, Mapping):
        raise ValueError(f"a stage must be a JSON object, got {entry!r}")
    known = [field.name for field in fields(Stage)]
    unknown = sorted(set(entry) - set(known))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r} of a stage: expected {', '.join(known)}")
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


_BLOCKS = (1, 3, 6, 9, 11)

#: The paper's schedules, rounds as printed. Of "zero-tp-*" the paper gives only the cost for DeiT-S
#: (2.97, 2.50 and 3.97 G): the stages are ours, what ``schedule_for`` solves in the paper's form,
#: with the default rounds.
PRESETS: dict[str, tuple[Stage, ...]] = {
    "ablation-is": _preset(10, _BLOCKS, (1, 0.9, 0.8, 0.7, 1), (30, 5, 5, 1, 1)),
    "ablation-i": _preset(0, (3, 6, 9, 11), (0.8, 0.7, 0.7, 0.6), (5, 5, 1, 1)),
    "vhf-search": _preset(
        0, (1, 3, 5, 7, 9, 11), (0.9, 0.9, 0.85, 0.8, 0.7, 0.65), (50, 50, 5, 5, 1, 1)
    ),
    "zero-tp-a": _preset(10, _BLOCKS, (0.8965,) * 5),
    "zero-tp-b": _preset(10, _BLOCKS, (0.8281,) * 5),
    "zero-tp-c": _preset(10, _BLOCKS, (1,) * 5),
}
