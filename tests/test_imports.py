"""Every module imports alone: no two of them need each other."""

from __future__ import annotations

import json
from pkgutil import walk_packages

import zerotprune
from tests.nursery import said_by

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


def test_every_module_imports_alone() -> None:
    modules = walk_packages(zerotprune.__path__, "zerotprune.")
    names = [module.name for module in modules if module.name not in SCRIPTS]
    assert len(names) > 50
    assert json.loads(said_by(ALONE, *names)[-1]) == {}
