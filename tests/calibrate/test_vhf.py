"""The VHF range: the beam on a known optimum, its starts, and when a range is recommended."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import zerotprune as ztp
from zerotprune import Method, Schedule, Stage
from zerotprune.calibrate.vhf import (
    DEFAULT_VHF,
    RangeSearch,
    Verdict,
    beam_search,
    random_starts,
    search_range,
)
from zerotprune.data import demo
from zerotprune.measure.accuracy import Mean
from zerotprune.methods import EViT, ZeroTPrune, to_data


def peak(place: tuple[float, float]) -> float:
    """Score best at (0.05, 3), falling with the distance on a logarithmic scale."""
    low, high = place
    return -(math.log(low / 0.05) ** 2) - math.log(high / 3) ** 2


def test_the_beam_finds_a_known_optimum_within_its_evaluations() -> None:
    trials = beam_search(peak, [DEFAULT_VHF, (0.001, 0.2), (0.4, 0.5)], 200)
    best = max(trials, key=lambda place: trials[place])
    assert best == pytest.approx((0.05, 3), rel=0.1)
    assert len(trials) < 100  # it stopped by itself
    assert all(low <= high for low, high in trials)


@pytest.mark.parametrize("evaluations", [1, 2, 7, 20])
def test_the_beam_keeps_to_its_evaluations(evaluations: int) -> None:
    called: list[tuple[float, float]] = []

    def objective(place: tuple[float, float]) -> float:
        called.append(place)
        return peak(place)

    trials = beam_search(objective, [DEFAULT_VHF, (0.001, 0.2)], evaluations)
    assert called == list(trials)
    assert len(trials) == evaluations
    assert called[0] == DEFAULT_VHF
    assert trials[DEFAULT_VHF] == peak(DEFAULT_VHF)


def test_two_of_a_beam_pass_where_one_is_stuck() -> None:
    """The best start is a local peak, and the second best leads to the higher one."""

    def objective(place: tuple[float, float]) -> float:
        return 0.0 if place == (0.3, 0.6) else -0.5 + peak(place)

    trials = beam_search(objective, [(0.3, 0.6), (0.02, 1.0)], 100)
    assert max(list(trials.values())[2:]) > -0.52


def test_random_starts_lie_among_the_variances_and_follow_the_seed() -> None:
    variances = [torch.logspace(-3, 1, 101).reshape(101, 1), torch.logspace(-3, 1, 101)[:, None]]
    first = random_starts(variances, seed=1)
    assert first == random_starts(variances, seed=1) != random_starts(variances, seed=2)
    for low, high in first:
        assert 10**-2.85 < low < 10**-0.95
        assert 10**-1.05 < high < 10**0.85


def verdict(gain: Mean, judged: int) -> Verdict:
    trials = {DEFAULT_VHF: 0.7, (0.02, 2.0): 0.8, (0.04, 2.0): 0.8}
    return Verdict(Schedule(), True, trials, 50, Mean(0.7, 0.1), Mean(0.8, 0.1), gain, judged)


def test_only_a_gain_beyond_its_error_is_recommended() -> None:
    clear = verdict(Mean(0.1, 0.04), 50)
    assert clear.best == clear.recommended == (0.02, 2.0)
    assert verdict(Mean(0.1, 0.06), 50).recommended == DEFAULT_VHF
    assert verdict(Mean(-0.1, 0.01), 50).recommended == DEFAULT_VHF
    assert verdict(Mean(0.1, 0.0), 4).recommended == DEFAULT_VHF


def test_ranges_are_tried_with_the_options_of_the_schedule() -> None:
    """The value of a range is what the pruned model scores with it, and all else as it was."""
    model, (images, labels) = demo.model(), demo.images(8, seed=5)
    stages = (Stage(1, keep=0.4), Stage(3, keep=0.5))
    method = ZeroTPrune(start="uniform", heads="max", vhf=(0.2, 0.3))
    plan = RangeSearch(Schedule(stages, method), labels=False, evaluations=2, seed=0)
    plan.check(model)
    variances = [torch.logspace(-3, 1, 101)[:, None]]
    batches = [(images, labels, torch.arange(8))]
    verdict = search_range(model, plan, batches, variances, "cpu", lambda count: None)
    with torch.inference_mode():
        wanted = model(images[::2]).double().log_softmax(-1)
        for place, value in verdict.trials.items():
            ztp.prune_(model, Schedule(stages, replace(method, vhf=place)))
            actual = model(images[::2]).double().log_softmax(-1)
            kl = (wanted.exp() * (wanted - actual)).sum(-1)
            ztp.restore_(model)
            assert value == pytest.approx(-kl.mean().item(), rel=1e-4)
    assert len(verdict.trials) == 2
    assert verdict.to_json()["method"] == to_data(method)


@pytest.mark.parametrize(
    "method",
    [EViT(), ZeroTPrune(vhf=None), ZeroTPrune(ranking="random")],
    ids=["another", "no range", "no votes"],
)
def test_a_schedule_that_does_not_use_vhf_is_refused(method: Method) -> None:
    plan = RangeSearch(Schedule((Stage(1, keep=0.5),), method), False, 1, 0)
    with pytest.raises(ValueError, match="VHF"):
        plan.check(demo.model())
