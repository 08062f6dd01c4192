"""Export a model: write it, compare it with torch, time it in its runtime; else leave nothing."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from ..backbones import backbone
from ..measure.accuracy import UNPRUNED
from ..measure.speed import noise
from ..method import Method
from ..methods import name_of
from ..safety.files import check_writable, replacing
from ..safety.ranges import check_range
from ..surgery import current_plan
from . import target_named
from .results import (
    MAX_CHANGED,
    MAX_CHANGED_INT8,
    Agreement,
    Timing,
    compare_with_torch,
    time_models,
)
from .target import Target
from .writing import BatchSize, FilePrecision, Job, rivals, write_model

#: older versions export other graphs than those that were compared with torch
OLDEST_TORCH = (2, 11)
#: how many images of noise to use if none are given
NOISE = 8


@dataclass(frozen=True)
class Report:
    """The result of an export."""

    path: Path
    runtime: str
    precision: FilePrecision
    batch: BatchSize
    agreement: Agreement
    size: int  # bytes of all its files
    timings: tuple[Timing, ...] = ()


def export_model(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    to: str = "onnx",
    batch: BatchSize = 1,
    images: Tensor | None = None,
    int8: bool = False,
    full_range: bool = False,
    max_changed: float = MAX_CHANGED_INT8,
    rounds: int = 20,
    threads: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Write the model, pruned as it is now, for a runtime, and compare the two.

    If the file does not predict what the torch model does, nothing is written and ValueError says
    why.

    Args:
        model: The model, pruned or not.
        path: The file to write.
        to: "onnx" (ONNX Runtime), "openvino", "executorch" or "torch".
        batch: Images that the file takes at a time, or "dynamic" for any number.
        images: Images to compare on, and to calibrate int8 on; noise if there are none.
        int8: Quantize by the runtime's own tool.
        full_range: Give int8 weights all 8 bits, for CPUs with VNNI only. By default they have 7,
            and the file is correct on every CPU.
        max_changed: Share of the answers that int8 may change.
        rounds: Times that the model, the unpruned one and slicing, the limit, are timed in turn in
            the runtime; 0 to time nothing.
        threads: Threads of the runtime; its own choice if None.
        say: Called with a line of text for every step.

    >>> import tempfile, timm, zerotprune as ztp
    >>> model = timm.create_model("test_vit", num_classes=5, depth=2).eval()
    >>> ztp.prune_(model, cost=0.9, method="tome")  # doctest: +ELLIPSIS
    VisionTransformer(...
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = ztp.export_model(model, f"{folder}/model.pt2", to="torch", rounds=0)
    >>> report.agreement.same
    1.0
    """
    target, whole = target_named(to), Path(path)
    check_target(target, whole, batch, int8, full_range, max_changed)
    _check(model, batch, images, int8)
    model = _on_cpu(model)
    if images is None:
        images = noise(model, max(NOISE, 1 if batch == "dynamic" else batch), "cpu", torch.float32)
    precisions: tuple[FilePrecision, ...] = ("float32", "int8") if int8 else ("float32",)
    shown = images.cpu().float().contiguous()
    job = Job(target, batch, precisions, shown, threads, say, full_range)
    with _beside(whole) as folder:
        plan = current_plan(model)
        name = UNPRUNED.name if plan is None else name_of(plan.method)
        files = write_model(job, model, folder / name / whole.name)
        result = compare_with_torch(job, model, files[precisions[-1]])
        if int8:
            result.check_int8(max_changed)
        else:
            result.check(target.runtime)
        timings: list[Timing] = []
        if rounds:
            others = {} if plan is None else rivals(model)
            cases = {name: write_model(job, other, folder / name / whole.name)
                     for name, other in others.items()}  # fmt: skip
            timings = time_models(job, {**cases, name: files}, rounds)
        written = target.written(files[precisions[-1]])
        size = sum(file.stat().st_size for file in written)
        _place(written, whole, folder)
    return Report(whole, target.runtime, precisions[-1], batch, result, size, tuple(timings))


def check_target(
    target: Target,
    path: Path,
    batch: BatchSize,
    int8: bool,
    full_range: bool = False,
    max_changed: float = MAX_CHANGED_INT8,
) -> None:
    """Check the target before a model is loaded."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise ValueError(f"export needs torch {oldest} or newer, and this is {torch.__version__}")
    if full_range and not int8:
        raise ValueError("full-range needs int8: ask for int8 as well")
    check_range("max_changed", max_changed)
    if max_changed != MAX_CHANGED_INT8 and not int8:
        raise ValueError(
            f"max-changed is for int8: ask for int8 as well; in float32 {MAX_CHANGED:.0%} of the "
            "answers may differ"
        )
    target.check(int8)
    if path.suffix != target.ending:
        raise ValueError(
            f"{target.name} writes files that end in {target.ending}, such as model{target.ending}"
            f"; got {path.name!r}"
        )
    if not _is_text(path):
        raise ValueError(f"{target.runtime} needs a UTF-8 path, got {path.name!r}")
    for file in target.files(path):
        check_writable(file)
    if batch == "dynamic":
        if not target.dynamic:
            raise ValueError(f"{target.name} takes batches of one size: give a number of images")
    elif isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ValueError(f'batch must be a number of images, or "dynamic", got {batch!r}')


def check_method(method: Method) -> None:
    """Refuse a method without fixed counts."""
    if method.adaptive:
        raise ValueError(
            f"{name_of(method)} keeps as many tokens as an image needs, and an exported model "
            "has fixed counts: use a method that is not adaptive"
        )


def _is_text(path: Path) -> bool:
    """Return whether a path is UTF-8: C++ code aborts the process if it is not."""
    try:
        os.path.realpath(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _check(model: nn.Module, batch: BatchSize, images: Tensor | None, int8: bool) -> None:
    """Check the model, and the images for it, before any work is done."""
    vit, plan = backbone(model), current_plan(model)
    if plan is not None:
        check_method(plan.method)
    if images is None:
        if int8:
            raise ValueError("int8 needs images for calibration: give some that are typical of use")
        return
    if images.dim() != 4 or tuple(images.shape[1:]) != vit.input_shape:
        raise ValueError(f"images must be N × {vit.input_shape}, got {tuple(images.shape)}")
    least = 1 if batch == "dynamic" else batch
    if len(images) < least:
        raise ValueError(f"expected at least {least} images for one batch, got {len(images)}")


def _on_cpu(model: nn.Module) -> nn.Module:
    """Return a copy to export: in float32, without gradients, with a tensor as its output."""
    fixed = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    return backbone(fixed).giving_tensors() if backbone(fixed).model is fixed else fixed


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Make a folder for unfinished files on the same disk, and always remove it."""
    try:
        with TemporaryDirectory(prefix=".zerotprune-", suffix=".tmp", dir=path.parent,
                                ignore_cleanup_errors=True) as folder:  # fmt: skip
            yield Path(folder)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from None


def _place(files: list[Path], whole: Path, folder: Path) -> None:
    """Move the files of a model into place, so that old and new ones never mix.

    The last file is the one that is opened. It is taken away first and comes last: a process that
    is killed in between leaves a model that cannot be opened. If it is only interrupted, the old
    files come back.
    """
    names = [whole.with_name(file.name) for file in files]
    old = {Path(os.path.realpath(name)): folder / f"old-{name.name}" for name in names}
    new = [place for place in old if not place.exists()]
    try:
        with ExitStack() as renames:
            for file, name in reversed(list(zip(files, names, strict=True))):  # left in turn
                shutil.move(file, renames.enter_context(replacing(name)))
            if len(files) > 1:
                for place in reversed(old):
                    if place not in new:
                        shutil.move(place, old[place])
    except BaseException:
        *_, opened = old
        if opened in new or old[opened].exists():
            opened.unlink(missing_ok=True)
        for place, kept in old.items():
            if kept.exists():
                shutil.move(kept, place)
            elif place in new:
                place.unlink(missing_ok=True)
        raise
