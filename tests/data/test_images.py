"""Images decoded and in batches: every way one is stored, what is left out, what is refused."""

from __future__ import annotations

import io
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.cli.hostile import png
from tests.data.files import RED, encoded, labels, put, refusal, saved, write_tar
from zerotprune.backbones import backbone
from zerotprune.data import demo
from zerotprune.data.images import (
    BadImage,
    ImageDataset,
    batches,
    check_classes,
    check_pair,
    decode,
    open_data,
)
from zerotprune.data.sources import Item

# Decoding


def stored(form: str, image: Image.Image, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    buffer.seek(0)
    return buffer


def big_jpeg() -> bytes:
    noise = torch.randint(0, 256, (64, 64, 3), dtype=torch.uint8).numpy()
    return stored("JPEG", Image.fromarray(noise)).getvalue()


def gray16(values: list[list[int]]) -> Image.Image:
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
    "gray": (lambda: stored("PNG", Image.new("L", (1, 1), 77)), [[(77, 77, 77)]]),
    "gray with alpha": (lambda: stored("PNG", Image.new("LA", (1, 1), (77, 3))), [[(77,) * 3]]),
    "one bit": (lambda: stored("PNG", Image.new("1", (1, 1), 1)), [[(255,) * 3]]),
    "CMYK": (lambda: stored("TIFF", Image.new("CMYK", (1, 1), (255, 0, 0, 0))), [[(0, 255, 255)]]),
    "16 bits": (
        lambda: stored("PNG", gray16([[0, 255, 256, 30000, 65535]])),
        [[(0,) * 3, (0,) * 3, (1,) * 3, (117,) * 3, (255,) * 3]],
    ),
    "16 bits, TIFF": (lambda: stored("TIFF", gray16([[512, 65535]])), [[(2,) * 3, (255,) * 3]]),
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
    with refusal(BadImage, folder / "n01" / "b.png", "too many pixels"):
        images[1]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)  # a warning only, and that stays inside
    assert images[1][0].shape == (3, 4, 6)


def test_only_images_that_are_named_and_fit_are_decoded(tmp_path: Path) -> None:
    """Refuse a few bytes that would take gigabytes, and a format that PIL hands to another
    program."""
    for name, sides, message in (
        ("strip.png", (60_000, 1), "at most 20 times"),
        ("bomb.png", (50_000, 50_000), "at most 100 megapixels"),
        ("large.png", (12_000, 10_000), "= 120.0 megapixels: at most 100 megapixels"),
    ):
        (tmp_path / name).write_bytes(png(*sides))
        with refusal(BadImage, tmp_path / name, message):
            decode(tmp_path / name)
    (tmp_path / "eps.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n")
    with refusal(BadImage, "is not an image"):
        decode(tmp_path / "eps.jpg")


def test_fifos_are_left_out_and_a_folder_in_itself_is_seen_once(tmp_path: Path) -> None:
    for name in ("n01", "n02"):
        put(tmp_path / name / "a.png")
    os.mkfifo(tmp_path / "n01" / "b.png")
    (tmp_path / "n02" / "round").symlink_to(tmp_path / "n02")
    images, skipped = open_data(tmp_path), list[str]()
    assert len(images) == 3
    assert sum(len(batch[0]) for batch in batches(images, 2, report=skipped.append)) == 2
    assert len(skipped) == 1
    assert "regular file" in skipped[0]


def test_a_decode_process_that_is_killed_is_not_waited_for(tmp_path: Path) -> None:
    put(tmp_path / "n01" / "a.png")

    def dies(image: Image.Image) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RuntimeError, match="DataLoader worker"):  # `cli.ending` explains it
        list(batches(open_data(tmp_path, transform=dies), 1, report=pytest.fail, workers=1))


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
        of_rank: list[int] = []
        stream = batches(dataset, batch_size, report=pytest.fail, rank=rank, world=world)
        for number, (images, answers, indices) in enumerate(stream):
            assert len(images) == len(answers) == len(indices)
            assert len(indices) == min(batch_size, len(range(rank, count, world)) - len(of_rank))
            assert number * batch_size == len(of_rank)
            assert answers.tolist() == [at % 3 for at in indices.tolist()]
            of_rank += indices.tolist()
        assert of_rank == list(range(rank, count, world))
        seen += of_rank
    assert sorted(seen) == list(range(count))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Save seven images; 1, 4 and 5 cannot be read, and 4 and 5 are a whole batch of two."""
    for at in range(7):
        put(tmp_path / "damaged" / f"c{at}" / "x.png", (at, 0, 0))
    for at in (1, 4, 5):
        (tmp_path / "damaged" / f"c{at}" / "x.png").write_bytes(encoded()[:50])
    return tmp_path / "damaged"


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_left_out_told_and_counted(damaged: Path, workers: int) -> None:
    images = open_data(damaged)
    messages = list[str]()
    read = list(batches(images, 2, report=messages.append, workers=workers))
    assert [indices.tolist() for _, _, indices in read] == [[0], [2, 3], [6]]
    assert [answers.tolist() for _, answers, _ in read] == [[0], [2, 3], [6]]
    red = torch.cat([images[:, 0, 0, 0] for images, _, _ in read])
    assert (red * 255).round().tolist() == [0, 2, 3, 6]
    bad = [images.paths[at] for at in (1, 4, 5)]
    assert all(name in message for name, message in zip(bad, messages, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_strict_stops_at_the_first_bad_image(damaged: Path, workers: int) -> None:
    with refusal(BadImage, damaged / "c1" / "x.png"):
        list(batches(open_data(damaged), 2, report=pytest.fail, workers=workers, strict=True))


def test_a_probe_may_learn_from_folders_for_images_with_a_mapping(tmp_path: Path) -> None:
    for name in ("train/cat/0.png", "train/dog/1.png", "other/cat/0.png", "other/eel/1.png",
                 "flat/0.png", "flat/1.png"):  # fmt: skip
        put(tmp_path / name)
    (tmp_path / "map").write_text("0.png cat\n1.png dog\n")
    train = open_data(tmp_path / "train")
    check_pair(train, open_data(tmp_path / "flat", mapping=tmp_path / "map"))
    with refusal(ValueError, "class dog"):
        check_pair(train, open_data(tmp_path / "other"))


def test_truncated_jpeg_in_a_shard_is_named(tmp_path: Path) -> None:
    members = [
        ("a.jpg", big_jpeg()),
        ("a.cls", b"0"),
        ("b.jpg", big_jpeg()[:2000]),
        ("b.cls", b"1"),
    ]
    messages: list[str] = []
    shard = write_tar(tmp_path / "x.tar", members)
    read = list(batches(open_data(shard), 8, report=messages.append))
    assert [indices.tolist() for _, _, indices in read] == [[0]]
    assert len(messages) == 1
    assert f"{shard}:b.jpg" in messages[0]
    assert "truncated" in messages[0]


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
        with refusal(ValueError, "batch size"):
            batches(in_memory(3), batch_size, report=pytest.fail, workers=workers)


def test_check_classes(folder: Path, shards: Path) -> None:
    check_classes(open_data(folder), 3)
    for outputs in (2, 1000):
        with refusal(ValueError, f"the data has 3 classes, the model's head has {outputs}"):
            check_classes(open_data(folder), outputs)
    # A shard may lack images of the last classes; only too many are a contradiction.
    check_classes(open_data(shards), 1000)
    with refusal(ValueError, "the data has at least 8 classes, the model's head has 7"):
        check_classes(open_data(shards), 7)
