"""All ways to run a model on a CPU, pruned and not: which is the fastest on a laptop?

Expected: an exported model is quicker than one in eager torch, a compiled one lies between, and
pruning gains in each of them. DeiT-S with random weights, which are as quick as any; Fold at half
of what the model needs. Every way is in the same turn.
Command: python -m benchmarks.speed.ways --threads 2 (a CPU with nothing else to do). What it gave:
docs/ways.png and docs/deploy.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import nn

from benchmarks.inputs import DOCS, measuring, parsed, say
from benchmarks.speed.speedup import HALF
from zerotprune import Schedule, gmacs
from zerotprune.clock import Call, race, stopwatch
from zerotprune.data.models import load
from zerotprune.export import target_named
from zerotprune.export.writing import Job, write_model
from zerotprune.measure import records
from zerotprune.measure.accuracy import UNPRUNED
from zerotprune.measure.speed import SEED, noise
from zerotprune.methods import name_of
from zerotprune.plots.figures import COLORS, check_figure_file, new_figure, save
from zerotprune.surgery import attach, current_plan, sharing_copy

MODEL = "deit_small_patch16_224"
#: as a row calls it → as the figure does
WAYS = {"eager": "torch, eager", "compile": "torch.compile", "onnx": "ONNX Runtime",
        "openvino": "OpenVINO", "executorch": "ExecuTorch"}  # fmt: skip
PRUNED = name_of(HALF.method)


class Case(NamedTuple):
    """One model, run in one way."""

    way: str
    name: str
    model: nn.Module
    call: Call


def main() -> None:
    known = measuring(__doc__)
    known.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    known.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    known.add_argument("--rounds", type=int, default=15)
    known.add_argument("--threads", type=int, default=2)
    known.add_argument("--out", type=Path, default=DOCS / "ways.png", help="the figure")
    chosen = parsed(known)
    check_figure_file(chosen.out)
    torch.set_num_threads(chosen.threads)
    rows = [row for batch in chosen.batch for row in measured(batch, chosen)]
    records.append(chosen.csv, rows)
    save(drawn(rows, chosen), chosen.out)


def measured(batch: int, chosen: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Measure every way, unpruned and pruned, all in turn; return a row for each."""
    torch.manual_seed(SEED)
    plain = load(MODEL).requires_grad_(False).eval()
    models = {UNPRUNED.name: plain, PRUNED: attach(sharing_copy(plain), HALF)}
    with TemporaryDirectory() as folder:
        cases = [
            Case(way, name, model, ready(way, model, batch, Path(folder, way, name), chosen))
            for way in chosen.ways
            for name, model in models.items()
        ]
        say(f"batch {batch}: {chosen.rounds} rounds of {len(cases)} cases")
        with torch.inference_mode():
            calls = [case.call for case in cases]
            *_, timings = race(calls, chosen.rounds, stopwatch("cpu"))
    unpruned = {case.way: seconds for case, seconds in zip(cases, timings, strict=True)
                if case.name == UNPRUNED.name}  # fmt: skip
    for case, seconds in zip(cases, timings, strict=True):
        plan = current_plan(case.model)
        schedule = Schedule() if plan is None else plan.schedule
        say(f"{batch} | {case.way} | {case.name} | {1e3 * seconds.median:.1f} ms")
        yield {
            "table": "ways", "model": MODEL, "seed": SEED, "threads": chosen.threads,
            "measure": "speed", "name": case.name, "method": records.method_json(schedule),
            "schedule": schedule.one_line(), "gmacs": round(gmacs(case.model), 6), "batch": batch,
            "precision": "float32", "mode": case.way,
            "images_per_second": round(batch / seconds.median, 1),
            "latency_ms": round(1e3 * seconds.median, 4),
            "latency_spread_ms": round(1e3 * seconds.spread, 4),
            "speedup": round(seconds.speedup(unpruned[case.way]), 4),
        }  # fmt: skip


def ready(way: str, model: nn.Module, batch: int, folder: Path, chosen: argparse.Namespace) -> Call:
    """Return a call that has run before."""
    say(f"{way}: getting ready")
    images = noise(model, batch, "cpu", torch.float32)
    if way == "eager":
        call = partial(model, images)
    elif way == "compile":
        call = partial(torch.compile(model, fullgraph=True, dynamic=False), images)
    else:
        target = target_named(way)
        job = Job(target, batch, ("float32",), images, chosen.threads, lambda line: None)
        folder.parent.mkdir(exist_ok=True)
        files = write_model(job, model, folder / f"model{target.ending}")
        call = partial(target.load(files["float32"], chosen.threads), images)
    with torch.inference_mode():
        for _ in range(2):
            call()
    return call


def drawn(rows: list[dict[str, object]], chosen: argparse.Namespace) -> Figure:
    """Plot milliseconds per image, unpruned and pruned, in a panel for each batch size."""
    figure = new_figure(8, 0.55 * len(chosen.ways) + 1.6)
    panels = figure.subplots(1, len(chosen.batch), sharey=True, squeeze=False)[0]
    places = range(len(chosen.ways), 0, -1)
    for axis, batch in zip(panels, chosen.batch, strict=True):
        for name, shift, color in ((UNPRUNED.name, 0.2, "#999999"), (PRUNED, -0.2, COLORS[0])):
            taken = {str(row["mode"]): float(str(row["latency_ms"])) / batch for row in rows
                     if row["batch"] == batch and row["name"] == name}  # fmt: skip
            bars = axis.barh([place + shift for place in places],
                             [taken[way] for way in chosen.ways], 0.36, color=color,
                             label=name)  # fmt: skip
            axis.bar_label(bars, fmt="%.0f", padding=2, fontsize=8)
        axis.set_yticks(list(places), [WAYS[way] for way in chosen.ways], fontsize=9)
        axis.set_xlabel("milliseconds an image")
        axis.set_title(f"batches of {batch}" if batch > 1 else "one image", fontsize=10)
        axis.margins(x=0.12)
        axis.grid(alpha=0.25, axis="x")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2,
                  frameon=False, fontsize=9)  # fmt: skip
    return figure


if __name__ == "__main__":
    main()
