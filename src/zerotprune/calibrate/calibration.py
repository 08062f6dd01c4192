"""Calibration: rounds for each block and a VHF range, of one model, kept as JSON and checked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..backbones import backbone
from ..data.models import weights_hash
from ..files import parsed, replacing, text_of
from ..methods import ZeroTPrune
from ..ranges import check_range
from ..schedule import Schedule

VERSION = 1
_EVIDENCE = ("kl", "variances", "search", "provenance")
_KEYS = ("version", "model", "rounds", "vhf", *_EVIDENCE)


@dataclass(frozen=True)
class Identity:
    """Which model a calibration is of. An outline has no weights to compare."""

    name: str
    depth: int
    heads: int
    patches: int
    weights: str | None  # SHA-256 of names, shapes and values

    @classmethod
    def of(cls, name: str, model: nn.Module) -> Identity:
        geometry = backbone(model).geometry
        held = None if any(each.is_meta for each in model.parameters()) else weights_hash(model)
        return cls(name, geometry.depth, geometry.blocks[0].heads, geometry.patches, held)

    def difference(self, other: Identity) -> str | None:
        """What tells the two apart, in words; the size of the images is not asked of an outline,
        which is always at the model's own."""
        outline = None in (self.weights, other.weights)
        for each in fields(self):
            if outline and each.name in ("patches", "weights"):
                continue
            own, others = getattr(self, each.name), getattr(other, each.name)
            if own != others:
                if each.name == "weights":
                    own, others = f"{own[:12]}…", f"{others[:12]}…"
                return f"{each.name} {own} there, {others} here"
        return None


@dataclass(frozen=True)
class Calibration:
    """What `zerotprune calibrate` found. Only the first three fields are used; the others say where
    they come from."""

    model: Identity
    rounds: tuple[int, ...]
    vhf: tuple[float, float]
    kl: Mapping[str, Any] = field(default_factory=dict)
    variances: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.rounds) != self.model.depth:
            raise ValueError(
                f"a calibration has rounds for each block: {len(self.rounds)} for "
                f"{self.model.depth} blocks"
            )

    @classmethod
    def load_for(cls, path: str | os.PathLike[str], name: str, model: nn.Module) -> Calibration:
        """The calibration of this model; that of another is refused, naming the difference."""
        loaded = cls.load(path)
        difference = loaded.model.difference(Identity.of(name, model))
        if difference is not None:
            raise ValueError(f"{path} is the calibration of another model: {difference}")
        return loaded

    def applied(self, schedule: Schedule) -> Schedule:
        """Zero-TPrune's schedule with this range, and with these rounds in all stages that leave
        them open; any other method's as it is."""
        method = schedule.method
        if not isinstance(method, ZeroTPrune) or method.vhf is None:
            return schedule
        stages = (
            replace(stage, rounds=self.rounds[stage.block - 1])
            if stage.rounds is None and stage.block <= len(self.rounds)
            else stage
            for stage in schedule.stages
        )
        return Schedule(tuple(stages), replace(method, vhf=self.vhf))

    def to_json(self) -> str:
        data = {"version": VERSION, "model": asdict(self.model), "rounds": list(self.rounds)}
        data |= {"vhf": list(self.vhf)} | {name: getattr(self, name) for name in _EVIDENCE}
        text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
        # A list of numbers is one line to a reader, not one line for each of them.
        numbers = re.compile(r'\[\n([^][{}"]*)\]')
        return numbers.sub(lambda match: f"[{' '.join(match[1].split())}]", text) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        try:
            data = parsed(text)
        except ValueError as error:
            raise ValueError(f"not a calibration: {error}") from None
        if not isinstance(data, dict):
            raise ValueError(f"a calibration is a JSON object, got {_short(data)}")
        if "version" in data and data["version"] != VERSION:
            came = _short(data["version"])
            raise ValueError(f"calibration version {came} is unknown; this release reads {VERSION}")
        for name in sorted(set(_KEYS) ^ set(data)):
            word = "lacks" if name in _KEYS else "has an unknown"
            raise ValueError(f'this is no calibration: it {word} "{name}"')
        for name in _EVIDENCE:
            if not isinstance(data[name], dict):
                raise ValueError(f'"{name}" of a calibration must be a JSON object')
        evidence = {name: data[name] for name in _EVIDENCE}
        rounds = data["rounds"]
        if not isinstance(rounds, list) or not all(_is_count(each) for each in rounds):
            came = _short(rounds)
            raise ValueError(f'"rounds" must be a list of whole numbers from 1, got {came}')
        for each in rounds:
            check_range("rounds", each)
        return cls(_model(data["model"]), tuple(rounds), _vhf(data["vhf"]), **evidence)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        if not Path(path).is_file():
            raise FileNotFoundError(f"no calibration at {path}")
        text = text_of(path, "calibration")
        try:
            return cls.from_json(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        with replacing(path) as temporary:
            temporary.write_text(self.to_json(), encoding="utf-8")


def _model(data: object) -> Identity:
    names = [each.name for each in fields(Identity)]
    if not isinstance(data, dict) or set(data) != set(names):
        raise ValueError(f'"model" of a calibration must hold exactly {", ".join(names)}')
    for name in ("name", "weights"):
        if not isinstance(data[name], str):
            raise ValueError(f"the model's {name} must be a string, got {_short(data[name])}")
    for name in ("depth", "heads", "patches"):
        if not _is_count(data[name]):
            came = _short(data[name])
            raise ValueError(f"the model's {name} must be a whole number from 1, got {came}")
    return Identity(**data)


def _vhf(data: Any) -> tuple[float, float]:
    real = isinstance(data, list) and all(type(each) in (int, float) for each in data)
    if not real or len(data) != 2 or not 0 <= data[0] <= data[1] <= 1e100:
        raise ValueError(f'"vhf" must be two variances, the lower first, got {_short(data)}')
    return float(data[0]), float(data[1])


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
