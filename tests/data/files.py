"""Images, shards and datasets as they lie on disk, and the refusal of bad ones."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch import Tensor

from zerotprune.data.images import ImageDataset

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def encoded(color: tuple[int, int, int] = RED, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 4), color).save(buffer, form)
    return buffer.getvalue()


def put(path: Path, color: tuple[int, int, int] = RED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(color, "JPEG" if path.suffix.lower() == ".jpg" else "PNG"))
    return path


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def colors(images: ImageDataset) -> list[tuple[int, ...]]:
    return [tuple((image[:, 0, 0] * 255).int().tolist()) for image, _ in images_of(images)]


def labels(images: ImageDataset) -> list[int]:
    return [label for _, label in images_of(images)]


def images_of(images: ImageDataset) -> list[tuple[Tensor, int]]:
    return [images[at] for at in range(len(images))]


def refusal(kind: type[Exception], *parts: object) -> Any:
    """Expect an error of one sentence that holds these parts in this order."""
    pattern = r"[^\n]*".join(re.escape(str(part)) for part in parts)
    return pytest.raises(kind, match=rf"\A[^\n]*{pattern}[^\n]*\Z")


def saved(path: Path, label: Any = None, column: str = "label", **more: Any) -> Path:
    datasets = pytest.importorskip("datasets")
    kind = label or datasets.ClassLabel(names=["cat", "dog", "eel"])
    features = datasets.Features({"image": datasets.Image(), column: kind, **more})
    cells = [{"bytes": encoded(image), "path": None} for image in (RED, GREEN)]
    table = {"image": cells, column: [2, 0], **{key: [0, 0] for key in more}}
    datasets.Dataset.from_dict(table, features=features).save_to_disk(str(path))
    return path
