"""The socket for targets: how a model is written for a runtime, run there, and made smaller."""

from __future__ import annotations

import io
import json
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

from ..files import parsed, text_of

#: what an exported file says of itself, as JSON has it
Facts = dict[str, Any]
#: a model in a runtime: images in, its output out
Run = Callable[[Tensor], Tensor]


class Target(ABC):
    """A runtime. No package of its own is imported before it is asked to do something."""

    name: ClassVar[str]
    runtime: ClassVar[str]  # for people to read
    ending: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()  # by the names they are imported by
    quantizer: ClassVar[tuple[str, ...] | None] = None  # packages for int8; None: it has none
    dynamic: ClassVar[bool] = True  # can a file take batches of any size?

    def check(self, int8: bool = False) -> None:
        """Raise ValueError, with what to do, if nothing can be exported like this."""
        if int8 and self.quantizer is None:
            raise ValueError(f"int8 is for onnx and openvino: {self.name} has no quantizer here")
        needed = (*self.packages, *(self.quantizer or () if int8 else ()))
        missing = [package for package in needed if find_spec(package) is None]
        if missing:
            raise ValueError(
                f"{self.name} needs the package {missing[0]}: pip install 'zerotprune[{self.name}]'"
            )

    def versions(self) -> dict[str, str]:
        return {package: version(package) for package in ("torch", *self.packages)}

    @abstractmethod
    def write(self, program: ExportedProgram, path: Path, facts: Facts) -> None:
        """The program as a file, which says what it is."""

    @abstractmethod
    def load(self, path: Path, threads: int | None) -> Run:
        """The file in its runtime."""

    def quantize(self, source: Path, path: Path, images: Tensor, facts: Facts) -> None:
        """The file once more in int8, calibrated on the images, by the runtime's own tool."""
        raise NotImplementedError

    def files(self, path: Path) -> list[Path]:
        """All files that may make up the one of that name."""
        return [path, beside(path)]

    def written(self, path: Path) -> list[Path]:
        """Those of them that are there."""
        return [file for file in self.files(path) if file.exists()]

    def read(self, path: Path) -> dict[str, Any]:
        """What a file says of itself."""
        told = beside(path)
        if not told.is_file():
            raise ValueError(f"nothing is told of {path}: there is no {told.name} beside it")
        return facts_in(told, lambda: parsed(text_of(told, "description of a model")))


def beside(path: Path) -> Path:
    """The JSON that tells what is in a file that cannot tell it itself."""
    return path.with_name(f"{path.name}.json")


def tell(path: Path, facts: Facts) -> None:
    beside(path).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def facts_in(path: Path, read: Callable[[], Any]) -> Facts:
    """What a stranger's file says of itself; ValueError where that cannot be."""
    try:
        facts = read()
    except ValueError as error:
        raise ValueError(f"{path} is no description of a model: {error}") from None
    if not isinstance(facts, dict):
        raise ValueError(f"{path} is no description of a model: it is no JSON object")
    names = facts.get("class_names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path} is no description of a model: class_names is no list of names")
    return facts


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters talk about themselves, by every channel there is; what fails, raises."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(before)
