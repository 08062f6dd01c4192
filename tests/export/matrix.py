"""Every static method in every runtime: how far each is from torch, as JSON.

In a process of its own: the run-time type checks of the other tests would break the graph. What is
not looked for there is done by hand here, so that a model is exported once for all its tests.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import timm
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests import libraries
from tests.families import stirred
from tests.hf_families import build as hf_build
from tests.nursery import run_script
from tests.thorough import THOROUGH
from zerotprune.export import onnx, target_named, writing
from zerotprune.export.target import quiet
from zerotprune.export.writing import facts_of, int8_facts, program_of
from zerotprune.methods import resolve
from zerotprune.scoring import indexing

SIDE = 64  # 16 patches
#: two stages: at the second the order counts in which the first left the tokens
FOLDING = (ztp.Stage(1, similar=4), ztp.Stage(2, similar=3))
DROPPING = (ztp.Stage(1, keep=0.7),)
BOTH = (ztp.Stage(1, 0.9, 3, 2),)
#: at block 1 nothing has been accumulated, and it would be the average attention once more
LATER = (ztp.Stage(2, keep=0.7),)
METHODS = {
    "fold": FOLDING, "tome": FOLDING[:1], "zero-tprune": BOTH, "diffrate-even": BOTH,
    "evit": DROPPING, "average-attention": DROPPING, "accumulated-attention": LATER,
    "dynamicvit": DROPPING,
}  # fmt: skip
#: those that merge, and one that votes and drops; the others rank by other scores
WRITTEN = tuple(METHODS) if THOROUGH else ("fold", "tome", "zero-tprune")
#: ExecuTorch takes long: that which merges; all of them in `make exports`
ALL = THOROUGH or "ZEROTPRUNE_EXPORTS" in os.environ
LOWERED = tuple(METHODS) if ALL else ("fold",)
#: beside timm
LIBRARIES = ("transformers", "torchvision", "open_clip, own attention", "lvvit")
#: whose file takes any batch, and who is quantized
DYNAMIC, SMALL = "fold", "tome"


def tiny(depth: int) -> nn.Module:
    torch.manual_seed(0)
    shape = {"embed_dim": 32, "num_heads": 2, "num_classes": 5, "img_size": SIDE}
    model = timm.create_model("deit_tiny_patch16_224", depth=depth, **shape)
    return stirred(model).eval().requires_grad_(False)


class Ordered(nn.Module):
    """Sort numbers with many ties: pixels of the first image, rounded."""

    def forward(self, images: Tensor) -> Tensor:
        levels = images[0, 0, :4, :23].round()
        place = indexing.largest(levels)[1].unsqueeze(1)
        parts = (*indexing.split_top(levels, 7), indexing.descending(levels), place)
        return torch.cat(parts, dim=1).to(images.dtype)


class Abreast(nn.Module):
    """Models in one program, so that it is converted once; their outputs are concatenated."""

    def __init__(self, models: dict[str, nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleDict(models)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([model(images).flatten() for model in self.models.values()])

    def apart(self, images: Tensor, came: Tensor) -> dict[str, float]:
        """Return how far each model is from a runtime's output."""
        wanted = {name: model(images).flatten() for name, model in self.models.items()}
        lines = came.split([output.numel() for output in wanted.values()])
        return {
            name: apart(line, exported)
            for (name, line), exported in zip(wanted.items(), lines, strict=True)
        }


def images_of(count: int) -> Tensor:
    images = torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    assert images[0, 0, :4, :23].round().unique().numel() < 12  # of the 23 in each row
    return images


def exported(model: nn.Module, images: Tensor) -> Any:
    """Export by hand: this is not a model of any library."""
    with torch.no_grad(), quiet():
        return torch.export.export(model.eval(), (images,))


def pruned(method: str, stages: tuple[ztp.Stage, ...]) -> nn.Module:
    return ztp.prune_(tiny(stages[-1].block + 1), ztp.Schedule(stages, resolve(method)))


def files(folder: Path, program: Any, facts: dict[str, Any], name: str) -> dict[str, Path]:
    """Write the program for torch, and for ONNX Runtime and OpenVINO through one ONNX file."""
    path = folder / f"{name}.onnx"
    target_named("onnx").write(program, path, facts)
    paths = {"onnx": path, "openvino": path.with_suffix(".xml"), "torch": folder / f"{name}.pt2"}
    with mock.patch.object(onnx.Onnx, "write", lambda _, program, to, facts: shutil.copy(path, to)):
        target_named("openvino").write(program, paths["openvino"], facts)
    target_named("torch").write(program, paths["torch"], facts)
    return paths


def apart(wanted: Tensor, came: Tensor) -> float:
    return (wanted - came).abs().max().item()


def written(folder: Path) -> dict[str, Any]:
    """Export two methods to separate files, one for any batch size and one quantized, and the
    others in one program."""
    differences: dict[str, Any] = {}
    images = images_of(6)
    models = {method: pruned(method, METHODS[method]) for method in WRITTEN}
    any_size, small = models.pop(DYNAMIC), models.pop(SMALL)
    facts = facts_of(any_size, target_named("onnx"), "dynamic")
    for name, path in files(folder, program_of(any_size, "dynamic"), facts, DYNAMIC).items():
        run = target_named(name).load(path, 1)
        differences[f"{DYNAMIC}, {name}"] = apart(any_size(images[:2]), run(images[:2]))
        differences[f"dynamic, {name}"] = max(
            apart(any_size(images[:size]), run(images[:size])) for size in (1, 3, 6)
        )
    facts = facts_of(small, target_named("onnx"), 2)
    for name, path in files(folder, program_of(small, 2), facts, SMALL).items():
        wanted, run = small(images[:2]), target_named(name).load(path, 1)
        differences[f"{SMALL}, {name}"] = apart(wanted, run(images[:2]))
        if target_named(name).quantizer is not None:
            coarse, sizes = quantized(name, path, images, facts)
            differences[f"int8, {name}"] = [apart(wanted, coarse), *sizes]
    others = Abreast(models | {"ordered": Ordered()})
    for name, path in files(folder, exported(others, images[:2]), {}, "others").items():
        line = target_named(name).load(path, 1)(images[:2])
        for method, difference in others.apart(images[:2], line).items():
            differences[f"{method}, {name}"] = difference
    return differences


def quantized(
    name: str, path: Path, images: Tensor, facts: dict[str, Any]
) -> tuple[Tensor, list[int]]:
    """Return the int8 output of a file, and its size before and after."""
    small = path.parent / "int8" / path.name
    small.parent.mkdir(exist_ok=True)
    target_named(name).quantize(path, small, images, facts | int8_facts(full_range=False))
    ending = ".bin" if name == "openvino" else path.suffix
    sizes = [file.with_suffix(ending).stat().st_size for file in (path, small)]
    return target_named(name).load(small, 1)(images[:2]), sizes


def of_library(folder: Path) -> dict[str, Any]:
    """Export a model of a library by the public function, and run it in ONNX Runtime."""
    name = sys.argv[3]
    libraries.DEPTH = 2  # a block with a stage, and the last
    model = hf_build("vit", depth=2) if name == "transformers" else libraries.build(name)
    ztp.prune_(
        model.requires_grad_(False), ztp.Schedule((ztp.Stage(1, similar=9),), resolve("fold"))
    )
    agreement = ztp.export_model(model, folder / "model.onnx", rounds=0).agreement
    return {"same": agreement.same, "typical": agreement.typical}


@contextmanager
def converting_once() -> Iterator[None]:
    """Trace a model and convert it to ONNX once, however many files are written of it."""
    trace, convert, made = program_of, torch.onnx.export, dict[str, Any]()

    def once(name: str, make: Any) -> Any:
        def cached(*args: Any, **kwargs: Any) -> Any:
            if name not in made:
                made[name] = make(*args, **kwargs)
            return made[name]

        return cached

    with (
        mock.patch.object(writing, "program_of", once("program", trace)),
        mock.patch.object(torch.onnx, "export", once("onnx", convert)),
    ):
        yield


def lowered(folder: Path) -> dict[str, Any]:
    """Do the same for ExecuTorch, which is slow: one stage in a smaller model. Fold goes through
    XNNPACK, the others, if any, through the portable kernels, which run every stage in any case."""
    images = images_of(2)
    where, differences = target_named("executorch"), {}
    models = {method: pruned(method, METHODS[method][:1]) for method in LOWERED}
    xnnpack = Abreast({"fold": models.pop("fold"), "ordered": Ordered()})
    where.write(exported(xnnpack, images), folder / "fold.pte", {"method": "fold"})
    sides = {"fold": xnnpack}
    if models:
        sides["others"] = Abreast(models)
        with quiet():
            from executorch.exir import to_edge

            program = to_edge(exported(sides["others"], images)).to_executorch()
        (folder / "others.pte").write_bytes(program.buffer)
    for name, side in sides.items():
        line = where.load(folder / f"{name}.pte", 1)(images)
        for method, difference in side.apart(images, line).items():
            differences[f"{method}, executorch"] = difference
    return differences


def tell() -> None:
    """Print the results that the arguments ask for, as JSON."""
    wanted = {"written": written, "lowered": lowered, "library": of_library}[sys.argv[1]]
    print(json.dumps(wanted(Path(sys.argv[2]))))


def results_of(name: str, folder: Path, *more: str) -> dict[str, Any]:
    script = "from tests.export import matrix; matrix.tell()"
    results: dict[str, Any] = json.loads(run_script(script, name, str(folder), *more)[-1])
    return results
