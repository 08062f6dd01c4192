"""Evaluate contenders on a data set: every image once, shared among processes under torchrun.

A model without a head is evaluated by a probe on its features: nearest neighbors, or linear.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backbones import backbone
from ..data.images import (
    ImageDataset,
    batches,
    check_classes,
    check_pair,
    open_data,
    read_sample,
)
from ..safety.interrupts import acknowledge
from ..schedule import Schedule
from ..shapes import Batch, Float, Int, Precision
from . import records
from .accuracy import Contender, Result, Setting, compare
from .speed import Accuracy, Entrant, Setup

Probe = Literal["knn", "linear"]
_NEIGHBORS = 10
TEMPERATURE = 0.07  # a neighbor's weight is exp(cosine / temperature)

Kind = TypeVar("Kind", bound="Evaluator")

#: called with the results so far after every batch
Advance = Callable[[list[Result]], None]


@dataclass(kw_only=True)
class Evaluator:
    """A model on its device, the images to evaluate it on, and this process's share of them.

    Args:
        model_name: The model's name in rows of results.
        data: Where the images are from, for rows and messages.
        model: On its device, in its precision.
        dataset: The images to evaluate on.
        setting: Device, precision and what to compute.
        batch: Images at a time.
        workers: Processes that decode images.
        strict: Stop at the first image that cannot be read.
        probe: For a model without a head.
        train: The images that the probe learns from.
        adjust: Maps the contenders' schedules to those that are run, such as a calibration.
        rank: Which of the processes this is.
        world: How many processes there are.
    """

    model_name: str
    data: str
    model: nn.Module
    dataset: ImageDataset
    setting: Setting
    batch: int = 32
    workers: int = 0
    strict: bool = False
    probe: Probe | None = None
    train: ImageDataset | None = None
    adjust: Callable[[list[Schedule]], Iterable[Schedule]] | None = None
    rank: int = 0
    world: int = 1

    @classmethod
    def prepare(
        cls: type[Kind],
        model: nn.Module,
        dataset: ImageDataset,
        device: str,
        *,
        model_name: str,
        precision: Precision = "float32",
        train: str | Path | None = None,
        size: int | None = None,
        timed: bool = True,
        **options: Any,
    ) -> Kind:
        """Check the head against the data, or open the probe's images; then move the model to
        `device`.

        Args:
            model: On any device, in float32.
            dataset: The images to evaluate on.
            device: The device to run on.
            model_name: The model's name in rows of results.
            precision: The precision to run in.
            train: The images that a probe learns from, for a model without a head.
            size: Side of the images in pixels; default the model's own.
            timed: Measure the speed too.
            options: The other fields of an evaluator.
        """
        vit = backbone(model)
        learned = None
        if train is not None:
            learned = open_data(train, split="train", transform=vit.transform(size))
            check_pair(learned, dataset)
        elif vit.outputs == 0:
            raise ValueError(f"{model_name} has no head: give --probe and --train")
        else:
            check_classes(dataset, vit.outputs)
        dtype: torch.dtype = getattr(torch, precision)
        setting = Setting(device, dtype, keep_outputs=learned is not None, timed=timed)
        return cls(model_name=model_name, model=model.to(device, dtype), dataset=dataset,
                   setting=setting, train=learned, **options)  # fmt: skip

    @property
    def leads(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    def some_images(self, count: int = 32) -> Tensor:
        """Read a few images, spread over the data, for methods whose cost depends on them."""
        return read_sample(self.dataset, count).to(self.setting.device, self.setting.precision)

    def run(self, contenders: Sequence[Contender]) -> list[Result]:
        """Run every contender on every image; with a probe, on the training images first."""
        if self.adjust is not None:
            schedules = self.adjust([contender.schedule for contender in contenders])
            contenders = [
                replace(contender, schedule=schedule)
                for contender, schedule in zip(contenders, schedules, strict=True)
            ]
        trained = None if self.train is None else self._run(contenders, self.train, "training")
        results = self._run(contenders, self.dataset, "evaluating")
        if trained is not None and self.train is not None and self.probe is not None:
            labels = torch.tensor([item.label for item in self.train.items])
            truth = torch.tensor([item.label for item in self.dataset.items])
            for learned, result in zip(trained, results, strict=True):
                apply_probe(self.probe, learned, result, labels, truth)
        return results

    def watch(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Return a context around one pass over `total` images. Override it to show progress."""
        return nullcontext(lambda results: None)

    def report_unreadable(self, message: str) -> None:
        """Handle an image that cannot be read. Override it to print a message."""

    def row(self, result: Result, reference: Result) -> dict[str, object]:
        """Return one row of the CSV."""
        precision = str(self.setting.precision).removeprefix("torch.")
        about: dict[str, object] = {
            "model": self.model_name,
            "data": Path(self.data).name,
            "measure": self.probe or "top1",
            "batch": self.batch,
            "hardware": records.hardware(self.setting.device),
        }
        return records.row(result, reference, precision) | about

    def _run(
        self, contenders: Sequence[Contender], dataset: ImageDataset, description: str
    ) -> list[Result]:
        with self.watch(description, len(dataset)) as advance:
            stream = self._batches(dataset)
            results = compare(self.model, contenders, stream, advance, self.setting)
        gathered = _gather(results, self.world)
        if not gathered[0].index:
            raise ValueError(f"none of the images in {dataset.name} can be read")
        return gathered

    def _batches(self, dataset: ImageDataset) -> Iterator[Batch]:
        return batches(
            dataset,
            self.batch,
            report=self.report_unreadable,
            workers=self.workers,
            strict=self.strict,
            rank=self.rank,
            world=self.world,
        )


def measure_accuracy(
    evaluator: Evaluator,
    cases: Sequence[Entrant],
    precisions: Sequence[Precision],
    setup: Setup,
) -> Accuracy:
    """Evaluate what was timed, in every precision; after Ctrl-C, return the precisions so far."""
    contenders = [entrant.contender for entrant in cases if not entrant.failure]
    measured: Accuracy = {}
    for precision in precisions:
        dtype: torch.dtype = getattr(torch, precision)
        setting = replace(evaluator.setting, precision=dtype, compute=setup.compute,
                          backend=setup.backend, outputs=setup.outputs)  # fmt: skip
        model = deepcopy(evaluator.model).to(dtype)
        try:
            measured[precision] = replace(evaluator, model=model, setting=setting).run(contenders)
        except KeyboardInterrupt:
            acknowledge()
            break
    return measured


def join_processes(device: str) -> tuple[int, int, str] | None:
    """Return rank, number of processes and device under torchrun; None in a single process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    if device not in ("cpu", "cuda"):
        raise ValueError(f"under torchrun --device is cpu or cuda, got {device}: each process has "
                         "a GPU of its own")  # fmt: skip
    from accelerate import PartialState

    state = PartialState(cpu=device == "cpu")
    # Threads of the process group that outlive the interpreter can abort the process.
    atexit.register(state.destroy_process_group)
    return state.process_index, state.num_processes, str(state.device)


def _gather(results: list[Result], world: int) -> list[Result]:
    """Join the shares of all processes, with the images in their original order."""
    if world > 1:
        from accelerate.utils import gather_object

        shares = [gather_object([_to_lists(result)]) for result in results]
        for result, parts in zip(results, shares, strict=True):
            for name in _to_lists(result):
                getattr(result, name)[:] = [value for part in parts for value in part[name]]
    for result in results:
        order = sorted(range(len(result.index)), key=result.index.__getitem__)
        for name in ("hits", "hits5", "kl", "index"):
            values = getattr(result, name)
            if values:  # a probe's features have no divergence
                setattr(result, name, [values[index] for index in order])
        if result.outputs:
            result.outputs = [torch.cat(result.outputs)[order]]
    return results


def _to_lists(result: Result) -> dict[str, list[Any]]:
    names = ("index", "hits", "hits5", "kl", "outputs", "seconds_per_image", "kept")
    return {name: getattr(result, name) for name in names}


def apply_probe(
    probe: Probe,
    learned: Result,
    result: Result,
    labels: Int[Tensor, " train"],
    truth: Int[Tensor, " test"],
) -> None:
    """Replace a result's hits by those of a probe on its features.

    Args:
        probe: Which one.
        learned: The features of the training images.
        result: The features of the test images; its hits are replaced.
        labels: Of all training images; those that could not be read have no features.
        truth: Labels of all test images.
    """
    features, known = torch.cat(learned.outputs), labels[learned.index]
    scores = probe_scores(probe, features, known, torch.cat(result.outputs))
    result.hits, result.hits5 = [], []
    result.rate(scores, truth[result.index])


def probe_scores(
    probe: Probe,
    train: Float[Tensor, "train width"],
    labels: Int[Tensor, " train"],
    test: Float[Tensor, "test width"],
) -> Float[Tensor, "test classes"]:
    """Return a score for each class, from features of labeled images."""
    for name, features in (("train", train), ("test", test)):
        if features.dim() != 2:
            raise ValueError(
                f"a probe needs one feature vector for each {name} image, "
                f"the model gives {tuple(features.shape[1:])}"
            )
    return _nearest(train, labels, test) if probe == "knn" else _linear(train, labels, test)


def _nearest(train: Tensor, labels: Tensor, test: Tensor) -> Tensor:
    """Sum the votes of the nearest neighbors by cosine, each weighted by its similarity."""
    cosines = F.normalize(test, dim=-1) @ F.normalize(train, dim=-1).T
    similarity, indices = cosines.topk(min(_NEIGHBORS, len(train)), dim=-1)
    scores = torch.zeros(len(test), int(labels.max()) + 1)
    return scores.scatter_add(1, labels[indices], (similarity / TEMPERATURE).exp())


def _linear(train: Tensor, labels: Tensor, test: Tensor) -> Tensor:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fitted = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    fitted.fit(train.numpy(), labels.numpy())
    scores = torch.full((len(test), int(labels.max()) + 1), -torch.inf)
    decided = torch.as_tensor(fitted.decision_function(test.numpy())).float()
    if decided.dim() == 1:  # of two classes, only the second one's
        decided = torch.stack((-decided, decided), dim=1)
    scores[:, fitted.classes_] = decided
    return scores
