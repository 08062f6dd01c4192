"""Run an embedder over shards: in this process, with others that decode for it, or on Ray Data.

Both engines do the same to the same pieces: one half reads and decodes them, the other runs the
model, and a shard is written when its last piece has come. They differ only in where the halves
run.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.pool import (  # type: ignore[attr-defined]  # not in typeshed
    ExceptionWithTraceback,
)
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..clock import now
from ..data.images import read_loader
from ..data.models import is_model_folder
from ..safety.interrupts import silence_worker
from .embedder import Decoder, Embedder
from .shards import Piece, Shard
from .writing import Rows, VectorFolder

Pending = Sequence[tuple[int, Shard]]


class Decoded(NamedTuple):
    """A piece as the model takes it."""

    piece: Piece
    images: Tensor | None  # None if none of them can be read
    errors: list[str | None]


@dataclass(frozen=True)
class Reader:
    """Read and decode pieces: as a data set, whose indices are pieces."""

    decoder: Decoder

    def __getitem__(self, piece: Piece) -> Decoded:
        """Decode a piece; if a read fails that may succeed later, fail its shard."""
        try:
            read = piece.read()
        except OSError as error:
            why = f"cannot read {error.filename}: {error.strerror}: run the same command again"
            return Decoded(replace(piece, failure=why), None, [])
        images, errors = self.decoder(read, piece.keys)
        return Decoded(piece, images, errors)


def first_batch(embedder: Embedder, shards: Sequence[Shard]) -> Tensor:
    """Read the first images that can be read, for a budget that is measured."""
    built = embedder.build()
    for number, shard in enumerate(shards):
        for piece in shard.cut(number, embedder.batch_size):
            images = Reader(built.decoder)[piece].images
            if images is not None:
                return images.to(built.device, built.precision)
    raise ValueError("none of the images can be read")


@dataclass
class Tally:
    """The progress of a run, its speed, and what limits it."""

    total_weight: int
    started: float = field(default_factory=lambda: now("cpu"))
    images: int = 0
    unreadable: int = 0
    shards: int = 0
    weight: int = 0  # of shards that have been cut into batches
    known: int = 0  # images in those
    model_seconds: float = 0.0  # time in which a model was busy
    models: int = 1
    ended: float = 0.0  # seconds that it took; 0 while it runs

    @property
    def seconds(self) -> float:
        return self.ended or now("cpu") - self.started

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds

    @property
    def total(self) -> int:
        """All images: counted in the shards that were cut, estimated in the others."""
        return round(self.known * self.total_weight / self.weight) if self.weight else 0

    @property
    def bound(self) -> str:
        """What the run waits for, by whether the models were busy most of the time."""
        busy = self.model_seconds / (self.seconds * self.models)
        return "model" if busy > 0.5 else "decoding"


class Collector:
    """Collect pieces in any order, and write each shard once it is complete."""

    def __init__(
        self, folder: VectorFolder, shards: Sequence[Shard], embedder: Embedder, tally: Tally,
        advance: Callable[[Tally], None],
    ) -> None:  # fmt: skip
        self.folder, self.shards, self.embedder = folder, shards, embedder
        self.tally, self.advance = tally, advance
        self.failures: dict[str, str] = {}
        self._open: dict[int, dict[int, Rows]] = {}

    def add(self, piece: Piece, vectors: Any, errors: Sequence[str | None]) -> None:
        """Add the vectors of a piece; a piece that arrives twice counts once."""
        name = self.shards[piece.shard].name
        if name in self.failures:
            return
        if piece.failure:
            self.failures[name] = piece.failure
            if self._open.pop(piece.shard, None) is None:
                self._count(piece.shard, piece.total)
            return
        if piece.shard not in self._open:
            if self.folder.is_finished(name):  # a piece that was run again after it was written
                return
            self._open[piece.shard] = {}
        parts = self._open[piece.shard]
        if piece.number in parts:
            return
        vectors = self.embedder.empty(0) if vectors is None else vectors
        parts[piece.number] = Rows(piece.keys, self.embedder.spread(vectors, errors), tuple(errors))
        if len(parts) == 1:
            self._count(piece.shard, piece.total)
        self.tally.images += len(piece.keys)
        self.tally.unreadable += sum(error is not None for error in errors)
        if len(parts) == piece.pieces:
            self.folder.write(name, [parts[number] for number in range(piece.pieces)])
            del self._open[piece.shard]
            self.tally.shards += 1
        self.advance(self.tally)

    def _count(self, shard: int, images: int) -> None:
        self.tally.weight += self.shards[shard].weight
        self.tally.known += images


def run_here(embedder: Embedder, pending: Pending, collector: Collector, workers: int) -> None:
    """Embed in this process.

    Args:
        embedder: What embeds.
        pending: The shards that are not finished, with their numbers.
        collector: What takes the vectors.
        workers: Processes that decode; with 0 this one does it.
    """
    failed = list[Piece]()

    def pieces() -> Iterator[Piece]:
        for number, shard in pending:
            for piece in shard.cut(number, embedder.batch_size):
                if piece.failure:
                    failed.append(piece)
                else:
                    yield piece

    tally, waiting = collector.tally, deque[Decoded]()
    loader: DataLoader[Any] = DataLoader(
        Reader(embedder.decoder),  # type: ignore[arg-type]  # what it needs of a data set
        batch_size=None,
        sampler=pieces(),
        num_workers=workers,
        collate_fn=_as_it_is,  # type: ignore[arg-type]  # a piece is a batch already
        worker_init_fn=_start_worker,
        pin_memory=embedder.build().device.type == "cuda",
        generator=torch.Generator(),  # else the loader would move the global random state
    )

    def batches() -> Iterator[Tensor]:
        turns = read_loader(loader)
        while True:
            begun = now("cpu")
            decoded = next(turns, None)
            tally.model_seconds -= now("cpu") - begun  # it is part of the time between vectors
            if decoded is None:
                return
            waiting.append(decoded)
            if decoded.images is not None:
                yield decoded.images

    vectors = embedder.stream(batches())
    while True:
        begun = now("cpu")
        batch_vectors = next(vectors, None)
        tally.model_seconds += now("cpu") - begun
        while waiting and waiting[0].images is None:
            piece, _, errors = waiting.popleft()
            collector.add(piece, None, errors)
        if batch_vectors is None:
            break
        piece, _, errors = waiting.popleft()
        collector.add(piece, batch_vectors, errors)
    for piece in failed:
        collector.add(piece, None, ())


def _as_it_is(decoded: Decoded) -> Decoded:
    return decoded


def _start_worker(worker: int) -> None:
    silence_worker(worker)
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Cluster:
    """Where Ray runs, and with how much.

    Args:
        address: Of a running cluster; None starts one on this machine, and stops it.
        actors: Models at work at once; None is one for each GPU, or one if there is none.
        decoders: Tasks that decode at once.
    """

    address: str | None = None
    actors: int | None = None
    decoders: int = 2

    @property
    def threads(self) -> int:
        """Threads of a model on a CPU. Actors on this machine share those of this process; a
        cluster's processors are given out one by one."""
        if self.address is not None:
            return 1
        return max(1, torch.get_num_threads() // (self.actors or 1))


def run_on_ray(
    embedder: Embedder, pending: Pending, collector: Collector, cluster: Cluster
) -> None:
    """Embed on Ray Data: tasks read and decode wherever there is a processor, actors each run a
    model, and this process writes.

    Ray repeats the work of a worker or node that died. Its own `write_parquet` names files by
    task, so that shards would be mixed and a second run would double them: rows come back here
    instead. `read_images` is not used, as it stops at the first broken image.
    """
    ray = start_ray(cluster)
    try:
        _stream_from_ray(ray, found_anywhere(embedder), pending, collector, cluster)
    except ray.exceptions.RayError as error:  # a worker or node that died again and again
        *_, reason = str(error).strip().splitlines() or [type(error).__name__]
        raise OSError(
            f"Ray failed: {reason}; finished shards are kept, run the same command to continue"
        ) from None
    finally:
        if cluster.address is None:
            ray.shutdown()


def _stream_from_ray(
    ray: Any, embedder: Embedder, pending: Pending, collector: Collector, cluster: Cluster
) -> None:
    gpus = int(ray.cluster_resources().get("GPU", 0)) if embedder.device in ("auto", "cuda") else 0
    actors = cluster.actors or max(1, gpus)
    if gpus and actors > gpus:
        raise ValueError(f"{actors} actors need a GPU each, but the cluster has {gpus}")
    threads = 1 if gpus else cluster.threads
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    rows = ray.data.from_items
    if len(pending) >= 4 * cluster.decoders:  # enough for all decoders: each cuts its own
        shards = rows(
            [{"shard": pickle.dumps(numbered)} for numbered in pending],
            override_num_blocks=len(pending),
        )
        pieces = shards.flat_map(_cut_rows, fn_kwargs={"size": embedder.batch_size})
    else:
        cut = [{"piece": pickle.dumps(piece)} for number, shard in pending
               for piece in shard.cut(number, embedder.batch_size)]  # fmt: skip
        pieces = rows(cut, override_num_blocks=min(len(cut), 2000))
    # The collector's embedder is built already; the one that is sent away is built there.
    decoder = collector.embedder.decoder
    decoded = pieces.map(_decode_row, fn_kwargs={"decoder": decoder}, num_cpus=1,
                         concurrency=cluster.decoders)  # fmt: skip
    embedded = decoded.map(
        RowEmbedder, fn_constructor_args=(*_pickle_embedder(embedder), threads), concurrency=actors,
        num_gpus=1 if gpus else None, num_cpus=0 if gpus else threads,
    )  # fmt: skip
    tally = collector.tally
    tally.models = actors
    for row in embedded.iter_rows():
        result = pickle.loads(row["rows"])
        if isinstance(result, Exception):  # Ray itself would send a traceback without the type
            raise result
        piece, vectors, errors, seconds = result
        if not tally.model_seconds:  # starting Ray and its actors is not embedding
            tally.started = now("cpu") - seconds
        tally.model_seconds += seconds
        collector.add(piece, vectors, errors)
    tally.ended = tally.seconds  # nor is stopping it


def found_anywhere(embedder: Embedder) -> Embedder:
    """Return an embedder with absolute paths, for processes with other working directories."""
    model, weights, method = embedder.model, embedder.weights, embedder.method
    if not isinstance(model, nn.Module):
        name = os.fspath(model)
        folder = Path(name.removeprefix("hf:"))
        if name.startswith("hf:") and folder.is_dir():
            model = f"hf:{folder.absolute()}"
        elif is_model_folder(name):
            model = folder.absolute()
    if weights is not None:
        weights = Path(weights).absolute()
    if isinstance(method, str) and ".py:" in method:
        method = str(Path(method).absolute())
    return replace(embedder, model=model, weights=weights, method=method)


def _pickle_embedder(embedder: Embedder) -> tuple[bytes, list[str]]:
    """Pickle an embedder, with the folder that the user's own method is imported from."""
    folders = []
    if embedder.schedule is not None:
        module = type(embedder.schedule.method).__module__
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is not None and "." not in module:
            folders.append(str(Path(file).absolute().parent))
    return pickle.dumps(embedder), folders


def pickle_error(error: Exception) -> bytes:
    """Pickle an error, with its traceback, for another process to raise it."""
    try:
        data = pickle.dumps(ExceptionWithTraceback(error, error.__traceback__))
        pickle.loads(data)
    except Exception:  # classes of any library
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data


def start_ray(cluster: Cluster) -> Any:
    """Start Ray here, or connect to where it runs, without log output or usage reports."""
    import logging

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # users need not see Ray's retries
    try:
        import ray
        import ray.data
    except ImportError:
        raise ValueError(
            "--engine ray needs one more package: pip install 'zerotprune[ray]'"
        ) from None
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if cluster.address is None:
        # Ray schedules by declared CPUs: declare enough for actors and decoders, even if the
        # machine has fewer.
        wanted = cluster.decoders + (cluster.actors or 1) * cluster.threads + 1
        options |= {"num_cpus": max(wanted, os.cpu_count() or 1), "include_dashboard": False}
        address = "local"
    else:
        address = cluster.address
    try:
        ray.init(address, ignore_reinit_error=True, **options)
    except (ConnectionError, ValueError) as error:
        raise ValueError(f"no Ray cluster at {address}: {error}") from None
    return ray


def _cut_rows(row: dict[str, Any], size: int) -> list[dict[str, Any]]:
    number, shard = pickle.loads(row["shard"])
    return [{"piece": pickle.dumps(piece)} for piece in shard.cut(number, size)]


def _decode_row(row: dict[str, Any], decoder: Decoder) -> dict[str, Any]:
    """Decode a piece; its images travel as plain bytes."""
    torch.set_num_threads(1)
    try:
        piece, images, errors = Reader(decoder)[pickle.loads(row["piece"])]
    except Exception as error:  # libraries that decode may fail in any way
        return {"head": pickle_error(error), "images": b""}
    shape = () if images is None else tuple(images.shape)
    raw = b"" if images is None else images.contiguous().view(torch.uint8).numpy().tobytes()
    return {"head": pickle.dumps((piece, shape, errors)), "images": raw}


class RowEmbedder:
    """Run a model in an actor, and embed decoded pieces."""

    def __init__(self, embedder: bytes, folders: Sequence[str], threads: int) -> None:
        torch.set_num_threads(threads)
        sys.path += [folder for folder in folders if folder not in sys.path]
        self.failed = b""
        try:
            self.embedder: Embedder = pickle.loads(embedder)
            self.embedder.build()
        except Exception as error:  # sent away with the first row
            self.failed = pickle_error(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        head = pickle.loads(row["head"])
        if self.failed or isinstance(head, Exception):
            return {"rows": self.failed or row["head"]}
        piece, shape, errors = head
        try:
            return {"rows": pickle.dumps(self._embed(piece, shape, errors, row["images"]))}
        except Exception as error:  # such as too little memory
            return {"rows": pickle_error(error)}

    def _embed(
        self, piece: Piece, shape: tuple[int, ...], errors: list[str | None], pixels: bytes
    ) -> tuple[Piece, Any, list[str | None], float]:
        started, vectors = now("cpu"), None
        if shape:
            raw = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)
            images = raw.view(self.embedder.build().precision).view(shape)
            (vectors,) = self.embedder.stream([images])
        seconds = now("cpu") - started
        small = Piece(piece.shard, piece.number, piece.pieces, piece.total, piece.keys,
                      failure=piece.failure)  # fmt: skip
        return small, vectors, errors, seconds
