"""Measure speed: every case in turn, beside the compiled unpruned model and the limit.

The limit is slicing: as many tokens in every block as the schedule keeps, and nothing computed to
choose them. A method is slower than slicing by what its choice costs.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..block import check_compiler
from ..budgets import schedule_for
from ..budgets.solving import measured_gmacs
from ..clock import Call, Clock, Timings, now, race, room_for, stopwatch
from ..cost import Compute, Convention, Geometry
from ..methods import name_of, resolve
from ..plan import Plan
from ..safety.interrupts import acknowledge
from ..schedule import Schedule, Stage, share_that_keeps
from ..scoring.scorer import Backend
from ..shapes import Precision
from ..surgery import attach, sharing_copy
from ..tokens import Outputs
from .accuracy import UNPRUNED, Contender, Result

Mode = Literal["eager", "compile", "graph"]  # the last: compiled, and captured as a CUDA graph

MODES: tuple[Mode, ...] = get_args(Mode)
LIMIT = "slicing"
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
            raise ValueError(f"mode graph needs a CUDA device, got {self.device}")


@dataclass
class Speed:
    """The timings of one case: a contender in one mode, at one batch size, in one precision."""

    entrant: Entrant
    mode: Mode
    batch: int
    precision: Precision
    seconds: Timings = field(default_factory=Timings)  # of one call
    peak_memory: int = 0  # bytes on the device; 0 on a CPU, which does not count them
    failure: str = ""  # why there are no samples

    @property
    def name(self) -> str:
        return self.entrant.contender.name

    @property
    def latency(self) -> float:
        """Seconds for one call: the median over the rounds."""
        return self.seconds.median

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
        """The mode of the unpruned model that speedups are over: compile, if it was run."""
        modes = [speed.mode for speed in self.speeds]
        return "compile" if "compile" in modes else modes[0]

    def speedup(self, speed: Speed) -> float | None:
        """Return the speedup over the unpruned model in its base mode."""
        return self._ratio(speed, UNPRUNED.name, self.base)

    def of_limit(self, speed: Speed) -> float | None:
        """Return the speed as a share of slicing's in the same mode."""
        return self._ratio(speed, LIMIT, speed.mode)

    def speedup_range(self, speed: Speed) -> tuple[float, float] | None:
        """Return the quartiles of the speedup over the rounds, paired round by round."""
        unpruned = self._seconds(UNPRUNED.name, self.base)
        if not unpruned or not speed.seconds:
            return None
        return speed.seconds.speedup_quartiles(unpruned)[::2]

    def _ratio(self, speed: Speed, name: str, mode: Mode) -> float | None:
        other = self._seconds(name, mode)
        return speed.seconds.speedup(other) if other and speed.seconds else None

    def _seconds(self, name: str, mode: Mode) -> Timings:
        """Return the timings of a case; none if it was not measured."""
        found = [speed for speed in self.speeds if (speed.name, speed.mode) == (name, mode)]
        return next((speed.seconds for speed in found if speed.seconds), Timings())


Accuracy = dict[Precision, list[Result]]  # without contenders that could not be set up


def results_of(speed: Speed, accuracy: Accuracy) -> tuple[Result, Result] | None:
    """Return the results of a case's contender and of the unpruned model, if there are any."""
    results = {result.contender.name: result for result in accuracy.get(speed.precision, [])}
    return (results[speed.name], results[UNPRUNED.name]) if speed.name in results else None


def entrants(
    model: nn.Module,
    schedule: Schedule,
    names: Sequence[str],
    images: Tensor,
    outputs: Outputs = "tokens",
) -> list[Entrant]:
    """Return the unpruned model, the limit, and the methods at the cost of the schedule.

    Args:
        model: The unpruned model.
        schedule: Its cost is the budget of all methods, and its method takes part with it.
        names: The methods.
        images: For methods whose cost depends on them.
        outputs: See `prune_`.
    """
    geometry = backbone(model).geometry
    limit = Contender(LIMIT, limit_of(schedule, geometry))
    priced = [price(model, one, images, outputs) for one in (UNPRUNED, limit)]
    budget = Plan(schedule, geometry, outputs).gmacs()
    for name in dict.fromkeys(names):
        if name == LIMIT:
            continue
        try:
            chosen = schedule
            if name != name_of(schedule.method):
                chosen = schedule_for(
                    model, gmacs=budget, method=name, images=images, outputs=outputs
                )
            priced.append(price(model, Contender(name, chosen), images, outputs))
        except ValueError as error:
            priced.append(Entrant(Contender(name), failure=str(error)))
    return priced


def limit_of(schedule: Schedule, geometry: Geometry) -> Schedule:
    """Return slicing to the same numbers of tokens in every block."""
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
    """Return a contender with its cost, measured on `images` if it depends on them."""
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
    """Return noise in the shape of the model's images, always the same.

    Zeros would be unrealistically fast: they draw less power, so a GPU clocks higher.
    """
    shape = (batch, *backbone(model).input_shape)
    generator = torch.Generator(device).manual_seed(SEED)
    return torch.randn(shape, generator=generator, device=device).to(precision)


def as_measured(model: nn.Module, precision: Precision, modes: Sequence[Mode]) -> nn.Module:
    """Return the model to meet a time budget with: in the first precision, and compiled unless
    eager mode is measured too."""
    cast = copy.deepcopy(model).to(getattr(torch, precision))
    if "eager" in modes:
        return cast
    check_compiler()
    compiled: nn.Module = torch.compile(cast, fullgraph=True, dynamic=False)  # type: ignore[assignment]
    return compiled


def sweep(
    model: nn.Module,
    cases: Sequence[Entrant],
    precisions: Sequence[Precision],
    batches: Sequence[int],
    setup: Setup,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[Group]:
    """Yield group after group. After Ctrl-C, the last one has the rounds that are finished."""
    setup.check()
    finished = False
    for precision in precisions:
        cast = copy.deepcopy(model).to(setup.device, getattr(torch, precision))
        for batch in batches:
            try:
                group = measure(cast, cases, precision, batch, setup, report=report)
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
    cases: Sequence[Entrant],
    precision: Precision,
    batch: int,
    setup: Setup,
    clock: Clock | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Group:
    """Measure every entrant in every mode, in turn.

    Ctrl-C before the first round is over is passed on: there is no result yet.

    Args:
        model: The unpruned model, on the device and in the precision.
        cases: What to measure.
        precision: Of the model.
        batch: Images at a time.
        setup: Device, modes and rounds.
        clock: Default: wall time.
        report: Called with a line about every step.
    """
    images = noise(model, batch, setup.device, getattr(torch, precision))
    about = f"{precision}, batch {batch}"
    speeds: list[Speed] = []
    warm: list[tuple[Speed, Call]] = []
    if setup.compiles:
        torch.compiler.reset()
        gc.collect()  # pruned copies are in cycles: none may be freed while a graph is captured
    room = room_for(len(cases)) if setup.compiles else nullcontext()
    with torch.inference_mode(), room:
        for entrant in cases:
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
    """Warm up a call and return it; return None if it cannot run."""
    if speed.failure:
        return None
    try:
        call, speed.peak_memory = ready(model, images, speed.mode)
    except Exception as error:  # a compiler may fail in any way; the others go on
        speed.failure = _reason(error)
        return None
    return call


def ready(model: Any, images: Tensor, mode: Mode) -> tuple[Call, int]:
    """Warm up a call; return it with its peak memory in bytes."""

    def call() -> object:
        return model(images)

    for _ in range(2):
        call()
    if mode == "graph":
        return _capture(model, call, images)
    if images.device.type != "cuda":
        return call, 0
    return call, _peak(call, model, images)


def _capture(model: Any, call: Call, images: Tensor) -> tuple[Call, int]:
    """Capture the call as a CUDA graph. A replay allocates nothing: the peak is the capture's."""
    side = torch.cuda.Stream(images.device)
    side.wait_stream(torch.cuda.current_stream(images.device))
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream(images.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.graph(graph, stream=side):
            call()

    peak = _peak(capture, model, images)
    graph.replay()
    return graph.replay, peak


def _peak(call: Call, model: nn.Module, images: Tensor) -> int:
    """Return the bytes that a process would need for this call alone.

    These are the weights, the images, and what the call allocates at its peak: the graphs and
    caches of other cases do not count.
    """
    torch.cuda.synchronize(images.device)
    before = torch.cuda.memory_allocated(images.device)
    torch.cuda.reset_peak_memory_stats(images.device)
    call()
    torch.cuda.synchronize(images.device)
    taken = torch.cuda.max_memory_allocated(images.device) - before
    return taken + sum(value.nbytes for value in (*model.parameters(), *model.buffers(), images))


def take_turns(warm: Sequence[tuple[Speed, Call]], rounds: int, clock: Clock) -> bool:
    """Sample every case in turn; return False if Ctrl-C came before the last round was over.

    A round that is cut short does not count. If it was the first, Ctrl-C is passed on.
    """
    try:
        for timings in race(warm, rounds, partial(_sample, clock)):
            for (speed, _), seconds in zip(warm, timings, strict=True):
                if not speed.failure:
                    speed.seconds = seconds
    except KeyboardInterrupt:
        if not any(speed.seconds for speed, _ in warm):
            raise
        acknowledge()
        return False
    return True


def _sample(clock: Clock, case: tuple[Speed, Call], repeat: int) -> float:
    """Return the seconds of a case; infinity once it has failed."""
    speed, call = case
    if not speed.failure:
        try:
            return clock(call, repeat)
        except Exception as error:  # whatever it is, the other cases can go on
            speed.failure = _reason(error)
            speed.seconds = Timings()
    return math.inf


def _reason(error: Exception) -> str:
    """Return the first line of an error, short enough for a cell of a table."""
    if isinstance(error, torch.OutOfMemoryError):
        torch.cuda.empty_cache()
        return "out of memory"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 100 else f"{text[:99]}…"
