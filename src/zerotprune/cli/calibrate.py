"""`zerotprune calibrate`: the rounds and the VHF range that a model wants, from images."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..backbones import backbone
from ..calibrate.calibration import Calibration
from ..calibrate.survey import (
    THRESHOLD,
    divergences_json,
    head_variances,
    rounds_needed,
    survey,
    variances_json,
)
from ..calibrate.vhf import DEFAULT, RangeSearch, search_range, usual_schedule
from ..data.fingerprint import fingerprint_model
from ..data.images import batches, check_classes
from ..data.models import load
from ..files import check_writable, printable
from ..measure import records
from ..plots import calibration as plots
from ..plots.figures import check_figure_file, save
from .console import left_out, progress_bar
from .options import ModelOptions, ReadingOptions, chosen_device, preset_or_file, refuse_torchrun
from .report_calibration import rounds_lines, rounds_table, vhf_lines

FIGURES = ("score-distributions.png", "kl-by-block.png", "vhf-ranges.png")


def calibrate(
    model: str,
    data: str,
    *,
    out: Path,
    figures: Path | None = None,
    threshold: float = THRESHOLD,
    schedule: str | None = None,
    labels: bool = True,
    evaluations: int = 40,
    seed: int = 0,
    loading: ModelOptions | None = None,
    reading: ReadingOptions | None = None,
) -> None:
    """Measure how many rounds each block needs and search the VHF range; write a calibration JSON.

    It is used by --calibration in other commands. A model without a head has no accuracy to search
    a range by: it gets its rounds, and keeps the default range.

    Example: `zerotprune calibrate deit_small_patch16_224 images --out calibration.json`

    Parameters
    ----------
    model
        `demo`, the name of a timm model, or another library's with its prefix: torchvision:NAME.
    data
        A folder of class folders, a flat folder with --mapping, tar shards, or hf:DATASET.
    out
        The calibration, a JSON file.
    figures
        Folder for score-distributions.png, kl-by-block.png and vhf-ranges.png.
    threshold
        A block has voted enough when KL(50 rounds ‖ r rounds) is below this share of its spread,
        KL(50 rounds ‖ flat).
    schedule
        How the model is pruned while the range is searched: a preset or a JSON file. Default:
        vhf-search for models of 12 blocks, else one for 0.7 of the cost.
    labels
        Search by top-1 on the labels; without them, by KL(unpruned ‖ pruned) of the outputs.
    evaluations
        How many ranges are tried at most; 0 leaves the search out.
    seed
        Of the random starts.
    """
    loading, reading = loading or ModelOptions(), reading or ReadingOptions()
    _check(out, figures, schedule)
    device = chosen_device(loading.device)
    console = Console()
    built = load(**loading.named(model))
    outputs, plan = backbone(built).outputs, None
    searching = outputs > 0 and evaluations > 0
    dataset = reading.open(data, built, loading.size, labelled=searching and labels)
    if searching:
        if labels:
            check_classes(dataset, outputs)
        chosen = usual_schedule(built) if schedule is None else preset_or_file(schedule)
        plan = RangeSearch(chosen, labels, evaluations, seed)
        plan.check(built)
    fingerprint = fingerprint_model(model, built)  # before it is moved
    built.to(device)
    with progress_bar(console) as progress:
        voting = progress.add_task("voting in every block", total=len(dataset), note="")
        trying = progress.add_task("trying VHF ranges", total=evaluations, note="",
                                   visible=plan is not None)  # fmt: skip
        stream = batches(dataset, reading.batch, report=left_out(console),
                         workers=reading.workers, strict=reading.strict)  # fmt: skip
        # The search goes over the images again and again: they are decoded once and held.
        seen = stream if plan is None else list(stream)
        blocks = survey(built, seen, device, partial(progress.advance, voting))
        rows = rounds_needed(blocks, threshold)
        variances = head_variances(blocks, rows)
        verdict = None
        if plan is not None:
            verdict = search_range(built, plan, seen, variances, device,
                                   partial(progress.advance, trying))  # fmt: skip
    images = len(blocks[0].spread)
    about = {"images": images, "data": printable(Path(data).name), "seed": seed}
    Calibration(
        model=fingerprint,
        rounds=tuple(row.needed for row in rows),
        vhf=DEFAULT if verdict is None else verdict.recommended,
        kl=divergences_json(rows, threshold),
        variances=variances_json(variances),
        search={} if verdict is None else verdict.to_json(),
        provenance=about | records.surroundings(),
    ).save(out)
    title = f"{model}, {images} images"
    if figures is not None:
        first, second, third = (figures / name for name in FIGURES)
        save(plots.distributions_figure(blocks, title), first)
        save(plots.divergence_figure(rows, threshold, title), second)
        if verdict is not None:
            save(plots.ranges_figure(verdict, title), third)
    console.print(rounds_table(rows, title))
    for line in [*rounds_lines(rows, threshold), *vhf_lines(verdict, outputs > 0)]:
        console.print(line, highlight=False)
    console.print(f"written: [bold]{escape(str(out))}[/bold]", highlight=False)


def _check(out: Path, figures: Path | None, schedule: str | None) -> None:
    refuse_torchrun("calibrate runs in one process")
    if schedule is not None:
        preset_or_file(schedule)
    check_writable(out)
    if figures is not None:
        check_figure_file(figures / FIGURES[0])
