"""Count what a reader of the code has to follow: the files and functions of ours that `prune_` and
one forward pass through, and how often the path changes from one file to another.

Command: python -m benchmarks.walk (a CPU).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import timm
import torch

import zerotprune as ztp
from benchmarks.inputs import parser

PACKAGE = str(Path(ztp.__file__).parent)


class Walk(NamedTuple):
    """What a call passed through."""

    files: int
    functions: int
    changes: int  # of file, from one call of ours to the next


def walk(call: Callable[[], Any]) -> Walk:
    """Run a call and follow it through the functions of this package."""
    path: list[CodeType] = []

    def follow(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            path.append(frame.f_code)

    sys.setprofile(follow)
    try:
        call()
    finally:
        sys.setprofile(None)
    files = [code.co_filename for code in path]
    changes = sum(before != after for before, after in itertools.pairwise(files))
    return Walk(len(set(files)), len(set(path)), changes)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--model", default="deit_tiny_patch16_224")
    options.add_argument("--cost", type=float, default=0.7)
    options.add_argument("--method", default="fold")
    chosen = options.parse_args()
    model = timm.create_model(chosen.model).eval()
    image = torch.zeros(1, *model.pretrained_cfg["input_size"])
    ztp.pruned(model, cost=chosen.cost, method=chosen.method)  # imports what it needs
    with torch.inference_mode():
        steps = {
            "prune_": walk(lambda: ztp.prune_(model, cost=chosen.cost, method=chosen.method)),
            "forward": walk(lambda: model(image)),
        }
    for name, (files, functions, changes) in steps.items():
        print(f"{name}: {files} files, {functions} functions, {changes} changes of file")


if __name__ == "__main__":
    main()
