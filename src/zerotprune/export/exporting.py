"""Export a model: written, run beside the torch model, timed in its runtime; else nothing stays."""

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
from ..files import check_writable, replacing
from ..measure.speed import UNPRUNED, noise
from ..method import Method
from ..methods import name_of
from ..surgery import current_plan
from . import target_named
from .agreement import Agreement, agreement
from .facts import BatchSize
from .target import Target
from .timing import Timing, timed
from .writing import Job, Precision, rivals, write

#: images of noise, where none are given
NOISE = 8


@dataclass(frozen=True)
class Report:
    """What became of an export."""

    path: Path
    runtime: str
    precision: Precision
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
    rounds: int = 20,
    threads: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Write the model, pruned as it is now, for a runtime: "onnx" (ONNX Runtime), "openvino",
    "executorch" or "torch".

    The file takes `batch` images at a time, or any number with "dynamic". It is run beside the
    torch model on the images, or on noise; where the two do not agree, nothing is written and
    ValueError says why. With `int8` it is quantised by the runtime's own tool, calibrated on the
    images. Pruned, unpruned and slicing, the limit, are then timed in the runtime, in turn, so many
    `rounds`; with 0 nothing is timed. What is going on is told to `say`.

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
    check_target(target, whole, batch, int8)
    _check(model, batch, images, int8)
    fixed = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
    if backbone(fixed).model is fixed:
        fixed = backbone(fixed).giving_tensors()
    shown = noise(fixed, max(NOISE, batch if isinstance(batch, int) else 1), "cpu", torch.float32)
    if images is not None:
        shown = images.cpu().float()
    precisions: tuple[Precision, ...] = ("float32", "int8") if int8 else ("float32",)
    job = Job(target, batch, precisions, shown.contiguous(), threads, say)
    with _beside(whole) as folder:
        plan = current_plan(fixed)
        own = UNPRUNED if plan is None else name_of(plan.method)
        files = write(job, fixed, folder / own / whole.name)
        found = _compare(job, fixed, files[precisions[-1]], precisions[-1])
        timings: list[Timing] = []
        if rounds:
            others = {} if plan is None else rivals(fixed)
            cases = {name: write(job, other, folder / name / whole.name)
                     for name, other in others.items()}  # fmt: skip
            timings = timed(job, {**cases, own: files}, rounds)
        written = target.written(files[precisions[-1]])
        size = sum(file.stat().st_size for file in written)
        with ExitStack() as finished:
            for file in written:
                place = finished.enter_context(replacing(whole.with_name(file.name)))
                shutil.move(file, place)
    return Report(whole, target.runtime, precisions[-1], batch, found, size, tuple(timings))


def check_target(target: Target, path: Path, batch: BatchSize, int8: bool) -> None:
    """Say what is wrong before there is a model."""
    target.check(int8)
    if path.suffix != target.ending:
        raise ValueError(
            f"{target.name} writes files that end in {target.ending}, such as model{target.ending}"
            f"; got {path.name!r}"
        )
    if not _is_text(path):
        raise ValueError(f"{path.name!r} is no name for {target.runtime}: it is not UTF-8")
    for each in target.files(path):
        check_writable(each)
    if batch == "dynamic":
        if not target.dynamic:
            raise ValueError(f"{target.name} takes batches of one size: give a number of images")
    elif isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ValueError(f'batch must be a number of images, or "dynamic", got {batch!r}')


def check_method(method: Method) -> None:
    """Refuse one that has no fixed counts."""
    if method.adaptive:
        raise ValueError(
            f"{name_of(method)} keeps as many tokens as an image needs, and an exported model "
            "has fixed counts: take a method that is not adaptive"
        )


def _is_text(path: Path) -> bool:
    """Names of files may be any bytes; C++ ends the process where they are not UTF-8."""
    try:
        os.path.realpath(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _check(model: nn.Module, batch: BatchSize, images: Tensor | None, int8: bool) -> None:
    """Say what is wrong with the model, or with the images for it, before anything is done."""
    vit, plan = backbone(model), current_plan(model)
    if plan is not None:
        check_method(plan.method)
    if images is None:
        if int8:
            raise ValueError("int8 is calibrated on images: give some of those it is for")
        return
    if images.dim() != 4 or tuple(images.shape[1:]) != vit.input_shape:
        raise ValueError(f"images must be N × {vit.input_shape}, got {tuple(images.shape)}")
    least = 1 if batch == "dynamic" else batch
    if len(images) < least:
        raise ValueError(f"{len(images)} images are fewer than a batch of {least}")


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A folder for what is not finished, on the same disk; gone in any case."""
    try:
        with TemporaryDirectory(prefix=".zerotprune-", suffix=".tmp", dir=path.parent,
                                ignore_cleanup_errors=True) as folder:  # fmt: skip
            yield Path(folder)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from None


def _compare(job: Job, model: nn.Module, file: Path, precision: Precision) -> Agreement:
    """The file beside the torch model, in batches as large as it takes; else ValueError."""
    job.say("comparing with torch")
    run, step = job.target.load(file, job.threads), job.step
    images = job.images[: len(job.images) // step * step]
    batches = list(images.split(step))
    if job.batch == "dynamic" and len(images) > 2:  # also more than one, of two sizes
        batches = [images[:2], *images[2:].split(3)]
    with torch.inference_mode():
        wanted = torch.cat([model(batch) for batch in batches])
    found = agreement(wanted, torch.cat([run(batch) for batch in batches]))
    if why := found.refusal(precision == "int8"):
        raise ValueError(f"the model in {job.target.runtime} is not that in torch: {why}")
    return found
