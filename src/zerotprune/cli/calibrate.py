"""`zerotprune calibrate`: the rounds and the VHF range that suit a model, from images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from rich.table import Table

from ..backbones import backbone
from ..calibrate.calibration import measure_calibration
from ..calibrate.survey import ROUNDS, SETTLED, THRESHOLD, BlockRounds
from ..calibrate.vhf import (
    DEFAULT_VHF,
    ENOUGH,
    RangeSearch,
    Verdict,
    VhfRange,
    usual_schedule,
)
from ..data.fingerprint import fingerprint_model
from ..data.images import batches, check_classes
from ..measure import records
from ..plots import calibration as plots
from ..plots.figures import check_figure_file, save
from ..safety.files import check_writable, printable
from ..safety.ranges import RANGES
from .console import console_for, left_out, new_table, print_path, print_table, progress_bar
from .options import (
    DataName,
    FigureFolder,
    InputName,
    ModelName,
    ModelOptions,
    Output,
    ReadingOptions,
    Seed,
    preset_or_file,
    refuse_torchrun,
    resolve_device,
)

FIGURES = ("score-distributions.png", "kl-by-block.png", "vhf-ranges.png")


def calibrate(
    model: ModelName,
    data: DataName,
    *,
    out: Output,
    figures: FigureFolder = None,
    threshold: Annotated[float, RANGES["threshold"]] = THRESHOLD,
    schedule: InputName | None = None,
    labels: bool = True,
    evaluations: Annotated[int, RANGES["evaluations"]] = 40,
    seed: Seed = 0,
    loading: ModelOptions = ModelOptions(),
    reading: ReadingOptions = ReadingOptions(),
) -> None:
    """Measure how many rounds each block needs and search the VHF range; write a calibration JSON.

    Other commands read it by --calibration. For a model without a head there is no accuracy to
    search by: only the rounds are measured, and the default range is kept.

    Example: `zerotprune calibrate deit_small_patch16_224 images --out calibration.json`

    Parameters
    ----------
    out
        The calibration, a JSON file.
    figures
        Folder for score-distributions.png, kl-by-block.png and vhf-ranges.png.
    threshold
        r rounds are enough for a block if KL(50 rounds ‖ r rounds) is below this share of its
        spread, KL(50 rounds ‖ flat).
    schedule
        How to prune the model while the range is searched: a preset or a JSON file, of
        Zero-TPrune, whose other options stay. Default: vhf-search for models of 12 blocks, else
        one for 0.7 of the cost.
    labels
        Search by top-1 on the labels; without labels, by KL(unpruned ‖ pruned) of the outputs.
    evaluations
        Try at most this many ranges; 0 for no search.
    seed
        For the random starts.
    """
    refuse_torchrun("calibrate runs in one process")
    if schedule is not None:
        preset_or_file(schedule)
    check_writable(out)
    if figures is not None:
        check_figure_file(figures / FIGURES[0])
    device = resolve_device(loading.device)
    console = console_for()
    built = loading.load(model)
    outputs, search = backbone(built).outputs, None
    searching = outputs > 0 and evaluations > 0
    if schedule is not None and not searching:
        why = "the model has no head to search by" if outputs == 0 else "--evaluations is 0"
        raise ValueError(f"--schedule is for the search of a range, and {why}: leave it out")
    dataset = reading.open(data, built, loading.size, labeled=searching and labels)
    if searching:
        if labels:
            check_classes(dataset, outputs)
        chosen = usual_schedule(built) if schedule is None else preset_or_file(schedule)
        search = RangeSearch(chosen, labels, evaluations, seed)
        search.check(built)
    fingerprint = fingerprint_model(model, built)  # before it is moved
    built.to(device)
    with progress_bar(console) as progress:
        voting = progress.add_task("voting in every block", total=len(dataset), note="")
        trying = progress.add_task("trying VHF ranges", total=evaluations, note="",
                                   visible=search is not None)  # fmt: skip
        stream = batches(dataset, reading.batch, report=left_out(console),
                         workers=reading.workers, strict=reading.strict)  # fmt: skip
        findings = measure_calibration(
            built, stream, threshold, search, device,
            voted=partial(progress.advance, voting), tried=partial(progress.advance, trying),
        )  # fmt: skip
    blocks, rows, verdict = findings.blocks, findings.rows, findings.verdict
    about = {"images": findings.images, "data": printable(Path(data).name), "seed": seed}
    findings.calibration(fingerprint, about | records.surroundings(device)).save(out)
    title = f"{model}, {findings.images} images"
    if figures is not None:
        first, second, third = (figures / name for name in FIGURES)
        save(plots.distributions_figure(blocks, title), first)
        save(plots.divergence_figure(rows, threshold, title), second)
        if verdict is not None:
            save(plots.ranges_figure(verdict, title), third)
    print_table(console, _rounds_table(rows, title))
    for line in [*_rounds_lines(rows, threshold), *_range_lines(verdict, outputs > 0)]:
        console.print(line)
    print_path(console, "written", out)


def _rounds_table(rows: Sequence[BlockRounds], title: str) -> Table:
    table = new_table(title)
    for column in ("block", "spread", *(f"r = {rounds}" for rounds in ROUNDS[:-1])):
        table.add_column(column, justify="right")
    for column in ("needed", "paper's", "verdict"):
        table.add_column(column)
    for row in rows:
        low, high = row.paper
        means = [f"{kl.value:.1e}" for kl in row.divergence]
        paper = f"{low}" if low == high else f"{low}–{high}"
        table.add_row(str(row.block), f"{row.spread.value:.3f}", *means, str(row.needed), paper,
                      row.verdict)  # fmt: skip
    return table


def _rounds_lines(rows: Sequence[BlockRounds], threshold: float) -> list[str]:
    tally = Counter(row.verdict for row in rows)
    return [
        f"r: mean KL({SETTLED} rounds ‖ r rounds); spread: KL({SETTLED} rounds ‖ flat)",
        f"needed: the fewest rounds with a KL of at most {threshold:g} of the spread",
        f"the paper's rounds are right in {tally['holds']} of {len(rows)} blocks, too many in "
        f"{tally['too many']} and too few in {tally['too few']}",
    ]


def _range_lines(verdict: Verdict | None, head: bool) -> list[str]:
    if verdict is None:
        why = "no search was asked for" if head else "the model has no head to search by"
        return [f"VHF range: the default, {_between(DEFAULT_VHF)}; {why}"]
    best, gain, judged = verdict.best, verdict.gain, verdict.judged
    lines = [
        f"VHF range: {_between(best)} is the best of {len(verdict.trials)} on {verdict.searched} "
        f"images ({verdict.measure})"
    ]
    if best == DEFAULT_VHF:
        return [*lines, "that is the default, so there is nothing to compare on the other images"]
    scale = 100 if verdict.labels else 1
    value, default = scale * verdict.best_value.value, scale * verdict.default_value.value
    paired = f"{scale * gain.value:+.3g} ± {scale * gain.error:.2g} (paired)"
    lines.append(f"on the other {judged}: {value:.4g}, the default {default:.4g}: {paired}")
    if verdict.holds:
        return [*lines, f"that is more than two standard errors: {_between(best)} is recommended"]
    why = "too few images to tell" if judged < ENOUGH else "within two standard errors"
    return [*lines, f"{why}: the default, {_between(DEFAULT_VHF)}, is recommended"]


def _between(place: VhfRange) -> str:
    return f"{place[0]:g} to {place[1]:g}"
