"""One fine-tuning: open it, resume it from its checkpoint if there is one, run it to the end."""

from __future__ import annotations

import atexit
import copy
import io
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from torch import Tensor, nn

from ..backbones import backbone
from ..data.fingerprint import check_same
from ..data.images import ImageDataset, batches, check_pair, open_data, read_sample
from ..data.models import load, outline
from ..data.weights import weights_hash
from ..measure import records
from ..method import Method
from ..methods import DEFAULT, resolve, to_data
from ..safety.files import replacing
from ..schedule import Schedule
from .forms import form_for
from .images import Feed, ShownImages, count_overlap, identify
from .recipe import Recipe
from .training import EpochStats, Trainer, top1

try:
    import fcntl
except ImportError:  # Windows: two trainings for one file overwrite each other's
    fcntl = None  # type: ignore[assignment]

_VERSION = 1  # of checkpoints
_KINDS = {"identity": dict, "schedule": str, "state": dict, "history": list, "before": dict}
#: what is recorded for every epoch
ROW = {"epoch", "loss", "train_top1", "top1", "seconds"}
_MIXED_PRECISION = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class TrainingConfig:
    """What is trained, on which images, and how.

    Args:
        model: The model's name.
        loading: Keyword arguments of `data.models.load` for it.
        train: The images to learn from.
        val: The images to validate on.
        budget: The budget by option name, as it was given.
        solve: Returns the schedule that meets the budget for a model and some images.
        method: The method's name; None for the default, or the one in a schedule.
        recipe: Epochs, rates, augmentation and losses.
        teacher: A weights file or a model's name; None for the unpruned model itself.
        frozen: Train only new parameters, or the head if there are none.
        seed: For the order of images, augmentation and new parameters.
        precision: What the model computes in; its weights stay float32.
        device: Where to train.
        batch: Images at a time, in each process.
        workers: Processes that decode images.
        limit: Use at most this many images of either data set.
        strict: Stop at the first image that cannot be read.
    """

    model: str
    loading: Mapping[str, Any]
    train: str
    val: str
    budget: Mapping[str, float | str]
    solve: Callable[[nn.Module, Tensor], Schedule | None]
    method: str | None
    recipe: Recipe
    teacher: str | None
    frozen: bool
    seed: int
    precision: str
    device: str
    batch: int
    workers: int
    limit: int | None
    strict: bool

    @property
    def size(self) -> int | None:
        """Side of the images in pixels; None for the model's default."""
        size: int | None = self.loading["size"]
        return size

    def identity(self) -> dict[str, Any]:
        """Return the options that make one training different from another."""
        return {
            "method": json.dumps(to_data(trained_method(self.method))),
            "budget": " ".join(f"{name} {value}" for name, value in self.budget.items()),
            "frozen": self.frozen,
            "seed": self.seed,
            "precision": self.precision,
            **asdict(self.recipe),
        }

    def schedule_for(self, model: nn.Module, images: Tensor) -> Schedule:
        """Return the schedule within the budget; one without stages if there is no budget."""
        with torch.no_grad():
            return self.solve(model, images) or Schedule()


def trained_method(name: str | None) -> Method:
    """Return the method as it meets a budget when it is trained."""
    method = resolve(name or DEFAULT)
    return form_for(method).budgeted(method)


@dataclass
class Checkpoint:
    """A training after some epochs.

    Args:
        identity: Which training it is; another one cannot continue from here.
        schedule: As JSON. It may have been measured, so it is stored and not solved again.
        state: Model and optimizer.
        history: One row per epoch.
        before: Top-1 before training, and of the unpruned model.
    """

    identity: Mapping[str, Any]
    schedule: str
    state: Mapping[str, Any] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    before: dict[str, float] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        return len(self.history)

    def save(self, path: Path) -> None:
        """Write the file; serialize it in memory first, so that a full disk gives a clear error."""
        buffer = io.BytesIO()
        torch.save({"version": _VERSION, **vars(self)}, buffer)
        try:
            with replacing(path) as temporary:
                temporary.write_bytes(buffer.getbuffer())
        except OSError as error:
            raise OSError(
                f"{path} cannot be written after epoch {self.epochs}: {error.strerror or error}; "
                + ("the previous epoch is still there" if path.exists() else "nothing was saved")
            ) from None

    @classmethod
    def load(cls, path: Path, identity: Mapping[str, Any]) -> Checkpoint:
        """Load the checkpoint of this training; if it is another's, name the first difference."""
        data = _read(path)
        if isinstance(data, dict) and data.get("version", _VERSION) != _VERSION:
            raise ValueError(f"{path} was written by another release: remove it to start over")
        if not _is_complete(data):
            raise ValueError(
                f"{path} is not a checkpoint of a fine-tuning: move it away, or give another --out"
            )
        loaded = cls(**{name: value for name, value in data.items() if name != "version"})
        check_same(loaded.identity, identity, f"{path} is the checkpoint of another training",
                   "remove it to start over, or give another --out")  # fmt: skip
        return loaded


def _read(path: Path) -> Any:
    """Read a file of tensors and plain values; return None for any other file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's about pickles that we refuse
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:  # the unpickler may fail in any way on a foreign file
        return None


def _is_complete(data: Any) -> bool:
    """Check the types of all parts, not whether they fit the training."""
    if not isinstance(data, dict) or data.keys() != {"version", *_KINDS}:
        return False
    if not all(isinstance(data[name], kind) for name, kind in _KINDS.items()):
        return False
    rows = [data["before"], *data["history"]]
    if not all(isinstance(row, dict) and _has_numbers(row) for row in rows):
        return False
    return all(row.keys() == ROW for row in data["history"])


def _has_numbers(row: Mapping[str, Any]) -> bool:
    return all(isinstance(value, (int, float)) for value in row.values())


def checkpoint_beside(out: Path) -> Path:
    """Return where the checkpoint is while a training for this file is running."""
    return out.with_name(f"{out.name}.checkpoint")


@contextmanager
def keep_others_out(out: Path) -> Iterator[None]:
    """Keep other trainings from the same files until this one ends, however it ends."""
    file = out.with_name(f".{out.name}.lock")
    with file.open("w") as held:
        if fcntl is not None:
            try:
                fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # forked processes lack it
            except (BlockingIOError, PermissionError):
                raise ValueError(
                    f"another process is training for {out}: wait for it, or give another --out"
                ) from None
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


@dataclass
class Session:
    """One process's part in a training.

    Args:
        config: What is trained.
        trainer: The model with its optimizer.
        feed: The images to learn from.
        validation: Returns the batches to validate on, as often as it is called.
        file: Where every epoch is saved.
        checkpoint: The epochs so far.
        unpruned: The model before training; None if that is what is trained.
        has_new_head: Whether the head is new and untrained.
        sample: Images for methods whose cost depends on them.
        overlap: How many of the validation images are also training images.
    """

    config: TrainingConfig
    trainer: Trainer
    feed: Feed
    validation: Callable[[], Iterable[tuple[Tensor, ...]]]
    file: Path
    checkpoint: Checkpoint
    unpruned: nn.Module | None
    has_new_head: bool
    sample: Tensor
    overlap: int = 0

    @property
    def leads(self) -> bool:
        """Whether this is the process that prints and writes."""
        return bool(self.trainer.accelerator.is_main_process)

    def measure(self, model: nn.Module) -> float:
        """Return top-1 on the images to validate on, in percent."""
        return top1(model, self.validation(), self.trainer.accelerator)

    def measure_before(self) -> None:
        """Record top-1 before training, unpruned and pruned, unless the head is new."""
        before = self.checkpoint.before
        if before or self.has_new_head:
            return
        if self.unpruned is not None:
            before["unpruned"] = self.measure(self.unpruned)
        before["before"] = self.measure(self.trainer.trained())

    def run(
        self,
        advance: Callable[[int, EpochStats], None] = lambda epoch, stats: None,
        report: Callable[[dict[str, float]], None] = lambda row: None,
    ) -> None:
        """Train for the epochs that are left and save each of them.

        Args:
            advance: Called after every step with the epoch, from 0, and its sums so far.
            report: Called after every epoch with its row of the history.
        """
        trainer, checkpoint = self.trainer, self.checkpoint
        if checkpoint.epochs:
            self._resume()
        for epoch in range(checkpoint.epochs, trainer.recipe.epochs):
            started = time.perf_counter()
            stats = trainer.epoch(epoch, self.feed.epoch(epoch), partial(advance, epoch))
            seconds = time.perf_counter() - started
            row = {
                "epoch": epoch + 1,
                "loss": stats.loss,
                "train_top1": stats.top1,
                "top1": self.measure(trainer.trained()),
                "seconds": seconds,
            }
            checkpoint.history.append(row)
            checkpoint.state = trainer.state()
            if self.leads:
                checkpoint.save(self.file)
            report(row)

    def _resume(self) -> None:
        """Continue from the checkpoint. The file may be damaged, or of another training."""
        unfit = ValueError(f"{self.file} does not fit this training: remove it to start over")
        if self.checkpoint.epochs > self.trainer.recipe.epochs:
            raise unfit
        try:
            self.trainer.resume(self.checkpoint.state)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            raise unfit from None
        if not all(weight.isfinite().all() for weight in self.trainer.model.parameters()):
            raise unfit

    def final_schedule(self, trained: nn.Module) -> Schedule:
        """Return the schedule for the trained model.

        A cost that depends on the images depends on the weights, too, so it is solved again.
        """
        schedule = self.trainer.schedule
        if not schedule.method.adaptive or "--schedule" in self.config.budget:
            return schedule
        return self.config.schedule_for(trained, self.sample)

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the weights file: how the model was trained."""
        checkpoint = self.checkpoint
        return {
            **checkpoint.identity,
            **checkpoint.before,
            **checkpoint.history[-1],
            **records.surroundings(self.trainer.accelerator.device),
        }


def open_session(config: TrainingConfig, file: Path, report: Callable[[str], None]) -> Session:
    """Load models and data. Errors are raised here, before the first epoch.

    Args:
        config: What to train.
        file: The checkpoint, which is resumed if it exists.
        report: Called with a message for every image that cannot be read.
    """
    accelerator = _create_accelerator(config)
    model = load(**config.loading)
    train, val = _open_images(config, model)
    weights = weights_hash(model)
    has_new_head = _fit_head(model, train, config.seed)
    teacher = _load_teacher(config, model)
    identity = {
        "model": config.model,
        "weights": weights[:16],
        **config.identity(),
        "teacher": "" if teacher is None else weights_hash(teacher)[:16],
        "train": identify(train),
        "val": identify(val),
        "batch": config.batch,
        "size": backbone(model).input_shape[1],
        "processes": accelerator.num_processes,
    }
    checkpoint = Checkpoint.load(file, identity) if file.exists() else None
    plain = replace(train, transform=backbone(model).transform(config.size))  # not augmented
    sample = read_sample(plain).to(accelerator.device)
    model.to(accelerator.device)
    if checkpoint is None:
        solved = config.schedule_for(model, sample)
        # A measured schedule may differ between processes.
        (checkpoint,) = broadcast_object_list([Checkpoint(identity, solved.to_json())])
    schedule = _read_schedule(checkpoint, file)
    unpruned = copy.deepcopy(model) if schedule.stages and not has_new_head else None
    config.recipe.check(taught=teacher is not None or unpruned is not None)
    share: dict[str, Any] = {
        "report": report,
        "workers": config.workers,
        "strict": config.strict,
        "rank": accelerator.process_index,
        "world": accelerator.num_processes,
    }
    feed = Feed(train, config.batch, **share)
    trainer = Trainer(
        model,
        schedule,
        config.recipe,
        accelerator,
        steps=feed.steps,
        teacher=teacher or unpruned,
        new=backbone(model).head_parameters() if has_new_head else (),
        frozen=config.frozen,
        seed=config.seed,
    )
    return Session(
        config,
        trainer,
        feed,
        partial(batches, val, config.batch, **share),
        file,
        checkpoint,
        unpruned,
        has_new_head,
        sample,
        overlap=count_overlap(train, val),
    )


def _create_accelerator(config: TrainingConfig) -> Accelerator:
    device = torch.device(config.device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    precision = _MIXED_PRECISION[config.precision]
    accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=precision)
    if accelerator.num_processes > 1:
        # Threads of the process group that outlive the interpreter can abort the process.
        atexit.register(accelerator.state.destroy_process_group)
    return accelerator


def _open_images(config: TrainingConfig, model: nn.Module) -> tuple[ShownImages, ImageDataset]:
    """Open the images to learn from, augmented, and those to validate on."""
    augment = config.recipe.augmentation(model)
    train = open_data(config.train, split="train", limit=config.limit, transform=augment)
    transform = backbone(model).transform(config.size)
    val = open_data(config.val, limit=config.limit, transform=transform)
    check_pair(train, val)
    values = {part.name: getattr(train, part.name) for part in fields(train)}
    return ShownImages(**values, seed=config.seed), val


def _fit_head(model: nn.Module, images: ImageDataset, seed: int) -> bool:
    """Give the model a new head unless its own fits the classes; return whether it is new."""
    vit = backbone(model)
    fits = vit.outputs == images.classes if images.exact else vit.outputs >= images.classes
    if fits:
        return False
    set_seed(seed)
    vit.reset_head_(images.classes)
    return True


def _load_teacher(config: TrainingConfig, student: nn.Module) -> nn.Module | None:
    """Load the teacher that the user named, if any, and check that it fits the student."""
    if config.teacher is None:
        return None
    tokens = config.recipe.token_weight > 0
    if Path(config.teacher).is_file():
        pool = config.loading.get("pool")
        teacher = load(config.model, weights=Path(config.teacher), size=config.size, pool=pool)
    else:
        if config.size is None:  # before anything is downloaded
            check_teacher(student, outline(config.teacher), tokens)
        teacher = load(config.teacher, pretrained=True, size=config.size)
    check_teacher(student, teacher, tokens)
    return teacher


def check_teacher(student: nn.Module, teacher: nn.Module, tokens: bool) -> None:
    """Refuse a teacher whose classes or image size differ from the student's.

    Args:
        student: The model to train.
        teacher: The model to learn from.
        tokens: Whether their tokens are compared, which needs equal width and equal grids.
    """
    ours, theirs = backbone(student), backbone(teacher)
    pairs = [
        ("classes", ours.outputs, theirs.outputs, ""),
        ("pixels", ours.input_shape[1], theirs.input_shape[1], ""),
    ]
    if tokens:
        hint = ": use --token-weight 0 to ignore its tokens"
        pairs.append(("channels", ours.geometry.dim, theirs.geometry.dim, hint))
        pairs.append(("patches", ours.geometry.patches, theirs.geometry.patches, hint))
    for noun, of_student, of_teacher, hint in pairs:
        if of_student != of_teacher:
            raise ValueError(f"the teacher has {of_teacher} {noun}, the model {of_student}{hint}")


def _read_schedule(checkpoint: Checkpoint, file: Path) -> Schedule:
    try:
        return Schedule.from_json(checkpoint.schedule)
    except ValueError as error:
        raise ValueError(f"the schedule in {file}: {error}") from None
