"""The code blocks of the README and the pages: found, and the Python ones run.

`main` runs all Python blocks of all pages and prints as JSON what failed, in a process of its own
where no run-time type checks keep torch from compiling. A page runs from top to bottom with names
of its own; the first argument is the folder that it writes to. So that it needs neither network nor
time, weights are random, `test_vit` has three blocks, `torch.compile` captures graphs and generates
no code, and `images` is a batch of two.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import sys
import traceback
import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

GPU = "<!-- needs a GPU -->"
_FENCE = re.compile(
    r"(?P<mark><!--[^\n]*-->\n)?^```(?P<kind>python|sh)\n(?P<text>.*?)^```$", re.M | re.S
)


class Block(NamedTuple):
    kind: str  # "python" or "sh"
    text: str
    line: int  # of its first line in the page
    mark: str  # the comment above it, or ""

    @property
    def file(self) -> str | None:
        """File to save it to, if its first line is the comment `# NAME.py`."""
        named = re.match(r"# (\w+\.py)\n", self.text)
        return named[1] if named else None


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(
            fence["kind"],
            fence["text"],
            text.count("\n", 0, fence.start("text")) + 1,
            (fence["mark"] or "").strip(),
        )
        for fence in _FENCE.finditer(text)
    ]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run(page: Path, names: dict[str, Any], gpu: bool) -> None:
    """Run all Python blocks of a page, one after the other."""
    for block in blocks(page):
        if block.kind != "python" or (block.mark == GPU and not gpu):
            continue
        if block.file:
            Path(block.file).write_text(block.text, "utf-8")
        if ">>>" in block.text:
            _doctest(block, names, page)
        else:
            padded = "\n" * (block.line - 1) + block.text  # errors name the line of the page
            exec(compile(padded, str(page), "exec"), names)


def _doctest(block: Block, names: dict[str, Any], page: Path) -> None:
    output: list[str] = []
    example = doctest.DocTestParser().get_doctest(
        block.text, names, name(page), str(page), block.line
    )
    doctest.DocTestRunner(verbose=False).run(example, out=output.append, clear_globs=False)
    names.update(example.globs)
    if output:
        raise AssertionError("".join(output))


def main() -> None:
    import timm
    import torch

    made = timm.create_model

    def create_model(name: str, pretrained: bool = False, **kwargs: Any) -> Any:
        return made(name, **({"depth": 3} if name == "test_vit" else {}), **kwargs)

    timm.create_model = create_model
    torch.compile = partial(torch.compile, backend="eager")
    warnings.simplefilter("ignore")  # torch's, on int8
    os.chdir(sys.argv[1])
    sys.path.insert(0, "")
    failed: dict[str, str] = {}
    for page in PAGES:
        torch.manual_seed(0)
        images = torch.randn(2, 3, 224, 224)
        stdout, sys.stdout = sys.stdout, sys.stderr  # the answer is all that goes to stdout
        try:
            run(page, {"__name__": "page", "images": images}, torch.cuda.is_available())
        except BaseException:
            failed[name(page)] = traceback.format_exc(limit=-3)
        finally:
            sys.stdout = stdout
    print(json.dumps(failed))
