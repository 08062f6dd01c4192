"""Rows of results: a value, its error, and everything needed to measure it again."""

from __future__ import annotations

import csv
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from ..methods import to_data
from ..safety.files import bytes_of, check_writable, naming, printable
from ..schedule import Schedule
from .accuracy import Contender, Mean, Result
from .speed import SEED, Accuracy, Group, Speed, results_of

Device = torch.device | str | None

FIELDS = (
    "time", "command", "commit", "versions", "hardware", "seed", "table", "model", "data", "images",
    "measure", "name", "method", "schedule", "gmacs", "gmacs_paper", "top1", "top1_error", "top5",
    "change", "change_error", "images_per_second", "peak_memory_mb", "batch", "precision", "mode",
    "backend", "compute", "threads", "latency_ms", "latency_spread_ms", "speedup", "of_limit",
    "failure", "same_tokens", "gmacs_needed", "kl", "kl_error",
    "train_seconds",
)  # fmt: skip


def check_rows_fit(path: Path) -> None:
    """Raise ValueError, before any work is done, if rows cannot be added to the file."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file to add rows to")
    check_writable(path)
    if path.exists():
        with path.open("r+", newline="", encoding="utf-8-sig", errors="replace") as file:
            try:
                header = next(csv.reader(file), None)
            except csv.Error:  # not a CSV file
                header = []
        if header is not None and tuple(header) != FIELDS:
            raise ValueError(
                f"{path} does not have the columns that this release writes: give a new file"
            )


def append(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows to a CSV, with a header if the file is new; all of them, or none if that fails.

    A row that does not name its hardware gets that of this machine: the GPU, if there is one.
    """
    check_rows_fit(path)
    where = surroundings()
    existed = path.exists()
    before = path.stat().st_size if existed else 0
    try:
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            if before == 0:
                writer.writeheader()
            elif bytes_of(path, before - 1) not in (b"\n", b"\r"):
                file.write("\n")  # an editor left out the last one
            writer.writerows([_printable({**where, **row}) for row in rows])
    except OSError as error:
        if existed:
            os.truncate(path, before)
        else:
            path.unlink(missing_ok=True)
        raise naming(error, path) from None


def _printable(row: Mapping[str, object]) -> dict[str, object]:
    return {key: printable(cell) if isinstance(cell, str) else cell for key, cell in row.items()}


def row(result: Result, reference: Result, precision: str) -> dict[str, object]:
    """Return the columns of a result."""
    return {
        "measure": "top1",
        **about(result.contender),
        "gmacs": round(result.gmacs(), 6),
        "gmacs_paper": round(result.gmacs("paper"), 6),
        "gmacs_needed": round(result.gmacs(compute="needed"), 6),
        **accuracy_row(result, reference),
        "images_per_second": (
            round(result.images_per_second, 1) if result.seconds_per_image else ""
        ),
        "peak_memory_mb": round(result.peak_memory / 2**20, 1) or "",
        "precision": precision,
    }


def accuracy_row(result: Result, reference: Result) -> dict[str, object]:
    """Return the columns of accuracy, to put beside a speed."""
    change, error = result.change(reference)
    columns: dict[str, object] = {
        "images": len(result.hits),
        "top1": round(result.top1, 3),
        "top1_error": round(result.top1_error, 3),
        "top5": round(result.top5, 3),
        "change": round(change, 3),
        "change_error": round(error, 3),
    }
    if result.kl:
        columns["kl"], columns["kl_error"] = Mean.of(result.kl).to_json()
    return columns


def speed_row(speed: Speed, group: Group) -> dict[str, object]:
    """Return the columns of one case of a speed measurement; a failed case has no numbers."""
    columns: dict[str, object] = {
        "measure": "speed",
        **about(speed.entrant.contender),
        "batch": speed.batch,
        "precision": speed.precision,
        "mode": speed.mode,
        "failure": speed.failure,
    }
    if speed.entrant.gmacs:
        columns["gmacs"] = round(speed.entrant.gmacs, 6)
        columns["gmacs_paper"] = round(speed.entrant.gmacs_paper, 6)
    if not speed.seconds:
        return columns
    speedup, of_limit = group.speedup(speed), group.of_limit(speed)
    return columns | {
        "images_per_second": round(speed.images_per_second, 1),
        "peak_memory_mb": round(speed.peak_memory / 2**20, 1) or "",
        "latency_ms": round(1e3 * speed.latency, 4),
        "latency_spread_ms": round(1e3 * speed.seconds.spread, 4),
        "speedup": "" if speedup is None else round(speedup, 4),
        "of_limit": "" if of_limit is None else round(of_limit, 4),
    }


def speed_rows(
    group: Group,
    columns: Mapping[str, object],
    options: Mapping[str, object],
    data: str | None,
    accuracy: Accuracy,
) -> list[dict[str, object]]:
    """Return a row for each case of a speed measurement.

    Args:
        group: What was measured.
        columns: Those of all rows.
        options: Columns of pruned models alone.
        data: Where the images for the accuracy are from.
        accuracy: Results to put beside the speeds.
    """
    rows = []
    for speed in group.speeds:
        row = {**speed_row(speed, group), **columns, "seed": SEED}
        if speed.entrant.contender.schedule.stages:
            row |= options
        if (results := results_of(speed, accuracy)) is not None and data is not None:
            row |= {"data": Path(data).name, **accuracy_row(*results)}
        rows.append(row)
    return rows


def about(contender: Contender) -> dict[str, object]:
    """Return the columns that say what was run."""
    schedule = contender.schedule
    return {"name": contender.name, "method": method_json(schedule),
            "schedule": schedule.one_line()}  # fmt: skip


def method_json(schedule: Schedule) -> str:
    """Return the schedule's method as JSON, or "" if it prunes nothing."""
    return json.dumps(to_data(schedule.method)) if schedule.stages else ""


def surroundings(device: Device = None) -> dict[str, object]:
    """Return time, command, commit and versions of this process, and the hardware of a device."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    name = Path(sys.argv[0]).name
    if main is not None:
        name = f"python -m {main.name.removesuffix('.__main__')}"
    return _printable({
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": f"{name} {shlex.join(map(shorten_path, sys.argv[1:]))}".strip(),
        "commit": _commit(),
        "versions": _versions(),
        "hardware": hardware(device),
    })  # fmt: skip


def shorten_path(argument: str) -> str:
    """Shorten an absolute path to its name, as the rest means nothing on another machine.

    >>> [shorten_path(path) for path in ("/data/deit.safetensors", "hf:/data/vit", "hf:user/vit")]
    ['deit.safetensors', 'hf:vit', 'hf:user/vit']
    """
    library, colon, place = argument.partition(":")
    if Path(place).is_absolute():
        return library + colon + Path(place).name
    return Path(argument).name if Path(argument).is_absolute() else argument


def hardware(device: Device = None) -> str:
    """Name what a device is. Default: the GPU, if there is one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU {platform.machine()}, {threads} thread{'s' * (threads > 1)}"


def _commit() -> str:
    if named := os.environ.get("ZEROTPRUNE_COMMIT"):  # for a copy without its history
        return named
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _versions() -> str:
    versions = [f"python={platform.python_version()}"]
    libraries = ("zerotprune", "torch", "timm", "accelerate", "transformers", "optuna",
                 "onnxruntime", "openvino", "executorch")  # fmt: skip
    for name in libraries:
        try:
            versions.append(f"{name}={version(name)}")
        except PackageNotFoundError:
            continue
    return " ".join(versions)
