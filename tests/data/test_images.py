"""ImageDataset from disk: every kind of data, every way a image is stored, every mistake."""

from __future__ import annotations

import io
import json
import pickle
import re
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from zerotprune.backbones import backbone
from zerotprune.data import demo
from zerotprune.data.images import (
    BadImage,
    ImageDataset,
    batches,
    check_classes,
    decode,
    open_data,
)
from zerotprune.data.sources import Item

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def encoded(colour: tuple[int, int, int] = RED, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 4), colour).save(buffer, form)
    return buffer.getvalue()


def put(path: Path, colour: tuple[int, int, int] = RED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(colour, "JPEG" if path.suffix.lower() == ".jpg" else "PNG"))
    return path


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def colours(images: ImageDataset) -> list[tuple[int, ...]]:
    return [tuple((image[:, 0, 0] * 255).int().tolist()) for image, _ in images_of(images)]


def labels(images: ImageDataset) -> list[int]:
    return [label for _, label in images_of(images)]


def images_of(images: ImageDataset) -> list[tuple[Tensor, int]]:
    return [images[at] for at in range(len(images))]


def refusal(kind: type[Exception], *parts: object) -> Any:
    """Expect an error of one sentence that holds these parts in this order."""
    pattern = r"[^\n]*".join(re.escape(str(part)) for part in parts)
    return pytest.raises(kind, match=rf"\A[^\n]*{pattern}[^\n]*\Z")


# Image folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "val"
    put(root / "n02" / "a.PNG", BLUE)
    put(root / "n01" / "b.png", GREEN)
    put(root / "n01" / "a.png", RED)
    put(root / "n10" / "deeper" / "c.png", RED)
    return root


def test_image_folder_classes_are_sorted_folder_names(folder: Path) -> None:
    images = open_data(folder)
    assert (images.classes, images.exact, len(images)) == (3, True, 4)
    assert images.name == str(folder)
    assert labels(images) == [0, 0, 1, 2]
    assert colours(images) == [RED, GREEN, BLUE, RED]
    assert [Path(path).name for path in images.paths] == ["a.png", "b.png", "a.PNG", "c.png"]
    assert images[0][0].shape == (3, 4, 6)


def test_image_folder_agrees_with_torchvision(folder: Path) -> None:
    theirs = pytest.importorskip("torchvision.datasets").ImageFolder(folder)
    images = open_data(folder)
    assert list(zip(images.paths, labels(images), strict=True)) == theirs.samples


def test_image_folder_leaves_out_what_is_hidden(folder: Path) -> None:
    put(folder / ".ipynb_checkpoints" / "x.png")
    put(folder / "n01" / ".ipynb_checkpoints" / "x.png")
    put(folder / "n01" / "._a.png")
    (folder / "n01" / "Thumbs.db").write_bytes(b"x")
    (folder / "valprep.sh").write_text("mv")
    assert (open_data(folder).classes, len(open_data(folder))) == (3, 4)


def test_a_limit_is_spread_over_the_classes(tmp_path: Path) -> None:
    for at in range(10):
        put(tmp_path / f"c{at}" / "a.png")
        put(tmp_path / f"c{at}" / "b.png")
    images = open_data(tmp_path, limit=5)
    assert labels(images) == [0, 2, 4, 6, 8]
    assert images.classes == 10
    assert len(open_data(tmp_path, limit=50)) == 20
    with refusal(ValueError, "limit must be at least 1, got 0"):
        open_data(tmp_path, limit=0)


def test_mistakes_with_folders(tmp_path: Path) -> None:
    with refusal(FileNotFoundError, tmp_path / "gone"):
        open_data(tmp_path / "gone")
    with refusal(ValueError, "no images in", tmp_path):
        open_data(tmp_path)
    with refusal(NotADirectoryError, "x.png", "give a folder"):
        open_data(put(tmp_path / "file" / "x.png"))
    with refusal(ValueError, "x.png", "--mapping"):
        open_data(tmp_path / "file")
    put(tmp_path / "data" / "n01" / "a.png")
    (tmp_path / "data" / "n02").mkdir()
    with refusal(ValueError, "class folder", tmp_path / "data" / "n02", "is empty"):
        open_data(tmp_path / "data")
    (tmp_path / "data" / "n02" / "a.heic").write_bytes(b"x")
    with refusal(ValueError, tmp_path / "data" / "n02" / "a.heic", "endings", ".png"):
        open_data(tmp_path / "data")


# Flat folders with a mapping


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    put(tmp_path / "flat" / "a.png", RED)
    put(tmp_path / "flat" / "b c.png", GREEN)
    put(tmp_path / "flat" / "d.png", BLUE)
    return tmp_path / "flat"


MAPPINGS = {
    "indices.txt": ("\ufeffa.png 7\nb c.png 0\n\nd.png   3\n", [7, 0, 3], 8, False),
    "indices.csv": ("filename,label\nd.png,3\na.png,7\nb c.png,0\n", [7, 0, 3], 8, False),
    "names.csv": ('a.png,"tench, fish"\nb c.png,cat\nd.png,cat\n', [1, 0, 0], 2, True),
    "names.tsv": (
        "file\tclass\r\n./a.png\tz\r\nb c.png\ty y\r\nd.png\tx\r\n",
        [2, 1, 0],
        3,
        True,
    ),
    "wordnet.txt": ("image wnid\na.png n02\nb c.png n01\nd.png n03\n", [1, 0, 2], 3, True),
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_flat_folder_with_a_mapping(flat: Path, name: str) -> None:
    text, wanted, classes, exact = MAPPINGS[name]
    (flat / name).write_bytes(text.encode())  # inside the folder: it is no image
    images = open_data(flat, mapping=flat / name)
    assert labels(images) == wanted
    assert colours(images) == [RED, GREEN, BLUE]
    assert (images.classes, images.exact) == (classes, exact)


GOOD = "a.png 1\nb c.png 2\nd.png 0\n"
BAD_MAPPINGS = {
    "missing file": (GOOD + "e.png 1\n", FileNotFoundError, "e.png"),
    "no label": (GOOD.replace("d.png 0\n", ""), ValueError, "d.png"),
    "one column": (GOOD + "e.png\n", ValueError, "line 4"),
    "three columns": ("a.png,1,2\n", ValueError, "line 1"),
    "no value": ("a.png,1\nd.png,\n", ValueError, "line 2"),
    "twice": (GOOD + "a.png 1\n", ValueError, "line 4"),
    "unknown ending": (GOOD + "a.txt 1\n", ValueError, "a.txt"),
    "no ending": (GOOD + "a 1\n", ValueError, "line 4"),
    "mixed": (GOOD.replace("0", "n01"), ValueError, "partly"),
    "below zero": (GOOD.replace("0", "-1"), ValueError, "-1, which is no class index"),
    "nothing": ("", ValueError, "no label for a.png"),
}


@pytest.mark.parametrize("case", BAD_MAPPINGS)
def test_mistakes_in_a_mapping(flat: Path, tmp_path: Path, case: str) -> None:
    text, kind, part = BAD_MAPPINGS[case]
    (tmp_path / "map").write_text(text)
    with refusal(kind, part):
        open_data(flat, mapping=tmp_path / "map")


def test_mistakes_with_a_mapping(flat: Path, tmp_path: Path) -> None:
    with refusal(ValueError, "cannot read the mapping", "gone"):
        open_data(flat, mapping=tmp_path / "gone")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x81")
    with refusal(ValueError, "cannot read the mapping", "binary"):
        open_data(flat, mapping=tmp_path / "binary")
    (tmp_path / "map").write_text("")
    (tmp_path / "none").mkdir()
    with refusal(ValueError, "no images in", "none"):
        open_data(tmp_path / "none", mapping=tmp_path / "map")
    shard = write_tar(tmp_path / "x.tar", [("a.png", encoded()), ("a.cls", b"0")])
    for spec in (shard, "hf:some/name"):
        with refusal(ValueError, "--mapping", spec):
            open_data(spec, mapping=tmp_path / "map")


# WebDataset shards


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for at, colour in enumerate((RED, GREEN, BLUE)):
        members = [
            ("meta.json", b"{}"),
            ("x/k.cls", str(at).encode() + b"\n"),  # parts come in any order
            ("x/k.PNG", encoded(colour)),
            ("x/k.json", b'{"label": 99}'),  # .cls goes before it
            ("l.jpeg", encoded((9, 9, 9), "JPEG")),
            ("l.seg.png", b"another part of the sample"),
            ("l.json", json.dumps({"label": 5 + at}).encode()),
        ]
        write_tar(tmp_path / "wds" / f"val-{at:06d}.tar", members)
    return tmp_path / "wds"


SPECS: dict[str, list[int]] = {
    "": [0, 5, 1, 6, 2, 7],
    "val-000001.tar": [1, 6],
    "val-*.tar": [0, 5, 1, 6, 2, 7],
    "val-00000[02].tar": [0, 5, 2, 7],
    "val-{000000..000001}.tar": [0, 5, 1, 6],
    "val-{000002,000000}.tar": [2, 7, 0, 5],
    "{val-000000,val-*}.tar": [0, 5, 1, 6, 2, 7],
}


@pytest.mark.parametrize("spec", SPECS)
def test_webdataset(shards: Path, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_data(f"{shards}/{spec}" if spec else shards)
    assert labels(images) == SPECS[spec]
    assert (images.classes, images.exact) == (max(SPECS[spec]) + 1, False)
    first = SPECS[spec][0]
    assert colours(images)[0] == (RED, GREEN, BLUE)[first]
    assert images.paths[0] == f"{shards}/val-{first:06d}.tar:x/k.PNG"
    monkeypatch.chdir(shards)
    assert labels(open_data(spec or ".")) == SPECS[spec]


BAD_SHARDS: dict[str, tuple[list[tuple[str, bytes]], str]] = {
    "no label": ([("k.png", encoded())], "k in"),
    "no image": ([("k.cls", b"1")], "no image"),
    "words": ([("k.png", encoded()), ("k.cls", b"tench")], "not a class index: b'tench'"),
    "empty json": ([("k.png", encoded()), ("k.json", b"{}")], "not a class index"),
    "bad json": ([("k.png", encoded()), ("k.json", b"{")], "not a class index"),
    "json list": ([("k.png", encoded()), ("k.json", b"[1]")], "not a class index"),
    "json word": ([("k.png", encoded()), ("k.json", b'{"label": "1"}')], "not a class index"),
    "json truth": ([("k.png", encoded()), ("k.json", b'{"label": true}')], "not a class index"),
    "below zero": ([("k.png", encoded()), ("k.cls", b"-1")], "-1, which is no class index"),
    "twice": ([("k.png", encoded()), ("k.png", encoded())], "two image files for k"),
    "empty": ([], "no images in"),
}


@pytest.mark.parametrize("case", BAD_SHARDS)
def test_mistakes_in_a_shard(tmp_path: Path, case: str) -> None:
    members, part = BAD_SHARDS[case]
    with refusal(ValueError, part):
        open_data(write_tar(tmp_path / "x.tar", members))


def test_a_broken_shard_is_named_and_never_read_in_part(tmp_path: Path) -> None:
    parts = {"png": encoded(), "cls": b"1"}
    samples = [(f"k{at}.{end}", data) for at in range(3) for end, data in parts.items()]
    whole = write_tar(tmp_path / "whole.tar", samples).read_bytes()
    header = whole.index(b"k2.png")
    broken = {
        "nonsense": b"nonsense",
        "empty": b"",
        "cut in a image": whole[: header - 600],
        "cut in a header": whole[: header + 100],
        "cut between": whole[:header],
        "bad header": whole[:header] + b"\xff" * 512 + whole[header + 512 :],
    }
    for case, data in broken.items():
        path = tmp_path / f"{case}.tar"
        path.write_bytes(data)
        with refusal(ValueError, "cannot index", path):
            open_data(path)
    with tarfile.open(tmp_path / "zipped.tar", "w:gz"):
        pass
    with refusal(ValueError, "zipped.tar", "uncompressed"):
        open_data(tmp_path / "zipped.tar")


def test_mistakes_with_shards(shards: Path) -> None:
    with refusal(FileNotFoundError, "val-000003.tar"):
        open_data(f"{shards}/val-{{000000..000003}}.tar")
    with refusal(FileNotFoundError, "no files match", "train-*.tar"):
        open_data(f"{shards}/train-*.tar")
    (shards / "val.zip").write_bytes(b"x")
    with refusal(NotADirectoryError, "val.zip"):
        open_data(f"{shards}/*.zip")


# Hugging Face datasets


def saved(path: Path, label: Any = None, column: str = "label", **more: Any) -> Path:
    datasets = pytest.importorskip("datasets")
    kind = label or datasets.ClassLabel(names=["cat", "dog", "eel"])
    features = datasets.Features({"image": datasets.Image(), column: kind, **more})
    cells = [{"bytes": encoded(each), "path": None} for each in (RED, GREEN)]
    table = {"image": cells, column: [2, 0], **{key: [0, 0] for key in more}}
    datasets.Dataset.from_dict(table, features=features).save_to_disk(str(path))
    return path


def test_hugging_face_from_disk(tmp_path: Path) -> None:
    images = open_data(f"hf:{saved(tmp_path / 'one')}")
    assert (images.classes, images.exact) == (3, True)
    assert labels(images) == [2, 0]
    assert colours(images) == [RED, GREEN]
    assert images.paths[1] == f"hf:{tmp_path}/one row 1"


def test_hugging_face_columns(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    plain = open_data(f"hf:{saved(tmp_path / 'int', datasets.Value('int64'), 'labels')}")
    assert (labels(plain), plain.classes, plain.exact) == ([2, 0], 3, False)
    coarse = {"coarse_label": datasets.ClassLabel(names=["animal"])}
    fine = open_data(f"hf:{saved(tmp_path / 'two', None, 'fine_label', **coarse)}")
    assert (labels(fine), fine.classes) == ([2, 0], 3)
    with refusal(ValueError, "no one column of labels", "kind, coarse_label"):
        open_data(f"hf:{saved(tmp_path / 'unclear', None, 'kind', **coarse)}")
    with refusal(ValueError, "no one column of labels", "none"):
        open_data(f"hf:{saved(tmp_path / 'none', datasets.Value('int64'), 'width')}")


def test_hugging_face_splits_and_missing_labels(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    one = datasets.load_from_disk(str(saved(tmp_path / "one")))
    datasets.DatasetDict({"test": one}).save_to_disk(str(tmp_path / "dict"))
    assert labels(open_data(f"hf:{tmp_path}/dict", split="test")) == [2, 0]
    with refusal(ValueError, "no split validation, only test"):
        open_data(f"hf:{tmp_path}/dict")
    hidden = one.remove_columns("label").add_column("label", [-1, 0]).cast(one.features)
    hidden.save_to_disk(str(tmp_path / "hidden"))
    with refusal(ValueError, "row 0 is -1, which is no class index"):
        open_data(f"hf:{tmp_path}/hidden")


def test_hugging_face_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    one = datasets.load_from_disk(str(saved(tmp_path / "one")))
    asked: list[tuple[str, str]] = []

    def load_dataset(name: str, split: str) -> Any:
        asked.append((name, split))
        if split == "gone":
            raise datasets.exceptions.DatasetNotFoundError("not on the hub\nsecond line")
        return one

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert labels(open_data("hf:org/name", split="test")) == [2, 0]
    assert asked == [("org/name", "test")]
    with refusal(ValueError, "cannot load hf:org/name, split gone: not on the hub"):
        open_data("hf:org/name", split="gone")


def test_hugging_face_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refusal(ValueError, "pip install datasets"):
        open_data("hf:org/name")


# Decoding


def stored(form: str, image: Image.Image, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    buffer.seek(0)
    return buffer


def grey16(values: list[list[int]]) -> Image.Image:
    return Image.fromarray(np.array(values, dtype=np.uint16))


def palette(transparency: bool) -> io.BytesIO:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    return stored("PNG", image, **({"transparency": bytes([0, 128])} if transparency else {}))


def rgba() -> Image.Image:
    return Image.fromarray(np.array([[[10, 20, 30, 0], [40, 50, 60, 255]]], dtype=np.uint8))


TWO = [[(10, 20, 30), (40, 50, 60)]]
DECODED: dict[str, tuple[Callable[[], io.BytesIO], Any]] = {
    "RGB": (lambda: stored("PNG", rgba().convert("RGB")), TWO),
    "RGBA": (lambda: stored("PNG", rgba()), TWO),  # alpha is dropped, not laid on a ground
    "WebP": (lambda: stored("WEBP", rgba().convert("RGB"), lossless=True), TWO),
    "palette": (lambda: palette(False), TWO),
    "palette with alpha": (lambda: palette(True), TWO),
    "grey": (lambda: stored("PNG", Image.new("L", (1, 1), 77)), [[(77, 77, 77)]]),
    "grey with alpha": (lambda: stored("PNG", Image.new("LA", (1, 1), (77, 3))), [[(77,) * 3]]),
    "one bit": (lambda: stored("PNG", Image.new("1", (1, 1), 1)), [[(255,) * 3]]),
    "CMYK": (lambda: stored("TIFF", Image.new("CMYK", (1, 1), (255, 0, 0, 0))), [[(0, 255, 255)]]),
    "16 bits": (
        lambda: stored("PNG", grey16([[0, 255, 256, 30000, 65535]])),
        [[(0,) * 3, (0,) * 3, (1,) * 3, (117,) * 3, (255,) * 3]],
    ),
    "16 bits, TIFF": (lambda: stored("TIFF", grey16([[512, 65535]])), [[(2,) * 3, (255,) * 3]]),
    "16 bits, PGM": (
        lambda: io.BytesIO(b"P5 2 1 65535\n" + bytes([2, 0, 255, 255])),
        [[(2,) * 3, (255,) * 3]],
    ),
}


@pytest.mark.parametrize("case", DECODED)
def test_decode(case: str) -> None:
    make, pixels = DECODED[case]
    image = decode(make(), "x")
    assert image.mode == "RGB"
    assert np.asarray(image).tolist() == np.array(pixels).tolist()


def test_decode_jpegs_as_torchvision(tmp_path: Path) -> None:
    default_loader = pytest.importorskip("torchvision.datasets.folder").default_loader
    noise = torch.randint(0, 256, (8, 8, 4), dtype=torch.uint8).numpy()
    for mode, channels in (("CMYK", noise), ("L", noise[..., 0]), ("RGB", noise[..., :3])):
        path = tmp_path / f"{mode}.jpg"
        source = Image.fromarray(np.ascontiguousarray(channels))
        (source.convert("RGB").convert("CMYK") if mode == "CMYK" else source).save(path)
        assert decode(path).tobytes() == default_loader(path).tobytes()


def test_exif_rotation_is_not_applied(tmp_path: Path) -> None:
    default_loader = pytest.importorskip("torchvision.datasets.folder").default_loader
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.new("RGB", (8, 2), RED).save(tmp_path / "turned.jpg", exif=exif)
    assert decode(tmp_path / "turned.jpg").size == (8, 2)
    assert default_loader(tmp_path / "turned.jpg").size == (8, 2)


def big_jpeg() -> bytes:
    noise = torch.randint(0, 256, (64, 64, 3), dtype=torch.uint8).numpy()
    return stored("JPEG", Image.fromarray(noise)).getvalue()


BAD_FILES: dict[str, Callable[[], bytes]] = {
    "truncated.jpg": lambda: big_jpeg()[:2000],
    "truncated.png": lambda: encoded()[:50],
    "header.png": lambda: encoded()[:20],
    "broken.png": lambda: encoded().replace(b"IDAT", b"IDAX"),
    "text.jpg": lambda: b"<html>404</html>",
    "empty.jpg": lambda: b"",
    "wide.tif": lambda: stored("TIFF", Image.new("I", (1, 1), 70000)).getvalue(),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_image_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "n01" / name
    path.parent.mkdir()
    path.write_bytes(BAD_FILES[name]())
    with refusal(BadImage, path):
        decode(path)
    with refusal(BadImage, path):
        open_data(tmp_path)[0]


def test_an_image_that_vanishes_or_bursts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_data(folder)
    (folder / "n01" / "a.png").unlink()
    with refusal(BadImage, "cannot read", folder / "n01" / "a.png", "No such file"):
        images[0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 11)  # the image has 24, more than twice that
    with refusal(BadImage, folder / "n01" / "b.png", "decompression bomb"):
        images[1]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)  # a warning only, and that stays inside
    assert images[1][0].shape == (3, 4, 6)


# Batches


def in_memory(count: int) -> ImageDataset:
    data = encoded()
    items = [Item(f"image {at}", lambda: data, at % 3) for at in range(count)]
    return ImageDataset("memory", items, 3, True, lambda image: torch.zeros(1))


@settings(max_examples=60)
@given(count=st.integers(0, 12), world=st.integers(1, 14), batch_size=st.integers(1, 5))
def test_every_image_is_in_one_share(count: int, world: int, batch_size: int) -> None:
    dataset = in_memory(count)
    seen: list[int] = []
    for rank in range(world):
        own: list[int] = []
        stream = batches(dataset, batch_size, report=pytest.fail, rank=rank, world=world)
        for number, (images, answers, indices) in enumerate(stream):
            assert len(images) == len(answers) == len(indices)
            assert len(indices) == min(batch_size, len(range(rank, count, world)) - len(own))
            assert number * batch_size == len(own)
            assert answers.tolist() == [at % 3 for at in indices.tolist()]
            own += indices.tolist()
        assert own == list(range(rank, count, world))
        seen += own
    assert sorted(seen) == list(range(count))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Seven images; number 1, and 4 and 5, which are a whole batch of two, cannot be read."""
    for at in range(7):
        put(tmp_path / "damaged" / f"c{at}" / "x.png", (at, 0, 0))
    for at in (1, 4, 5):
        (tmp_path / "damaged" / f"c{at}" / "x.png").write_bytes(encoded()[:50])
    return tmp_path / "damaged"


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_left_out_told_and_counted(damaged: Path, workers: int) -> None:
    images = open_data(damaged)
    told, skipped = list[str](), list[str]()
    found = list(batches(images, 2, report=told.append, workers=workers, skipped=skipped))
    assert [indices.tolist() for _, _, indices in found] == [[0], [2, 3], [6]]
    assert [answers.tolist() for _, answers, _ in found] == [[0], [2, 3], [6]]
    red = torch.cat([images[:, 0, 0, 0] for images, _, _ in found])
    assert (red * 255).round().tolist() == [0, 2, 3, 6]
    assert skipped == [images.paths[at] for at in (1, 4, 5)]
    assert all(name in message for name, message in zip(skipped, told, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_strict_stops_at_the_first_bad_image(damaged: Path, workers: int) -> None:
    with refusal(BadImage, damaged / "c1" / "x.png"):
        list(batches(open_data(damaged), 2, report=pytest.fail, workers=workers, strict=True))


def test_truncated_jpeg_in_a_shard_is_named(tmp_path: Path) -> None:
    members = [
        ("a.jpg", big_jpeg()),
        ("a.cls", b"0"),
        ("b.jpg", big_jpeg()[:2000]),
        ("b.cls", b"1"),
    ]
    told: list[str] = []
    shard = write_tar(tmp_path / "x.tar", members)
    found = list(batches(open_data(shard), 8, report=told.append))
    assert [indices.tolist() for _, _, indices in found] == [[0]]
    assert len(told) == 1
    assert f"{shard}:b.jpg" in told[0]
    assert "truncated" in told[0]


def test_workers_change_nothing(shards: Path) -> None:
    images = open_data(shards, transform=backbone(demo.untrained()).transform())
    alone = list(batches(images, 4, report=pytest.fail))
    helped = list(batches(images, 4, report=pytest.fail, workers=2))
    assert len(alone) == len(helped) == 2
    for one, other in zip(alone, helped, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_reading_leaves_the_random_state_alone(folder: Path) -> None:
    before = torch.get_rng_state()
    list(batches(open_data(folder), 2, report=pytest.fail))
    assert torch.equal(torch.get_rng_state(), before)


def test_images_travel_to_fresh_processes(folder: Path, shards: Path, tmp_path: Path) -> None:
    for spec in (folder, shards, f"hf:{saved(tmp_path / 'one')}"):
        images = open_data(spec, transform=backbone(demo.untrained()).transform())
        again = pickle.loads(pickle.dumps(images))
        assert labels(again) == labels(images)
        assert torch.equal(again[0][0], images[0][0])


def test_mistakes_with_batches() -> None:
    for rank, world in ((-1, 2), (2, 2), (0, 0)):
        with refusal(ValueError, "rank must be"):
            batches(in_memory(3), 1, report=pytest.fail, rank=rank, world=world)
    for batch_size, workers in ((0, 0), (1, -1)):
        with refusal(ValueError, "no batches of"):
            batches(in_memory(3), batch_size, report=pytest.fail, workers=workers)


# Models


def test_check_classes(folder: Path, shards: Path) -> None:
    check_classes(open_data(folder), 3)
    for outputs in (2, 1000):
        with refusal(ValueError, f"the data has 3 classes, the model's head has {outputs}"):
            check_classes(open_data(folder), outputs)
    # A shard may lack images of the last classes; only too many are a contradiction.
    check_classes(open_data(shards), 1000)
    with refusal(ValueError, "the data has at least 8 classes, the model's head has 7"):
        check_classes(open_data(shards), 7)


def test_the_demo_model_sees_its_own_range() -> None:
    noise = torch.randint(0, 256, (112, 112, 3), dtype=torch.uint8)
    seen = backbone(demo.untrained()).transform()(Image.fromarray(noise.numpy()))
    torch.testing.assert_close(seen, noise.permute(2, 0, 1) / 127.5 - 1)
    vit, image = backbone(demo.untrained()), Image.new("RGB", (300, 200))
    assert vit.transform()(image).shape == (3, 112, 112)
    assert vit.transform(64)(image).shape == (3, 64, 64)


def test_the_transform_follows_the_size_the_model_has_now() -> None:
    with torch.device("meta"):
        model = timm.create_model("vit_small_patch14_dinov2.lvd142m", img_size=224, depth=1)
    assert backbone(model).transform()(Image.new("RGB", (300, 400))).shape == (3, 224, 224)
    assert backbone(model).transform(98)(Image.new("RGB", (300, 400))).shape == (3, 98, 98)


def test_transforms_are_those_of_each_model() -> None:
    white = Image.new("RGB", (300, 400), (255, 255, 255))
    with torch.device("meta"):
        deit = timm.create_model("deit_tiny_patch16_224")
        augreg = timm.create_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert backbone(augreg).transform()(white)[:, 0, 0].tolist() == [1, 1, 1]
    wanted = [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    assert backbone(deit).transform()(white)[:, 0, 0].tolist() == pytest.approx(wanted)


def for_deit(image: Image.Image, resized: tuple[int, int]) -> Any:
    """DeiT's transform by hand: shorter side to 248, the 224 in the middle, ImageNet's colours."""
    left, top = (resized[0] - 224) // 2, (resized[1] - 224) // 2
    shown = image.resize(resized, Image.Resampling.BICUBIC)
    values = np.asarray(shown.crop((left, top, left + 224, top + 224)), dtype=np.float64) / 255
    return ((values - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).transpose(2, 0, 1)


def test_the_transform_of_deit_by_hand() -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_patch16_224")
    noise = torch.randint(0, 256, (400, 300, 3), dtype=torch.uint8).numpy()
    found = backbone(model).transform()(Image.fromarray(noise))
    wanted = for_deit(Image.fromarray(noise), (248, 330))
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5)


def test_real_images(shared: Path) -> None:
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_patch16_224")
    images = open_data(shared / "imagenet" / "tune", transform=backbone(model).transform())
    assert (images.classes, len(images)) == (1000, 1000)
    check_classes(images, 1000)
    image, label = images[500]
    assert label == 500
    with Image.open(images.paths[500]) as opened:
        shown = opened.convert("RGB")
    np.testing.assert_allclose(image.numpy(), for_deit(shown, (248, 248)), atol=1e-5)
