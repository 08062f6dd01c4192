"""Run an exported model: compare its answers with torch's, and time it beside others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..clock import race, stopwatch
from ..measure.accuracy import UNPRUNED
from ..measure.speed import LIMIT
from .target import batches_of
from .writing import FilePrecision, Job

#: Two tokens that score alike may be ordered differently in another runtime, and then all that
#: follows differs for that image. For most images outputs must be the same but for rounding.
ROUNDING = 1e-3
#: the share of predictions that may differ; for int8, the user can set another
MAX_CHANGED, MAX_CHANGED_INT8 = 0.1, 0.15


@dataclass(frozen=True)
class Agreement:
    """The outputs of two models on the same images."""

    images: int
    largest: float  # difference of two outputs
    typical: float  # the same for the median image, as a share of the range of its outputs
    same: float  # share of the images with the same answer

    def check(self, runtime: str) -> None:
        """Raise ValueError if the two models differ by more than rounding."""
        changed = 1 - self.same
        if not changed <= MAX_CHANGED:
            raise ValueError(
                f"the model in {runtime} differs from torch's: {changed:.0%} of the answers on "
                f"{self.images} images differ, expected at most {MAX_CHANGED:.0%}"
            )
        if not self.typical <= ROUNDING:
            raise ValueError(
                f"the model in {runtime} differs from torch's: the outputs differ by up to "
                f"{self.largest:.2g}, and typically by {self.typical:.2g} of their range: that is "
                "more than rounding"
            )

    def check_int8(self, max_changed: float) -> None:
        """Raise ValueError if quantization changes more answers than allowed."""
        changed = 1 - self.same
        if not changed <= max_changed:
            raise ValueError(
                f"int8 changes {changed:.1%} of the answers on {self.images} images, and "
                f"{max_changed:.1%} are allowed: calibrate on more images, stay with float32, or "
                "allow more by max-changed"
            )


def agreement(expected: Tensor, outputs: Tensor) -> Agreement:
    """Compare outputs, one row per image.

    >>> import torch
    >>> expected = torch.tensor([[1.0, 3.0], [2.0, 0.0]])
    >>> agreement(expected, expected + torch.tensor([0.0, 0.5])).largest
    0.5
    """
    if expected.shape != outputs.shape:
        raise ValueError(
            f"expected outputs of shape {tuple(expected.shape)}, got {tuple(outputs.shape)}"
        )
    expected, outputs = expected.double().flatten(1), outputs.double().flatten(1)
    difference = (expected - outputs).abs().amax(dim=1)
    spread = (expected.amax(dim=1) - expected.amin(dim=1)).clamp_min(1e-12)
    same = (expected.argmax(dim=1) == outputs.argmax(dim=1)) & outputs.isfinite().all(dim=1)
    return Agreement(
        len(expected),
        difference.max().item(),
        (difference / spread).median().item(),
        same.double().mean().item(),
    )


def compare_with_torch(job: Job, model: nn.Module, file: Path) -> Agreement:
    """Run a file beside the torch model, in batches as large as the file takes."""
    job.say("comparing with torch")
    run, batches = job.target.load(file, job.threads), batches_of(job.images, job.step)
    if job.batch == "dynamic" and len(job.images) > 2:  # also more than one, of two sizes
        batches = [job.images[:2], *job.images[2:].split(3)]
    with torch.inference_mode():
        expected = torch.cat([model(batch) for batch in batches])
    return agreement(expected, torch.cat([run(batch) for batch in batches]))


@dataclass(frozen=True)
class Timing:
    """One model in the runtime: pruned, unpruned, or the limit."""

    name: str
    precision: FilePrecision
    size: int  # bytes of its files
    seconds: float  # one call: the median
    spread: float  # between its quartiles
    speedup: float | None  # over the unpruned model in float32
    speedup_range: tuple[float, float] | None  # its quartiles over the rounds
    of_limit: float | None  # share of the speed of slicing in the same precision


def time_models(
    job: Job, cases: Mapping[str, Mapping[FilePrecision, Path]], rounds: int
) -> list[Timing]:
    """Time every model in every precision, in turn."""
    job.say(f"timing {len(cases) * len(job.precisions)} models in {job.target.runtime}")
    batch = job.images[: job.step]
    named = [(name, precision, files[precision])
             for precision in job.precisions for name, files in cases.items()]  # fmt: skip
    calls = [partial(job.target.load(file, job.threads), batch) for _, _, file in named]
    *_, timings = race(calls, rounds, stopwatch("cpu"))
    taken = {(name, precision): seconds
             for (name, precision, _), seconds in zip(named, timings, strict=True)}  # fmt: skip
    compared, unpruned = list[Timing](), taken.get((UNPRUNED.name, "float32"))
    for name, precision, file in named:
        seconds, limit = taken[name, precision], taken.get((LIMIT, precision))
        compared.append(Timing(
            name,
            precision,
            size=sum(part.stat().st_size for part in job.target.written(file)),
            seconds=seconds.median,
            spread=seconds.spread,
            speedup=None if unpruned is None else seconds.speedup(unpruned),
            speedup_range=None if unpruned is None else seconds.speedup_quartiles(unpruned)[::2],
            of_limit=None if limit is None else seconds.speedup(limit),
        ))  # fmt: skip
    return compared
