"""Every static method in every runtime: how far each is from torch, as JSON.

In a process of its own: the run-time type checks of the other tests would break the graph. What is
not looked for there is done by hand here, so that a model is exported once for all its tests.
"""

from __future__ import annotations

import json
import shutil
import sys
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
from tests.nursery import said_by
from zerotprune.export import onnx, target_named
from zerotprune.export.facts import BatchSize, facts_of
from zerotprune.export.target import quiet
from zerotprune.export.writing import program_of
from zerotprune.methods import resolve
from zerotprune.scoring import ordering

SIDE = 64  # 16 patches
#: where there are two stages, at the second the order counts in which the first left the tokens
FOLDING = (ztp.Stage(1, similar=4), ztp.Stage(2, similar=3))
DROPPING = (ztp.Stage(1, keep=0.7),)
BOTH = (ztp.Stage(1, 0.9, 3, 2), ztp.Stage(2, 0.8, 2, 2))
METHODS = {
    "fold": FOLDING, "tome": FOLDING[:1], "zero-tprune": BOTH, "diffrate-even": BOTH[:1],
    "evit": DROPPING, "average-attention": DROPPING, "accumulated-attention": DROPPING,
    "dynamicvit": DROPPING,
}  # fmt: skip
#: beside timm and transformers
LIBRARIES = ("torchvision", "open_clip, own attention", "lvvit")
#: whose file takes any batch, and who is quantised
DYNAMIC, SMALL = "fold", "tome"


def tiny(depth: int) -> nn.Module:
    torch.manual_seed(0)
    shape = {"embed_dim": 32, "num_heads": 2, "num_classes": 5, "img_size": SIDE}
    model = timm.create_model("deit_tiny_patch16_224", depth=depth, **shape)
    return stirred(model).eval().requires_grad_(False)


class Ordered(nn.Module):
    """The order of numbers of which many are equal."""

    def forward(self, values: Tensor) -> Tensor:
        levels = values.round()
        place = ordering.largest(levels)[1].unsqueeze(1)
        found = (*ordering.parted(levels, 7), ordering.descending(levels), place)
        return torch.cat(found, dim=1).to(values.dtype)


def ordered() -> tuple[Tensor, Any]:
    """Numbers of which at least half are equal to others, and the exported program."""
    values = 1.5 * torch.randn(4, 23, generator=torch.Generator().manual_seed(2))
    assert values.round().unique().numel() < 12
    with torch.no_grad(), quiet():
        return values, torch.export.export(Ordered(), (values,))


def files(folder: Path, program: Any, facts: dict[str, Any], name: str) -> dict[str, Path]:
    """The program for ONNX Runtime and OpenVINO, through the same ONNX file, and for torch."""
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
    found: dict[str, Any] = {}
    images = torch.randn(6, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    for method, stages in METHODS.items():
        model = ztp.prune_(tiny(len(stages) + 1), ztp.Schedule(stages, resolve(method)))
        batch: BatchSize = "dynamic" if method == DYNAMIC else 2
        facts = facts_of(model, target_named("onnx"), batch, "float32")
        for name, path in files(folder, program_of(model, batch), facts, method).items():
            run = target_named(name).load(path, 1)
            found[f"{method}, {name}"] = apart(model(images[:2]), run(images[:2]))
            if batch == "dynamic":
                found[f"dynamic, {name}"] = max(
                    apart(model(images[:size]), run(images[:size])) for size in (1, 3, 6)
                )
            if method == SMALL and target_named(name).quantizer is not None:
                small = path.parent / "int8" / path.name
                small.parent.mkdir(exist_ok=True)
                target_named(name).quantize(path, small, images, facts)
                coarse = target_named(name).load(small, 1)(images[:2])
                sizes = [each.stat().st_size for each in (path, small)]
                if name == "openvino":
                    sizes = [each.with_suffix(".bin").stat().st_size for each in (path, small)]
                found[f"int8, {name}"] = [apart(model(images[:2]), coarse), *sizes]
    values, program = ordered()
    for name, path in files(folder, program, {}, "ordered").items():
        found[f"ordered, {name}"] = apart(
            Ordered()(values), target_named(name).load(path, 1)(values)
        )
    return found


def of_libraries(folder: Path) -> dict[str, Any]:
    """A model of each library, through the library's own function, in ONNX Runtime."""
    found = {}
    libraries.DEPTH = 3  # a block of the library's own, one with a stage, and the last
    models = {name: libraries.build(name) for name in LIBRARIES}
    models["transformers"] = hf_build("vit", depth=3)
    for name, model in models.items():
        ztp.prune_(
            model.requires_grad_(False), ztp.Schedule((ztp.Stage(2, similar=9),), resolve("fold"))
        )
        report = ztp.export_model(model, folder / f"{name}.onnx", rounds=0)
        found[name] = [report.agreement.same, report.agreement.typical]
    return found


def lowered(folder: Path) -> dict[str, Any]:
    """The same for ExecuTorch, which takes its time: one stage in a smaller model. Fold goes
    through XNNPACK, the others by the portable kernels, which run every stage in any case."""
    images = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    where, found = target_named("executorch"), {}
    for method, stages in METHODS.items():
        model = ztp.prune_(tiny(2), ztp.Schedule(stages[:1], resolve(method)))
        path, program = folder / f"{method}.pte", program_of(model, 2)
        if method == "fold":
            where.write(program, path, {"method": method})
        else:
            with quiet():
                from executorch.exir import to_edge

                path.write_bytes(to_edge(program).to_executorch().buffer)
        found[f"{method}, executorch"] = apart(model(images), where.load(path, 1)(images))
    values, program = ordered()
    path = folder / "ordered.pte"
    where.write(program, path, {})
    found["ordered, executorch"] = apart(Ordered()(values), where.load(path, 1)(values))
    return found


def tell() -> None:
    """What is asked for by the arguments."""
    wanted = {"written": written, "lowered": lowered, "libraries": of_libraries}[sys.argv[1]]
    print(json.dumps(wanted(Path(sys.argv[2]))))


def told(what: str, folder: Path) -> dict[str, Any]:
    script = "from tests.export import matrix; matrix.tell()"
    found: dict[str, Any] = json.loads(said_by(script, what, str(folder))[-1])
    return found
