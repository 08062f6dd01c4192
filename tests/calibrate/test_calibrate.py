"""Calibration: divergences against NumPy, the search on a known optimum, the file, the commands."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import oracle
from tests.cli.test_evaluate import folder
from tests.commands import zerotprune
from zerotprune import Schedule, Stage, ZeroTPrune, prune_
from zerotprune.calibrate.calibration import Calibration, Identity
from zerotprune.calibrate.rounds import rounds_needed
from zerotprune.calibrate.survey import ROUNDS, BlockSurvey, look_at, survey
from zerotprune.calibrate.vhf import DEFAULT, Trial, Verdict, beam_search, random_starts
from zerotprune.cli import main
from zerotprune.data import demo
from zerotprune.data.models import weights_hash
from zerotprune.measure.statistics import Mean
from zerotprune.methods import ToMe
from zerotprune.schedule import papers_rounds

digits = folder  # a fixture: images in class folders


def graphs(images: int, heads: int, tokens: int, sharp: float = 2.0) -> Tensor:
    return (sharp * torch.randn(images, heads, tokens, tokens)).softmax(dim=-1)


def twin(graph: oracle.Floats, prefix: int, rounds: int, cls: bool) -> oracle.Floats:
    """Importance scaled to sum 1, by the oracle."""
    weight = math.sqrt(graph.shape[-1]) if cls else 1.0
    found = oracle.page_rank(graph, prefix, rounds, weight, "eir", None)
    return np.asarray(found / found.sum())


@pytest.mark.parametrize(("prefix", "cls"), [(1, True), (2, True), (0, False)])
def test_divergences_and_variances_are_those_of_the_twin(prefix: int, cls: bool) -> None:
    drawn = graphs(5, 3, 12 + prefix)
    found = look_at(drawn, prefix, cls)
    for number, graph in enumerate(drawn.double().numpy()):
        settled = twin(graph, prefix, 50, cls)
        for at, rounds in enumerate(ROUNDS):
            other = twin(graph, prefix, rounds, cls)
            expected = float((settled * np.log(settled / other)).sum())
            assert found.divergence[number, at].item() == pytest.approx(
                expected, rel=1e-3, abs=1e-11
            )
        spread = float((settled * np.log(settled * len(settled))).sum())
        assert found.spread[number].item() == pytest.approx(spread, rel=1e-4)
        for head in range(3):
            start = np.ones(graph.shape[-1])
            start[0] = math.sqrt(len(start)) if cls else 1.0
            score = oracle.vote(graph[head], start / start.sum(), 5)[prefix:]
            variance = ((score / score.mean() - 1) ** 2).mean()
            assert found.variance[number, 1, head].item() == pytest.approx(variance, rel=1e-3)
    assert found.divergence[:, 0].min() > 1e-4
    assert found.counts.sum().item() == 5 * len(ROUNDS) * 12


def test_the_survey_sees_the_graph_that_the_model_attends_by() -> None:
    """By another way: timm's own attention, unfused, with its weights caught on the way."""
    model: Any = demo.model()
    images, labels = demo.images(11, seed=3)
    batches = [(images[:10], labels[:10], torch.arange(10)), (images[10:], labels[10:], labels)]
    blocks = survey(model, batches)
    caught: list[Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, __, out: caught.append(out))
    with torch.inference_mode():
        model(images)
    assert len(blocks) == len(caught) == len(model.blocks)
    for block, weights in zip(blocks, caught, strict=True):
        expected = look_at(weights.clone(), model.num_prefix_tokens, cls=True)
        assert len(block.spread) == len(images)
        for own, other in zip(block[:3], expected[:3], strict=True):
            torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-8)
        torch.testing.assert_close(
            block.counts.sum(dim=0), expected.counts.sum(dim=0), atol=4, rtol=0
        )


def test_a_survey_leaves_no_trace_and_refuses_what_it_cannot_see() -> None:
    model = demo.model()
    images, labels = demo.images(2, seed=3)
    before = model(images)
    survey(model, [(images, labels, torch.arange(2))])
    assert torch.equal(model(images), before)
    assert not any(module._forward_pre_hooks for module in model.modules())
    with pytest.raises(ValueError, match="no image to look at"):
        survey(model, [])
    prune_(model, Schedule((Stage(3, 0.5),)))
    with pytest.raises(ValueError, match="the model is pruned"):
        survey(model, [(images, labels, torch.arange(2))])


def surveyed(divergence: list[float], spread: float) -> BlockSurvey:
    """Two images, above and below the mean by half of it."""
    around = torch.tensor([[0.5], [1.5]], dtype=torch.float64)
    nothing = torch.zeros(2, len(ROUNDS), 1)
    return BlockSurvey(around * torch.tensor([*divergence, 0.0], dtype=torch.float64),
                       around[:, 0] * spread, nothing, nothing)  # fmt: skip


def test_rounds_are_the_fewest_that_are_enough() -> None:
    blocks = [
        surveyed([0.5, 0.2, 0.1, 0.05], 1.0),  # 50
        surveyed([0.5, 0.2, 0.1, 0.009], 1.0),  # 30
        surveyed([0.009, 0.2, 0.1, 0.05], 1.0),  # 1
        surveyed([0.5, 0.2, 0.009, 0.001], 1.0),  # 10
        surveyed([0.5, 0.2, 0.009, 0.001], 0.1),  # 30: the same divergence of a flatter block
        surveyed([0.5, 0.009, 0.2, 0.001], 1.0),  # 5
        surveyed([0.005, 0.0, 0.0, 0.0], 1.0),  # 1
    ]
    rows = rounds_needed(blocks, 0.01)
    assert [row.needed for row in rows] == [50, 30, 1, 10, 30, 5, 1]
    assert [row.paper for row in rows] == [(30, 50)] * 3 + [(5, 10)] + [(1, 1)] * 3
    verdicts = ["holds", "holds", "too many", "holds", "too few", "too few", "holds"]
    assert [row.verdict for row in rows] == verdicts
    assert rows[0].divergence[0].value == pytest.approx(0.5)
    assert rows[0].divergence[0].error == pytest.approx(0.25)
    assert [row.needed for row in rounds_needed(blocks, 0.6)] == [1, 1, 1, 1, 10, 1, 1]


def test_the_papers_rounds_is_that_of_a_stage_that_leaves_its_rounds_open() -> None:
    for depth in (4, 5, 6, 7, 12, 24):
        for block in range(1, depth + 1):
            low, high = papers_rounds(block, depth)
            assert low <= Stage(block).votes(depth) <= high


def peak(place: tuple[float, float]) -> float:
    """Best at (0.05, 3), falling with the distance on a logarithmic scale."""
    low, high = place
    return -(math.log(low / 0.05) ** 2) - math.log(high / 3) ** 2


def test_the_beam_finds_a_known_optimum_within_its_evaluations() -> None:
    trials = beam_search(peak, [DEFAULT, (0.001, 0.2), (0.4, 0.5)], 200)
    best = max(trials, key=lambda trial: trial.value)
    assert best.place[0] == pytest.approx(0.05, rel=0.1)
    assert best.place[1] == pytest.approx(3, rel=0.1)
    assert len(trials) < 100  # it stopped by itself
    assert len({trial.place for trial in trials}) == len(trials)
    assert all(trial.place[0] <= trial.place[1] for trial in trials)


@pytest.mark.parametrize("evaluations", [1, 2, 7, 20])
def test_the_beam_keeps_to_its_evaluations(evaluations: int) -> None:
    called: list[tuple[float, float]] = []

    def objective(place: tuple[float, float]) -> float:
        called.append(place)
        return peak(place)

    trials = beam_search(objective, [DEFAULT, (0.001, 0.2)], evaluations)
    assert len(called) == len(trials) == evaluations
    assert trials[0] == Trial(DEFAULT, peak(DEFAULT))


def test_two_of_a_beam_pass_where_one_is_stuck() -> None:
    """The best start is a peak of its own, and the second best leads to the higher one."""

    def objective(place: tuple[float, float]) -> float:
        return 0.0 if place == (0.3, 0.6) else -0.5 + peak(place)

    trials = beam_search(objective, [(0.3, 0.6), (0.02, 1.0)], 100)
    assert max(trial.value for trial in trials[2:]) > -0.52


def test_random_starts_lie_among_the_variances_and_follow_the_seed() -> None:
    variances = [torch.logspace(-3, 1, 101).reshape(101, 1), torch.logspace(-3, 1, 101)[:, None]]
    first = random_starts(variances, seed=1)
    assert first == random_starts(variances, seed=1) != random_starts(variances, seed=2)
    for low, high in first:
        assert 10**-2.85 < low < 10**-0.95
        assert 10**-1.05 < high < 10**0.85


def verdict(gain: Mean, judged: int) -> Verdict:
    trials = [Trial(DEFAULT, 0.7), Trial((0.02, 2.0), 0.8), Trial((0.04, 2.0), 0.8)]
    return Verdict(Schedule(), True, trials, 50, Mean(0.7, 0.1), Mean(0.8, 0.1), gain, judged)


def test_only_a_gain_beyond_its_error_is_recommended() -> None:
    clear = verdict(Mean(0.1, 0.04), 50)
    assert clear.best == clear.recommended == (0.02, 2.0)
    assert verdict(Mean(0.1, 0.06), 50).recommended == DEFAULT
    assert verdict(Mean(-0.1, 0.01), 50).recommended == DEFAULT
    assert verdict(Mean(0.1, 0.0), 4).recommended == DEFAULT


IDENTITY = Identity("some_vit", 4, 3, 16, "ab" * 32)
SOME = Calibration(IDENTITY, (30, 10, 5, 1), (0.02, 1.5), {"threshold": 0.01}, {"quantiles": [0.5]},
                   {"trials": [[0.1, 1.0, 0.75]]}, {"command": "a [  b ]"})  # fmt: skip


def test_the_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    SOME.save(path)
    assert Calibration.load(path) == SOME
    assert [each.name for each in tmp_path.iterdir()] == ["c.json"]
    assert '"rounds": [30, 10, 5, 1]' in path.read_text()


def changed(**fields: object) -> str:
    return json.dumps(json.loads(SOME.to_json()) | fields)


MODEL = json.loads(SOME.to_json())["model"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "bad JSON"),
        ("[]", "is a JSON object"),
        (changed(version=2), "version 2 is unknown"),
        ('{"version": 1, "stages": []}', 'lacks "kl"'),
        (changed(extra=1), 'unknown "extra"'),
        (changed(rounds=[30, 10, 5]), "3 for 4 blocks"),
        (changed(rounds=[30, 10, 5, 0]), '"rounds" must be'),
        (changed(rounds=[30, 10, 5, True]), '"rounds" must be'),
        (changed(rounds="many"), '"rounds" must be'),
        (changed(vhf=[0.7, 0.01]), '"vhf" must be'),
        (changed(vhf=[0.01]), '"vhf" must be'),
        (changed(vhf=[0.01, float("nan")]), '"vhf" must be'),
        (changed(vhf=None), '"vhf" must be'),
        (changed(model={}), '"model" of a calibration'),
        (changed(model=MODEL | {"depth": "4"}), "depth must be a whole number"),
        (changed(model=MODEL | {"weights": None}), "weights must be a string"),
        (changed(kl=[]), '"kl" of a calibration'),
        (b"\xff\xfe\x00", "not a text file"),
    ],
)
def test_bad_files_get_one_sentence(text: str | bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"c\.json") as raised:
        Calibration.load(path)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_it_fills_in_rounds_that_are_open_and_the_range_of_zero_tprune_alone() -> None:
    schedule = Schedule((Stage(1, 0.9), Stage(2, 0.9, rounds=7), Stage(3, 0.9, 2)))
    got = SOME.applied(schedule.by(ZeroTPrune(heads="mean")))
    assert [stage.rounds for stage in got.stages] == [30, 7, 5]
    assert got.method == ZeroTPrune(heads="mean", vhf=(0.02, 1.5))
    assert [replace(stage, rounds=None) for stage in got.stages] == [
        replace(stage, rounds=None) for stage in schedule.stages
    ]
    for method in (ToMe(), ZeroTPrune(vhf=None)):
        assert SOME.applied(schedule.by(method)) == schedule.by(method)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("name", "other_vit", "name some_vit there, other_vit here"),
        ("depth", 6, "depth 4 there, 6 here"),
        ("heads", 6, "heads 3 there, 6 here"),
        ("patches", 64, "patches 16 there, 64 here"),
        ("weights", "cd" * 32, "weights abababababab… there, cdcdcdcdcdcd… here"),
    ],
)
def test_another_model_is_told_by_its_difference(field: str, value: Any, says: str) -> None:
    other = replace(IDENTITY, **{field: value})
    assert IDENTITY.difference(other) == says
    outline = replace(other, weights=None)
    assert (IDENTITY.difference(outline) is None) == (field in ("patches", "weights"))


def test_weights_are_told_apart_by_their_values() -> None:
    first, second = demo.model(), demo.model()
    assert weights_hash(first) == weights_hash(second)
    with torch.no_grad():
        next(iter(second.parameters())).flatten()[0] += 1e-6
    assert weights_hash(first) != weights_hash(second)


@pytest.fixture(scope="module")
def calibrated(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command wrote: its calibration and its figures."""
    home = tmp_path_factory.mktemp("calibrated")
    done = zerotprune("calibrate", "--model", "demo", "--data", str(digits), "--workers", "0",
                      "--limit", "12", "--evaluations", "6", "--out", str(home / "c.json"),
                      "--figures", str(home))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the paper's rounds hold in" in done.stdout
    assert "VHF range:" in done.stdout
    return home


def test_calibrate_writes_a_calibration_and_three_figures(calibrated: Path) -> None:
    names = ["c.json", "kl-by-block.png", "score-distributions.png", "vhf-ranges.png"]
    assert sorted(each.name for each in calibrated.iterdir()) == names
    for name in names[1:]:
        assert (calibrated / name).read_bytes().startswith(b"\x89PNG")
    found = Calibration.load(calibrated / "c.json")
    assert found.model == Identity.of("demo", demo.model())
    assert set(found.rounds) <= set(ROUNDS)
    assert found.provenance["images"] == 12
    assert found.provenance["seed"] == 0
    assert found.search["searched_on"] == found.search["judged_on"] == 6
    assert len(found.search["trials"]) == 6
    assert found.search["trials"][0][:2] == list(DEFAULT)
    assert found.vhf == DEFAULT  # six images can show nothing
    blocks = found.kl["blocks"]
    assert [row["needed"] for row in blocks] == list(found.rounds)
    for row in blocks:
        assert row["kl"]["1"][0] > row["kl"]["30"][0] >= 0
        assert row["kl"]["1"][1] > 0
    assert [len(block) for block in found.variances["blocks"]] == [found.model.heads] * len(blocks)


# It thinks that a test that calls it without arguments forgot them; they are in sys.argv.
pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")


class Typed(NamedTuple):
    code: int
    out: str
    err: str


class Terminal:
    """The command line in this process: an import of torch for each command would take longer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> Typed:
        self.monkeypatch.setattr(sys, "argv", ["zerotprune", *words])
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        return Typed(code, *self.capsys.readouterr())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(monkeypatch, capsys)


def test_without_labels_the_search_goes_by_the_outputs(
    terminal: Terminal, digits: Path, tmp_path: Path
) -> None:
    values, flat = [], tmp_path / "flat"
    flat.mkdir()
    for image in sorted(digits.rglob("*.png"))[:6]:
        shutil.copy(image, flat)
    for name in ("a.json", "b.json"):
        done = terminal("calibrate", "--model", "demo", "--data", str(flat), "--workers", "0",
                        "--evaluations", "3", "--no-labels", "--seed", "5",
                        "--out", str(tmp_path / name))  # fmt: skip
        assert done.code == 0, done.err
        found = Calibration.load(tmp_path / name)
        values.append((found.rounds, found.vhf, found.kl, found.variances, found.search))
    assert values[0] == values[1]
    assert values[0][4]["objective"].startswith("-KL")
    assert all(value < 0 for *_, value in values[0][4]["trials"])


def test_evaluate_compare_and_info_use_it(
    terminal: Terminal, calibrated: Path, digits: Path, tmp_path: Path
) -> None:
    own = Calibration.load(calibrated / "c.json")
    path = str(tmp_path / "c.json")
    replace(own, rounds=(17, *own.rounds[1:]), vhf=(0.25, 1.75)).save(path)
    Schedule((Stage(1, 0.8), Stage(3, 0.8, rounds=2))).save(tmp_path / "s.json")
    use = ("--schedule", str(tmp_path / "s.json"), "--calibration", path)
    data = ("--model", "demo", "--data", str(digits), "--workers", "0", "--limit", "4")
    done = terminal("evaluate", *data, "--json", "--precision", "bfloat16", *use)
    assert done.code == 0, done.err
    row = json.loads(done.out)[1]
    assert '"vhf": [0.25, 1.75]' in row["method"]
    assert [stage["rounds"] for stage in json.loads(row["schedule"])["stages"]] == [17, 2]
    done = terminal("compare", *data, "--cost", "0.7", "--method", "zero-tprune",
                    "--calibration", path, "--csv", str(tmp_path / "rows.csv"))  # fmt: skip
    assert done.code == 0, done.err
    assert '""vhf"": [0.25, 1.75]' in (tmp_path / "rows.csv").read_text()
    shown = terminal("info", "demo", *use)
    assert shown.code == 0, shown.err
    assert "17 rounds" in shown.out
    assert "2 rounds" in shown.out
    assert "from 0.25 to 1.75" in shown.out


def test_that_of_another_model_is_refused(
    terminal: Terminal, calibrated: Path, digits: Path, tmp_path: Path
) -> None:
    own = Calibration.load(calibrated / "c.json")
    path = tmp_path / "c.json"
    replace(own, model=replace(own.model, weights="0" * 64)).save(path)
    for command in ("evaluate", "compare"):
        done = terminal(command, "--model", "demo", "--data", str(digits),
                        "--calibration", str(path))  # fmt: skip
        assert done.code == 2
        assert "another model: weights 000000000000…" in done.err
    done = terminal("info", "test_vit", "--calibration", str(calibrated / "c.json"))
    assert done.code == 2
    assert "another model: name demo there, test_vit here" in done.err
    done = terminal("info", "demo", "--calibration", "nowhere.json")
    assert done.code == 2
    assert "no calibration at nowhere.json" in done.err


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--out", "no/folder/c.json", "no folder"),
        ("--out", ".", "is a folder"),
        ("--figures", "nowhere", "no folder nowhere"),
        ("--threshold", "0", "threshold must be a positive number"),
        ("--evaluations", "-1", "evaluations must be at least 0"),
        ("--schedule", "nope", "neither a preset"),
        ("--schedule", "zero-tp-c", "no stage of the schedule has keep below 1"),
        ("--limit", "1", "needs two images at least"),
        ("--data", "no/such/folder", "no data at"),
    ],
)
def test_mistakes(
    option: str, value: str, says: str, terminal: Terminal, digits: Path, tmp_path: Path
) -> None:
    terminal.monkeypatch.chdir(tmp_path)
    given = {"--data": str(digits), "--out": "c.json"} | {option: value}
    words = [word for pair in given.items() for word in pair]
    done = terminal("calibrate", "--model", "demo", "--workers", "0", *words)
    assert done.code == 2, done
    assert says in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []
