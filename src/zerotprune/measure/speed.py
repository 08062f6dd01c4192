"""Speed, measured honestly: every case in turn, beside the compiled model and beside the limit.

The limit is slicing: as many tokens in every block as by the schedule that is measured, and
nothing computed to choose them. What a method is slower than slicing is what its choice costs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..budgets import schedule_for
from ..budgets.solving import measured_gmacs
from ..clock import Call, Clock, in_turn, now, quartiles, stopwatch
from ..cost import Compute, Convention, Geometry
from ..grid import Outputs
from ..interrupts import acknowledge
from ..methods import name_of, resolve
from ..plan import Plan
from ..schedule import Schedule, Stage, share_that_keeps
from ..scoring.backends import Backend
from ..surgery import attach, sharing_copy
from .accuracy import Contender
from .modes import Mode, ready, room_for

Precision = Literal["float32", "bfloat16", "float16"]

UNPRUNED, LIMIT = "unpruned", "slicing"
SEED = 0


@dataclass(frozen=True)
class Entrant:
    """A contender with its cost, or with the reason why it cannot take part."""

    contender: Contender
    gmacs: float = 0.0
    gmacs_paper: float = 0.0
    failure: str = ""


@dataclass(frozen=True)
class Setup:
    """How all cases of a run are measured."""

    device: str = "cpu"
    modes: tuple[Mode, ...] = ("eager", "compile")
    rounds: int = 20
    compute: Compute = "needed"
    backend: Backend = "auto"
    compiler: str = "inductor"  # torch.compile's backend
    outputs: Outputs = "tokens"

    @property
    def compiles(self) -> bool:
        return any(mode != "eager" for mode in self.modes)

    def check(self) -> None:
        """Raise ValueError if nothing can be measured like this."""
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")
        if "graph" in self.modes and not self.device.startswith("cuda"):
            raise ValueError(f"mode graph means CUDA graphs: there are none on {self.device}")


@dataclass
class Speed:
    """What one case did: a contender in one mode, at one batch size, in one precision."""

    entrant: Entrant
    mode: Mode
    batch: int
    precision: Precision
    seconds: list[float] = field(default_factory=list)  # for one call, a sample in every round
    peak_memory: int = 0  # bytes on the device; 0 on a CPU, which does not count them
    failure: str = ""  # why there are no samples

    @property
    def name(self) -> str:
        return self.entrant.contender.name

    @property
    def latency(self) -> float:
        """Seconds for one call: the median over the rounds."""
        return quartiles(self.seconds)[1]

    @property
    def spread(self) -> float:
        """Seconds between the quartiles, with half of the rounds between them."""
        low, _, high = quartiles(self.seconds)
        return high - low

    @property
    def images_per_second(self) -> float:
        return self.batch / self.latency


@dataclass(frozen=True)
class Group:
    """All cases of one batch size and precision, which ran in turn and may be compared."""

    speeds: list[Speed]
    whole: bool = True  # False if Ctrl-C cut its rounds short

    @property
    def base(self) -> Mode:
        """The mode of the unpruned model that a speed-up is over: compiled, where that was run."""
        modes = [speed.mode for speed in self.speeds]
        return "compile" if "compile" in modes else modes[0]

    def speedup(self, speed: Speed) -> float | None:
        """How many times as fast as the unpruned model in its base mode."""
        return self._ratio(speed, UNPRUNED, self.base)

    def of_limit(self, speed: Speed) -> float | None:
        """Which share of the speed of slicing in the same mode."""
        return self._ratio(speed, LIMIT, speed.mode)

    def speedup_range(self, speed: Speed) -> tuple[float, float] | None:
        """The quartiles of the speed-up over the rounds, the two cases of a round side by side."""
        other = self._measured(UNPRUNED, self.base)
        if other is None or not speed.seconds:
            return None
        rounds = zip(other.seconds, speed.seconds, strict=False)  # one may have failed in the end
        low, _, high = quartiles([theirs / own for theirs, own in rounds])
        return low, high

    def _ratio(self, speed: Speed, name: str, mode: Mode) -> float | None:
        other = self._measured(name, mode)
        return None if other is None or not speed.seconds else other.latency / speed.latency

    def _measured(self, name: str, mode: Mode) -> Speed | None:
        for speed in self.speeds:
            if (speed.name, speed.mode) == (name, mode) and speed.seconds:
                return speed
        return None


def entrants(
    model: nn.Module,
    schedule: Schedule,
    names: Sequence[str],
    images: Tensor,
    outputs: Outputs = "tokens",
) -> list[Entrant]:
    """The unpruned model, the limit, and the methods at the cost of the schedule.

    `images` are for methods whose cost depends on them.
    """
    geometry = backbone(model).geometry
    limit = Contender(LIMIT, limit_of(schedule, geometry))
    priced = [price(model, each, images, outputs) for each in (Contender(UNPRUNED), limit)]
    budget = Plan(schedule, geometry, outputs).gmacs()
    for name in dict.fromkeys(names):
        if name == LIMIT:
            continue
        try:
            own = schedule
            if name != name_of(schedule.method):
                own = schedule_for(model, gmacs=budget, method=name, images=images, outputs=outputs)
            priced.append(price(model, Contender(name, own), images, outputs))
        except ValueError as error:
            priced.append(Entrant(Contender(name), failure=str(error)))
    return priced


def limit_of(schedule: Schedule, geometry: Geometry) -> Schedule:
    """The same numbers of tokens in every block, with nothing computed to choose them."""
    patches, stages = geometry.patches, []
    for stage in schedule.stages:
        kept = schedule.method.kept(stage, patches)
        if kept < patches and stage.block < geometry.depth:
            stages.append(Stage(stage.block, share_that_keeps(kept, patches)))
        patches = kept
    return Schedule(tuple(stages), resolve(LIMIT))


def price(
    model: nn.Module, chosen: Contender, images: Tensor, outputs: Outputs = "tokens"
) -> Entrant:
    """A contender with its cost; `images` are for methods whose cost depends on them."""
    plan = Plan(chosen.schedule, backbone(model).geometry, outputs)
    plan.check()
    if not plan.method.adaptive:
        return Entrant(chosen, plan.gmacs(), plan.gmacs("paper"))
    full, paper = (
        measured_gmacs(model, chosen.schedule, images, convention, outputs)
        for convention in get_args(Convention)
    )
    return Entrant(chosen, full, paper)


def noise(model: nn.Module, batch: int, device: str, precision: torch.dtype) -> Tensor:
    """Images of noise that fit the model, always the same. Zeros would be quicker than life:
    they draw less power, so that a GPU clocks higher."""
    shape = (batch, *backbone(model).input_shape)
    generator = torch.Generator(device).manual_seed(SEED)
    return torch.randn(shape, generator=generator, device=device).to(precision)


def sweep(
    model: nn.Module,
    entered: Sequence[Entrant],
    precisions: Sequence[Precision],
    batches: Sequence[int],
    setup: Setup,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[Group]:
    """One group after the other. Stopped by Ctrl-C, it ends with the rounds that are finished."""
    setup.check()
    finished = False
    for precision in precisions:
        cast = copy.deepcopy(model).to(setup.device, getattr(torch, precision))
        for batch in batches:
            try:
                group = measure(cast, entered, precision, batch, setup, report=report)
            except KeyboardInterrupt:
                if not finished:
                    raise
                acknowledge()
                return
            finished = True
            yield group
            if not group.whole:
                return


def measure(
    model: nn.Module,
    entered: Sequence[Entrant],
    precision: Precision,
    batch: int,
    setup: Setup,
    clock: Clock | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Group:
    """Every entrant in every mode, in turn. The model is already in that precision, on the device,
    and unpruned. Ctrl-C before the first round is over is passed on: there is nothing to tell."""
    images = noise(model, batch, setup.device, getattr(torch, precision))
    about = f"{precision}, batch {batch}"
    speeds: list[Speed] = []
    warm: list[tuple[Speed, Call]] = []
    room = room_for(len(entered)) if setup.compiles else nullcontext()
    with torch.inference_mode(), room:
        for entrant in entered:
            eager: Any = sharing_copy(model).requires_grad_(False)
            schedule = entrant.contender.schedule
            attach(eager, schedule, setup.compute, setup.backend, setup.outputs)
            compiled = eager
            if setup.compiles:
                compiled = torch.compile(
                    eager, fullgraph=True, dynamic=False, backend=setup.compiler
                )
            for mode in setup.modes:
                speed = Speed(entrant, mode, batch, precision, failure=entrant.failure)
                speeds.append(speed)
                started = now("cpu")
                call = _warm_up(speed, eager if mode == "eager" else compiled, images)
                if call is not None:
                    warm.append((speed, call))
                outcome = speed.failure or f"warmed up in {now('cpu') - started:.1f} s"
                report(f"{about}: {speed.name}, {mode}: {outcome}")
        report(f"{about}: {setup.rounds} rounds of {len(warm)} cases")
        whole = take_turns(warm, setup.rounds, clock or stopwatch(setup.device))
    return Group(speeds, whole)


def _warm_up(speed: Speed, model: Any, images: Tensor) -> Call | None:
    """A call that has run before, or None where it cannot run."""
    if speed.failure:
        return None
    try:
        call, speed.peak_memory = ready(model, images, speed.mode)
    except Exception as error:  # a compiler may fail in any way; the others go on
        speed.failure = _reason(error)
        return None
    return call


def take_turns(warm: Sequence[tuple[Speed, Call]], rounds: int, clock: Clock) -> bool:
    """Give every case its samples. A round that Ctrl-C cuts short does not count, and the answer is
    False; if it was the first one, there is nothing to tell, and the interruption is passed on."""
    samplers = [partial(_sample, speed, call, clock) for speed, call in warm]
    try:
        for turn in in_turn(samplers, rounds):
            for (speed, _), seconds in zip(warm, turn, strict=True):
                if not speed.failure:
                    speed.seconds.append(seconds)
    except KeyboardInterrupt:
        if not any(speed.seconds for speed, _ in warm):
            raise
        acknowledge()
        return False
    return True


def _sample(speed: Speed, call: Call, clock: Clock, repeat: int) -> float:
    """The seconds of a case; no end of them once it has failed."""
    if not speed.failure:
        try:
            return clock(call, repeat)
        except Exception as error:  # whatever it is, the other cases can go on
            speed.failure = _reason(error)
            speed.seconds.clear()
    return math.inf


def _reason(error: Exception) -> str:
    """In a few words, for a cell of a table."""
    if isinstance(error, torch.OutOfMemoryError):
        torch.cuda.empty_cache()
        return "out of memory"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 100 else f"{text[:99]}…"
