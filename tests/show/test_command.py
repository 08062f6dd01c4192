"""`zerotprune show` as a user types it: all kinds of files, mistakes; the paper's figures."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from html import escape
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.data.files import write_tar
from tests.families import build
from zerotprune import Schedule, Stage, schedule_for
from zerotprune.cli import main
from zerotprune.cli.demo import PANELS, SCENES, _draw_merges
from zerotprune.cli.options import BudgetOptions, ModelOptions
from zerotprune.cli.show import show
from zerotprune.data import demo
from zerotprune.methods import ToMe
from zerotprune.show.figure import as_image
from zerotprune.show.layout import draw
from zerotprune.show.scene import load_images, make_scene

# `main` is called here as a user's shell calls it, which cyclopts takes for a slip in a test.
pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["zerotprune", "show", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize("name", ["framework", "order", "heads", "mean", "rounds", "signal"])
def test_the_papers_figures_are_commands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = importlib.import_module(f"benchmarks.figures.{name}")
    assert f"Command: python -m benchmarks.figures.{name}" in (figure.__doc__ or "")
    out = tmp_path / f"{name}.svg"
    monkeypatch.setattr(sys, "argv", [name, "--images", "3", "--out", str(out)])
    figure.main()
    ElementTree.fromstring(out.read_text(encoding="utf-8"))


def test_the_demo_draws_a_row_for_each_image(tmp_path: Path) -> None:
    _draw_merges(demo.model(), tmp_path / "demo.svg")
    text = (tmp_path / "demo.svg").read_text(encoding="utf-8")
    words = [element.text or "" for element in ElementTree.fromstring(text).iter()]
    assert text.count("data:image/jpeg") == SCENES == words.count("unpruned")
    assert text.count("<use ") == SCENES * PANELS
    assert sum(word.endswith(" of 196 tokens") for word in words) == SCENES * (PANELS - 1)
    last = schedule_for(demo.model(), cost=0.65).stages[-1]
    assert f"after block {last.block}" in words


@pytest.mark.parametrize("ending", ["png", "svg", "gif", "webp", "html"])
def test_every_ending(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / f"drawn.{ending}"
    count = "2" if ending == "html" else "1"  # a palette for each frame takes its time
    arguments = ("--model", "demo", "--limit", count, "--out", str(out))
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    if ending == "svg":
        ElementTree.fromstring(out.read_text(encoding="utf-8"))
    elif ending == "html":
        assert out.read_text(encoding="utf-8").count("<article>") == 2
    else:
        with Image.open(out) as image:
            assert image.format == ending.upper()
            stages = len(schedule_for(demo.model(), cost=0.65).stages)
            assert getattr(image, "n_frames", 1) == (1 if ending == "png" else 1 + stages)


def test_images_from_files_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    for number, image in enumerate(demo.images(3, seed=1)[0]):
        as_image(image).save(folder / f"{number}.png")
    single = tmp_path / "single.png"
    shutil.copy(folder / "0.png", single)
    (tmp_path / "names.txt").write_text("\n".join("abcdefghij"))
    arguments = [str(single), str(folder), "--model", "demo", "--schedule", "ablation-is", "--grid",
                 "--lines", "--names", str(tmp_path / "names.txt"),
                 "--out", str(tmp_path / "a.svg")]  # fmt: skip
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    output = capsys.readouterr().out
    assert "single.png: 65 of 196 patches left; " in output
    digit = demo.images(1, seed=1)[1].item()
    assert f"{'abcdefghij'[int(digit)]} 9" in output
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").count("data:image/jpeg") == 4


NAME = 'a\x1b[31m\x01\x9b\ufffe\udcff"><script>&amp;{{data}}.png'


@pytest.mark.parametrize("ending", ["svg", "html"])
def test_a_name_that_no_drawing_can_hold(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XML allows no control characters, and no text file can hold surrogates."""
    as_image(demo.images(1, seed=1)[0][0]).save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / NAME)
    (tmp_path / "names.txt").write_text("\n".join(f"{NAME[:5]}{number}" for number in range(10)))
    out = tmp_path / f"drawn.{ending}"
    arguments = [str(tmp_path / NAME), "--model", "demo", "--schedule", "ablation-i", "--names",
                 str(tmp_path / "names.txt"), "--out", str(out)]  # fmt: skip
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    text, shown = out.read_bytes().decode("utf-8"), 'a�[31m����"><script>&amp;{{data}}.png'
    assert all(line.isprintable() for line in text.split("\n"))
    if ending == "svg":
        words = [element.text or "" for element in ElementTree.fromstring(text).iter()]
        assert [word for word in words if word.startswith(shown[:6])]
        return
    assert f"<h2>{escape(shown)}</h2>" in text
    for drawn in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(drawn)


def test_what_a_model_is_called_is_text_too(tmp_path: Path) -> None:
    """The folder of a model may be called anything, and so may its classes."""
    model, images = build("deit"), torch.zeros(1, 3, 96, 96)
    schedule = Schedule((Stage(2, keep=0.5),))
    names = [f"\x1b{number}" for number in range(1000)]
    scene = make_scene("fold on hf:\x1b[31m", model, schedule, images, ["\udcff"], names=names)
    draw(scene, tmp_path / "a.svg")
    words = {element.text for element in ElementTree.parse(tmp_path / "a.svg").iter()}
    assert {"fold on hf:�[31m", "�"} <= words


def test_photographs_for_a_model_that_knows_them(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    weights = str(shared / "weights" / "deit_tiny_patch16_224.safetensors")
    arguments = ["--model", "deit_tiny_patch16_224", "--weights", weights, "--method", "tome"]
    arguments += ["--limit", "2", "--grid", "--out", str(tmp_path / "a.svg")]
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    output = capsys.readouterr().out
    assert re.search(r"cat: \d+ of 196 tokens left; Egyptian cat .* → Egyptian cat", output)
    assert re.search(r"espresso: \d+ of 196 tokens left; espresso .* → espresso", output)
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").count("data:image/jpeg") == 2


def test_a_photograph_stands_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera turned
    Image.new("RGB", (40, 20)).save(tmp_path / "turned.jpg", exif=exif)
    for number, broken in enumerate((b"Exif\0\0garbage", b"Exif\0\0II*\0\x08\0\0\0\xff\xff")):
        Image.new("RGB", (40, 20)).save(tmp_path / f"{number}.jpg", exif=broken)
        assert load_images([tmp_path / f"{number}.jpg"])[0].image.size == (40, 20)
    (named,) = load_images([tmp_path / "turned.jpg"])
    assert named.image.size == (20, 40)
    shard = write_tar(tmp_path / "0.tar", [("a.jpg", (tmp_path / "turned.jpg").read_bytes())])
    for path in (shard, tmp_path / "shards"):
        (tmp_path / "shards").mkdir(exist_ok=True)
        shutil.copy(shard, tmp_path / "shards")
        (named,) = load_images([path])
        assert (named.name, named.image.size) == ("0.tar:a.jpg", (20, 40))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no.png", "--model", "demo"), "no image at no.png"),
        (("text.png", "--model", "demo"), "text.png is not a"),
        (("half.jpg", "--model", "demo"), "half.jpg cannot be decoded"),
        (("empty", "--model", "demo"), "empty"),
        (("whole.png", "--model", "demo", "--out", "out.bmp"), ".png, .svg"),
        (("whole.png", "--model", "demo", "--out", "out"), ".png, .svg"),
        (("whole.png", "--model", "demo", "--out", "no/out.png"), "no folder no"),
        (("whole.png", "--model", "demo", "--out", "whole.png"), "are one file"),
        (("whole.png", "--model", "resnet18"), "cannot prune timm's ResNet"),
        (("whole.png", "--model", "no_such"), "unknown model 'no_such'"),
        (("--model", "deit_tiny_patch16_224", "--limit", "121"), "too many for one drawing"),
        (("whole.png", "--model", "demo", "--schedule", "tome.json", "--heads"), "ToMe has no"),
        (("whole.png", "--model", "demo", "--schedule", "nope"), "neither a preset"),
        (("whole.png", "--model", "demo", "--schedule", "deep.json"), "got 40"),
        (("whole.png", "--model", "demo", "--schedule", "none.json"), "got 150"),
        (("whole.png", "--model", "demo", "--cost", "1.5"), "cost must be at most 1"),
        (("whole.png", "--model", "demo", "--cost", "0.001"), "cannot be met"),
        (("whole.png", "--model", "demo", "--cost", "0.5", "--gmacs", "1"), "give one budget"),
        (("whole.png", "--model", "demo", "--method", "magic"), "unknown method 'magic'"),
        (("whole.png", "--model", "demo", "--method", "tome", "--heads"), "ToMe has no scores"),
        (("whole.png", "--model", "demo", "--heads"), "Fold has no scores"),
        (("whole.png", "--model", "demo", "--heads", "--out", "a.gif"), "heads"),
        (("whole.png", "--model", "demo", "--grid", "--out", "a.html"), "a grid"),
        (("whole.png", "--model", "demo", "--panels", "3", "--out", "a.gif"), "panels"),
        (("whole.png", "--model", "demo", "--panels", "3", "--grid"), "panels"),
        (("whole.png", "--model", "demo", "--panels", "1"), "panels must be at least 2"),
        (("whole.png", "--model", "demo", "--names", "names.txt"), "names 2 classes"),
        (("whole.png", "--model", "demo", "--names", "whole.png"), "is not a list of names"),
        (("whole.png", "--model", "demo", "--limit", "0"), "limit must be at least 1"),
        (("--model", "demo", "--limit", "0"), "limit must be at least 1"),
        (("--model", "demo", "--limit", "121"), "too many for one drawing"),
        (("whole.png", "--model", "demo", "--weights", "no.safetensors"), "no weights at"),
        (("whole.png", "--model", "demo", "--device", "tpu9"), "unknown device 'tpu9'"),
    ],
)  # fmt: skip
def test_mistakes_get_one_sentence_and_write_nothing(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = as_image(demo.images(1, seed=1)[0][0])
    whole.save("whole.png")
    whole.save("half.jpg")
    Path("half.jpg").write_bytes(Path("half.jpg").read_bytes()[:900])
    Path("text.png").write_text("no image at all")
    Path("names.txt").write_text("one\ntwo\n")
    Path("empty").mkdir()
    Schedule((Stage(40, 0.5),)).save("deep.json")
    Schedule((Stage(3, 1.0, 150),)).save("none.json")
    Schedule((Stage(3, 1.0, 20),), ToMe()).save("tome.json")
    before = {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    assert run(*arguments, monkeypatch=monkeypatch) == 2
    output = capsys.readouterr().err.strip()
    assert message in output
    assert len(output.splitlines()) == 1
    assert before == {
        path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()
    }


def test_a_failure_while_drawing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Image.Image, "save", fail)
    out = tmp_path / "a.png"
    assert run("--model", "demo", "--limit", "1", "--out", str(out), monkeypatch=monkeypatch) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_real_model_and_a_real_image(shared: Path, tmp_path: Path) -> None:
    image = sorted((shared / "imagenet" / "tune" / "n02099601").iterdir())[0]
    show(
        image,
        model="deit_tiny_patch16_224",
        loading=ModelOptions(weights=shared / "weights" / "deit_tiny_patch16_224.safetensors"),
        budget=BudgetOptions(schedule="ablation-is"),
        heads=True,
        out=tmp_path / "dog.svg",
    )
    text = (tmp_path / "dog.svg").read_text(encoding="utf-8")
    assert "golden retriever" in text
    assert "65 of 196 kept" in text
    assert "variance from 0.01 to 0.7" in text
