"""Methods by their names: what is written down is what is read, and a file is all it takes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import zerotprune as ztp
from tests.cli.test_evaluate import folder  # noqa: F401  a fixture
from tests.commands import quickly
from tests.nursery import run_script
from zerotprune.method import REGISTERED
from zerotprune.methods import from_data, name_of, names, resolve, to_data

METHOD_FILE = '''
"""Keep every other patch: a method of one's own."""

from dataclasses import dataclass

import torch

import zerotprune as ztp
from zerotprune.tokens import Reduction


@dataclass(frozen=True)
class EveryOther(ztp.Method):
    name = "every-other"
    first: int = 0

    def reduce(self, seen, stage):
        count = self.kept(stage, seen.patches)
        order = torch.arange(seen.patches).roll(-self.first)
        order = torch.cat((order[::2], order[1::2]))[:count]
        return Reduction(order.expand(len(seen.tokens.source), -1))
'''


@pytest.fixture
def custom(tmp_path: Path) -> str:
    path = tmp_path / "every_other_patch.py"
    path.write_text(METHOD_FILE)
    return f"{path}:EveryOther"


def test_every_name_is_one_method_and_its_own_name() -> None:
    assert names()[0] == "fold"
    assert len({resolve(name) for name in names()}) == len(names())
    for name in names():
        assert name_of(resolve(name)) == name


@pytest.mark.parametrize("name", names())
def test_what_is_written_down_is_what_is_read(name: str) -> None:
    method = resolve(name)
    assert from_data(json.loads(json.dumps(to_data(method)))) == method
    schedule = ztp.Schedule((ztp.Stage(2, 0.8),), method)
    assert ztp.Schedule.from_json(schedule.to_json()) == schedule


def test_options_are_written_where_they_differ() -> None:
    method = ztp.ZeroTPrune(vhf=(0.02, 1.5), heads="mean")
    assert to_data(method) == {
        "name": "zero-tprune", "options": {"heads": "mean", "vhf": (0.02, 1.5)}
    }  # fmt: skip
    assert from_data(json.loads(json.dumps(to_data(method)))) == method
    assert name_of(method) == "zero-tprune"


def test_version_1_of_a_schedule_is_zero_tprunes() -> None:
    text = '{"version": 1, "stages": [{"block": 3, "keep": 0.8}]}'
    assert ztp.Schedule.from_json(text) == ztp.Schedule((ztp.Stage(3, 0.8),), ztp.ZeroTPrune())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("tome", 'exactly "name" and "options"'),
        ({"name": "tome"}, 'exactly "name" and "options"'),
        ({"name": 3, "options": {}}, "must be a string"),
        ({"name": "tome", "options": []}, "a JSON object"),
        ({"name": "tomee", "options": {}}, "unknown method 'tomee'"),
        ({"name": "mine.py:Mine", "options": {}}, "--method PATH/mine.py:Mine"),
        ({"name": "tome", "options": {"ratio": 1}}, "'ratio'.*proportional"),
        ({"name": "zero-tprune", "options": {"vhf": [2.0, 1.0]}}, "vhf must be two variances"),
    ],
)
def test_bad_descriptions_of_a_method(data: Any, message: str) -> None:
    text = json.dumps({"version": 2, "method": data, "stages": []})
    with pytest.raises(ValueError, match=message) as raised:
        ztp.Schedule.from_json(text)
    assert "\n" not in str(raised.value)


_WRONG_KINDS = """
import json, math
from dataclasses import dataclass, field, fields
import numpy as np
import zerotprune as ztp
from zerotprune.methods import Fold, from_data, names, resolve, to_data

def refused(option, make):
    try:
        print("accepted:", option, make())
    except ValueError as error:
        text = str(error)
        assert repr(option) in text and " must be " in text and "\\n" not in text, text

for kind in sorted({type(resolve(name)) for name in names()}, key=str):
    for option in fields(kind):
        for wrong in ("4", [1, 2], {}, math.nan, math.inf, ("a", "b"), (1.0, math.nan)):
            refused(option.name, lambda: kind(**{option.name: wrong}))
for name, options in (
    ("fold", {"stages": True}), ("fold", {"stages": 1.5}), ("fold", {"of_partner": True}),
    ("fold", {"of_partner": 10**400}), ("fold", {"keeps_length": 1}), ("evit", {"fuses": "no"}),
    ("tome", {"inflect": "x"}), ("tome", {"proportional": 0.5}), ("ats", {"samples": None}),
    ("random", {"by": "luck"}), ("random", {"seed": "0"}), ("mctf", {"counts": None}),
    ("zero-tprune", {"vhf": 0.5}), ("zero-tprune", {"vhf": [0.1, True]}),
    ("zero-tprune", {"vhf": [0.1]}), ("zero-tprune", {"epsilon": "small"}),
    ("a-vit", {"gamma": "10"}), ("dynamicvit", {"seed": 0.5}),
):
    data = {"version": 2, "method": {"name": name, "options": options}, "stages": []}
    refused(*options, lambda: ztp.Schedule.from_json(json.dumps(data)))
method = Fold(stages=np.int64(3), of_partner=np.float32(0.5))
assert (type(method.stages), type(method.of_partner)) == (int, float)
assert from_data(json.loads(json.dumps(to_data(method)))) == method
print("done")
"""


def test_options_of_a_wrong_kind_are_refused() -> None:
    assert run_script(_WRONG_KINDS) == ["done"]


@dataclass(frozen=True)
class Lenient(ztp.Method):
    """Options that a user may well declare; without a name, so that it is not registered."""

    blocks: tuple[int, ...] = (3, 6)
    power: Literal[1, 2] = 2
    scale: float = None  # type: ignore[assignment]
    weights: Any = None
    total: int = field(init=False, default=0)

    def reduce(self, seen: Any, stage: Any) -> Any:
        raise NotImplementedError


def test_options_of_a_users_method_are_checked_by_their_types() -> None:
    options: Any = {"blocks": (1, np.int64(2)), "power": 1, "scale": np.float32(0.5)}
    method = Lenient(**options, weights=np.ones(2))
    assert (method.blocks, method.power, method.scale) == ((1, 2), 1, 0.5)
    assert Lenient().scale is None
    for wrong in ({"blocks": (1, "2")}, {"blocks": 3}, {"power": 3}, {"power": True},
                  {"scale": np.float32("inf")}, {"scale": 10**400}, {"scale": "1"}):  # fmt: skip
        (name,) = wrong
        with pytest.raises(ValueError, match=name):
            Lenient(**wrong)


def test_two_methods_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="'tome'"):

        class Another(ztp.methods.Slicing):
            name = "tome"


def test_a_method_with_further_names_can_be_subclassed() -> None:
    class Hasty(ztp.methods.ToMe):
        name = "hasty"

    try:
        assert name_of(Hasty(proportional=False)) == "hasty"
        assert type(resolve("tome-uni")) is ztp.methods.ToMe
    finally:
        del REGISTERED["hasty"]


def test_a_file_is_all_that_a_method_needs(custom: str, folder: Path, tmp_path: Path) -> None:  # noqa: F811
    """`evaluate`, `compare`, `search`, `show` and the page's catalog know it."""
    data = ("demo", str(folder), "--workers", "0", "--limit", "12")
    done = quickly("evaluate", *data, "--cost", "0.7", "--method", custom, "--json")
    assert done.returncode == 0, done.stderr
    unpruned, pruned = json.loads(done.stdout)
    assert pruned["name"] == "every-other"
    assert json.loads(pruned["method"]) == {
        "name": "every_other_patch.py:EveryOther",
        "options": {},
    }
    assert pruned["gmacs"] == pytest.approx(0.7 * unpruned["gmacs"], rel=0.01)
    done = quickly("compare", *data, "--cost", "0.7", "--method", custom, "random")
    assert done.returncode == 0, done.stderr
    assert "every-other" in done.stdout
    done = quickly("search", *data[:2], "--cost", "0.7", "--method", custom, "--trials", "3",
                   "--limit", "12", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "schedule.json").read_text())
    assert written["method"] == {"name": "every_other_patch.py:EveryOther", "options": {}}
    done = quickly("show", "--model", "demo", "--limit", "1", "--method", custom, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "show.png").is_file()
    assert resolve(custom).adaptive is False
    assert "every-other" in names()  # which is what the page offers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere.py:Mine", "nowhere.py"),
        ("{here}:Missing", "Missing.*zerotprune.Method"),
        ("{broken}:Mine", "broken_method.py: SyntaxError"),
        ("{json}:Mine", "json.py"),
    ],
)
def test_mistakes_in_a_file_of_ones_own(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "methods_of_mine.py").write_text("Missing = 3\n")
    (tmp_path / "broken_method.py").write_text("def (\n")
    (tmp_path / "json.py").write_text(METHOD_FILE)
    places = {
        "here": tmp_path / "methods_of_mine.py",
        "broken": tmp_path / "broken_method.py",
        "json": tmp_path / "json.py",
    }
    with pytest.raises(ValueError, match=message) as raised:
        resolve(text.format(**places))
    assert "\n" not in str(raised.value)


def test_methods_say_what_they_do() -> None:
    merging = {name for name in names() if resolve(name).merges}
    assert merging == {
        "fold", "tome", "tome-uni", "diffrate", "diffrate-even", "mctf", "mctf-fold",
        "mctf-after", "mctf-after-fold", "pitome", "atc",
    }  # fmt: skip
    assert {name for name in names() if resolve(name).adaptive} == {"a-vit", "ats"}
    for name in names():
        assert all(field.init for field in fields(resolve(name)))  # type: ignore[arg-type]
