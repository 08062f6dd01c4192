"""Exported files from untrusted sources, and places that cannot be written to."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest

import zerotprune as ztp
from tests.commands import quickly
from tests.families import build
from zerotprune.export import exporting, target_named
from zerotprune.export.results import Agreement

DEEP = "[" * 200_000
#: bad JSON, and what the error says
REASONS = {
    DEEP: "nested",
    "[1]": "JSON object",
    "": "bad JSON",
    "1" * 5000: "bad JSON",
    '{"class_names": 5}': "class_names",
    '{"class_names": {"a": 1}}': "class_names",
    '{"class_names": ["a", null]}': "class_names",
}


def onnx_with(path: Path, notes: dict[str, str]) -> Path:
    model = onnx.helper.make_model(onnx.helper.make_graph([], "nothing", [], []))
    onnx.helper.set_model_props(model, notes)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("text", REASONS)
def test_a_description_that_is_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "model.pte"
    file.touch()
    (tmp_path / "model.pte.json").write_text(text)
    with pytest.raises(ValueError, match=r"model\.pte\.json") as raised:
        target_named("executorch").read(file)
    assert REASONS[text] in str(raised.value)


@pytest.mark.parametrize("text", [DEEP, "", "5", '["a", null]'])
def test_notes_in_onnx_that_are_none(text: str, tmp_path: Path) -> None:
    file = onnx_with(tmp_path / "model.onnx", {"zerotprune.class_names": text})
    with pytest.raises(ValueError, match=r"model\.onnx"):
        target_named("onnx").read(file)


def test_what_is_no_onnx(tmp_path: Path) -> None:
    good = onnx_with(tmp_path / "model.onnx", {"zerotprune.model": '"a"'}).read_bytes()
    for data in (good[:-2], b"x" * 99):
        (tmp_path / "model.onnx").write_bytes(data)
        with pytest.raises(ValueError, match=r"model\.onnx.*ONNX"):
            target_named("onnx").read(tmp_path / "model.onnx")
    with (tmp_path / "large.onnx").open("wb") as file:
        file.truncate(2**31)  # it has holes, and takes no room
    with pytest.raises(ValueError, match=r"large\.onnx.* 2 GB"):
        target_named("onnx").read(tmp_path / "large.onnx")


@pytest.mark.parametrize(
    "data", [b"", b"x" * 99, b"<net>", b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&d;"]
)
def test_what_is_no_openvino_and_no_pt2(data: bytes, tmp_path: Path) -> None:
    for name, kind in {"openvino": "OpenVINO", "torch": "pt2"}.items():
        target = target_named(name)
        file = tmp_path / f"model{target.ending}"
        file.write_bytes(data)
        with pytest.raises(ValueError, match=rf"model\{target.ending}.*{kind}"):
            target.read(file)


@pytest.mark.parametrize("text", REASONS)
def test_facts_in_openvino_and_pt2_that_are_none(text: str, tmp_path: Path) -> None:
    xml, archive = tmp_path / "model.xml", tmp_path / "model.pt2"
    root = ElementTree.Element("net")
    ElementTree.SubElement(ElementTree.SubElement(root, "rt_info"), "zerotprune", value=text)
    ElementTree.ElementTree(root).write(xml)
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("model/extra/zerotprune.json", text)
    for name, file in {"openvino": xml, "torch": archive}.items():
        with pytest.raises(ValueError, match=r"model\.\w+ ") as raised:
            target_named(name).read(file)
        assert REASONS[text] in str(raised.value)


def test_others_models_say_nothing(tmp_path: Path) -> None:
    xml, archive = tmp_path / "model.xml", tmp_path / "model.pt2"
    xml.write_text("<net/>")
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("model/data", "")
    for name, file in {"openvino": xml, "torch": archive}.items():
        with pytest.raises(ValueError, match=rf"{file.name}.*zerotprune"):
            target_named(name).read(file)


def test_info_prints_what_a_terminal_can_take(tmp_path: Path) -> None:
    notes = {"zerotprune.model": '"\\u001b[31m\\ud800 [/b]"', "zerotprune.\x1b]0;": "1",
             "zerotprune.class_names": '["\\u009b2J"]'}  # fmt: skip
    name = onnx_with(tmp_path / "\x1b[31m[bold].onnx", notes).name
    done = quickly("info", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\ufffd[31m[bold].onnx" in done.stdout
    assert "\ufffd[31m\ufffd [/b]" in done.stdout
    assert all(line.isprintable() for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("info a.onnx --cost 0.5", "has no options"),
        ("export test_vit --weights m.bin --to openvino --out m.xml", "are one file"),
        (
            "export test_vit --schedule m.pte.json --to executorch --out m.pte",
            "are one file",
        ),
        (
            "export test_vit --cost 0.5 --to executorch --out f.pte",
            "f.pte.json is not a regular",
        ),
        ("export test_vit --cost 0.5 --to torch --out .pt2", "such as model.pt2; got '.pt2'"),
        ("export test_vit --cost 0.5 --to torch --out \udcff.pt2", "torch needs a UTF-8 path"),
        ("export test_vit --cost 0.5 --device cuda --out m.onnx", "leave --device out"),
        ("export test_vit --cost 0.5 --method ats --out m.onnx", "keeps as many tokens as"),
    ],
)
def test_refused_before_anything_is_fetched(arguments: str, message: str, tmp_path: Path) -> None:
    onnx_with(tmp_path / "a.onnx", {"zerotprune.model": '"a"'})
    os.mkfifo(tmp_path / "f.pte.json")
    (tmp_path / "m.bin").write_bytes(b"weights")
    ztp.Schedule((ztp.Stage(2, keep=0.5),)).save(tmp_path / "m.pte.json")
    before = sorted((path.name, path.lstat().st_mtime_ns) for path in tmp_path.iterdir())
    done = quickly(*arguments.split(), cwd=tmp_path)
    assert done.returncode == 2, done
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted((path.name, path.lstat().st_mtime_ns) for path in tmp_path.iterdir()) == before


def test_links_and_modes_stay_and_a_full_disk_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_target = type(target_named("torch"))
    same = Agreement(8, 0.0, 0.0, 1.0)
    monkeypatch.setattr(exporting, "compare_with_torch", lambda *args: same)
    monkeypatch.setattr(
        torch_target, "write", lambda self, program, path, facts: path.write_bytes(b"new")
    )
    real, link, model = tmp_path / "real.pt2", tmp_path / "link.pt2", build("deit")
    real.write_bytes(b"old")
    real.chmod(0o600)
    link.symlink_to(real.name)
    ztp.export_model(model, link, to="torch", rounds=0)
    assert (link.is_symlink(), real.read_bytes()) == (True, b"new")
    assert stat.S_IMODE(real.stat().st_mode) == 0o600

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch_target, "write", full)
    with pytest.raises(OSError, match=r"link\.pt2.*No space left on device"):
        ztp.export_model(model, link, to="torch", rounds=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.pt2", "real.pt2"]
    assert real.read_bytes() == b"new"
