"""`zerotprune app`: which models, which port."""

from __future__ import annotations

import importlib
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.commands import zerotprune
from zerotprune.app.server import serve
from zerotprune.app.worker import Worker
from zerotprune.cli.app import _load_entries

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_mistake_at_the_start_is_one_sentence() -> None:
    done = zerotprune("app", "--no-browser", "--port", "0")
    assert done.returncode == 2
    assert done.stderr == "zerotprune: --port must be at least 1, got 0\n"


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
def test_entries_that_cannot_be_made(given: dict[str, Any], says: str) -> None:
    usual: dict[str, Any] = {"model": [], "weights": [], "random_weights": False, "names": None}
    with pytest.raises((ValueError, OSError, TypeError), match=re.escape(says)):
        _load_entries(**(usual | given))


def test_without_gradio_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("zerotprune.cli.app")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("pip install 'zerotprune[app]'")):
        module.app(browser=False)


def test_a_model_with_names_of_its_own(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("first\nsecond\n")
    entries = _load_entries(["vit_tiny_patch16_224"], [], True, names)
    assert [entry.name for entry in entries] == ["demo", "vit_tiny_patch16_224"]
    assert entries[1].labels == ["first", "second"]
    assert entries[0].labels[7] == "digit 7"


def test_a_port_that_is_taken_is_said_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(OSError, match=f"cannot listen on port {port}: .*give another --port"),
            serve(Worker(), [], port),
        ):
            pass
