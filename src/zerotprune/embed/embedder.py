"""Embed images by a pruned model: a callable that can be sent to other processes.

An `Embedder` holds a recipe: a model, or its name, and a budget. The model is built in the process
that first uses it, on the device there. The embedder does everything between an image file and its
vector: decoding, the model's own transform, batches, pooling, normalization and the output type.
"""

from __future__ import annotations

import copy
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backbones import Pool, backbone, featurize_
from ..block import check_compiler
from ..budgets import fit, schedule_for
from ..method import Method, name_of, resolve
from ..safety.ranges import check_choice, check_range
from ..schedule import Schedule
from ..shapes import Precision
from ..surgery import attach, current_plan, restore_, sharing_copy
from ..tokens import Outputs

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

VectorType = Literal["float32", "float16"]

#: columns in which `__call__` looks for images by default
COLUMNS = ("image", "bytes", "jpg", "jpeg", "png", "webp", "tif", "img", "path")


_WITHOUT_BUDGET = "a method needs a budget: give cost or speedup"


class Vectors(NamedTuple):
    """Vectors and errors, a row for each image. An image that cannot be read has an error and a
    vector of NaN."""

    vectors: NDArray[Any]
    errors: list[str | None]


@dataclass(frozen=True)
class Decoder:
    """Decode images into a batch. This half of the work needs no model."""

    transform: Callable[[Image.Image], Tensor]
    precision: torch.dtype

    def __call__(
        self, images: Sequence[Any], names: Sequence[str] | None = None
    ) -> tuple[Tensor | None, list[str | None]]:
        """Return the readable images as one batch, or None if there are none; and for each image
        an error or None."""
        from ..data.images import BadImage

        good, errors = list[Tensor](), list[str | None]()
        for number, image in enumerate(images):
            name = names[number] if names is not None else f"image {number}"
            try:
                good.append(self.transform(_open_image(image, name)).to(self.precision))
                errors.append(None)
            except (BadImage, OSError) as error:
                errors.append(" ".join(str(error).split()))
        return (torch.stack(good) if good else None), errors


def _open_image(image: Any, name: str) -> Image.Image:
    """Open an image from a path, bytes, an array of height × width × 3 bytes, or a PIL image."""
    import io

    import numpy as np
    from PIL import Image

    from ..data.images import BadImage, decode, to_rgb
    from ..safety.files import bytes_of

    if isinstance(image, BaseException):  # reading it failed
        raise BadImage(f"cannot read {name}: {getattr(image, 'strerror', None) or image}")
    if isinstance(image, (str, Path)):
        try:
            return decode(io.BytesIO(bytes_of(Path(image))), str(image))
        except OSError as error:
            raise BadImage(f"cannot read {image}: {error.strerror or error}") from None
    if isinstance(image, (bytes, bytearray, memoryview)):
        return decode(io.BytesIO(image), name)
    if isinstance(image, Image.Image):
        return to_rgb(image, name)
    try:
        array = np.asarray(image)
    except (TypeError, ValueError) as error:
        raise BadImage(f"{name} is not an array: {error}") from None
    shape = array.shape
    colored = array.ndim == 3 and shape[2] in (3, 4)
    if array.dtype != np.uint8 or not (colored or array.ndim == 2) or not array.size:
        raise BadImage(
            f"{name} is an array of {array.dtype} and shape {shape}: give height × width × 3 bytes"
        )
    return to_rgb(Image.fromarray(array), name)


@dataclass
class _Built:
    """A recipe, built in one process."""

    model: nn.Module
    run: Callable[[Tensor], Tensor]
    decoder: Decoder
    normalization: dict[str, list[float]]
    schedule: Schedule
    outputs: Outputs
    device: torch.device
    precision: torch.dtype
    width: int


@dataclass
class Embedder:
    """Embed images by a pruned model; in batches, in a plain loop or by an engine such as Ray Data.

    It can be pickled: what is sent is the recipe, and each process builds the model for itself.
    Under Ray Data give the class: `data.map_batches(ztp.Embedder, fn_constructor_args=("my-vit",),
    fn_constructor_kwargs={"cost": 0.7}, batch_size=256)`.

    Args:
        model: A model, or its name or folder as on the command line. Without a budget, a pruned
            model stays pruned as it is, and a folder as it was saved. The model is not changed: its
            weights are shared if they are on `device` and of `dtype`, else copied.
        cost: The budget as a share of the unpruned model's compute.
        speedup: The budget as times the unpruned model's speed, measured where it is built. Workers
            that measure for themselves may prune differently: send them `settled()`.
        schedule: Stages and their method, instead of a budget.
        method: A method or its name, for a budget. Default: Fold. For a folder that was saved with
            your own method, that method, or its FILE.py:CLASS.
        pool: The vector: "own" is what the library's head reads, "cls" the CLS token, "mean" the
            mean over the patches.
        normalize: Divide each vector by its length.
        batch_size: Images that the model gets at a time.
        compile: Compile the model. The last batch is then padded, so that shapes stay the same.
        dtype: Of the model: "float32", "bfloat16" or "float16".
        vectors: Type of the vectors: "float32" or "float16".
        device: "cpu", "cuda", or "auto": cuda if there is one.
        weights: A local file of weights, for a model by name. Default: the published ones.
        size: Side of the images in pixels, if not the model's own.
        column: Where `__call__` finds the images. Default: the first of `COLUMNS`.
        random_weights: Take random weights, the same in every process: for a model by name, to
            measure its speed.

    >>> import timm, numpy as np
    >>> embedder = Embedder(timm.create_model("test_vit"), cost=0.7, device="cpu")
    >>> embedder.embed(np.zeros((2, 160, 160, 3), np.uint8)).vectors.shape
    (2, 64)
    >>> rows = embedder({"id": np.array([7]), "bytes": np.array([b"no image"], object)})
    >>> sorted(rows), rows["error"][0][:23]
    (['error', 'id', 'vector'], 'image 0 is not an image')
    """

    model: str | os.PathLike[str] | nn.Module
    cost: float | None = None
    speedup: float | None = None
    schedule: Schedule | None = None
    method: Method | str | None = None
    pool: Pool = "own"
    normalize: bool = True
    batch_size: int = 256
    compile: bool = False
    dtype: Precision = "float32"
    vectors: VectorType = "float32"
    device: str = "auto"
    weights: str | os.PathLike[str] | None = None
    size: int | None = None
    column: str | None = None
    random_weights: bool = False
    _built: _Built | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_range("batch", self.batch_size, "batch_size")
        for name, kinds in (("pool", Pool), ("dtype", Precision), ("vectors", VectorType)):
            check_choice(name, getattr(self, name), get_args(kinds))
        budgets = {"cost": self.cost, "speedup": self.speedup, "schedule": self.schedule}
        chosen = [name for name, value in budgets.items() if value is not None]
        if len(chosen) > 1:
            raise ValueError(f"give one budget, not several: {' and '.join(chosen)}")
        by_name = not isinstance(self.model, nn.Module)
        if self.method is not None and (self.schedule is not None or not (chosen or by_name)):
            raise ValueError(_WITHOUT_BUDGET)
        if not by_name and (self.weights is not None or self.random_weights):
            raise ValueError("weights go with a model's name, got a model: leave weights out")
        if self.weights is not None and self.random_weights:
            raise ValueError("give weights or random_weights, not both")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_built": None}

    def embed(self, images: Iterable[Any] | Tensor) -> Vectors:
        """Embed images in order.

        Args:
            images: Paths, bytes of files, arrays of height × width × 3 bytes or PIL images; or a
                tensor of images that went through the model's transform.
        """
        import numpy as np

        built, step = self.build(), self.batch_size
        if isinstance(images, Tensor):
            vectors = np.concatenate([self.empty(0), *self.stream(images.split(step))])
            return Vectors(vectors, [None] * len(images))
        images = list(images)
        errors: list[str | None] = []

        def decode_batches() -> Iterator[Tensor]:
            for start in range(0, len(images), step):
                part = images[start : start + step]
                names = [str(image) if isinstance(image, (str, Path)) else f"image {start + at}"
                         for at, image in enumerate(part)]  # fmt: skip
                batch, failed = built.decoder(part, names)
                errors.extend(failed)
                if batch is not None:
                    yield batch

        vectors = np.concatenate([self.empty(0), *self.stream(decode_batches())])
        return Vectors(self.spread(vectors, errors), errors)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Embed a batch of columns; return the others with `vector` and `error`."""
        import numpy as np

        names = COLUMNS if self.column is None else (self.column,)
        column = next((name for name in names if name in batch), None)
        if column is None:
            columns = ", ".join(batch) or "none"
            raise ValueError(f"expected a column {' or '.join(names)}, got {columns}")
        images = batch[column]
        if isinstance(images, np.ndarray) and images.ndim == 4 and images.dtype != np.uint8:
            images = torch.as_tensor(images)
        vectors, errors = self.embed(images)
        others = {name: values for name, values in batch.items() if name != column}
        return {**others, "vector": vectors, "error": np.array(errors, dtype=object)}

    def stream(self, batches: Iterable[Tensor]) -> Iterator[NDArray[Any]]:
        """Embed batches of transformed images, each of at most `batch_size`.

        On a GPU a batch is copied while the model runs the one before, and its vectors come back
        while the model runs the next.
        """
        built, running = self.build(), deque[tuple[Tensor, Any]]()
        side = torch.cuda.Stream(built.device) if built.device.type == "cuda" else None
        for images in batches:
            running.append(self._run(built, images, side))
            if len(running) > (0 if side is None else 1):
                yield _to_numpy(*running.popleft())
        while running:
            yield _to_numpy(*running.popleft())

    @torch.inference_mode()
    def _run(self, built: _Built, images: Tensor, side: Any) -> tuple[Tensor, Any]:
        count = len(images)
        if side is None:
            images = images.to(built.device)
        else:
            with torch.cuda.stream(side):
                images = images.to(built.device, non_blocking=True)
            current = torch.cuda.current_stream(built.device)
            current.wait_stream(side)
            images.record_stream(current)
        images = images.to(built.precision)
        if self.compile and count < self.batch_size:
            images = torch.cat(
                (images, images.new_zeros(self.batch_size - count, *images.shape[1:]))
            )
        vectors = built.run(images)[:count].float()
        if self.normalize:
            vectors = F.normalize(vectors, dim=-1)
        vectors = vectors.to(getattr(torch, self.vectors))
        if side is None:
            return vectors.cpu(), None
        host = torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=True)
        host.copy_(vectors, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return host, done

    @property
    def width(self) -> int:
        """Values in a vector."""
        return self.build().width

    @property
    def decoder(self) -> Decoder:
        """The part that needs no model, for processes that decode."""
        return self.build().decoder

    def empty(self, count: int) -> NDArray[Any]:
        """Return `count` vectors of NaN."""
        import numpy as np

        return np.full((count, self.width), np.nan, dtype=self.vectors)

    def spread(self, vectors: NDArray[Any], errors: Sequence[str | None]) -> NDArray[Any]:
        """Return a row for each image: the vectors in order, and NaN where there is an error."""
        import numpy as np

        rows = self.empty(len(errors))
        rows[np.array([error is None for error in errors], dtype=bool)] = vectors
        return rows

    def settled(self, images: Tensor | None = None) -> Embedder:
        """Return an embedder with a fixed schedule: what was measured here is used everywhere.

        Args:
            images: For a `speedup`, or a method whose cost depends on the images. Default: noise.
        """
        if self.cost is None and self.speedup is None:
            return self
        return self.pruned_by(self.build(images).schedule)

    def pruned_by(self, schedule: Schedule) -> Embedder:
        """Return an embedder with another schedule. It takes over the built model; this one builds
        a new one if it is used again."""
        fixed = replace(self, cost=None, speedup=None, method=None, schedule=schedule)
        if self._built is not None:
            attach(self._built.model, schedule)
            fixed._built = replace(self._built, schedule=schedule, outputs="tokens")
            self._built = None
        return fixed

    def about(self) -> dict[str, Any]:
        """Return everything that a vector depends on, as plain names and values. Two vectors can be
        compared if these are the same."""
        from ..data.fingerprint import fingerprint_model

        built = self.build()
        named = backbone(built.model).name if isinstance(self.model, nn.Module) else str(self.model)
        shape = fingerprint_model(named or type(built.model).__name__, built.model)
        return {
            "model": shape,
            "method": name_of(built.schedule.method) if built.schedule.stages else "unpruned",
            "schedule": built.schedule.one_line(),
            "outputs": built.outputs,
            "transform": {**built.normalization, "steps": _describe(built.decoder.transform)},
            "pool": self.pool,
            "normalize": self.normalize,
            "width": built.width,
            "dtype": self.dtype,
            "vectors": self.vectors,
        }

    def build(self, images: Tensor | None = None) -> _Built:
        """Build the model in this process, if it is not built yet."""
        if self._built is None:
            self._built = self._make(images)
        return self._built

    def _make(self, images: Tensor | None) -> _Built:
        device, precision = _device(self.device), getattr(torch, self.dtype)
        model = self._load(device, precision)
        vit = backbone(model)
        transform, (mean, std) = vit.transform(self.size), vit.normalization
        pruning = self._current_pruning(
            model
        )  # before `featurize_`, which may return another object
        model = featurize_(restore_(model), self.pool).eval().to(device, precision)
        schedule, outputs = pruning or (self.schedule or self._solve(model, images), "tokens")
        schedule = fit(schedule, backbone(model).geometry, outputs)
        attach(model, schedule, outputs=outputs)
        with torch.inference_mode():
            one = torch.zeros(1, *backbone(model).input_shape, device=device, dtype=precision)
            width = int(model(one).shape[-1])
        run: Any = model
        if self.compile:
            check_compiler()
            run = torch.compile(model, fullgraph=True, dynamic=False)
        decoder = Decoder(transform, precision)
        normalization = {"mean": list(mean), "std": list(std)}
        return _Built(
            model, run, decoder, normalization, schedule, outputs, device, precision, width
        )

    def _load(self, device: torch.device, precision: torch.dtype) -> nn.Module:
        """Return a model that is safe to change: loaded here, or a copy of the user's."""
        if isinstance(self.model, nn.Module):
            tensors = chain(self.model.parameters(), self.model.buffers())
            fits = all(tensor.device == device and tensor.dtype == precision for tensor in tensors
                       if tensor.is_floating_point())  # fmt: skip
            return sharing_copy(self.model) if fits else copy.deepcopy(self.model)
        from ..data.models import load

        weights = None if self.weights is None else Path(self.weights)
        name, pretrained = os.fspath(self.model), weights is None and not self.random_weights
        with torch.random.fork_rng(enabled=self.random_weights):
            if self.random_weights:
                torch.manual_seed(0)
            return load(name, weights=weights, pretrained=pretrained, size=self.size)

    def _current_pruning(self, model: nn.Module) -> tuple[Schedule, Outputs] | None:
        """Return how the model is pruned already, or was when it was saved; None with a budget."""
        if self.cost is not None or self.speedup is not None or self.schedule is not None:
            return None
        if (plan := current_plan(model)) is not None:
            return plan.schedule, plan.outputs
        from ..data.models import saved_with
        from ..data.weights import schedule_in

        saved = saved_with(model, self.method)
        if self.method is not None and (
            saved is None or type(resolve(self.method)) is not type(saved.schedule.method)
        ):
            raise ValueError(_WITHOUT_BUDGET)
        if saved is not None:
            return saved.schedule, saved.outputs
        trained = None if self.weights is None else schedule_in(Path(self.weights))
        return trained or Schedule(), "tokens"

    def _solve(self, model: nn.Module, images: Tensor | None) -> Schedule:
        from ..methods import DEFAULT

        method = resolve(self.method or DEFAULT)
        parameter = next(model.parameters())
        if images is None and (self.speedup is not None or method.adaptive):
            shape = (self.batch_size, *backbone(model).input_shape)
            images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        if images is not None:
            images = images.to(parameter.device, parameter.dtype)
        if self.speedup is not None:
            return schedule_for(model, speedup=self.speedup, example=images, method=method)
        sample = images if method.adaptive else None
        return schedule_for(model, cost=self.cost, method=method, images=sample)


def _to_numpy(vectors: Tensor, done: Any) -> NDArray[Any]:
    if done is not None:
        done.synchronize()
    return vectors.numpy()


def _describe(transform: object) -> str:
    """Describe a transform on one line, the same in every process."""
    return " ".join(re.sub(r" at 0x[0-9a-f]+", "", repr(transform)).split())


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
