"""Every module imports alone: no two of them need each other."""

from __future__ import annotations

from pkgutil import walk_packages

import zerotprune
from tests.nursery import Nursery

#: run when they are imported
SCRIPTS = ("zerotprune.__main__",)


def test_every_module_imports_alone() -> None:
    """Each in a fork that has imported torch and none of our modules."""
    names = [module.name for module in walk_packages(zerotprune.__path__, "zerotprune.")]
    bare = Nursery("import torch, torch._dynamo, timm, transformers, open_clip, matplotlib.pyplot")
    try:
        failed = {
            name: done.stderr[-2000:]
            for name in names
            if name not in SCRIPTS
            and (done := bare.run(f"import {name}")).returncode
            and "No module named 'triton'" not in done.stderr
        }
    finally:
        bare.close()
    assert len(names) > 50
    assert not failed, failed
