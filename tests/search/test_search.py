"""The search: on the budget by construction, exact in its trials, honest in its choice."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState
from rich.console import Console
from safetensors.torch import save_file
from sqlalchemy import event
from sqlalchemy.pool import NullPool
from torch import Tensor
from zerotprune.budgets.latency import Timed, budget_for

from tests import commands
from tests.cli.test_evaluate import _save
from tests.commands import quickly
from tests.families import FAMILIES, build, pictures, plain_geometry
from zerotprune import Schedule, Stage, prune_, restore_
from zerotprune.backbones import backbone
from zerotprune.budgets.surface import MOST_STAGES, Surface
from zerotprune.cli.choices import remarks, table_of
from zerotprune.cli.search import search as search_command
from zerotprune.cli.search_options import Budget, SearchSubject
from zerotprune.data import demo
from zerotprune.methods import TopK, ZeroTPrune
from zerotprune.plan import Plan
from zerotprune.plots.search import search_figure
from zerotprune.search import liveness
from zerotprune.search import study as module
from zerotprune.search.choice import Judged, choose, expected_curse, finalists, front, thinned
from zerotprune.search.halves import split
from zerotprune.search.interrupts import deferred
from zerotprune.search.objective import Objective, Outcome, Stack
from zerotprune.search.space import draw, propose, space_of, wishes
from zerotprune.search.storage import Place, begin, open_study
from zerotprune.search.study import Finished, Order, Sampler, finished, tally, work

GEOMETRIES = {
    "deit-ti": plain_geometry(12, 14, 1, 192),
    "deep": plain_geometry(24, 16, 5, 384),
    "small grid": plain_geometry(12, 7, 1, 96),
    "shallow": plain_geometry(4, 6, 0, 48),
    "two blocks": plain_geometry(2, 14, 1, 64),
}
SURFACES = {name: Surface(geometry, ZeroTPrune()) for name, geometry in GEOMETRIES.items()}


def drawn(data: st.DataObject, surface: Surface, budget: float | None) -> dict[str, Any]:
    """Choices that hypothesis makes."""

    def strategy(of: Any) -> st.SearchStrategy[Any]:
        if isinstance(of, CategoricalDistribution):
            return st.sampled_from(of.choices)
        return (st.integers if isinstance(of, IntDistribution) else st.floats)(of.low, of.high)

    space = space_of(surface, budget)
    return {name: data.draw(strategy(of), label=name) for name, of in space.items()}


def by_chance(seed: int, surface: Surface, budget: float) -> dict[str, Any]:
    study = optuna.create_study()
    sampler = optuna.samplers.RandomSampler(seed=seed)
    trial = optuna.trial.create_trial(value=0.0)
    return dict(draw(study, sampler, trial, space_of(surface, budget)))


# --- the budget surface


@given(st.data(), st.sampled_from(sorted(SURFACES)), st.floats(0, 1))
@settings(max_examples=150)
def test_every_sample_is_valid_and_costs_the_budget(
    data: st.DataObject, name: str, level: float
) -> None:
    surface = SURFACES[name]
    budget = surface.lowest + level * (surface.unpruned - surface.lowest)
    schedule = propose(drawn(data, surface, budget), surface, budget)
    Plan(schedule, surface.method, surface.geometry).check()
    assert len(schedule.stages) <= MOST_STAGES
    assert surface.price(schedule) == pytest.approx(budget, rel=0.01)
    assert Schedule.from_json(schedule.to_json()) == schedule


@given(st.data())
def test_wishes_are_distinct_blocks_in_order(data: st.DataObject) -> None:
    surface = SURFACES["small grid"]
    found = wishes(drawn(data, surface, None), surface.geometry.depth)
    blocks = [wish.block for wish in found]
    assert 1 <= len(blocks) <= MOST_STAGES
    assert all(first < second for first, second in pairwise(blocks))
    assert blocks[0] >= 1
    assert blocks[-1] <= 11


def test_random_samples_differ_and_reach_every_block() -> None:
    surface, seen = SURFACES["deit-ti"], set()
    schedules, budget = set(), 0.7 * surface.unpruned
    for seed in range(60):
        schedule = propose(by_chance(seed, surface, budget), surface, budget)
        schedules.add(schedule)
        seen |= {stage.block for stage in schedule.stages}
    assert len(schedules) > 50
    assert seen == set(range(1, 12))


def test_a_budget_out_of_reach_is_refused_with_the_range() -> None:
    surface = SURFACES["deit-ti"]
    for budget in (0.5 * surface.lowest, 1.01 * surface.unpruned):
        with pytest.raises(ValueError, match=f"{surface.unpruned:.4g} unpruned and"):
            surface.check(budget)


# --- pictures in memory, the shared way through the first blocks


def stack_of(model: Any, labels: bool = True, batch: int = 2) -> Stack:
    images = pictures(model, 3)
    marks = list(torch.arange(3).split(batch)) if labels else None
    return Stack(list(images.split(batch)), marks)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_from_the_middle_is_the_whole_model_bit_for_bit(family: str) -> None:
    model = build(family)
    stack, depth = stack_of(model), len(model.blocks)  # type: ignore[arg-type]
    objective = Objective(model, ZeroTPrune(start="uniform"), stack, memory=1e9)
    assert objective.cached_blocks == (0 if backbone(model).tail() is None else depth - 1)
    for block in (1, 2, depth - 1):
        schedule = Schedule((Stage(block, 0.5, 3),))
        found = torch.cat(objective.outputs(schedule))
        prune_(model, schedule, ZeroTPrune(start="uniform"))
        with torch.inference_mode():
            whole = torch.cat([model(images) for images in stack.images])
        assert torch.equal(found, whole)


def test_trials_run_without_attention_that_plans() -> None:
    model: Any = build("deit")
    seen = []
    model.blocks[-1].register_forward_pre_hook(
        lambda *_: seen.append(torch.backends.cuda.cudnn_sdp_enabled())
    )
    before = torch.backends.cuda.cudnn_sdp_enabled()
    objective = Objective(model, ZeroTPrune(), stack_of(model), memory=1e9)
    objective(Schedule((Stage(1, 0.5),)))
    assert seen
    assert not any(seen)
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_plain_families_are_entered_in_the_middle_and_rotary_ones_are_not() -> None:
    assert backbone(build("deit")).tail() is not None
    assert backbone(build("deit distilled")).tail() is not None
    assert backbone(build("eva-02, rotary")).tail() is None
    assert backbone(build("beit, relative bias")).tail() is None


def test_memory_bounds_what_is_kept() -> None:
    model = build("deit")
    stack, geometry = stack_of(model), backbone(model).geometry
    each = len(stack) * geometry.tokens * geometry.dim * 4
    schedule = Schedule((Stage(4, 0.5, 3),))
    found = []
    for blocks in (0, 2, 4):
        objective = Objective(model, ZeroTPrune(), stack, memory=(blocks + 0.5) * each)
        assert objective.cached_blocks == blocks
        found.append(torch.cat(objective.outputs(schedule)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_method_that_remembers_all_blocks_is_run_from_the_first() -> None:
    model, method = build("deit"), TopK("accumulated")
    stack, schedule = stack_of(model), Schedule((Stage(4, 0.5),))
    found = torch.cat(Objective(model, method, stack, memory=1e9).outputs(schedule))
    prune_(model, schedule, method)
    with torch.inference_mode():
        assert torch.equal(found, torch.cat([model(images) for images in stack.images]))


def test_a_model_without_a_head_is_read_by_its_neighbours() -> None:
    """KL and nearest neighbours among the other pictures, by NumPy."""
    model: Any = build("deit")
    model.reset_classifier(0)
    images = pictures(model, 5)
    stack = Stack(list(images.split(2)), list(torch.tensor([0, 1, 0, 1, 1]).split(2)))
    objective = Objective(model, ZeroTPrune(), stack, memory=1e9)
    schedule = Schedule((Stage(1, 0.3, 5),))
    outcome = objective(schedule)

    def unit(features: Tensor) -> Any:
        values = features.double().numpy()
        return values / np.linalg.norm(values, axis=1, keepdims=True)

    with torch.inference_mode():
        held = unit(restore_(model)(images))
        pruned = unit(prune_(model, schedule)(images))
    others = ~np.eye(5, dtype=bool)

    def shares(vectors: Any) -> Any:
        powers = np.where(others, np.exp(vectors @ held.T / 0.07), 0.0)
        return powers / powers.sum(axis=1, keepdims=True)

    wanted, came = shares(held), shares(pruned)
    ratio = np.where(others, wanted, 1) / np.where(others, came, 1)
    kl = (wanted * np.log(ratio)).sum(axis=1)
    np.testing.assert_allclose(outcome.kl.numpy(), kl, rtol=1e-3, atol=1e-5)
    assert outcome.same.tolist() == (wanted.argmax(1) == came.argmax(1)).tolist()
    labels = np.array([0, 1, 0, 1, 1])
    assert outcome.hits is not None
    assert outcome.hits.tolist() == (labels[came.argmax(1)] == labels).tolist()
    assert objective.unpruned().mean_kl == 0


def test_the_measures_against_numpy() -> None:
    model = build("deit")
    stack = stack_of(model)
    objective = Objective(model, ZeroTPrune(), stack, memory=1e9)
    schedule = Schedule((Stage(1, 0.3, 5),))
    outcome = objective(schedule)

    def softmax(logits: Tensor) -> Any:
        values = logits.double().numpy()
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    pruned = softmax(torch.cat(objective.outputs(schedule)))
    restore_(model)
    with torch.inference_mode():
        plain = softmax(torch.cat([model(images) for images in stack.images]))
    wanted = (plain * (np.log(plain) - np.log(pruned))).sum(axis=1)
    np.testing.assert_allclose(outcome.kl.numpy(), wanted, rtol=1e-3, atol=1e-6)
    assert outcome.mean_kl == pytest.approx(wanted.mean(), rel=1e-3)
    same = plain.argmax(axis=1) == pruned.argmax(axis=1)
    assert outcome.same.tolist() == same.tolist()
    assert outcome.hits is not None
    assert outcome.hits.tolist() == (pruned.argmax(axis=1) == np.arange(3)).tolist()
    plain_outcome = objective.unpruned()
    assert plain_outcome.mean_kl == 0
    assert plain_outcome.agreement == 100


# --- two halves and the choice


@given(st.lists(st.integers(0, 5), min_size=2, max_size=40), st.integers(0, 3))
def test_halves_share_every_class(labels: list[int], seed: int) -> None:
    first, second = split(labels, len(labels), seed)
    assert sorted(first + second) == list(range(len(labels)))
    assert 0 <= len(first) - len(second) <= 1
    for kind in set(labels):
        counts = [sum(labels[at] == kind for at in half) for half in (first, second)]
        assert abs(counts[0] - counts[1]) <= 1
    assert split(labels, len(labels), seed) == (first, second)


def test_halves_depend_on_the_seed_and_need_two_pictures() -> None:
    assert split(None, 40, 0) != split(None, 40, 1)
    with pytest.raises(ValueError, match="two pictures"):
        split(None, 1, 0)


def test_the_curse_of_equals_is_that_of_the_best_of_many_draws() -> None:
    """Candidates that are equally good: the best of k looks better by the expected largest of k
    normal draws, which is 1.4236 standard errors for 8."""
    dice = torch.Generator().manual_seed(0)
    table = torch.randn(8, 4000, generator=dice, dtype=torch.float64)
    table -= table.mean(dim=1, keepdim=True)
    wanted = 1.4236 / 4000**0.5
    assert expected_curse(table, table) == pytest.approx(wanted, rel=0.05)
    assert expected_curse(table[:1], table[:1]) == pytest.approx(0, abs=0.1 * wanted)


def a_judged(name: str, cut: int, first: float, second: float) -> Judged:
    def outcome(kl: float) -> Outcome:
        return Outcome(torch.full((4,), kl), torch.ones(4).bool(), None)

    schedule = Schedule((Stage(1, 1.0, cut),) if cut else ())
    return Judged(name, schedule, 1.0, outcome(first), outcome(second))


def test_the_widest_table_is_whole_in_80_columns() -> None:
    def outcome(hits: int) -> Outcome:
        right = torch.arange(20) < hits
        return Outcome(torch.full((20,), 0.05), right, right)

    def row(name: str, first: int, second: int) -> Judged:
        return Judged(name, Schedule(), 1.0, outcome(first), outcome(second))

    unpruned, default = row("unpruned", 20, 20), row("paper's form", 10, 10)
    trials = [row("trial 1234", 13, 6), row("trial 1999", 11, 12)]
    choice = choose("top1", unpruned, default, trials)
    console = Console(width=80, file=io.StringIO(), highlight=False)
    console.print(table_of("title", "top1", unpruned, default, trials, choice.chosen))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("→ trial 1999", "same %", "100.0", "65.0 ± 10.9", "-70.0 ± 10.5", "-20.0 ± 9.2"):
        assert text in shown
    assert (
        remarks(choice, 2000)[-1] == "20 pictures do not tell the chosen one from the paper's form."
    )


@pytest.mark.parametrize(
    ("of_default", "chosen"),
    [(0.3, "default"), (0.4, "default"), (0.5, "second"), (None, "second")],
)
def test_the_default_stays_where_nothing_better_is_found(
    of_default: float | None, chosen: str
) -> None:
    unpruned = a_judged("unpruned", 0, 0.0, 0.0)
    default = None if of_default is None else a_judged("default", 9, 0.25, of_default)
    candidates = [a_judged("first", 1, 0.1, 0.6), a_judged("second", 2, 0.2, 0.4)]
    found = choose("kl", unpruned, default, candidates)
    assert found.chosen.name == chosen
    assert found.curse.first == pytest.approx(0.35)  # of those ranked on the first half
    trials = [Finished(at, each.schedule, 1.0, None, each.first.mean_kl, 100.0)
              for at, each in enumerate(candidates)]  # fmt: skip
    drawn = search_figure(trials, "kl", candidates, found.chosen, [unpruned], "title")
    star: Any = next(
        line for line in drawn.axes[0].lines if line.get_label() == "chosen, second half"
    )
    where = {"default": 3, "second": 2}[chosen]
    assert star.get_xdata()[0] == where
    assert star.get_ydata()[0] == pytest.approx(found.chosen.second.mean_kl)


def trial(number: int, gmacs: float, top1: float, kl: float = 0.0) -> Finished:
    return Finished(number, Schedule((Stage(1, gmacs / 10),)), gmacs, top1, kl, 0.0)


def test_finalists_are_distinct_and_the_front_is_undominated() -> None:
    found = [trial(0, 1, 70), trial(1, 2, 80, 0.2), trial(2, 2, 80, 0.1), trial(3, 3, 75),
             trial(4, 4, 90)]  # fmt: skip
    assert [each.number for each in finalists(found, "top1", 3)] == [4, 2, 3]
    assert [each.number for each in front(found, "top1")] == [0, 2, 4]
    assert [each.number for each in thinned(found, 3)] == [0, 2, 4]
    assert [each.number for each in thinned(found, 9)] == [0, 1, 2, 3, 4]


# --- a budget in time


def test_a_budget_in_time_is_met_where_time_follows_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    from zerotprune.budgets import latency

    model = build("deit")
    surface = Surface(backbone(model).geometry, ZeroTPrune())

    def fake(model: object, schedule: Schedule, *others: object) -> Timed:
        return Timed(100.0, 20 + 80 * surface.price(schedule) / surface.unpruned)

    monkeypatch.setattr(latency, "measure", fake)
    images = torch.zeros(4, 3, 96, 96)
    found, timed = budget_for(model, ZeroTPrune(), images, speedup=1.25)
    assert timed.speedup >= 1.25
    assert found / surface.unpruned == pytest.approx(0.75, abs=0.03)
    found, timed = budget_for(model, ZeroTPrune(), images, latency_ms=70)
    assert timed.pruned <= 70
    assert found / surface.unpruned == pytest.approx(50 / 80, abs=0.03)
    with pytest.raises(ValueError, match=r"9 times the speed at batch 4 cannot be reached.*100 ms"):
        budget_for(model, ZeroTPrune(), images, speedup=9)
    with pytest.raises(ValueError, match="needs no pruning"):
        budget_for(model, ZeroTPrune(), images, latency_ms=200)


# --- trials: exact, whoever dies


Opener = Callable[..., optuna.Study]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    """Opens studies in files, and closes them afterwards."""
    made: list[optuna.Study] = []

    def make(order: Order, name: str = "x.db", **who: str) -> optuna.Study:
        place = Place(str(tmp_path / name))
        made.append(open_study(place, who or {"a": "b"}, order.directions))
        return made[-1]

    yield make
    for study in made:
        study._storage._backend.engine.dispose()  # type: ignore[attr-defined]


def easy_outcome(schedule: Schedule) -> Outcome:
    hits = torch.arange(10) < len(schedule.stages)
    return Outcome(torch.ones(10), hits, hits)


def test_a_seed_makes_the_same_trials_and_resuming_repeats_none(opened: Opener) -> None:
    surface = SURFACES["small grid"]

    def run(name: str, *totals: int) -> list[Finished]:
        for total in totals:
            order = Order(total, 0.7 * surface.unpruned, "top1", seed=3)
            study = opened(order, name)
            work(study, order, surface, easy_outcome)  # type: ignore[arg-type]
        return finished(study)

    whole, parts = run("whole.db", 8), run("parts.db", 3, 8)
    assert whole == parts
    assert len({each.schedule for each in whole}) == 8


@pytest.mark.parametrize("budget", [0.7, None])
def test_what_optuna_reads_of_a_trial_makes_its_schedule(
    opened: Opener, tmp_path: Path, budget: float | None
) -> None:
    surface = SURFACES["small grid"]
    price = None if budget is None else budget * surface.unpruned
    order = Order(5, price, "kl")

    def overflowing(schedule: Schedule) -> Outcome:
        kl = torch.inf if len(schedule.stages) > 3 else len(schedule.stages) / 7
        return Outcome(torch.full((3,), kl), torch.ones(3).bool(), None)

    study = opened(order)
    work(study, order, surface, overflowing)  # type: ignore[arg-type]
    read = trials_in(tmp_path / "x.db")
    assert all(trial.distributions == space_of(surface, price) for trial in read)
    for trial, found in zip(read, finished(study), strict=True):
        assert trial.state == TrialState.COMPLETE
        assert propose(trial.params, surface, price) == found.schedule
        wanted = overflowing(found.schedule).mean_kl
        assert trial.values == ([wanted] if budget else [wanted, found.gmacs])
    assert torch.inf in {trial.values[0] for trial in read}


def test_tpe_learns_from_the_trials_before(opened: Opener) -> None:
    """One stage is the best here, and six are the worst."""
    surface = SURFACES["small grid"]
    means = {}
    samplers: tuple[Sampler, ...] = ("random", "tpe")
    for sampler in samplers:
        order = Order(60, 0.7 * surface.unpruned, "kl", sampler)
        study = opened(order, f"{sampler}.db")
        work(study, order, surface, lambda schedule: Outcome(  # type: ignore[arg-type]
            torch.full((2,), float(len(schedule.stages))), torch.ones(2).bool(), None))  # fmt: skip
        means[sampler] = np.mean([each.kl for each in finished(study)[30:]])
    assert means["tpe"] < 0.6 * means["random"]


def test_trials_of_dead_workers_are_replaced_and_late_results_dropped(opened: Opener) -> None:
    surface = SURFACES["small grid"]
    order = Order(4, 0.7 * surface.unpruned, "top1")
    study = opened(order)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    calls = []

    def objective(schedule: Schedule) -> Outcome:
        calls.append(schedule)
        if len(calls) == 2:  # somebody takes us for dead while we work
            [running] = study.get_trials(states=(TrialState.RUNNING,))
            study._storage.set_trial_state_values(running._trial_id, TrialState.FAIL)
        return easy_outcome(schedule)

    template = module._template()
    template.user_attrs["process"] = gone.pid
    study._storage.create_new_trial(study._study_id, template)
    work(study, order, surface, objective)  # type: ignore[arg-type]
    states = [each.state for each in study.get_trials()]
    assert states.count(TrialState.COMPLETE) == 4
    assert states.count(TrialState.FAIL) == 2
    assert states[0] == TrialState.FAIL
    assert states.count(TrialState.RUNNING) == 0


def claimed_elsewhere(study: optuna.Study, **told: object) -> int:
    """A trial of a worker on another machine, of which nothing more is heard."""
    trial = module._template()
    trial.user_attrs |= {"host": "elsewhere", **told}
    return begin(study, trial)._trial_id


def test_silent_workers_elsewhere_are_given_up_after_a_while(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface = SURFACES["small grid"]
    order = Order(2, 0.7 * surface.unpruned, "top1")
    study = opened(order)
    claimed_elsewhere(study)
    monkeypatch.setattr(liveness, "_GRACE", 0.5)
    started = time.monotonic()
    work(study, order, surface, easy_outcome)  # type: ignore[arg-type]
    assert time.monotonic() - started > 0.5
    assert len(finished(study)) == 2


def test_of_two_that_claim_the_last_trial_the_second_gives_way(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface = SURFACES["small grid"]
    order = Order(1, 0.7 * surface.unpruned, "top1")
    study = opened(order)
    calls = list[optuna.trial.FrozenTrial]()

    def beaten(study: optuna.Study, template: optuna.trial.FrozenTrial) -> optuna.trial.FrozenTrial:
        """Another, who then falls silent, has claimed one since we looked."""
        if not calls:
            claimed_elsewhere(study)
        calls.append(begin(study, template))
        return calls[-1]

    monkeypatch.setattr(module, "begin", beaten)
    monkeypatch.setattr(liveness, "_GRACE", 0.5)
    work(study, order, surface, easy_outcome)  # type: ignore[arg-type]
    found = [each.state for each in study.get_trials()]
    assert found == [TrialState.FAIL, TrialState.FAIL, TrialState.COMPLETE]


def test_a_worker_that_finishes_while_it_is_taken_for_gone_counts(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface = SURFACES["small grid"]
    order = Order(4, 0.7 * surface.unpruned, "top1")
    study = opened(order)
    work(study, replace(order, trials=3), surface, easy_outcome)  # type: ignore[arg-type]
    number = claimed_elsewhere(study, found=study.get_trials()[0].user_attrs["found"])
    fail = module._fail

    def too_late(study: optuna.Study, trial: int) -> None:
        if trial == number:
            study._storage.set_trial_state_values(number, TrialState.COMPLETE, [1.0])
        fail(study, trial)

    monkeypatch.setattr(module, "_fail", too_late)
    monkeypatch.setattr(liveness, "_GRACE", 0.3)
    work(study, order, surface, easy_outcome)  # type: ignore[arg-type]
    assert [trial.state for trial in study.get_trials()] == [TrialState.COMPLETE] * 4


def interrupting(study: optuna.Study, moment: str) -> tuple[list[int], list[int]]:
    """Counts the transactions; the one that is due gets Ctrl-C in its middle."""
    moments, due = list[int](), [0]

    def interrupt(connection: object) -> None:
        moments.append(len(moments))
        if len(moments) == due[0]:
            os.kill(os.getpid(), signal.SIGINT)

    event.listen(study._storage._backend.engine, moment, interrupt)  # type: ignore[attr-defined]
    return moments, due


@pytest.mark.parametrize(
    ("moment", "sampler"),
    [("begin", "random"), ("commit", "random"), ("commit", "tpe"), ("commit", "nsga2")],
)
def test_an_interrupt_never_breaks_a_transaction(
    opened: Opener, moment: str, sampler: Sampler
) -> None:
    """Ctrl-C in the middle of every transaction of a search, one after the other."""
    surface = SURFACES["small grid"]
    order = Order(80, None if sampler == "nsga2" else 0.7 * surface.unpruned, "top1", sampler)
    study = opened(order)
    moments, due = interrupting(study, moment)
    for step in range(1, 18):  # more than a trial has
        due[0] = len(moments) + step
        with pytest.raises(KeyboardInterrupt):
            work(study, order, surface, easy_outcome)  # type: ignore[arg-type]
        assert TrialState.RUNNING not in {trial.state for trial in study.get_trials()}
    due[0] = 0
    work(study, order, surface, easy_outcome)  # type: ignore[arg-type]
    assert len(finished(study)) == 80


def test_an_interrupt_while_trials_are_counted_leaves_no_lock(
    opened: Opener, tmp_path: Path
) -> None:
    order = Order(2, 0.3, "top1")
    study = opened(order)
    _, due = interrupting(study, "commit")
    due[0] = 1
    with pytest.raises(KeyboardInterrupt):
        tally(study, order)
    with closing(sqlite3.connect(tmp_path / "x.db", timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")


def test_an_interrupt_waits_where_it_is_deferred() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with deferred():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("went on")
        steps.append("never here")
    assert steps == ["went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_is_not_lost_to_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), deferred():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2"])
def test_samplers_on_the_smallest_model(opened: Opener, sampler: Sampler) -> None:
    """There is one place for a stage, and no choice of how many."""
    surface = SURFACES["two blocks"]
    order = Order(16, None if sampler == "nsga2" else 0.7 * surface.unpruned, "kl", sampler)
    study = opened(order)
    work(study, order, surface, easy_outcome)  # type: ignore[arg-type]
    assert {len(each.schedule.stages) for each in finished(study)} <= {0, 1}
    assert len(finished(study)) == 16


def test_an_error_in_a_trial_fails_it_and_is_raised(opened: Opener) -> None:
    surface = SURFACES["small grid"]
    order = Order(2, 0.7 * surface.unpruned, "top1")
    study = opened(order)
    for error in (ValueError("mine"), KeyboardInterrupt()):

        def broken(schedule: Schedule, error: BaseException = error) -> Outcome:
            raise error

        with pytest.raises(type(error)):
            work(study, order, surface, broken)  # type: ignore[arg-type]
    assert {each.state for each in study.get_trials()} == {TrialState.FAIL}


# --- the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the demo's pictures for each of its ten classes."""
    root = tmp_path_factory.mktemp("data") / "digits"
    images, labels = demo.pictures(80, seed=8)
    for number in range(10):
        (root / str(number)).mkdir(parents=True)
        for at in (labels == number).nonzero()[:2, 0].tolist():
            _save(images[at], root / str(number) / f"{at:03d}.png")
    return root


def command(*arguments: str) -> list[str]:
    named = () if "--model" in arguments else ("--model", "demo")
    return commands.command("search", *named, *arguments)


def search(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, cwd=cwd, timeout=120)


def trials_in(where: Path | str) -> list[optuna.trial.FrozenTrial]:
    """As Optuna itself reads them, without our help."""
    url = where if isinstance(where, str) else f"sqlite:///{where}"
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
    return optuna.load_study(study_name="search", storage=storage).get_trials()


def states(where: Path | str) -> list[TrialState]:
    return [each.state for each in trials_in(where)]


def test_search_writes_a_schedule_a_figure_and_rows(folder: Path, tmp_path: Path) -> None:
    common = ("--data", str(folder), "--keep", "0.4", "--finalists", "3", "--figure", "found.png",
              "--csv", "rows.csv")  # fmt: skip
    done = search(*common, "--trials", "5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for text in ("paper's form", "unpruned", "Winner's curse", "2nd half", "chosen: "):
        assert text in done.stdout
    schedule = Schedule.load(tmp_path / "schedule.json")
    surface = Surface(backbone(demo.untrained()).geometry, ZeroTPrune())
    assert surface.price(schedule) == pytest.approx(0.4 * surface.unpruned, rel=0.005)
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "rows.csv").read_text().count("\n") == 4
    held = {path.name for path in tmp_path.iterdir()}
    assert held == {"schedule.json", "schedule.trials.db", "found.png", "rows.csv"}
    assert states(tmp_path / "schedule.trials.db") == [TrialState.COMPLETE] * 5
    again = quickly("search", "--model", "demo", *common, "--trials", "5", "--sampler", "tpe",
                    cwd=tmp_path)  # fmt: skip
    assert "5 trials of 5 are there already, begun by --sampler random" in again.stdout
    with pytest.raises(ValueError, match=r"its budget is --keep 0.4, here it is --keep 0.5;"):
        search_command(
            SearchSubject("demo", str(folder)), Budget(keep=0.5), out=tmp_path / "schedule.json"
        )


def test_without_labels_any_model_and_any_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole front of a model from a file, whose classes have nothing to do with the data."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in sorted(folder.rglob("*.png"))[:6]:
        (flat / path.name).write_bytes(path.read_bytes())
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "own.safetensors")
    subject = SearchSubject("test_vit", str(flat), tmp_path / "own.safetensors", labels=False)
    search_command(subject, sampler="nsga2", trials=6, finalists=2, out=tmp_path / "schedule.json",
                   figure=tmp_path / "front.svg")  # fmt: skip
    assert "believe the second" in capsys.readouterr().out
    written = list(tmp_path.glob("schedule-*.json"))
    assert 1 <= len(written) <= 2
    assert all(Schedule.load(path) for path in written)


def test_killed_or_stopped_it_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    """Killed in the middle of a trial, then stopped by Ctrl-C, then left to finish."""
    arguments = ("--data", str(folder), "--keep", "0.5", "--finalists", "1", "--trials", "60")
    path, kept = tmp_path / "schedule.trials.db", dict[int, object]()
    for number, blow in ((3, signal.SIGKILL), (6, signal.SIGINT)):
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command(*arguments), cwd=tmp_path, stdout=pipe, stderr=pipe, text=True
        )
        _wait_for_trials(path, number)
        process.send_signal(blow)
        out, error = process.communicate(timeout=60)
        now = _values(path)
        assert number <= len(now) < 60
        assert kept.items() <= now.items()
        kept = now
    assert process.returncode == 130, error
    assert "of 60 trials: the same command" in out.replace("\n", " ")
    assert "Traceback" not in error
    assert Schedule.load(tmp_path / "schedule.json").stages
    assert TrialState.RUNNING not in states(path)
    done = search(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{len(kept)} trials of 60 are there already\n" in done.stdout
    found = _values(path)
    assert kept.items() <= found.items()
    assert len(found) == 60
    assert len(set(map(str, found.values()))) == 60
    assert TrialState.RUNNING not in states(path)


def _wait_for_trials(path: Path, count: int) -> None:
    """By a look into the file that makes nothing in it."""
    for _ in range(600):
        if path.exists():
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as held:
                try:
                    [[found]] = held.execute("SELECT COUNT(*) FROM trials WHERE state='COMPLETE'")
                except sqlite3.OperationalError:
                    found = 0  # the file is there, the table not yet
            if found >= count:
                return
        time.sleep(0.05)
    raise AssertionError("no trials came")


def _values(path: Path) -> dict[int, object]:
    done = [each for each in trials_in(path) if each.state == TrialState.COMPLETE]
    return {each.number: (each.params, each.values) for each in done}


def test_workers_share_one_file_exactly(folder: Path, tmp_path: Path) -> None:
    subject = SearchSubject("demo", str(folder))
    search_command(subject, Budget(keep=0.5), trials=80, finalists=1, workers=2,
                   out=tmp_path / "schedule.json")  # fmt: skip
    assert states(tmp_path / "schedule.trials.db").count(TrialState.COMPLETE) == 80
    found = trials_in(tmp_path / "schedule.trials.db")
    assert len({each.user_attrs["process"] for each in found}) == 2


MISTAKES: list[tuple[tuple[str, ...], str]] = [
    ((), "give one budget"),
    (("--keep", "0.5", "--gmacs", "0.2"), "give one budget"),
    (("--keep", "0.5", "--sampler", "nsga2"), "nsga2 searches all budgets"),
    (("--gmacs", "0.001"), "this model takes 0.3545 unpruned and 0.0"),
    (("--gmacs", "5"), "this model takes 0.3545 unpruned and 0.0"),
    (("--speedup", "0.9"), "--speedup must be above 1"),
    (("--latency-ms", "-1"), "--latency-ms must be a positive number"),
    (("--keep", "0.5", "--trials", "0"), "--trials must be at least 1"),
    (("--keep", "0.5", "--workers", "21"), "too few pictures: 20"),
    (("--keep", "0.5", "--limit", "1"), "too few pictures: 1"),
    (("--keep", "0.5", "--data", "nowhere"), "no data at nowhere"),
    (("--keep", "0.5", "--data", "empty", "--no-labels"), "no pictures in empty"),
    (("--keep", "0.5", "--method", "tome"), "a search is for one of zero-tprune"),
    (("--keep", "0.5", "--out", "no/x.json"), "no folder no"),
    (("--keep", "0.5", "--figure", "x.txt"), "the ending must be one of"),
    (("--keep", "0.5", "--storage", "no/x.db"), "no folder no"),
    (("--keep", "0.5", "--storage", "postgresql+psycopg://u:secret@127.0.0.1:1/x"),
     "cannot keep trials in postgresql+psycopg://u:***@127.0.0.1:1/x"),
    (("--keep", "0.5", "--storage", "nosuch://x"), "cannot keep trials in nosuch://x"),
    (("--keep", "0.5", "--storage", "text"), "cannot keep trials in text"),
]  # fmt: skip


@pytest.mark.parametrize(("extra", "says"), MISTAKES)
def test_mistakes(folder: Path, tmp_path: Path, extra: tuple[str, ...], says: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("not a database, but long enough to be read as one" * 40)
    data = () if "--data" in extra else ("--data", str(folder))
    done = quickly("search", "--model", "demo", *data, *extra, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "text"]


def test_a_search_of_another_model_or_data_is_refused(opened: Opener, tmp_path: Path) -> None:
    order, mine = Order(1, 0.2, "top1"), {"model": "demo", "weights": "a", "data": "b"}
    for _ in range(2):
        opened(order, **mine)
    for name in mine:
        with pytest.raises(ValueError, match=f"its {name} is {mine[name]}, here it is other"):
            opened(order, **{**mine, name: "other"})
    url = f"sqlite:///{tmp_path / 'y.db'}"
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
    foreign = optuna.create_study(storage=storage, study_name="search", direction="maximize")
    foreign.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    with pytest.raises(ValueError, match="that is not of this command"):
        opened(order, "y.db", **mine)


# --- a real server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A PostgreSQL server of our own, as long as the tests need it."""
    import pwd
    import shutil
    import socket

    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = [shutil.which("initdb")] + [str(place / "initdb") for place in places]
    binaries = next((Path(each).parent for each in found if each and Path(each).exists()), None)
    if binaries is None:
        pytest.skip("no PostgreSQL server is installed here (initdb is not to be found)")
    root, user = tmp_path_factory.mktemp("postgres"), None
    if os.geteuid() == 0:  # it refuses to run as root
        try:
            user = pwd.getpwnam("postgres").pw_name
        except KeyError:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
        for parent in (root, *root.parents[:-2]):
            parent.chmod(parent.stat().st_mode | 0o755)
        shutil.chown(root, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(*arguments: str) -> None:
        subprocess.run([str(binaries / arguments[0]), *arguments[1:]], user=user, check=True,
                       cwd=root, stdout=subprocess.DEVNULL, timeout=60)  # fmt: skip

    data = str(root / "data")
    call("initdb", "-D", data, "-U", "tester", "-A", "trust", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c fsync=off -k {root}"
    call("pg_ctl", "-D", data, "-w", "-l", str(root / "log"), "-o", options, "start")
    yield f"postgresql+psycopg://tester@127.0.0.1:{port}/postgres"
    call("pg_ctl", "-D", data, "-m", "immediate", "stop")


def test_many_workers_on_a_real_server_finish_the_exact_number(
    folder: Path, tmp_path: Path, server: str
) -> None:
    """Two commands at once on an empty server, one with two workers; the other is killed."""
    pytest.importorskip("psycopg")
    arguments = ("--data", str(folder), "--keep", "0.5", "--trials", "80", "--finalists", "1",
                 "--storage", server)  # fmt: skip
    runs = [
        subprocess.Popen(command(*arguments, "--out", f"{number}.json", "--workers", workers),
                         cwd=tmp_path, stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE, text=True)
        for number, workers in enumerate(("2", "1"))
    ]  # fmt: skip
    for _ in range(300):
        try:
            if states(server).count(TrialState.COMPLETE) >= 2:
                break
        except (KeyError, optuna.exceptions.OptunaError, RuntimeError):
            pass
        time.sleep(0.1)
    runs[1].kill()
    for run in runs:
        _, error = run.communicate(timeout=120)
        assert run is runs[1] or run.returncode == 0, error
    found = states(server)
    assert found.count(TrialState.COMPLETE) == 80
    assert found.count(TrialState.RUNNING) == 0
    assert json.loads((tmp_path / "0.json").read_text())["stages"]
