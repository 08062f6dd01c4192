"""The page without a browser: what comes in, what is on the screen, what the gate lets through."""

from __future__ import annotations

import asyncio
import base64
import importlib
import io
import json
import re
import socket
import threading
import warnings
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from zerotprune.budgets.contenders import METHODS, measured_gmacs

import zerotprune as ztp
from tests.commands import zerotprune
from zerotprune.app import controls, panels
from zerotprune.app import uploads as intake
from zerotprune.app.catalog import Offer, examples
from zerotprune.app.controller import NOT_DIGITS, UNEXPECTED, Desk, Session
from zerotprune.app.firewall import MOST_BODY, Gate
from zerotprune.app.overlay import overlay
from zerotprune.app.snippet import python_lines
from zerotprune.app.timing import race
from zerotprune.app.view_model import MOST_ROUNDS, Choice, look, read_stages
from zerotprune.app.worker import Machine, Stopped
from zerotprune.backbones import backbone
from zerotprune.cli.app import _offers
from zerotprune.data import demo
from zerotprune.plan import Plan
from zerotprune.tracing import Fate

pytestmark = pytest.mark.usefixtures("one_thread")


def encoded(picture: Image.Image, kind: str = "PNG", **given: Any) -> bytes:
    held = io.BytesIO()
    picture.save(held, kind, **given)
    return held.getvalue()


@pytest.fixture(scope="module")
def offer() -> Offer:
    return Offer("demo", demo.model())


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    return examples()[0][1]


@pytest.fixture
def desk(offer: Offer, picture: Image.Image) -> Desk:
    return Desk(Machine(), [offer], [("digit 2", picture), *examples()[1:2]])


# what comes in


def test_pictures_of_every_kind_come_in_as_rgb() -> None:
    values = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    rgb = Image.fromarray(values)
    assert (np.asarray(intake.from_bytes(encoded(rgb))) == values).all()
    for mode in ("L", "1", "P", "CMYK"):
        kind = "TIFF" if mode == "CMYK" else "PNG"
        assert intake.from_bytes(encoded(rgb.convert(mode), kind)).mode == "RGB"
    for kind in ("JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        found = intake.from_bytes(encoded(rgb, kind))
        assert (found.mode, found.size) == ("RGB", (4, 4))
    deep = Image.fromarray(np.full((4, 4), 65535 // 2, np.uint16))
    assert intake.from_bytes(encoded(deep)).getpixel((0, 0)) == (127, 127, 127)


def test_transparency_is_white_and_exif_turns_the_picture() -> None:
    clear = Image.new("RGBA", (2, 2), (255, 0, 0, 0))
    assert intake.from_bytes(encoded(clear)).getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    assert intake.from_bytes(encoded(palette, transparency=0)).getpixel((0, 0)) == (255,) * 3
    turned = Image.Exif()
    turned[0x0112] = 6  # a camera held upright
    assert intake.from_bytes(encoded(Image.new("RGB", (8, 4)), "JPEG", exif=turned)).size == (4, 8)


def test_what_is_no_picture_is_refused_in_one_sentence() -> None:
    whole = encoded(Image.effect_noise((64, 64), 50).convert("RGB"), "JPEG")
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    for data, says in (
        (b"just some text", intake.NO_PICTURE),
        (b"", intake.NO_PICTURE),
        (svg, intake.NO_PICTURE),
        (b"<!doctype html><html><body>hello</body></html>", intake.NO_PICTURE),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", intake.NO_PICTURE),
        (whole[: len(whole) // 2], intake.DAMAGED),
        (encoded(Image.new("RGB", (64, 64)))[:60], intake.DAMAGED),
        (bytes(intake.MOST_BYTES + 1), intake.TOO_LARGE),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            intake.from_bytes(data)


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    bombs = [
        (encoded(Image.new("1", (6000, 5000))), "6000 × 5000 = 30.0 megapixels"),
        (encoded(Image.new("1", (20_000, 10_000))), "far too many pixels"),
        (encoded(Image.new("1", (10_000, 9))), "at most 20 times its shorter one"),
    ]

    def never(*_: Any) -> None:
        raise AssertionError("a pixel was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", never)
    for data, says in bombs:
        assert len(data) < 2**20
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ValueError, match=says):
                intake.from_bytes(data)


def test_base64_from_a_browser() -> None:
    data = encoded(Image.new("RGB", (3, 2)))
    assert intake.from_text(base64.b64encode(data).decode()).size == (3, 2)
    for text, says in (
        ("not base64!", "did not arrive whole"),
        (None, "not a picture"),
        ({"path": "/etc/passwd"}, "not a picture"),
        ("A" * (intake.MOST_BYTES * 2), "more than 16 MB"),
    ):
        with pytest.raises(ValueError, match=says):
            intake.from_text(text)


# what is on the screen


@pytest.mark.parametrize("name", METHODS)
def test_every_method_agrees_with_the_api_and_with_its_python_lines(
    offer: Offer, picture: Image.Image, name: str
) -> None:
    sight, geometry = offer.see(picture), backbone(offer.model).geometry
    screen = look(offer, sight, Choice("demo", name, share=0.6))
    (side,) = screen.sides
    chosen = side.contender
    plan = Plan(chosen.schedule, chosen.method, geometry)
    expected = ztp.gmacs(offer.model, chosen.schedule, chosen.method)
    if chosen.method.adaptive:
        expected = measured_gmacs(demo.model(), plan, sight.image)
    assert side.gmacs == expected == pytest.approx(0.6 * ztp.gmacs(offer.model), rel=0.0101)
    assert f'data-value="{expected!r}">{expected:.4f}<' in panels.facts(screen)
    scope: dict[str, Any] = {"images": sight.image}
    with torch.inference_mode():
        before = offer.model(sight.image).softmax(-1)[0]
        exec(python_lines(screen), scope)
    assert scope["schedule"] == chosen.schedule
    assert ztp.gmacs(scope["model"]) == plan.gmacs()
    for said, shares in ((side.story.before, before), (side.story.after, _shares(scope))):
        assert said[0].label == f"digit {shares.argmax().item()}"
        assert said[0].share == pytest.approx(shares.max().item(), abs=1e-5)


def _shares(scope: dict[str, Any]) -> torch.Tensor:
    shares: torch.Tensor = scope["logits"].softmax(-1)[0]
    return shares


def test_the_lines_of_a_rival_come_after(offer: Offer, picture: Image.Image) -> None:
    screen = look(offer, offer.see(picture), Choice("demo", "random", "evit", 0.6))
    scope: dict[str, Any] = {"images": screen.sight.image}
    exec(python_lines(screen), scope)
    assert scope["schedule"] == screen.sides[1].contender.schedule
    assert screen.sides[1].gmacs == pytest.approx(screen.sides[0].gmacs, rel=0.0101)


def test_own_stages_and_what_is_wrong_with_them(offer: Offer, picture: Image.Image) -> None:
    sight = offer.see(picture)
    own = ztp.Schedule((ztp.Stage(4, 0.5, 7, 3),))
    screen = look(offer, sight, Choice("demo", "zero-tprune", schedule=read_stages(own.to_json())))
    assert screen.sides[0].contender.schedule == own
    assert screen.sides[0].gmacs == ztp.gmacs(offer.model, own)
    for schedule, says in (
        (ztp.Schedule((ztp.Stage(12, 0.5),)), "stages go after blocks 1 to 11"),
        (ztp.Schedule((ztp.Stage(3, 0.001),)), "leaves no patch token"),
        (ztp.Schedule((ztp.Stage(3, 0.5, 0, 10**9),)), f"rounds may be at most {MOST_ROUNDS}"),
    ):
        with pytest.raises(ValueError, match=says):
            look(offer, sight, Choice("demo", "zero-tprune", schedule=schedule))
    for text, says in (
        ("[" * 100_000, "at most 64 kB"),
        ("[" * 60_000, "nested too deep"),
        ("{", "bad JSON"),
        (None, "not a schedule"),
    ):
        with pytest.raises(ValueError, match=says):
            read_stages(text)


def test_stages_that_another_method_cannot_follow_give_way_to_the_dial(
    offer: Offer, picture: Image.Image
) -> None:
    sight, own = offer.see(picture), ztp.Schedule((ztp.Stage(4, 0.5),))
    first = look(offer, sight, Choice("demo", "zero-tprune", share=0.7, schedule=own))
    then = look(offer, sight, Choice("demo", "tome", share=0.7, schedule=own), first)
    assert then.choice.schedule is None
    assert "do not fit here" in then.notes[0]
    assert then.share == pytest.approx(0.7, rel=0.0101)
    kept = look(offer, sight, Choice("demo", "random", share=0.7, schedule=own), first)
    assert kept.sides[0].contender.schedule == own


def test_a_budget_of_all_prunes_nothing(offer: Offer, picture: Image.Image) -> None:
    screen = look(offer, offer.see(picture), Choice("demo", "zero-tprune", share=1.0))
    assert screen.sides[0].story.stages == []
    assert screen.sides[0].story.before == screen.sides[0].story.after
    assert screen.sides[0].left == 196
    assert "nothing is pruned" in python_lines(screen)
    assert 'data-blocks="[0]"' in panels.view(screen)


def test_the_drawing_covers_each_patch_by_its_fate(offer: Offer, picture: Image.Image) -> None:
    story = look(offer, offer.see(picture), Choice("demo", "zero-tprune", share=0.5)).sides[0].story
    drawn = overlay(story)
    groups = re.findall(r'<g data-block="(\d+)">(.*?)</g>', drawn)
    assert [int(block) for block, _ in groups] == [stage.block for stage in story.stages]
    for (_, group), stage in zip(groups, story.stages, strict=True):
        grid = np.zeros((14, 14), int)
        for fate, name in enumerate(("kept", "similar", "unimportant", "gone")):
            for path in re.findall(rf'class="{name}"[^>]* d="([^"]*)"', group):
                for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", path):
                    grid[int(y), int(x) : int(x) + int(width)] = fate
        assert (grid == stage.fate.numpy()).all()
    assert (torch.tensor(grid) == Fate.KEPT).sum() == story.stages[-1].kept


def test_models_of_other_shapes_and_without_a_head(picture: Image.Image) -> None:
    torch.manual_seed(0)
    bare = Offer("test_vit", timm.create_model("test_vit", num_classes=0).eval())
    screen = look(bare, bare.see(picture), Choice("test_vit", "zero-tprune", "slicing", 0.7))
    assert screen.sides[0].story.grid == (10, 10)
    assert panels.view(screen).count("This model has no head") == 3
    pooled = Offer("pooled", timm.create_model("test_vit", global_pool="avg").eval())
    screen = look(pooled, pooled.see(picture), Choice("pooled", "zero-tprune", "tome", 0.7))
    assert len(screen.sides) == 1
    assert "head pools the patch tokens" in screen.notes[0]


def test_names_in_the_page_are_text(offer: Offer, picture: Image.Image) -> None:
    named = Offer("demo", offer.model, ["<script>x</script>"] * 10)
    screen = look(named, named.see(picture), Choice("demo", "zero-tprune"))
    assert "<script>" not in panels.view(screen)
    assert "&lt;script&gt;" in panels.view(screen)
    assert "<b>" not in controls.status("<b>", "error")


def test_a_race_measures_all_and_stops_when_it_is_stale(offer: Offer, picture: Image.Image) -> None:
    screen, machine = look(offer, offer.see(picture), Choice("demo", "tome", "evit")), Machine()
    found = race(screen, machine)
    assert found is not None
    assert len(found) == 3
    assert all(each > 0 for each in found)
    assert race(screen, machine, lambda: True) is None
    machine.stop()
    with pytest.raises(Stopped):
        race(screen, machine)


# what happens at the desk

CONTROLS = ("demo", "zero-tprune", "none", 65)


def test_a_session_goes_through_the_page(desk: Desk) -> None:
    own = Session()
    opened = desk.choose(own, CONTROLS)
    assert opened.picture is not None
    turned = desk.dial(own, ("demo", "zero-tprune", "none", 40))
    assert turned.picture is None  # it has not changed
    assert turned.percent is None  # the user's hand may be on it
    schedule = ztp.Schedule((ztp.Stage(6, 0.5),))
    edited = desk.edit(own, ("demo", "zero-tprune", "none", 40), schedule.to_json())
    cost = ztp.gmacs(demo.model(), schedule)
    assert edited.percent == round(100 * cost / ztp.gmacs(demo.model()))
    assert edited.facts is not None
    assert f"{cost:.4f}" in edited.facts
    assert desk.choose(own, ("demo", "random", "none", 40)).stages == edited.stages
    assert desk.dial(own, ("demo", "random", "none", 40)).stages != edited.stages
    assert own.schedule is None
    measured = desk.measure(own)
    assert measured is not None
    assert "pending" not in measured
    assert desk.example(own, CONTROLS, 1).picture != opened.picture


def test_an_error_leaves_the_session_as_it_was(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = Session()
    desk.choose(own, CONTROLS)
    screen = own.screen
    for shown, says in (
        (desk.edit(own, CONTROLS, '{"version": 1, "stages": [{"block": 0}]}'), "Block must be"),
        (desk.edit(own, CONTROLS, '{"version": 1, "stages": [{"block": null}]}'), "whole number"),
        (desk.example(own, CONTROLS, 99), "There is no such example."),
        (desk.example(own, CONTROLS, "../x"), "There is no such example."),
        (desk.upload(own, CONTROLS, {"text": "QUJD"}), intake.NO_PICTURE),
        (desk.upload(own, CONTROLS, {"refused": "large"}), intake.TOO_LARGE),
        (desk.choose(own, ("/etc/passwd", "tome", "none", 65)), "The models are demo."),
        (desk.choose(own, ("demo", "no-such", "none", 65)), "Unknown method"),
        (desk.dial(own, ("demo", "evit", "none", 25)), "Evit cannot meet a budget"),
        (desk.dial(own, ("demo", "evit", "none", 8)), "The budget goes from 25 to 100 %"),
        (desk.dial(own, ("demo", "evit", "none", float("nan"))), "The budget goes from 25 to 100"),
        (desk.dial(own, ("demo", "evit", "none", "65")), "The budget is a number"),
        (desk.dial(own, ("demo", ["evit"], "none", 65)), "chosen by their names"),
    ):
        assert says in shown.status
        assert 'role="alert"' in shown.status
        assert shown.view is None
        assert own.screen is screen

    def broken(*_: Any) -> None:
        raise RuntimeError("secret: /home/somebody/model.safetensors")

    monkeypatch.setattr("zerotprune.app.controller.look", broken)
    shown = desk.choose(own, CONTROLS)
    assert UNEXPECTED in shown.status
    assert "secret" not in shown.status
    assert "secret" in caplog.text  # for whoever started the page


def test_a_picture_of_ones_own_with_the_built_in_model(desk: Desk) -> None:
    own = Session()
    text = base64.b64encode(encoded(Image.effect_noise((300, 200), 60), "JPEG")).decode()
    assert escape(NOT_DIGITS) in desk.upload(own, CONTROLS, {"text": text}).status
    assert desk.choose(own, CONTROLS).picture is None  # it stays
    assert desk.example(own, CONTROLS, 0).status == ""


def test_two_sessions_at_once_do_not_disturb_each_other(desk: Desk) -> None:
    alone = [Session(), Session()]
    wanted = [("zero-tprune", 40, 0), ("tome", 80, 1)]

    def go(session: Session, method: str, percent: int, at: int) -> list[str | None]:
        shown = desk.example(session, ("demo", method, "none", percent), at)
        return [shown.view, shown.facts, shown.stages, shown.lines]

    expected = [go(own, *each) for own, each in zip(alone, wanted, strict=True)]
    found: dict[int, list[list[str | None]]] = {0: [], 1: []}

    def many(who: int, session: Session) -> None:
        found[who] = [go(session, *wanted[who]) for _ in range(4)]

    threads = [threading.Thread(target=many, args=(who, Session())) for who in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for who in (0, 1):
        assert all(each == expected[who] for each in found[who])


# what the gate lets through


def ask(
    method: str, path: str, body: bytes = b"", host: str = "127.0.0.1:7860", origin: str = ""
) -> tuple[int, bytes, list[bytes]]:
    """The status of the answer, its headers' names as bytes, and the body that came through."""
    came: list[bytes] = []
    answers: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        came.append((await receive())["body"] if method == "POST" else b"")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    headers = [(b"host", host.encode())] + ([(b"origin", origin.encode())] if origin else [])
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    pieces = [body[at : at + 2**20] for at in range(0, len(body), 2**20)] or [b""]

    async def receive() -> Any:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        answers.append(message)

    asyncio.run(Gate(app)(scope, receive, send))
    return answers[0]["status"], repr(answers[0]["headers"]).encode(), came


def test_the_gate_knows_the_pages_own_routes_only() -> None:
    assert ask("GET", "/")[0] == 200
    assert b"content-security-policy" in ask("GET", "/assets/index.js")[1]
    for method, path in (
        ("GET", "/gradio_api/file=/etc/passwd"),
        ("GET", "/gradio_api/file=http://example.org/"),
        ("GET", "/gradio_api/proxy=http://example.org/"),
        ("GET", "/file=/etc/passwd"),
        ("GET", "/assets/../../etc/passwd"),
        ("POST", "/gradio_api/upload"),
        ("POST", "/gradio_api/run/predict"),
        ("POST", "/gradio_api/component_server"),
        ("GET", "/gradio_api/info"),
        ("GET", "/monitoring"),
        ("POST", "/gradio_api/cancel"),
        ("PUT", "/"),
    ):
        status, _, came = ask(method, path)
        assert (status, came) == (404, []), path


def test_the_gate_answers_this_machine_and_its_own_page_only() -> None:
    assert ask("GET", "/", host="localhost:9000", origin="http://localhost:9000")[0] == 200
    for host, origin in (
        ("evil.example", ""),
        ("127.0.0.1.evil.example:7860", ""),
        ("127.0.0.1:7860", "http://evil.example"),
        ("127.0.0.1:7860", "http://127.0.0.1:9999"),
        ("127.0.0.1:7860", "null"),
        ("[::1", ""),
    ):
        assert ask("GET", "/", host=host, origin=origin)[0] == 403, (host, origin)


def test_the_gate_takes_plain_values_of_limited_size() -> None:
    join = "/gradio_api/queue/join"
    good = json.dumps({"data": [None, "demo", 65, [1]], "event_data": {"text": "x"}}).encode()
    assert ask("POST", join, good) == (*ask("POST", join, good)[:2], [good])
    file = {"path": "http://example.org/x", "meta": {"_type": "gradio.FileData"}}
    for sent in (
        {"data": [file]},
        {"data": [[[file]]]},
        {"data": [1], "event_data": {"text": file}},
        {"data": [1], "event_data": [file]},
        [file],
    ):
        status, _, came = ask("POST", join, json.dumps(sent).encode())
        assert (status, came) == (400, []), sent
    assert ask("POST", join, b"not json")[0] == 400
    assert ask("POST", join, b"[" * 10**6)[0] == 400
    assert ask("POST", join, b"x" * (MOST_BODY + 1))[0] == 413


# the command


def test_a_mistake_at_the_start_is_one_sentence() -> None:
    done = zerotprune("app", "--no-browser", "--port", "0")
    assert done.returncode == 2
    assert done.stderr == "zerotprune: port must be from 1 to 65535, got 0\n"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": ["no_such_model"]}, "unknown model 'no_such_model'"),
        ({"model": ["resnet18"], "random_weights": True}, "cannot prune timm's ResNet"),
        ({"model": ["deit_tiny_patch16_224"], "weights": [Path("no.pt")]}, "no weights at no.pt"),
        ({"weights": [Path("no.pt")]}, "1 files of --weights for 0 of --model"),
        ({"weights": [Path("no.pt")], "random_weights": True}, "not both"),
        ({"model": ["demo"]}, "give each --model once"),
        ({"names": Path("no.txt")}, "no.txt"),
    ],
)
def test_offers_that_cannot_be_made(given: dict[str, Any], says: str) -> None:
    usual: dict[str, Any] = {"model": [], "weights": [], "random_weights": False, "names": None}
    with pytest.raises((ValueError, OSError, TypeError), match=re.escape(says)):
        _offers(**(usual | given))


def test_without_gradio_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("zerotprune.cli.app")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("pip install 'zerotprune[app]'")):
        module.app(browser=False)


def test_a_model_with_names_of_its_own(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("first\nsecond\n")
    offers = _offers(["vit_tiny_patch16_224"], [], True, names)
    assert [offer.name for offer in offers] == ["demo", "vit_tiny_patch16_224"]
    assert offers[1].labels == ["first", "second"]
    assert offers[0].labels[7] == "digit 7"


def test_a_port_that_is_taken_is_said_before_anything_starts() -> None:
    from zerotprune.app.server import serving

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(OSError, match=f"cannot listen on port {port}: .*give another --port"),
            serving(Machine(), [], port),
        ):
            pass
