"""Shards of every kind hold the same images under the same keys; bad ones say what is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.data.files import BLUE, GREEN, RED, encoded, refusal, write_tar
from zerotprune.embed.shards import ParquetShard, TarShard, find_shards

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
COLORS = {"a": RED, "b": GREEN, "c/d": BLUE}
IMAGES = {key: encoded(color) for key, color in COLORS.items()}


def folder(home: Path) -> str:
    for key, data in IMAGES.items():
        (home / "images" / key).parent.mkdir(parents=True, exist_ok=True)
        (home / "images" / f"{key}.png").write_bytes(data)
    (home / "images" / "notes.txt").write_text("no image")
    return str(home / "images")


def tar(home: Path) -> str:
    members = [(f"{key}.png", data) for key, data in IMAGES.items()]
    return str(write_tar(home / "one.tar", [*members, ("a.cls", b"1"), ("notes", b"")]))


def table(home: Path, **columns: Any) -> str:
    parquet.write_table(pa.table(columns), home / "one.parquet", row_group_size=2)
    return str(home / "one.parquet")


def in_bytes(home: Path) -> str:
    return table(home, key=list(IMAGES), image=list(IMAGES.values()))


def in_structs(home: Path) -> str:
    """Write images as Hugging Face's datasets do: bytes, or else a path."""
    folder(home)
    cells: list[dict[str, Any]] = [{"bytes": data, "path": None} for data in IMAGES.values()]
    cells[1] = {"bytes": None, "path": "images/b.png"}
    return table(home, id=list(IMAGES), image=cells)


def in_paths(home: Path) -> str:
    folder(home)
    return table(home, key=list(IMAGES), file_name=[f"images/{key}.png" for key in IMAGES])


def in_categories(home: Path) -> str:
    folder(home)
    paths = pa.array([f"images/{key}.png" for key in IMAGES]).dictionary_encode()
    return table(home, key=pa.array(list(IMAGES)).dictionary_encode(), path=paths)


@pytest.mark.parametrize("kind", [folder, tar, in_bytes, in_structs, in_paths, in_categories])
def test_keys_and_bytes(tmp_path: Path, kind: Any) -> None:
    (shard,) = find_shards(kind(tmp_path))
    pieces = list(shard.cut(7, size=2))
    assert [(piece.shard, piece.number, piece.pieces, piece.total) for piece in pieces] == [
        (7, 0, 2, 3), (7, 1, 2, 3),
    ]  # fmt: skip
    files = {
        key: data for piece in pieces for key, data in zip(piece.keys, piece.read(), strict=True)
    }
    assert {key.removesuffix(".png"): data for key, data in files.items()} == IMAGES


def test_a_folder_is_cut_into_shards(tmp_path: Path) -> None:
    shards = find_shards(folder(tmp_path), images=2)
    assert [shard.name for shard in shards] == ["images-00000", "images-00001"]
    assert len({shard.identity() for shard in shards}) == 2
    again = find_shards(str(tmp_path / "images"), images=2)
    assert [shard.identity() for shard in again] == [shard.identity() for shard in shards]


def test_shards_of_one_name_in_several_folders(tmp_path: Path) -> None:
    for name in ("x", "y"):
        write_tar(tmp_path / name / "0.tar", [("a.png", IMAGES["a"])])
    shards = find_shards(str(tmp_path / "{x,y}" / "0.tar"))
    assert [shard.name for shard in shards] == ["x-0", "y-0"]
    assert shards[0].identity() == shards[1].identity()


def test_images_that_cannot_be_read_are_values(tmp_path: Path) -> None:
    (shard,) = find_shards(table(tmp_path, key=["a", "b"], path=["none.png", None]))
    (piece,) = shard.cut(0, 8)
    assert all(isinstance(image, OSError) for image in piece.read())
    (shard,) = find_shards(table(tmp_path, key=["a"], bytes=pa.array([None], pa.binary())))
    (piece,) = shard.cut(0, 8)
    assert str(piece.read()[0]) == "the row has no image"


def test_an_empty_shard_is_one_piece(tmp_path: Path) -> None:
    (shard,) = find_shards(str(write_tar(tmp_path / "0.tar", [("a.txt", b"")])))
    (piece,) = shard.cut(0, 8)
    assert (piece.keys, piece.pieces, piece.failure) == ((), 1, "")


def broken(kind: str, home: Path) -> str:
    if kind == "tar":
        path = Path(tar(home))
        path.write_bytes(path.read_bytes()[:700])
        return str(path)
    if kind == "parquet":
        path = Path(in_bytes(home))
        path.write_bytes(path.read_bytes()[:-40])
        return str(path)
    if kind == "no key":
        return table(home, key=["a", None], image=[b"", b""])
    if kind == "twice in parquet":
        return table(home, key=["a", "a"], image=[b"", b""])
    return str(write_tar(home / "two.tar", [("a.png", b""), ("a.jpg", b"")]))


@pytest.mark.parametrize(("kind", "message"), [
    ("tar", "as an uncompressed tar file"),
    ("parquet", "is not a whole parquet file"),
    ("no key", "has no key in row 1"),
    ("twice in parquet", "has the key a twice: keys must be unique in a shard"),
    ("twice in tar", "it has two image files for a"),
])  # fmt: skip
def test_a_broken_shard_is_one_piece_that_says_why(tmp_path: Path, kind: str, message: str) -> None:
    (shard,) = find_shards(broken(kind, tmp_path))
    (piece,) = shard.cut(0, 8)
    assert message in piece.failure
    assert "\n" not in piece.failure


def test_files_about_tars_lie_beside_them(tmp_path: Path) -> None:
    """As img2dataset leaves them: for each tar a JSON file, and a parquet file of its name."""
    tar(tmp_path)
    (tmp_path / "one_stats.json").write_text("{}")
    table(tmp_path, key=list(IMAGES), caption=["x"] * 3)
    (shard,) = find_shards(str(tmp_path))
    assert isinstance(shard, TarShard)
    assert shard.places()[0] == list(IMAGES)
    (shard,) = find_shards(str(tmp_path), column="caption")
    assert isinstance(shard, ParquetShard)
    (tmp_path / "one.parquet").rename(tmp_path / "two.parquet")
    with refusal(ValueError, "has tar and parquet files"):
        find_shards(str(tmp_path))


@pytest.mark.parametrize("kind", [folder, tar, in_bytes, in_paths])
def test_places_are_absolute(tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = kind(tmp_path)
    monkeypatch.chdir(tmp_path)
    (shard,) = find_shards(str(Path(data).relative_to(tmp_path)))
    monkeypatch.chdir("/")
    (piece,) = shard.cut(0, 8)
    assert piece.read() == list(IMAGES.values())


def test_a_replaced_image_makes_another_shard(tmp_path: Path) -> None:
    (shard,) = find_shards(folder(tmp_path))
    before, image = shard.identity(), tmp_path / "images" / "a.png"
    status = image.stat()
    image.write_bytes(IMAGES["b"])
    assert shard.identity() != before
    image.write_bytes(IMAGES["a"])
    os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert shard.identity() == before
    image.unlink()
    assert shard.identity() != before


def test_other_columns_make_another_shard(tmp_path: Path) -> None:
    """Whether they are named or found: vectors of two columns are never mixed."""
    folder(tmp_path)
    paths = [f"images/{key}.png" for key in IMAGES]
    path = Path(table(tmp_path, key=list(IMAGES), image=list(IMAGES.values()), path=paths))
    chosen = [(None, None), ("image", None), ("image", "key"), ("path", None), (None, "path")]
    usual, named, both, *others = (
        ParquetShard("one", path, *columns).identity() for columns in chosen
    )
    assert usual == named == both
    assert len({usual, *others}) == 3
    path.write_bytes(path.read_bytes()[:-40])
    assert ParquetShard("one", path).identity() != usual


def test_refusals(tmp_path: Path) -> None:
    with refusal(FileNotFoundError, "no data at", "nowhere"):
        find_shards(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with refusal(ValueError, "no images in", "empty"):
        find_shards(str(tmp_path / "empty"))
    with refusal(ValueError, "--column and --key are for parquet files"):
        find_shards(folder(tmp_path), column="image")
    for data in (tar(tmp_path), in_bytes(tmp_path)):
        with refusal(ValueError, "--images is for a folder of images"):
            find_shards(data, images=10)
        Path(data).unlink()
    (shard,) = find_shards(table(tmp_path, text=["x"]))
    assert "expected one of image," in next(shard.cut(0, 1)).failure
    (shard,) = find_shards(str(tmp_path / "one.parquet"), column="pixels")
    assert "expected pixels, got text" in next(shard.cut(0, 1)).failure
