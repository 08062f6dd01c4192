"""The engine: marks in pixels and in SVG, text, heat maps, and what the model saw."""

from __future__ import annotations

import base64
import io
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image, ImageColor
from torch import Tensor, nn

import zerotprune as ztp
from tests.show import hand_made
from zerotprune import app
from zerotprune.backbones import backbone
from zerotprune.data import demo
from zerotprune.show.figure import (
    ACCENT,
    COVER,
    LARGEST,
    OTHER,
    OUTLINE,
    PALE_COVER,
    PARTNERS,
    SAME,
    TINT,
    Drawing,
    as_image,
    heat_map,
    heat_map_url,
    heat_scale,
    overlay,
    photo_url,
    shorten,
    text_width,
    wrap,
)
from zerotprune.show.html import TEMPLATE
from zerotprune.show.story import Mark, StageView, Story, find_borders, patch_colors, tell
from zerotprune.tracing import Fate

PATCH = 20
LINE = ImageColor.getrgb(PARTNERS[-1][0])


def paint(image: Image.Image, stage: StageView | None, *, lines: bool = False) -> np.ndarray:
    """Paint a panel; every patch has PATCH pixels."""
    rows, cols = hand_made().fate.shape if stage is None else stage.fate.shape
    drawing = Drawing(PATCH * cols, PATCH * rows)
    drawing.panel((0, 0, PATCH * cols, PATCH * rows), image, stage, lines=lines)
    return np.asarray(drawing.pixels(scale=1.0), dtype=float)


def inner(row: int, col: int) -> tuple[slice, slice]:
    """Return the pixels of a patch without its edges."""
    first, last = 3, PATCH - 3
    return (slice(PATCH * row + first, PATCH * row + last),
            slice(PATCH * col + first, PATCH * col + last))  # fmt: skip


def test_pixels_have_the_color_of_the_fate() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
    stage, image = hand_made(), Image.fromarray(noise)
    plain, painted = paint(image, None), paint(image, stage)
    assert painted.shape == (2 * PATCH, 3 * PATCH, 3)
    for row in range(2):
        for col in range(3):
            fate, expected = Fate(int(stage.fate[row, col])), plain[inner(row, col)]
            if fate != Fate.KEPT:
                color, opacity = COVER[Mark[fate.name]]
                expected = (1 - opacity) * expected + opacity * np.array(ImageColor.getrgb(color))
            np.testing.assert_allclose(painted[inner(row, col)], expected, atol=1.5)


def test_lines_end_on_the_partner() -> None:
    black = Image.new("RGB", (60, 40))
    painted = paint(black, hand_made(), lines=True)
    for x, y in ((50, 30), (40, 20)):  # the partner, and half way
        assert tuple(painted[y, x]) == LINE
    assert tuple(painted[30, 10]) != LINE
    assert not (paint(black, hand_made()) == LINE).all(axis=-1).any()


@pytest.fixture(scope="module")
def merged(model: nn.Module, images: Tensor) -> Story:
    return tell(model, images[:1], ztp.schedule_for(model, cost=0.6, method="tome"))[0]


def test_merged_patches_have_the_tint_of_their_token(
    merged: Story, images: Tensor, model: nn.Module
) -> None:
    view, image = merged.stages[-1], as_image(images[0], model)
    assert view.tint is not None
    bare = StageView(0, torch.zeros_like(view.fate), view.partner, view.importance)
    plain, painted = paint(image, bare), paint(image, view)
    shared = view.marked(Mark.MERGED)
    assert 0 < shared.sum() < 196
    for row in range(14):
        for col in range(14):
            opacity = TINT * bool(shared[row, col])
            tint = 255 * view.tint[row, col].double().numpy()
            expected = (1 - opacity) * plain[inner(row, col)] + opacity * tint
            np.testing.assert_allclose(painted[inner(row, col)], expected, atol=3)


def rectangles(path: str) -> list[tuple[int, int, int]]:
    """Return column, row and width of a path's rectangles; it has nothing else."""
    corners = re.findall(r"M(\d+) (\d+)L(\d+) \2L\3 (\d+)L\1 \4z", path)
    assert "".join(f"M{x} {y}L{u} {y}L{u} {v}L{x} {v}z" for x, y, u, v in corners) == path
    return [(int(x), int(y), int(u) - int(x)) for x, y, u, v in corners if int(v) == int(y) + 1]


def test_an_overlay_covers_every_patch_by_its_fate(stories: list[Story]) -> None:
    for story in stories[:2]:
        for stage in (*story.stages, story.outcome()):
            fates = np.full(story.grid, Fate.KEPT.value)
            drawn = overlay(stage, lines=False)
            assert "partners" not in drawn
            for fate in (Fate.SIMILAR, Fate.UNIMPORTANT, Fate.GONE):
                for path in re.findall(rf'class="{fate.name.lower()}" d="([^"]*)"', drawn):
                    for col, row, width in rectangles(path):
                        assert (fates[row, col : col + width] == Fate.KEPT).all()
                        fates[row, col : col + width] = fate
            np.testing.assert_array_equal(fates, stage.fate.numpy())


def test_an_overlay_leads_to_the_partner(stories: list[Story]) -> None:
    drawn = overlay(hand_made(), lines=True)
    paths = re.findall(r'class="partners" d="([^"]*)"[^>]* stroke="([^"]*)"', drawn)
    expected = [
        (path, color.lower())
        for color, *_ in PARTNERS
        for path in ("M1.5 0.5L2.5 1.5", "M2.5 1.5L2.501 1.5")
    ]
    assert paths == expected
    last = stories[0].stages[-1]
    assert last.pairs() == []
    assert "partners" not in overlay(last, lines=True)


def test_an_overlay_tints_and_outlines_tokens(merged: Story) -> None:
    view = merged.stages[-1]
    assert view.token is not None
    assert view.tint is not None
    drawn = overlay(view, lines=False)
    (url,) = re.findall(r'<image class="merged"[^>]* href="([^"]*)"', drawn)
    pixels = np.asarray(opened(url, "png")) / 255
    shared = view.marked(Mark.MERGED).numpy()
    np.testing.assert_allclose(pixels[..., 3], TINT * shared, atol=1 / 255)
    np.testing.assert_allclose(pixels[shared][:, :3], view.tint.numpy()[shared], atol=1 / 255)
    outlines = re.findall(r'class="outline" d="([^"]*)"', drawn)
    assert len(outlines) == len(OUTLINE)
    in_row, in_column = np.zeros((14, 13), bool), np.zeros((13, 14), bool)
    for x, y, u, v in np.array(re.findall(r"M(\d+) (\d+)L(\d+) (\d+)", outlines[0]), dtype=int):
        if x == u:
            in_row[y:v, x - 1] = True
        else:
            in_column[y - 1, x:u] = True
    for actual, expected in zip((in_row, in_column), find_borders(view.token), strict=True):
        np.testing.assert_array_equal(actual, expected.numpy())
    assert not any(f'class="{mark}"' in drawn for mark in ("similar", "gone", "unimportant"))


def test_svg_and_pixels_agree(tmp_path: Path) -> None:
    """Compare with a browser that draws the SVG file."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium to draw the SVG file")

    def drawing() -> Drawing:
        made = Drawing(300, 200)
        made.panel((0, 0, 300, 200), Image.new("RGB", (60, 40), "#406080"), hand_made(), lines=True)
        return made

    (tmp_path / "a.svg").write_text(drawing().svg(), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--force-color-profile=srgb", "--window-size=300,200",
               f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={tmp_path / 'a.png'}",
               f"file://{tmp_path / 'a.svg'}"]  # fmt: skip
    subprocess.run(command, capture_output=True, check=True, timeout=300)
    shown = np.asarray(Image.open(tmp_path / "a.png").convert("RGB"), dtype=float)
    pixels = np.asarray(drawing().pixels(scale=1.0), dtype=float)
    for x, y in ((25, 25), (275, 20), (25, 175), (150, 180), (250, 150), (200, 100), (120, 20)):
        np.testing.assert_allclose(shown[y, x], pixels[y, x], atol=3, err_msg=f"{x}, {y}")


def test_text_is_never_markup() -> None:
    hostile = r"$\frac{1}{0}$ _x^2 <b>&amp;</b> 漢字 مرحبا"
    drawing = Drawing(400, 40, title=hostile)
    drawing.text(10, 20, hostile)
    words = [element.text for element in ElementTree.fromstring(drawing.svg()).iter()]
    assert words.count(hostile) >= 2
    assert drawing.pixels().size == (600, 60)


def test_a_photograph_is_embedded_once() -> None:
    drawing = Drawing(200, 100)
    first, second = (Image.new("RGB", (60, 40), color) for color in ("red", "blue"))
    for x, image in ((0, first), (60, second), (120, first)):
        drawing.panel((x, 0, 60, 40), image)
    text = drawing.svg()
    root = ElementTree.fromstring(text)
    assert text.count("data:image/jpeg") == 2
    assert "image/png" not in text
    href = "{http://www.w3.org/1999/xlink}href"
    uses = [use.get(href) for use in root.iter("{http://www.w3.org/2000/svg}use")]
    assert uses == ["#photo0", "#photo1", "#photo0"]


def test_shorten_says_what_is_missing() -> None:
    assert shorten("short", 200) == "short"
    text = "a very long name of a class"
    cut = shorten(text, 60)
    assert cut.endswith("…")
    assert text.startswith(cut[:-1])
    assert text_width(cut) <= 60 < text_width(f"{text[: len(cut) + 1]}…")


def test_wrap_keeps_every_letter() -> None:
    text = "a very long name of a class, supercalifragilisticexpialidocious and so on"
    for width in (40, 60, 100, 10_000):
        lines = wrap(text, width)
        assert all(text_width(line) <= width for line in lines)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert wrap(text, 10_000) == [text]


@pytest.mark.parametrize("name", ["demo", "deit_tiny_patch16_224", "vit_base_patch16_siglip_224"])
def test_as_image_undoes_the_transform(name: str) -> None:
    with torch.device("meta"):
        model = demo.untrained() if name == "demo" else timm.create_model(name)
    side = 112 if name == "demo" else 224
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)
    normalize = backbone(model).transform().transforms[-1]  # type: ignore[attr-defined]
    values = normalize(torch.from_numpy(pixels).permute(2, 0, 1) / 255)
    np.testing.assert_array_equal(np.asarray(as_image(values, model)), pixels)


def test_patch_colors_are_means() -> None:
    model, image = demo.untrained(), demo.images(1, seed=3)[0][0]
    expected = (image.double().numpy() + 1).reshape(3, 14, 8, 14, 8).mean(axis=(2, 4)) / 2
    colors = patch_colors(image, (14, 14), model)
    np.testing.assert_allclose(colors.permute(2, 0, 1).numpy(), expected, atol=1e-6)


def test_heat_is_bright_where_importance_is_high() -> None:
    values = torch.tensor([[0.01, 0.2, 1.0, 5.0, 50.0, torch.nan]])
    pixels = np.asarray(heat_map(values))[0].astype(int)
    lightness = pixels @ (299, 587, 114)
    assert lightness[0] == lightness[1] < lightness[2] < lightness[3] == lightness[4]
    assert pixels[5].min() > 200  # nearly white where there is no patch


def opened(url: str, kind: str) -> Image.Image:
    start = f"data:image/{kind};base64,"
    assert url.startswith(start)
    return Image.open(io.BytesIO(base64.b64decode(url.removeprefix(start), validate=True)))


def test_urls_hold_the_image() -> None:
    photo = Image.effect_noise((900, 300), 20).convert("RGB")
    assert opened(photo_url(photo), "jpeg").size == (LARGEST, round(LARGEST / 3))
    assert photo.size == (900, 300)
    values = torch.rand(5, 7) * 3
    exact = opened(heat_map_url(values), "png")
    np.testing.assert_array_equal(np.asarray(exact), np.asarray(heat_map(values)))


def test_the_accent_is_no_color_of_a_patch() -> None:
    """Controls and progress must not look like a mark or like heat, on a page as in a file."""
    accent = np.array(ImageColor.getrgb(ACCENT))
    marks = [color for cover in (COVER, PALE_COVER) for color, _ in cover.values()]
    for color in (*marks, PARTNERS[-1][0], SAME, OTHER):
        assert np.linalg.norm(accent - np.array(ImageColor.getrgb(color))) > 60, color
    heat = np.asarray(heat_map(heat_scale()))[0].astype(int)
    assert np.linalg.norm(accent - heat, axis=-1).min() > 60
    for style in (Path(app.__file__).with_name("page.css"), TEMPLATE):
        text = style.read_text(encoding="utf-8").upper()
        assert f"--ACCENT: {ACCENT}" in text
        assert "ACCENT-COLOR: VAR(--ACCENT)" in text
