"""The interface of a target: write a model for a runtime, run it there, quantize it, read it."""

from __future__ import annotations

import io
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from torch.export import ExportedProgram

from ..safety.files import parse_json

#: the description of an exported model in its file, as JSON data
Facts = dict[str, Any]
#: a model in a runtime: images in, its output out
Run = Callable[[Tensor], Tensor]


class Target(ABC):
    """A runtime. Its packages are imported when it is first used, not before."""

    name: ClassVar[str]
    runtime: ClassVar[str]  # for people to read
    ending: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()  # by the names they are imported by
    quantizer: ClassVar[tuple[str, ...] | None] = None  # packages for int8; None: it has none
    dynamic: ClassVar[bool] = True  # can a file take batches of any size?

    def check(self, int8: bool = False) -> None:
        """Raise ValueError, with what to do, if this machine cannot export like this."""
        if int8 and self.quantizer is None:
            raise ValueError(f"int8 is for onnx and openvino: {self.name} has no quantizer here")
        needed = (*self.packages, *(self.quantizer or () if int8 else ()))
        missing = [package for package in needed if find_spec(package) is None]
        if missing:
            raise ValueError(
                f"{self.name} needs the package {missing[0]}: pip install 'zerotprune[{self.name}]'"
            )

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that made a file."""
        return {package: version(package) for package in ("torch", *self.packages)}

    @abstractmethod
    def write(self, program: ExportedProgram, path: Path, facts: Facts) -> None:
        """Write the program, with its facts, to `path`."""

    @abstractmethod
    def load(self, path: Path, threads: int | None) -> Run:
        """Load a file into its runtime."""

    def quantize(
        self, source: Path, path: Path, images: Tensor, facts: Facts, full_range: bool = False
    ) -> None:
        """Write the model of `source` to `path` in int8, by the runtime's own tool.

        Args:
            source: The file in float32.
            path: The file to write.
            images: Images to calibrate on.
            facts: The description to store in the new file.
            full_range: Give weights all 8 bits. On a CPU without VNNI the sum of two products may
                then exceed 16 bits and is clipped without warning.
        """
        raise NotImplementedError

    def files(self, path: Path) -> list[Path]:
        """List all files that a model may consist of. The one that is opened comes last."""
        return [path]

    def written(self, path: Path) -> list[Path]:
        """List those of `files` that exist."""
        return [file for file in self.files(path) if file.exists()]

    @abstractmethod
    def read(self, path: Path) -> Facts:
        """Read the description in a file; raise ValueError if it has none."""


def parse_facts(path: Path, text: str | bytes) -> Facts:
    """Parse the JSON in which a file describes its model. It is not trusted."""
    try:
        facts = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path} does not describe a model: {error}") from None
    return check_facts(path, facts)


def check_facts(path: Path, facts: Any) -> Facts:
    """Return `facts` if they can be printed."""
    if not isinstance(facts, dict):
        raise ValueError(f"{path} does not describe a model: expected a JSON object")
    names = facts.get("class_names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path} does not describe a model: class_names is not a list of names")
    return facts


def no_facts(path: Path) -> ValueError:
    """Return the error for a file without a description."""
    return ValueError(f"{path} was not written by zerotprune: it has no description")


def nothing_to_quantize(target: Target, layers: int) -> ValueError:
    """Return the error for a model of which no layer can be quantized."""
    why = (
        f"8 bits are too coarse for the inputs of all {layers} layers"
        if layers
        else ("no layer with weights was found in it")
    )
    return ValueError(
        f"int8 would quantize nothing of this model for {target.runtime}: {why}; stay with float32"
    )


def batches_of(images: Tensor, size: int) -> list[Tensor]:
    """Split images into whole batches; the rest is left out."""
    return list(images[: len(images) // size * size].split(size))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence exporters on stdout, stderr, in logs and warnings; failures still raise."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(before)
