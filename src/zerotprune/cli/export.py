"""`zerotprune export`: a pruned model as a file for a runtime, compared and timed there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from cyclopts import Parameter
from rich.table import Table
from torch import Tensor, nn

from ..data.images import batches
from ..data.models import saved_with
from ..data.weights import schedule_in
from ..export import target_named, target_of
from ..export.exporting import Report, check_method, check_target, export_model
from ..export.results import MAX_CHANGED_INT8
from ..export.writing import BatchSize
from ..measure.speed import noise
from ..methods import name_of
from ..pruning import prune_
from ..safety.ranges import RANGES
from .checks import Written
from .console import (
    INCONCLUSIVE,
    INCONCLUSIVE_REMARK,
    console_for,
    left_out,
    new_table,
    print_table,
    showing,
    speedup_cell,
)
from .options import (
    DATA,
    OUTPUT,
    BatchCount,
    BudgetOptions,
    DataOptions,
    Flag,
    InputName,
    MethodName,
    ModelName,
    ModelOptions,
    Threads,
    refuse_torchrun,
    refuse_without,
)

#: images to compare and calibrate on, where no limit is given; or one batch, if that is more
IMAGES = 100


@Parameter(name="*", group=DATA)
@dataclass(frozen=True)
class ImageOptions(DataOptions):
    """The images to compare on, and to calibrate int8 on."""

    data: InputName | None = None
    "Images to compare on: a folder, tar shards, or hf:DATASET; 100 of them, or --limit."

    def read(self, model: nn.Module, size: int | None, at_once: int) -> Tensor | None:
        """Read some images, at least one batch, spread evenly over the data; None for noise."""
        if self.data is None:
            return None
        limit = self.limit or max(IMAGES, at_once)
        limited = DataOptions(self.mapping, self.split, limit, self.strict)
        dataset = limited.open(self.data, model, size, labeled=False)
        console = console_for()
        stream = batches(dataset, 32, report=left_out(console), strict=self.strict)
        read = [images for images, _, _ in stream]
        if not read:
            raise ValueError(f"none of the images in {self.data} can be read")
        return torch.cat(read)


def export(
    model: ModelName,
    *,
    out: Annotated[Path, Written(_files), Parameter(group=OUTPUT, help="The file to write.")],
    to: Literal["onnx", "openvino", "executorch", "torch"] = "onnx",
    budget: BudgetOptions = BudgetOptions(),
    method: MethodName | None = None,
    loading: ModelOptions = ModelOptions(),
    reading: ImageOptions = ImageOptions(),
    batch: BatchCount | Literal["dynamic"] = 1,
    int8: Flag = False,
    full_range: Flag = False,
    max_changed: Annotated[float, RANGES["max_changed"]] = MAX_CHANGED_INT8,
    samples: Annotated[int, RANGES["samples"]] = 20,
    threads: Threads | None = None,
) -> None:
    """Write a pruned model for a runtime, compare it with torch, and time it there.

    Without a budget, weights of `finetune` are pruned by their own schedule. The unpruned model and
    slicing, the limit, are exported and timed beside it. If the exported model does not agree with
    torch, nothing is written.

    Example: `zerotprune export deit_small_patch16_224 --cost 0.6 --to onnx --out deit.onnx`

    Parameters
    ----------
    to
        onnx (for ONNX Runtime), openvino, executorch (with XNNPACK), torch.
    batch
        Images at a time, or dynamic.
    int8
        Quantize by the runtime's own tool, calibrated on --data; for onnx and openvino.
    full_range
        Give int8 weights all 8 bits, for CPUs with VNNI only: elsewhere such a file is wrong.
    max_changed
        Share of the answers on --data that int8 may change; with more, nothing is written.
    samples
        How often to time every model; 0 to time nothing.
    threads
        Threads of the runtime; default its own choice.
    """
    refuse_torchrun("export writes one file")
    budget.check(method, model)
    weights = loading.weights
    if not budget.options and weights is not None and schedule_in(weights) is not None:
        budget = replace(budget, schedule=str(weights))
    if reading.data is None:
        refuse_without("--data", reading)
    if int8 and reading.data is None:
        raise ValueError("int8 is calibrated on images: give --data")
    if loading.device not in ("auto", "cpu"):
        raise ValueError("models are exported and timed on the CPU: leave --device out")
    check_target(target_named(to), out, batch, int8, full_range, max_changed)
    if budget.options:
        check_method(budget.acting(method))
    if threads is not None:
        torch.set_num_threads(threads)
    console = console_for()
    built = loading.load(model)
    at_once = 1 if batch == "dynamic" else batch
    images = reading.read(built, loading.size, at_once)
    schedule = budget.solve(
        built, method, lambda: noise(built, at_once, "cpu", torch.float32), console.print
    )
    if schedule is not None:
        saved = None if budget.options else saved_with(built, method)
        prune_(built, schedule, outputs="tokens" if saved is None else saved.outputs)
    with showing(console, "exporting") as show:
        report = export_model(built, out, to=to, batch=batch, images=images, int8=int8,
                              full_range=full_range, max_changed=max_changed, rounds=samples,
                              threads=threads, say=show)  # fmt: skip
    if report.timings:
        print_table(console, _timings_table(report, model))
    shown = "noise" if images is None else reading.data
    for line in _remarks(report, str(shown), name_of(schedule.method) if schedule else "unpruned"):
        console.print(line)


def _files(out: Path) -> list[Path]:
    """Return the files that are written for a target: some have more than one."""
    target = target_of(out.name)
    return [out] if target is None else target.files(out)


def _timings_table(report: Report, model: str) -> Table:
    size: BatchSize = 1 if report.batch == "dynamic" else report.batch
    table = new_table(f"{model} in {report.runtime}, batch {size}")
    table.add_column("model")
    table.add_column("precision")
    for column in ("ms", "spread", "speedup", "of limit", "MB"):
        table.add_column(column, justify="right", no_wrap=True)
    for timing in report.timings:
        speedup, share = speedup_cell(timing.speedup, timing.speedup_range), timing.of_limit
        table.add_row(
            timing.name,
            timing.precision,
            f"{1e3 * timing.seconds:.2f}",
            f"{1e3 * timing.spread:.2f}",
            speedup,
            "" if share is None or speedup.startswith(INCONCLUSIVE) else f"{100 * share:.0f} %",
            f"{timing.size / 1e6:.1f}",
        )
    return table


def _remarks(report: Report, shown: str, name: str) -> list[str]:
    agreement = report.agreement
    cells = [speedup_cell(timing.speedup, timing.speedup_range) for timing in report.timings]
    unclear = any(cell.startswith(INCONCLUSIVE) for cell in cells)
    return [f"{INCONCLUSIVE_REMARK} Try more --samples, or a quiet machine."] * unclear + [
        f"{report.path}: {name}, {report.precision}, batch {report.batch}, "
        f"{report.size / 1e6:.1f} MB",
        f"beside torch, on {agreement.images} images ({shown}): the same answer for "
        f"{agreement.same:.1%}; largest difference of an output {agreement.largest:.2g}",
    ]
