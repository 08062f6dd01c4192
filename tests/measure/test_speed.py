"""The speed measurement: turns, medians and ratios by a clock that we hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import zerotprune as ztp
from tests.cli.test_evaluate import folder, images_in  # noqa: F401  a fixture
from tests.families import build
from tests.nursery import run_script
from zerotprune.backbones import backbone
from zerotprune.clock import Call, Timings
from zerotprune.measure import records
from zerotprune.measure import speed as bench
from zerotprune.measure.accuracy import Contender
from zerotprune.measure.speed import Entrant, Group, Setup, Speed, take_turns
from zerotprune.plan import Plan
from zerotprune.plots.comparison import Pace, speed_figure
from zerotprune.surgery import sharing_copy

SCHEDULE = ztp.Schedule((ztp.Stage(1, 1.0, 4), ztp.Stage(3, 0.6)))


def case(name: str, mode: bench.Mode = "eager", batch: int = 4) -> Speed:
    return Speed(Entrant(Contender(name), 1.0, 1.0), mode, batch, "float32")


class Clock:
    """A clock with a price for every call of a case; it records what it was asked for."""

    def __init__(self, prices: dict[str, list[float]]) -> None:
        self.prices, self.asked = prices, list[tuple[str, int]]()

    def __call__(self, call: Call, repeat: int) -> float:
        name = str(call())
        self.asked.append((name, repeat))
        return self.prices[name].pop(0) * repeat


def named(speed: Speed) -> tuple[Speed, Callable[[], str]]:
    return speed, lambda: speed.name


def test_cases_take_turns_and_repeat_as_often_as_the_quickest_needs() -> None:
    quick, slow = case("quick"), case("slow")
    clock = Clock({"quick": [0.003, 0.004, 0.002, 0.003], "slow": [0.5, 0.7, 0.6, 0.1]})
    assert take_turns([named(quick), named(slow)], 3, clock)
    assert clock.asked == [("quick", 1), ("slow", 1)] + [("quick", 7), ("slow", 7)] * 3
    assert quick.seconds == pytest.approx([0.004, 0.002, 0.003])
    assert slow.seconds == pytest.approx([0.7, 0.6, 0.1])
    assert quick.latency == pytest.approx(0.003)
    assert slow.images_per_second == pytest.approx(4 / 0.6)


def test_ratios_are_over_the_compiled_model_and_to_the_limit_of_the_same_mode() -> None:
    seconds = {
        ("unpruned", "eager"): 8.0, ("unpruned", "compile"): 6.0,
        ("slicing", "eager"): 4.0, ("slicing", "compile"): 2.0,
        ("zero-tprune", "eager"): 5.0, ("zero-tprune", "compile"): 3.0,
    }  # fmt: skip
    speeds = [case(name, mode) for name, mode in seconds]  # type: ignore[arg-type]
    for speed in speeds:
        speed.seconds = Timings([seconds[speed.name, speed.mode]])
    group = Group(speeds)
    assert group.base == "compile"
    assert [group.speedup(speed) for speed in speeds] == [0.75, 1.0, 1.5, 3.0, 1.2, 2.0]
    of_limit = [group.of_limit(speed) for speed in speeds]
    assert of_limit == pytest.approx([0.5, 1 / 3, 1.0, 1.0, 0.8, 2 / 3])
    row = records.speed_row(speeds[-1], group)
    assert (row["speedup"], row["of_limit"]) == (2.0, 0.6667)
    assert (row["latency_ms"], row["images_per_second"]) == (3000.0, 1.3)
    eager = Group(speeds[::2])
    assert eager.base == "eager"
    assert eager.speedup(speeds[4]) == pytest.approx(1.6)


def test_where_the_compiled_model_failed_there_is_no_speedup_over_another() -> None:
    speeds = [case("unpruned"), case("unpruned", "compile"), case("zero-tprune")]
    speeds[0].seconds, speeds[2].seconds = Timings([2.0]), Timings([1.0])
    speeds[1].failure = "out of memory"
    assert Group(speeds).speedup(speeds[2]) is None
    assert records.speed_row(speeds[2], Group(speeds))["speedup"] == ""
    failed = records.speed_row(speeds[1], Group(speeds))
    assert failed["failure"] == "out of memory"
    assert "images_per_second" not in failed


def test_a_case_that_fails_in_its_turn_is_out_and_the_others_go_on() -> None:
    good, bad = case("good"), case("bad")
    turns = iter([None, None, torch.OutOfMemoryError("CUDA out of memory. Tried to …")])

    def fail() -> str:
        if (error := next(turns)) is not None:
            raise error
        return "bad"

    clock = Clock({"good": [1.0] * 4, "bad": [1.0] * 4})
    assert take_turns([named(good), (bad, fail)], 3, clock)
    assert good.seconds == [1.0] * 3
    assert (bad.failure, bad.seconds) == ("out of memory", [])


def test_ctrl_c_keeps_whole_rounds_alone() -> None:
    first, second = case("first"), case("second")
    calls = iter(range(100))

    def interrupted() -> str:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return "second"

    clock = Clock({"first": [1.0] * 9, "second": [1.0] * 9})
    assert not take_turns([named(first), (second, interrupted)], 5, clock)
    assert len(first.seconds) == len(second.seconds) == 2


def test_ctrl_c_before_the_first_round_is_over_is_passed_on() -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_turns([(case("x"), interrupted)], 5, Clock({}))


def test_a_sweep_stopped_by_ctrl_c_gives_the_groups_that_are_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build("deit")

    def cut(warm: object, rounds: int, clock: object) -> bool:
        if any(speed.batch == 2 for speed, _ in warm):  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(bench, "take_turns", cut)
    setup = Setup(modes=("eager",), rounds=1)
    entered = [Entrant(Contender("unpruned"), 1.0)]
    groups = list(bench.sweep(model, entered, ["float32"], [1, 2, 3], setup))
    assert [group.speeds[0].batch for group in groups] == [1]
    with pytest.raises(KeyboardInterrupt):
        list(bench.sweep(model, entered, ["float32"], [2, 1], setup))


def test_every_case_runs_its_own_model_on_the_same_weights() -> None:
    """Compare with models pruned one by one; the model itself stays unpruned."""
    model: Any = build("deit")
    images = bench.noise(model, 3, "cpu", torch.float32)
    entered = bench.entrants(model, SCHEDULE, ["zero-tprune", "tome"], images)
    assert [entrant.contender.name for entrant in entered] == [
        "unpruned", "slicing", "zero-tprune", "tome"
    ]  # fmt: skip
    outputs: list[Any] = []

    def clock(call: Call, repeat: int) -> float:
        outputs.append(call())
        return 1.0

    setup = Setup(modes=("eager",), rounds=1)
    group = bench.measure(model, entered, "float32", 3, setup, clock)
    assert [speed.seconds for speed in group.speeds] == [[1.0]] * 4
    assert all("forward" not in block.__dict__ for block in model.blocks)
    for entrant, actual in zip(entered, outputs[:4], strict=True):
        ztp.prune_(model, entrant.contender.schedule)
        with torch.inference_mode():
            torch.testing.assert_close(actual, model(images))
    ztp.restore_(model)
    copied = sharing_copy(model)
    for weight, other in zip(model.parameters(), copied.parameters(), strict=True):
        assert weight is other


def counts(schedule: ztp.Schedule) -> list[int]:
    """Return the tokens in every block of the built-in model."""
    from zerotprune.data import demo

    loads, _ = Plan(schedule, backbone(demo.untrained()).geometry).loads()
    return [load.attention for load in loads]


def test_the_limit_of_a_merging_method_keeps_as_many_tokens() -> None:
    from zerotprune.data import demo

    model = demo.untrained()
    schedule = ztp.schedule_for(model, cost=0.6, method="tome")
    limit = bench.limit_of(schedule, backbone(model).geometry)
    assert counts(limit) == counts(schedule)
    assert limit.method == ztp.methods.Slicing()


def test_all_contenders_cost_the_same_and_slicing_keeps_as_many_tokens() -> None:
    from zerotprune.data import demo

    model = demo.model()
    schedule = ztp.schedule_for(model, cost=0.7)
    names = ["fold", "zero-tprune", "tome", "ats", "fold"]
    entered = bench.entrants(model, schedule, names, demo.images(8, seed=3)[0])
    by_name = {entrant.contender.name: entrant for entrant in entered}
    assert list(by_name) == ["unpruned", "slicing", "fold", "zero-tprune", "tome", "ats"]
    ours = by_name["fold"]
    assert ours.gmacs == pytest.approx(0.7 * by_name["unpruned"].gmacs, rel=0.01)
    for name in ("zero-tprune", "tome", "ats"):
        assert by_name[name].gmacs == pytest.approx(ours.gmacs, rel=0.01)
    assert ours.contender.schedule == schedule
    assert counts(by_name["slicing"].contender.schedule) == counts(schedule)
    # Fold leaves tokens out before the MLP, slicing after it: what runs is before it for both.
    needed = [
        ztp.gmacs(model, entrant.contender.schedule, compute="needed")
        for entrant in (by_name["slicing"], ours)
    ]
    assert needed[0] < needed[1]
    at_the_end = by_name["zero-tprune"].contender.schedule
    limit = bench.limit_of(at_the_end, backbone(model).geometry)
    assert counts(limit) == counts(at_the_end)
    assert ztp.gmacs(model, limit) < ztp.gmacs(model, at_the_end)


def test_a_method_that_cannot_meet_the_budget_is_reported_in_every_mode() -> None:
    model = build("siglip, no cls")
    images = bench.noise(model, 2, "cpu", torch.float32)
    entered = bench.entrants(model, SCHEDULE, ["zero-tprune", "ats"], images)
    assert "no CLS token" in entered[-1].failure
    setup = Setup(modes=("eager",), rounds=1)
    group = bench.measure(model, entered, "float32", 2, setup, lambda call, repeat: 1.0)
    failed = [speed for speed in group.speeds if speed.failure]
    assert [speed.name for speed in failed] == ["ats"]
    assert not failed[0].seconds


def test_noise_is_the_same_every_time_and_never_flat() -> None:
    model = build("deit")
    first = bench.noise(model, 2, "cpu", torch.float32)
    assert torch.equal(first, bench.noise(model, 2, "cpu", torch.float32))
    assert first.shape[0] == 2
    assert first.std() > 0.9


COMPILED = """
import torch
from tests.families import SMALL, build
import zerotprune as ztp
from zerotprune.measure.accuracy import Contender
from zerotprune.measure import speed as bench
from zerotprune.methods import TopK

SMALL["depth"] = 3
model = build("deit")
schedule = ztp.Schedule((ztp.Stage(1, 1.0, 4, 2), ztp.Stage(2, 0.6, 0, 2)))

class Breaks(TopK):
    def reduce(self, seen, stage):
        torch._dynamo.graph_break()
        return super().reduce(seen, stage)

images = bench.noise(model, 2, "cpu", torch.float32)
entered = bench.entrants(model, schedule, ["zero-tprune", "tome"], images)
entered.append(bench.Entrant(Contender("breaks", schedule.by(Breaks("cls"))), 1.0))
# More graphs of one forward than the compiler's own limit:
torch._dynamo.config.recompile_limit = 2
quick = ztp.Schedule(schedule.stages[1:], "slicing")
entered += [bench.Entrant(Contender(f"again {n}", quick), 1.0) for n in range(2)]
setup = bench.Setup(rounds=1, compiler="eager")
for group in bench.sweep(model, entered, ["float32"], [2], setup):
    for speed in group.speeds:
        print(speed.batch, speed.name, speed.mode, len(speed.seconds), speed.failure, sep="|")
"""


def test_compiled_cases_and_one_that_does_not_compile_as_one_graph() -> None:
    """Run in a separate process: run-time type checks would break the graph."""
    rows = [line.split("|") for line in run_script(COMPILED)]
    assert len(rows) == 2 * 7
    for _, name, mode, samples, failure in rows:
        broken = (name, mode) == ("breaks", "compile")
        assert (samples, bool(failure)) == (("0", True) if broken else ("1", False)), failure


def test_the_figure_has_a_panel_for_each_mode_and_a_dashed_limit() -> None:
    paces = [
        Pace(name, mode, "float32", batch, speed * batch)
        for mode in ("eager", "compile")
        for name, speed in (("unpruned", 1.0), ("slicing", 1.5), ("zero-tprune", 1.3))
        for batch in (8, 1)
    ]
    figure = speed_figure(paces, "slicing", "the compiled model", "a title")
    assert [axis.get_title() for axis in figure.axes] == ["eager, float32", "compile, float32"]
    lines: dict[Any, Any] = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert lines["limit (slicing)"].get_linestyle() == "--"
    assert list(lines["zero-tprune"].get_xdata()) == [1, 8]
    assert list(lines["zero-tprune"].get_ydata()) == pytest.approx([1.3, 10.4])


def test_the_core_and_the_benchmark_need_neither_cyclopts_nor_rich() -> None:
    from tests.cli.test_light import BLOCKED, python

    code = BLOCKED.format(names=("cyclopts", "rich", "matplotlib"))
    root = str(Path(__file__).parents[2])
    code += f"sys.path.insert(0, {root!r}); from benchmarks.speed import speedup; "
    code += "print(speedup.SECTIONS)"
    assert "deit-s" in python(code)
