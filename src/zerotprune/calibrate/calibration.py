"""Calibration: rounds for each block and a VHF range of one model, measured, stored and checked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..data.fingerprint import check_same, fingerprint_model
from ..method import Method
from ..methods import ZeroTPrune, name_of
from ..safety.files import parse_json, replacing, text_of
from ..safety.ranges import check_range
from ..schedule import Schedule
from ..shapes import Batch, Float
from .survey import (
    BlockRounds,
    BlockSurvey,
    divergences_json,
    head_variances,
    rounds_needed,
    survey,
    variances_json,
)
from .vhf import DEFAULT_VHF, RangeSearch, Verdict, search_range

VERSION = 1
_EVIDENCE = ("kl", "variances", "search", "provenance")
_KEYS = ("version", "model", "rounds", "vhf", *_EVIDENCE)
#: the fingerprint of a model
_TEXTS, _COUNTS = ("name", "weights"), ("depth", "heads", "patches")


@dataclass(frozen=True)
class Calibration:
    """The result of `zerotprune calibrate`. Only the first three fields are used; the others record
    how they were measured."""

    model: Mapping[str, Any]  # from `fingerprint_model`
    rounds: tuple[int, ...]
    vhf: tuple[float, float]
    kl: Mapping[str, Any] = field(default_factory=dict)
    variances: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        depth = self.model["depth"]
        if len(self.rounds) != depth:
            raise ValueError(
                f"a calibration has rounds for each block: {len(self.rounds)} for {depth} blocks"
            )

    @classmethod
    def load_for(cls, path: str | os.PathLike[str], name: str, model: nn.Module) -> Calibration:
        """Load the calibration of this model; refuse that of another, and name the difference."""
        loaded = cls.load(path)
        current = fingerprint_model(name, model)
        # The fingerprint of an outline has fewer fields.
        stored = {key: loaded.model[key] for key in current}
        check_same(stored, current, f"{path} is the calibration of another model")
        return loaded

    def applied(self, schedule: Schedule) -> Schedule:
        """Return Zero-TPrune's schedule with this range, and with these rounds in stages without
        rounds. Return that of another method as it is.

        >>> import zerotprune as ztp
        >>> two = Calibration({"depth": 2}, rounds=(7, 3), vhf=(0.1, 0.5))
        >>> two.applied(ztp.Schedule([ztp.Stage(1, keep=0.8)])).stages
        (Stage(block=1, keep=0.8, similar=0, rounds=7),)
        """
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

    def applied_to(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        """Return the schedules, calibrated where possible; raise ValueError if none can be
        calibrated."""
        check_used([schedule.method for schedule in schedules if schedule.stages])
        return [self.applied(schedule) for schedule in schedules]

    def to_json(self) -> str:
        data = {"version": VERSION, "model": dict(self.model), "rounds": list(self.rounds)}
        data |= {"vhf": list(self.vhf)} | {name: getattr(self, name) for name in _EVIDENCE}
        text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
        # Lists of numbers are easier to read in one line.
        numbers = re.compile(r'\[\n([^][{}"]*)\]')
        return numbers.sub(lambda match: f"[{' '.join(match[1].split())}]", text) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        try:
            data = parse_json(text)
        except ValueError as error:
            raise ValueError(f"not a calibration: {error}") from None
        if not isinstance(data, dict):
            raise ValueError(f"a calibration is a JSON object, got {_short(data)}")
        if "version" in data and data["version"] != VERSION:
            got = _short(data["version"])
            raise ValueError(f"calibration version {got} is unknown; this release reads {VERSION}")
        for name in sorted(set(_KEYS) ^ set(data)):
            word = "lacks" if name in _KEYS else "has an unknown"
            raise ValueError(f'not a calibration: it {word} "{name}"')
        for name in _EVIDENCE:
            if not isinstance(data[name], dict):
                raise ValueError(f'"{name}" of a calibration must be a JSON object')
        evidence = {name: data[name] for name in _EVIDENCE}
        rounds = data["rounds"]
        if not isinstance(rounds, list) or not all(map(_is_count, rounds)):
            got = _short(rounds)
            raise ValueError(f'"rounds" must be a list of whole numbers from 1, got {got}')
        for count in rounds:
            check_range("rounds", count)
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


@dataclass(frozen=True)
class Findings:
    """What was measured of one model: the rounds of every block, and the VHF range."""

    blocks: list[BlockSurvey]
    rows: list[BlockRounds]
    variances: list[Float[Tensor, "images heads"]]
    threshold: float
    verdict: Verdict | None  # None if no range was searched

    @property
    def images(self) -> int:
        return len(self.blocks[0].spread)

    def calibration(self, model: Mapping[str, Any], provenance: Mapping[str, Any]) -> Calibration:
        """Return the calibration of the model with this fingerprint."""
        return Calibration(
            model=model,
            rounds=tuple(row.needed for row in self.rows),
            vhf=DEFAULT_VHF if self.verdict is None else self.verdict.recommended,
            kl=divergences_json(self.rows, self.threshold),
            variances=variances_json(self.variances),
            search={} if self.verdict is None else self.verdict.to_json(),
            provenance=provenance,
        )


def measure_calibration(
    model: nn.Module,
    batches: Iterable[Batch],
    threshold: float,
    search: RangeSearch | None,
    device: str = "cpu",
    voted: Callable[[int], None] = lambda count: None,
    tried: Callable[[int], None] = lambda count: None,
) -> Findings:
    """Measure the rounds that every block needs, then search the VHF range.

    Args:
        model: Unpruned, on its device.
        batches: Images, labels and indices.
        threshold: How settled the importance has to be: see `survey.THRESHOLD`.
        search: How to search the range; None for no search.
        device: Where the model is.
        voted: Called with the number of images that were surveyed.
        tried: Called with the number of ranges that were tried.
    """
    # The search uses the images many times, so they are decoded once and kept.
    seen = batches if search is None else list(batches)
    blocks = survey(model, seen, device, voted)
    rows = rounds_needed(blocks, threshold)
    variances = head_variances(blocks, rows)
    verdict = None
    if search is not None:
        verdict = search_range(model, search, seen, variances, device, tried)
    return Findings(blocks, rows, variances, threshold, verdict)


def check_used(methods: Iterable[Method]) -> None:
    """Refuse a calibration that none of the methods would use."""
    methods = list(methods)
    if any(isinstance(method, ZeroTPrune) and method.vhf is not None for method in methods):
        return
    names = ", ".join(dict.fromkeys(map(name_of, methods)))
    why = f"is not used by {names}" if names else "nothing is pruned here"
    raise ValueError(
        f"a calibration is for Zero-TPrune with VHF, and {why}: leave --calibration out, or give "
        "--method zero-tprune and a budget"
    )


def _model(data: object) -> dict[str, Any]:
    if not isinstance(data, dict) or set(data) != {*_TEXTS, *_COUNTS}:
        names = ", ".join((*_TEXTS, *_COUNTS))
        raise ValueError(f'"model" of a calibration must have exactly {names}')
    for name in _TEXTS:
        if not isinstance(data[name], str):
            raise ValueError(f"the model's {name} must be a string, got {_short(data[name])}")
    for name in _COUNTS:
        if not _is_count(data[name]):
            got = _short(data[name])
            raise ValueError(f"the model's {name} must be a whole number from 1, got {got}")
    return data


def _vhf(data: Any) -> tuple[float, float]:
    real = isinstance(data, list) and all(type(bound) in (int, float) for bound in data)
    if not real or len(data) != 2 or not 0 <= data[0] <= data[1] <= 1e100:
        raise ValueError(f'"vhf" must be two variances, the lower first, got {_short(data)}')
    return float(data[0]), float(data[1])


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
