"""Where images lie: every kind of data, and every mistake with it."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.data.files import (
    BLUE,
    GREEN,
    RED,
    colors,
    encoded,
    labels,
    put,
    refusal,
    saved,
    write_tar,
)
from zerotprune.data.images import open_data
from zerotprune.data.sources import has_splits

# Image folders


def test_image_folder_classes_are_sorted_folder_names(folder: Path) -> None:
    images = open_data(folder)
    assert (images.classes, images.exact, len(images)) == (3, True, 4)
    assert images.name == str(folder)
    assert labels(images) == [0, 0, 1, 2]
    assert colors(images) == [RED, GREEN, BLUE, RED]
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
    with refusal(NotADirectoryError, "folder", "x.png"):
        open_data(put(tmp_path / "file" / "x.png"))
    with refusal(ValueError, "x.png", "--mapping"):
        open_data(tmp_path / "file")
    put(tmp_path / "data" / "n01" / "a.png")
    (tmp_path / "data" / "n02").mkdir()
    with refusal(ValueError, "class folder", tmp_path / "data" / "n02", "is empty"):
        open_data(tmp_path / "data")
    (tmp_path / "data" / "n02" / "a.heic").write_bytes(b"x")
    with refusal(ValueError, tmp_path / "data" / "n02" / "a.heic", "not an image", ".png"):
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
    assert colors(images) == [RED, GREEN, BLUE]
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
    "below zero": (GOOD.replace("0", "-1"), ValueError, "not a class index: -1"),
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
    assert colors(images)[0] == (RED, GREEN, BLUE)[first]
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
    "below zero": ([("k.png", encoded()), ("k.cls", b"-1")], "not a class index: -1"),
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


def test_hugging_face_from_disk(tmp_path: Path) -> None:
    images = open_data(f"hf:{saved(tmp_path / 'one')}")
    assert (images.classes, images.exact) == (3, True)
    assert labels(images) == [2, 0]
    assert colors(images) == [RED, GREEN]
    assert images.paths[1] == f"hf:{tmp_path}/one row 1"


def test_hugging_face_columns(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    plain = open_data(f"hf:{saved(tmp_path / 'int', datasets.Value('int64'), 'labels')}")
    assert (labels(plain), plain.classes, plain.exact) == ([2, 0], 3, False)
    coarse = {"coarse_label": datasets.ClassLabel(names=["animal"])}
    fine = open_data(f"hf:{saved(tmp_path / 'two', None, 'fine_label', **coarse)}")
    assert (labels(fine), fine.classes) == ([2, 0], 3)
    with refusal(ValueError, "column", "labels", "kind, coarse_label"):
        open_data(f"hf:{saved(tmp_path / 'unclear', None, 'kind', **coarse)}")
    with refusal(ValueError, "column", "labels", "none"):
        open_data(f"hf:{saved(tmp_path / 'none', datasets.Value('int64'), 'width')}")


def test_hugging_face_splits_and_missing_labels(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    one = datasets.load_from_disk(str(saved(tmp_path / "one")))
    datasets.DatasetDict({"test": one}).save_to_disk(str(tmp_path / "dict"))
    assert labels(open_data(f"hf:{tmp_path}/dict", split="test")) == [2, 0]
    with refusal(ValueError, "no split validation, only test"):
        open_data(f"hf:{tmp_path}/dict")
    assert [has_splits(f"hf:{tmp_path}/{name}") for name in ("dict", "one", "hub")] == [1, 0, 1]
    assert [has_splits(name) for name in ("pets:here", str(tmp_path), "a.tar")] == [1, 0, 0]
    hidden = one.remove_columns("label").add_column("label", [-1, 0]).cast(one.features)
    hidden.save_to_disk(str(tmp_path / "hidden"))
    with refusal(ValueError, "row 0", "-1"):
        open_data(f"hf:{tmp_path}/hidden")
    for name in ("hidden", "bare"):
        hidden.remove_columns("label").save_to_disk(str(tmp_path / "bare"))
        assert len(open_data(f"hf:{tmp_path}/{name}", labeled=False)) == 2


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
