"""`zerotprune app`: which models, which port."""

from __future__ import annotations

import importlib
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.commands import zerotprune
from zerotprune.app.controller import Worker
from zerotprune.app.server import serve
from zerotprune.cli.app import _load_entries

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_mistake_at_the_start_is_one_sentence() -> None:
    done = zerotprune("app", "--no-browser", "--port", "0")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "--port" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"model": ["no_such_model"]}, "no_such_model"),
        ({"model": ["resnet18"], "random_weights": True}, "ResNet"),
        ({"model": ["deit_tiny_patch16_224"], "weights": [Path("no.pt")]}, "no.pt"),
        ({"weights": [Path("no.pt")]}, "--weights"),
        ({"weights": [Path("no.pt")], "random_weights": True}, "--random-weights"),
        ({"model": ["demo"]}, "--model"),
        ({"names": Path("no.txt")}, "--names"),
        ({"random_weights": True}, "--random-weights"),
        ({"names": Path("no.txt"), "model": ["test_vit"], "random_weights": True}, "no.txt"),
        ({"names": Path(__file__), "model": ["test_vit"], "random_weights": True}, "1000"),
    ],
)
def test_entries_that_cannot_be_made(arguments: dict[str, Any], fact: str) -> None:
    defaults: dict[str, Any] = {"model": [], "weights": [], "random_weights": False, "names": None}
    with pytest.raises((ValueError, OSError, TypeError), match=re.escape(fact)):
        _load_entries(**(defaults | arguments))


def test_without_gradio_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("zerotprune.cli.app")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("zerotprune[app]")):
        module.app(browser=False)


def test_class_names_come_from_a_file(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("".join(f"name {number}\n" for number in range(1000)))
    entries = _load_entries(["vit_tiny_patch16_224"], [], True, names)
    assert [entry.name for entry in entries] == ["demo", "vit_tiny_patch16_224"]
    assert entries[1].labels[:2] == ["name 0", "name 1"]
    assert entries[0].labels[7] == "digit 7"


def test_a_port_that_is_taken_is_reported_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(OSError, match=f"{port}.*--port"),
            serve(Worker(), [], port),
        ):
            pass
