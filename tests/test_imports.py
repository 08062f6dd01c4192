"""Every module imports alone, and the socket for methods imports nothing above itself."""

from __future__ import annotations

import json
from pkgutil import walk_packages

import zerotprune
from tests.nursery import run_script

#: run when they are imported
SCRIPTS = ("zerotprune.__main__",)

#: Other packages stay imported, which takes most of the time; ours begin anew each time.
ALONE = """
import importlib, json, sys, traceback
failed = {}
for name in sys.argv[1:]:
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == "zerotprune"]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except Exception as error:
        if getattr(error, "name", None) != "triton":
            failed[name] = traceback.format_exc()
print(json.dumps(failed))
"""

#: Nobody has brought any method, so all that is imported is imported by the module itself.
WITHOUT_METHODS = """
import json, sys
for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == "zerotprune"]:
    del sys.modules[loaded]
import zerotprune.registry
zerotprune.registry.LOADERS.clear()
from dataclasses import dataclass
from zerotprune.method import Method, resolve
from zerotprune.schedule import Budget, Schedule, Stage

@dataclass(frozen=True)
class Own(Method):
    name = "own"
    def reduce(self, seen, stage):
        raise AssertionError

schedule = Schedule([Stage(3, keep=0.5)], "own", Budget(cost=0.5), patches=196)
assert Schedule.from_json(schedule.to_json(), Own()) == schedule
try:
    resolve("fold")
except ValueError as refused:
    print(refused)
print(json.dumps([loaded for loaded in sys.modules if loaded.startswith("zerotprune.")]))
"""

#: by whichever of our modules a name is asked for first
BY_NAME = """
import importlib, sys
for module in ("method", "schedule"):
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == "zerotprune"]:
        del sys.modules[loaded]
    resolve = importlib.import_module(f"zerotprune.{module}").resolve
    print(*(type(resolve(name)).__name__ for name in ("fold", "tome-uni", "zero-tprune")))
"""


def test_every_module_imports_alone() -> None:
    modules = walk_packages(zerotprune.__path__, "zerotprune.")
    names = [module.name for module in modules if module.name not in SCRIPTS]
    assert len(names) > 50
    assert json.loads(run_script(ALONE, *names)[-1]) == {}


def test_methods_and_schedules_import_nothing_above_them() -> None:
    *_, refused, loaded = run_script(WITHOUT_METHODS)
    assert "unknown method 'fold'" in refused
    below = {"cost", "registry", "safety", "scoring", "shapes", "tokens"}
    assert {name.split(".")[1] for name in json.loads(loaded)} <= {"method", "schedule", *below}


def test_a_method_is_found_by_name_whatever_is_imported_first() -> None:
    assert run_script(BY_NAME)[-2:] == ["Fold ToMe ZeroTPrune"] * 2
