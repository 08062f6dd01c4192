"""`zerotprune show`: stories against the trace and a NumPy twin, all kinds of files, mistakes."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from zerotprune.budgets.contenders import METHODS, contender

import zerotprune as ztp
from tests import oracle
from zerotprune import Schedule, Stage, ZeroTPrune
from zerotprune.cli import main
from zerotprune.cli.show import show
from zerotprune.data import demo
from zerotprune.data.images import transform_for
from zerotprune.methods import ToMe
from zerotprune.show import layout, page, svg
from zerotprune.show.captions import percent
from zerotprune.show.painting import COVER, LINE, as_picture, fitted, heat, paint, pairs, rgb
from zerotprune.show.sheet import Panel, Scene, Text, font, shortened
from zerotprune.show.story import StageView, Story, tell
from zerotprune.tracing import Fate

# `main` is called here as a user's shell calls it, which cyclopts takes for a slip in a test.
pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")

SCHEDULE = Schedule((Stage(2, 1.0, 9), Stage(5, 0.6, 7), Stage(9, 0.5)))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return demo.model()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return demo.pictures(6, seed=7)[0]


@pytest.fixture(scope="module")
def stories(model: nn.Module, images: Tensor) -> list[Story]:
    return tell(model, images, SCHEDULE, heads=True)


@pytest.fixture
def scene(model: nn.Module, images: Tensor, stories: list[Story]) -> Scene:
    shown = [as_picture(image, model) for image in images]
    return Scene("a title", "about it", shown, stories, [f"no. {at}" for at in range(6)], True)


# --- stories


def test_a_story_is_the_trace_and_the_logits(
    model: nn.Module, images: Tensor, stories: list[Story]
) -> None:
    pruned = ztp.prune_(demo.model(), SCHEDULE)
    stages = ztp.trace(pruned, images)
    with torch.inference_mode():
        outputs = {"before": model(images), "after": pruned(images)}
    for at, story in enumerate(stories):
        assert (story.grid, story.size) == ((14, 14), (112, 112))
        assert [view.kept for view in story.stages] == [187, 108, 54]
        for view, stage in zip(story.stages, stages, strict=True):
            assert view.block == stage.block
            assert torch.equal(view.fate.flatten(), stage.fate[at])
            assert torch.equal(view.partner.flatten(), stage.partner[at])
            assert torch.equal(view.importance.nan_to_num().flatten(),
                               stage.importance[at].nan_to_num())  # fmt: skip
        for name, logits in outputs.items():
            exact = np.exp(logits[at].double().numpy())
            exact /= exact.sum()
            best = np.argsort(-exact)[:5]
            found = getattr(story, name)
            assert [each.label for each in found] == [f"digit {number}" for number in best]
            assert [each.share for each in found] == pytest.approx(exact[best].tolist(), rel=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_story_and_leaves_the_model_alone(
    name: str, model: nn.Module, images: Tensor
) -> None:
    chosen = contender(name, model, 0.7 * ztp.gmacs(model), images)
    with torch.inference_mode():
        before = model(images)
        told = tell(model, images, chosen.schedule, chosen.method)
        assert torch.equal(model(images), before)
    assert not any("forward" in module.__dict__ for module in model.modules())
    for story in told:
        left = story.patches
        for view in story.stages:
            assert view.kept == view.count(Fate.KEPT) <= left
            assert left == story.patches - view.count(Fate.GONE)
            left = view.kept


def test_two_at_once_do_not_disturb_each_other(model: nn.Module, images: Tensor) -> None:
    ways = [(SCHEDULE, None), (Schedule((Stage(3, 1.0, 20), Stage(4, 1.0, 30))), ToMe())]
    alone = [tell(model, images, *way) for way in ways]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            together = list(pool.map(lambda way: tell(model, images, *way), ways))
            for told, wanted in zip(together, alone, strict=True):
                for one, other in zip(told, wanted, strict=True):
                    assert (one.before, one.after) == (other.before, other.after)
                    for view, same in zip(one.stages, other.stages, strict=True):
                        assert torch.equal(view.fate, same.fate)


def test_no_stages_no_change(model: nn.Module, images: Tensor) -> None:
    (story,) = tell(model, images[:1], Schedule())
    assert story.stages == []
    assert story.before == story.after
    assert story.outcome().kept == 196


def test_a_pruned_model_stays_pruned(images: Tensor) -> None:
    pruned = ztp.prune_(demo.model(), SCHEDULE)
    with torch.inference_mode():
        before = pruned(images)
        (story, *_) = tell(pruned, images, Schedule((Stage(4, 0.5),)))
        assert torch.equal(pruned(images), before)
    assert len(story.stages) == 1
    assert story.before == tell(demo.model(), images, Schedule())[0].before


def test_a_model_without_a_head_predicts_nothing() -> None:
    model = timm.create_model("test_vit", num_classes=0).eval()
    (story,) = tell(model, torch.randn(1, 3, 160, 160), Schedule((Stage(2, 0.5),)))
    assert (story.before, story.after) == ([], [])
    assert story.stages[0].kept == 50


def test_the_outcome_tells_each_patch_why_it_went(stories: list[Story]) -> None:
    story = stories[0]
    end = story.outcome()
    assert end.kept == end.count(Fate.KEPT) == 54
    assert end.count(Fate.SIMILAR) == 16
    assert end.count(Fate.UNIMPORTANT) == 196 - 54 - 16
    for stage in story.stages:
        for fate in (Fate.SIMILAR, Fate.UNIMPORTANT):
            assert (end.fate[stage.fate == fate] == fate).all()
        assert (end.partner[stage.partner >= 0] == stage.partner[stage.partner >= 0]).all()


def test_class_names_are_imagenets_for_imagenet_models() -> None:
    from zerotprune.show.story import class_names

    with torch.device("meta"):
        names = class_names(timm.create_model("deit_tiny_patch16_224"))
    assert len(names) == 1000
    assert (names[207], names[0]) == ("golden retriever", "tench")


# --- heads


@pytest.mark.parametrize("vhf", [(0.01, 0.7), (0.0, 9.0), None])
def test_heads_against_the_numpy_twin(
    model: nn.Module, images: Tensor, vhf: tuple[float, float] | None
) -> None:
    """One stage, so that the graph is that of the unpruned block."""
    seen: list[Tensor] = []
    block = model.get_submodule("blocks.3")
    hook = block.get_submodule("attn").register_forward_pre_hook(
        lambda _, args: seen.append(args[0])
    )
    with torch.inference_mode():
        model(images)
    hook.remove()
    told = tell(
        model, images, Schedule((Stage(4, 0.5, rounds=6),)), ZeroTPrune(vhf=vhf), heads=True
    )
    with torch.inference_mode():
        qkv = block.get_submodule("attn.qkv")(seen[0]).double().reshape(6, 197, 3, 3, 32)
    for at, story in enumerate(told):
        q, k = (qkv[at, :, which].transpose(0, 1).numpy() for which in (0, 1))
        logits = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(32))
        graph = logits / logits.sum(-1, keepdims=True)
        start = np.ones(197)
        start[0] = np.sqrt(197)
        scores = np.stack([oracle.vote(head, start / start.sum(), 6)[1:] for head in graph])
        relative = scores / scores.mean(-1, keepdims=True)
        assert story.heads is not None
        (view,) = story.heads
        assert (view.block, view.voting, view.vhf) == (4, "I", vhf)
        np.testing.assert_allclose(view.importance.flatten(1).numpy(), relative, rtol=2e-3)
        assert view.variance == pytest.approx(relative.var(-1).tolist(), rel=5e-3)
        assert [head for head, used in enumerate(view.used) if used] == (
            oracle.passing_heads(scores, vhf)
        )


def test_heads_do_not_change_the_story(
    model: nn.Module, images: Tensor, stories: list[Story]
) -> None:
    plain = tell(model, images, SCHEDULE)
    for one, other in zip(plain, stories, strict=True):
        assert one.heads is None
        assert one.after == other.after
        for view, same in zip(one.stages, other.stages, strict=True):
            assert torch.equal(view.fate, same.fate)
    assert stories[5].heads is not None
    assert [view.voting for view in stories[5].heads] == ["I′", "I", "I"]
    for heads, stage in zip(stories[5].heads[1:], stories[5].stages[1:], strict=True):
        # A head sees what the stage's importance is about, on the survivors of S.
        assert torch.equal(heads.importance[0].isnan(), stage.importance.isnan())


def test_heads_of_a_method_that_has_none(model: nn.Module, images: Tensor) -> None:
    with pytest.raises(ValueError, match="ToMe has no scores head by head"):
        tell(model, images, Schedule((Stage(2, 1.0, 9),)), ToMe(), heads=True)


# --- painting


def hand_made() -> StageView:
    fate = torch.tensor([[0, 1, 2], [3, 0, 0]])
    partner = torch.tensor([[-1, 5, -1], [-1, -1, -1]])
    return StageView(4, fate, partner, torch.ones(2, 3), 3)


def test_paint_covers_each_patch_in_the_colour_of_its_fate() -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8))
    stage = hand_made()
    painted = np.asarray(paint(picture, stage, side=60), dtype=float)
    plain = np.asarray(fitted(picture, (2, 3), 60), dtype=float)
    assert painted.shape == plain.shape == (40, 60, 3)
    for row in range(2):
        for column in range(3):
            inner = np.s_[20 * row + 1 : 20 * row + 20, 20 * column + 1 : 20 * column + 20]
            fate = Fate(int(stage.fate[row, column]))
            wanted = plain[inner]
            if fate != Fate.KEPT:
                colour, strength = COVER[fate]
                wanted = (1 - strength) * wanted + strength * np.array(rgb(colour))
            np.testing.assert_allclose(painted[inner], wanted, atol=0.51)


def test_lines_end_on_the_partner() -> None:
    stage = hand_made()
    assert pairs(stage) == [((1, 0), (2, 1))]
    painted = paint(Image.new("RGB", (60, 40)), stage, lines=True, side=240)
    assert painted.size == (240, 160)
    assert painted.getpixel((200, 120)) == rgb(LINE)
    assert painted.getpixel((160, 80)) == rgb(LINE)  # half way
    assert painted.getpixel((40, 120)) != rgb(LINE)


@pytest.mark.parametrize("name", ["demo", "deit_tiny_patch16_224", "vit_base_patch16_siglip_224"])
def test_as_picture_undoes_the_transform(name: str) -> None:
    with torch.device("meta"):
        model = demo.untrained() if name == "demo" else timm.create_model(name)
    side = 112 if name == "demo" else 224
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)
    held = transform_for(model).transforms[-1](  # type: ignore[attr-defined]  # normalisation alone
        torch.from_numpy(pixels).permute(2, 0, 1) / 255
    )
    np.testing.assert_array_equal(np.asarray(as_picture(held, model)), pixels)


def test_heat_is_bright_where_importance_is_high() -> None:
    values = torch.tensor([[0.01, 0.2, 1.0, 5.0, 50.0, torch.nan]])
    pixels = np.asarray(heat(values))[0].astype(int)
    lightness = pixels @ (299, 587, 114)
    assert lightness[0] == lightness[1] < lightness[2] < lightness[3] == lightness[4]
    assert pixels[5].min() > 200  # where there is no patch it is nearly white


# --- sheets and files


def test_texts_keep_inside_the_sheet_and_off_each_other(scene: Scene) -> None:
    sheets = [layout.strips(scene), layout.grid(scene)]
    sheets += [layout.frame(scene, step) for step in range(scene.steps + 1)]
    for sheet in sheets:
        for shape in sheet.shapes:
            if isinstance(shape, Text):
                long = font(shape.size).getlength(shape.text)
                left = shape.x - {"start": 0, "middle": long / 2, "end": long}[shape.anchor]
                assert left >= 0
                assert left + long <= sheet.width
                assert 0 < shape.y < sheet.height
            else:
                assert shape.x + shape.width <= sheet.width + 1e-6
                assert shape.y + shape.height <= sheet.height
        places = [(shape.x, shape.y) for shape in sheet.shapes if isinstance(shape, Panel)]
        assert len(places) == len(set(places))


def test_percent_is_exact_where_it_matters() -> None:
    shares = {0.004: "0.4 %", 0.5: "50 %", 0.996: "99.6 %", 0.9996: "100 %", 1.0: "100 %"}
    assert {share: percent(share) for share in shares} == shares


def test_shortened_says_so() -> None:
    assert shortened("short", 12, 200) == "short"
    cut = shortened("a very long name of a class", 12, 60)
    assert cut.endswith("…")
    assert font(12).getlength(cut) <= 60


def test_svg_holds_every_picture_once_and_every_fate(scene: Scene) -> None:
    text = svg.written(layout.strips(scene))
    root = ElementTree.fromstring(text)
    assert text.count("data:image/jpeg") == 6
    assert not re.findall(r'(?:href|src)="(?!#|data:)', text)
    words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    for wanted in ("a title", "about it", "after block 9", "54 of 196 kept", "no. 5"):
        assert wanted in words
    similar = "".join(re.findall(r'class="similar" d="([^"]*)"', text))
    covered = sum(int(wide) for wide in re.findall(r"h(\d+)", similar))
    assert covered == 6 * (9 + 7)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "input", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_trusts_no_name(scene: Scene) -> None:
    nasty = '<script>alert("</script>")</script>{{data}}'
    captions = [nasty, *scene.captions[1:]]
    text = page.page(Scene(nasty, nasty, scene.pictures, scene.stories, captions))
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.seen.count("script") == 2
    assert tags.seen.count("article") == 6
    assert not re.findall(r'(?:href|src)="(?!#|data:)', text)
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in text
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    held = json.loads(found[1])
    words = ["kept", "dropped: similar to another", "dropped: unimportant", "dropped before"]
    assert held["fates"] == words
    for story, told in zip(scene.stories, held["stories"], strict=True):
        for view, stage in zip(story.stages, told["stages"], strict=True):
            assert stage["fate"] == "".join(map(str, view.fate.flatten().tolist()))
            partner = {at: to for at, to in enumerate(view.partner.flatten().tolist()) if to >= 0}
            assert stage["partner"] == {str(at): to for at, to in partner.items()}


def test_the_page_in_a_browser(scene: Scene, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium to open the page with")
    (tmp_path / "page.html").write_text(page.page(scene), encoding="utf-8")
    profile, url = f"--user-data-dir={tmp_path / 'profile'}", f"file://{tmp_path / 'page.html'}"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", profile, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert 'aria-valuetext="after block 9"' in done.stdout
    assert "Point at a patch" in done.stdout
    assert done.stdout.count('class="here"') == 6


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The command as a user types it, in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["zerotprune", "show", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_legend_names_what_occurs_and_nothing_else(
    model: nn.Module, images: Tensor, scene: Scene
) -> None:
    assert list(scene.legend()) == [Fate.SIMILAR, Fate.UNIMPORTANT, Fate.GONE]
    assert list(scene.legend(outcome=True)) == [Fate.SIMILAR, Fate.UNIMPORTANT]
    merged = tell(model, images[:1], Schedule((Stage(3, 1.0, 20),)), ToMe())
    single = Scene("", "", scene.pictures[:1], merged, [""], merges=True)
    assert single.legend() == {Fate.SIMILAR: "merged with a similar one"}


@pytest.mark.parametrize("name", ["framework", "order", "heads", "mean", "rounds"])
def test_the_papers_figures_are_commands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    figure = importlib.import_module(f"figure_{name}")
    assert f"Command: python benchmarks/figure_{name}.py" in (figure.__doc__ or "")
    out = tmp_path / f"{name}.svg"
    monkeypatch.setattr(sys, "argv", [name, "--pictures", "3", "--out", str(out)])
    figure.main()
    ElementTree.fromstring(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("ending", ["png", "svg", "gif", "webp", "html"])
def test_every_ending(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / f"drawn.{ending}"
    assert run("--model", "demo", "--limit", "2", "--out", str(out), monkeypatch=monkeypatch) == 0
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    if ending == "svg":
        ElementTree.fromstring(out.read_text(encoding="utf-8"))
    elif ending == "html":
        assert out.read_text(encoding="utf-8").count("<article>") == 2
    else:
        with Image.open(out) as image:
            assert image.format == ending.upper()
            assert getattr(image, "n_frames", 1) == (1 if ending == "png" else 6)


def test_pictures_from_files_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    for number, image in enumerate(demo.pictures(3, seed=1)[0]):
        as_picture(image, nn.Module()).save(folder / f"{number}.png")
    single = tmp_path / "single.png"
    shutil.copy(folder / "0.png", single)
    (tmp_path / "names.txt").write_text("\n".join("abcdefghij"))
    arguments = [str(single), str(folder), "--model", "demo", "--schedule", "ablation-is", "--grid",
                 "--lines", "--names", str(tmp_path / "names.txt"),
                 "--out", str(tmp_path / "a.svg")]  # fmt: skip
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert "single.png: 65 of 196 patches left; " in said
    digit = demo.pictures(1, seed=1)[1].item()
    assert f"{'abcdefghij'[int(digit)]} 9" in said
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").count("data:image/jpeg") == 4


def test_a_photograph_stands_upright(tmp_path: Path) -> None:
    from zerotprune.show.gallery import opened

    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera turned
    Image.new("RGB", (40, 20)).save(tmp_path / "turned.jpg", exif=exif)
    assert opened(tmp_path / "turned.jpg").size == (20, 40)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("no.png", "--model", "demo"), "no picture at no.png"),
        (("text.png", "--model", "demo"), "text.png is not a picture that PIL can read"),
        (("half.jpg", "--model", "demo"), "half.jpg cannot be decoded"),
        (("empty", "--model", "demo"), "empty"),
        (("whole.png", "--model", "demo", "--out", "out.bmp"), "ending must be one of .png, .svg"),
        (("whole.png", "--model", "demo", "--out", "out"), "the ending must be one of"),
        (("whole.png", "--model", "demo", "--out", "no/out.png"), "no folder no"),
        (("whole.png", "--model", "demo", "--out", "whole.png"), "is one of the pictures"),
        (("whole.png", "--model", "resnet18"), "cannot prune timm's ResNet"),
        (("whole.png", "--model", "no_such"), "unknown model 'no_such'"),
        (("--model", "deit_tiny_patch16_224"), "give pictures to show"),
        (("whole.png", "--model", "demo", "--schedule", "nope"), "neither a preset"),
        (("whole.png", "--model", "demo", "--schedule", "deep.json"), "a stage at block 40"),
        (("whole.png", "--model", "demo", "--schedule", "none.json"), "prunes 150 similar"),
        (("whole.png", "--model", "demo", "--keep", "1.5"), "keep must be in (0, 1]"),
        (("whole.png", "--model", "demo", "--keep", "0.001"), "cannot be met"),
        (("whole.png", "--model", "demo", "--keep", "0.5", "--gmacs", "1"), "give one of"),
        (("whole.png", "--model", "demo", "--method", "magic"), "unknown method 'magic'"),
        (("whole.png", "--model", "demo", "--method", "tome", "--heads"), "no scores head by head"),
        (("whole.png", "--model", "demo", "--heads", "--out", "a.gif"), "heads are drawn into"),
        (("whole.png", "--model", "demo", "--grid", "--out", "a.html"), "a grid is drawn into"),
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
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = as_picture(demo.pictures(1, seed=1)[0][0], nn.Module())
    whole.save("whole.png")
    whole.save("half.jpg")
    Path("half.jpg").write_bytes(Path("half.jpg").read_bytes()[:900])
    Path("text.png").write_text("not a picture")
    Path("names.txt").write_text("one\ntwo\n")
    Path("empty").mkdir()
    Schedule((Stage(40, 0.5),)).save("deep.json")
    Schedule((Stage(3, 1.0, 150),)).save("none.json")
    held = {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    assert run(*arguments, monkeypatch=monkeypatch) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert len(said.splitlines()) == 1
    assert held == {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}


def test_a_failure_while_drawing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Image.Image, "save", fail)
    out = tmp_path / "a.png"
    assert run("--model", "demo", "--limit", "1", "--out", str(out), monkeypatch=monkeypatch) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_real_model_and_a_real_picture(shared: Path, tmp_path: Path) -> None:
    picture = sorted((shared / "imagenet" / "tune" / "n02099601").iterdir())[0]
    show(
        picture,
        model="deit_tiny_patch16_224",
        weights=shared / "weights" / "deit_tiny_patch16_224.safetensors",
        schedule="ablation-is",
        heads=True,
        out=tmp_path / "dog.svg",
    )
    text = (tmp_path / "dog.svg").read_text(encoding="utf-8")
    assert "golden retriever" in text
    assert "65 of 196 kept" in text
    assert "variance from 0.01 to 0.7" in text
