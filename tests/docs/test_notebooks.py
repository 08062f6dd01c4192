"""The notebooks run from top to bottom, offline and with random weights, and hold no output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.nursery import run_script

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

#: three blocks are enough to run the code; weights that a cell asks for are an error
SCRIPT = """
import json, sys, warnings
import timm

made = timm.create_model

def create_model(name, pretrained=False, **kwargs):
    assert not pretrained, "WEIGHTS is False"
    return made(name, depth=3, **kwargs)

timm.create_model = create_model
warnings.simplefilter("ignore")
names = {"__name__": "notebook"}
cells = json.load(open(sys.argv[1], encoding="utf-8"))["cells"]
for cell in cells:
    if cell["cell_type"] == "code":
        source = "".join(cell["source"]).replace("WEIGHTS = True", "WEIGHTS = False")
        exec(compile(source, cell["id"], "exec"), names)
print(len(cells), "cells")
"""


def _cells(notebook: Path) -> list[dict[str, object]]:
    cells: list[dict[str, object]] = json.loads(notebook.read_text("utf-8"))["cells"]
    return cells


def test_there_are_two() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == ["first_steps", "retrieval"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path) -> None:
    lines = run_script(SCRIPT, str(notebook))
    assert lines[-1] == f"{len(_cells(notebook))} cells"
    assert len(lines) > 4  # it prints what it found


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_output(notebook: Path) -> None:
    for cell in _cells(notebook):
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
