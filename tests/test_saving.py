"""Folders of `save`: read by another process and by plain libraries, refused where they are bad."""

from __future__ import annotations

import errno
import fnmatch
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import zerotprune as ztp
from tests.commands import zerotprune as command
from tests.nursery import run_script
from zerotprune.data import models
from zerotprune.data.weights import schedule_in
from zerotprune.export.exporting import OLDEST_TORCH
from zerotprune.saving import FILE, read_saved

CLIP = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 64, "layers": 4, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1},
}


def timm_model() -> nn.Module:
    model: nn.Module = timm.create_model("test_vit", num_classes=5, dynamic_img_size=True).eval()
    return model


def hf_model() -> nn.Module:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64,
        image_size=64, patch_size=8, num_labels=3, id2label={0: "cat", 1: "dog", 2: "cup"},
    )  # fmt: skip
    model: nn.Module = transformers.ViTForImageClassification(config).eval()
    return model


def torchvision_model() -> nn.Module:
    from torchvision.models import VisionTransformer

    model: Any = VisionTransformer(
        image_size=64, patch_size=8, num_layers=4, num_heads=2, hidden_dim=32, mlp_dim=64,
        num_classes=3,
    ).eval()  # fmt: skip
    nn.init.normal_(model.heads.head.weight)  # its own weights are zeros
    made: nn.Module = model
    return made


def clip_model() -> nn.Module:
    import open_clip

    model: nn.Module = open_clip.model.CLIP(**CLIP).eval()
    return model


def lvvit_model() -> nn.Module:
    from zerotprune.backbones.lvvit import LVViT

    return LVViT(dim=48, depth=4, heads=2, stem=4, image_size=160, classes=5).eval()


MAKERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "timm": (timm_model, 160),
    "transformers": (hf_model, 64),
    "torchvision": (torchvision_model, 64),
    "open_clip": (clip_model, 64),
    "lvvit": (lvvit_model, 160),
}


def answer(model: nn.Module, images: Tensor) -> Tensor:
    """Return the logits, or the output of the image tower."""
    with torch.no_grad():
        out = getattr(model, "visual", model)(images)
    result: Tensor = getattr(out, "logits", out)
    return result


_READ = """
import sys, torch, zerotprune as ztp
from safetensors.torch import load_file
for folder in sys.argv[1:]:
    model, saved = ztp.load(folder), load_file(folder + "/seen.safetensors")
    assert not model.training and "pruned by" in repr(model)
    with torch.no_grad():
        out = getattr(model, "visual", model)(saved["images"])
    print(torch.equal(getattr(out, "logits", out), saved["answer"]))
"""


def test_another_process_reads_what_was_saved_to_the_bit(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folders = []
    for library, (make, side) in MAKERS.items():
        model = ztp.prune_(make(), cost=0.75)
        config = CLIP if library == "open_clip" else None
        folder = ztp.save(model, tmp_path / library, config=config)
        images = torch.rand(2, 3, side, side)
        seen = {"images": images, "answer": answer(model, images).contiguous()}
        save_file(seen, folder / "seen.safetensors")
        data = json.loads((folder / FILE).read_text())
        assert (data["format"], data["library"]) == (1, library)
        assert data["schedule"]["budget"] == {"cost": 0.75}
        assert data["gmacs"] / data["gmacs_unpruned"] == pytest.approx(0.75, rel=0.01)
        assert not list(folder.glob("*.bin")) + list(folder.glob("*.pt*"))
        folders.append(str(folder))
    assert run_script(_READ, *folders) == ["True"] * len(folders)


def needs_timm(oldest: str, why: str) -> None:
    versions = [[int(part) for part in text.split(".")[:3]] for text in (timm.__version__, oldest)]
    if versions[0] < versions[1]:
        pytest.skip(f"timm {timm.__version__} {why}")


@pytest.mark.parametrize("library", ["timm", "transformers", "open_clip"])
def test_plain_libraries_read_the_unpruned_model(library: str, tmp_path: Path) -> None:
    import open_clip
    import transformers

    if library == "timm":
        needs_timm("1.0.26", "reads no safetensors from local-dir:")
    readers: dict[str, Callable[[Path], nn.Module]] = {
        "timm": lambda folder: timm.create_model(f"local-dir:{folder}", pretrained=True),
        "transformers": lambda folder: transformers.AutoModelForImageClassification.from_pretrained(
            folder
        ),
        "open_clip": lambda folder: open_clip.create_model(f"local-dir:{folder}"),
    }
    make, side = MAKERS[library]
    model, images = make(), torch.rand(2, 3, side, side)
    unpruned = answer(model, images)
    ztp.prune_(model, cost=0.75)
    config = CLIP if library == "open_clip" else None
    folder = ztp.save(model, tmp_path / library, config=config)
    plain = readers[library](folder).eval()
    assert "pruned by" not in repr(plain)
    if library == "transformers":  # `AutoModel` would leave the classifier out
        card = (folder / "README.md").read_text()
        assert f"transformers.{type(plain).__name__}.from_pretrained('FOLDER')" in card
    assert torch.allclose(answer(plain, images), unpruned, atol=1e-6)
    state = plain.state_dict()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("how", ["bfloat16", "grid", "all", "unpruned", "dynamicvit", "wrapped"])
def test_all_of_it_comes_back(how: str, tmp_path: Path) -> None:
    model: Any = timm_model()
    images = torch.rand(2, 3, 160, 160)
    if how == "bfloat16":
        model, images = model.bfloat16(), images.bfloat16()
    options: dict[str, Any] = {"grid": {"outputs": "grid"}, "all": {"compute": "all"}}.get(how, {})
    if how == "dynamicvit":
        options = {"method": how}
    if how != "unpruned":
        ztp.prune_(model, cost=0.7, **options)
    if how == "dynamicvit":  # as if it were trained
        nn.init.normal_(next(model.zerotprune.parameters()))
    wrapped: Any = torch.compile(model) if how == "wrapped" else model
    again: Any = ztp.load(ztp.save(wrapped, tmp_path / "it"))
    assert torch.equal(again.forward_features(images), model.forward_features(images))
    assert torch.equal(again(images), model(images))
    assert again(torch.rand(1, 3, 224, 224).to(images.dtype)).shape == (1, 5)
    if how == "dynamicvit":  # timm does not know of it
        needs_timm("1.0.29", "fails in local-dir: if there are two safetensors files")
        timm.create_model(f"local-dir:{tmp_path}/it", pretrained=True)


def test_a_tower_and_a_timm_model_without_a_name(tmp_path: Path) -> None:
    from zerotprune.data import demo

    whole: Any = ztp.prune_(clip_model(), cost=0.75)
    tower = whole.visual
    again = ztp.load(ztp.save(tower, tmp_path / "tower", config=CLIP))
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(again(images), tower(images))
    model = ztp.prune_(demo.model(), cost=0.6)
    again = ztp.load(ztp.save(model, tmp_path / "demo"))
    images = torch.rand(2, 3, 112, 112)
    assert torch.equal(again(images), model(images))


def test_save_pretrained_keeps_the_schedule_and_says_who_reads_it(tmp_path: Path) -> None:
    import transformers

    model: Any = ztp.prune_(hf_model(), cost=0.75, method="tome")
    with pytest.warns(UserWarning, match=r"unpruned model.*zerotprune\.load.*save"):
        model.save_pretrained(tmp_path)
    images = torch.rand(2, 3, 64, 64)
    again = ztp.load(tmp_path)
    assert torch.equal(answer(again, images), answer(model, images))
    plain = transformers.ViTForImageClassification.from_pretrained(tmp_path)
    assert "pruned by" not in repr(plain)
    ztp.restore_(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.save_pretrained(tmp_path / "restored")
    assert "zerotprune" not in (tmp_path / "restored/config.json").read_text()


def test_the_model_card(tmp_path: Path) -> None:
    model = ztp.prune_(timm_model(), cost=0.7)
    folder = ztp.save(model, tmp_path / "it", measured={"change in top-1": "−0.1 | ± 0.3"})
    card = (folder / "README.md").read_text()
    front = card.split("---\n")[1]
    assert "library_name: timm" in front
    assert "image-classification" in front
    for text in ("pruned by fold", "| cost | 70.0% of the compute |", "ztp.load('it')",
                 "| change in top-1 | −0.1 \\| ± 0.3 |", "local-dir:FOLDER"):  # fmt: skip
        assert text in card


def test_only_our_own_folders_are_written_over(tmp_path: Path) -> None:
    model, folder = timm_model(), tmp_path / "deep/er"
    ztp.save(ztp.prune_(model, cost=0.7), folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "model-00001.safetensors").write_text("also mine")
    ztp.save(ztp.prune_(model, cost=0.5), folder)
    data = json.loads((folder / FILE).read_text())
    assert data["schedule"]["budget"] == {"cost": 0.5}
    assert (folder / "notes.txt").read_text() == "mine"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    ztp.save(model, foreign)  # it was empty
    shutil.rmtree(foreign)
    foreign.mkdir()
    (foreign / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="give another folder"):
        ztp.save(model, foreign)
    assert [path.name for path in foreign.iterdir()] == ["config.json"]
    with pytest.raises(ValueError, match="is a file"):
        ztp.save(model, foreign / "config.json")
    assert not list(tmp_path.rglob(".zerotprune-*"))


def test_a_save_that_fails_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    model: Any = timm_model()
    folder = ztp.save(model, tmp_path / "it")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    model.blocks[0].attn.scale = 7.0  # no argument of timm's gives that
    with pytest.raises(ValueError, match=r"cannot infer .*blocks\.0\.attn\.scale is 7\.0"):
        ztp.save(model, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(ValueError, match="give its model config"):
        ztp.save(clip_model(), tmp_path / "clip")
    with pytest.raises(TypeError, match="cannot save Linear"):
        ztp.save(nn.Linear(2, 2), tmp_path / "linear")
    with pytest.raises(TypeError, match=r"features_only=True: save its \.model"):
        ztp.save(timm.create_model("test_vit", features_only=True), tmp_path / "features")
    with pytest.raises(ValueError, match="not a plain tensor"):
        ztp.save(timm_model().to("meta"), tmp_path / "meta")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it"]


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_ctrl_c_while_a_folder_is_replaced_loses_nothing(
    nth: int, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renames: the folder aside, the new one to its place, the file of others into it."""
    model, folder = timm_model(), tmp_path / "it"
    ztp.save(model, folder)
    (folder / "notes.txt").write_text("mine")
    before = held(folder)
    rename, calls = Path.rename, []

    def interrupted(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) != nth:
            return rename(self, target)
        if when == "after":
            rename(self, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ztp.save(ztp.prune_(model, cost=0.7), folder)
    pruned = "pruned by" in repr(ztp.load(folder))
    assert pruned == (nth == 3 or (nth == 2 and when == "after"))
    if not pruned:
        assert held(folder) == before
    ztp.save(model, folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


_KILLED = """
import os, signal, sys, zerotprune as ztp
from pathlib import Path
folder, nth = sys.argv[1], int(sys.argv[2])
model, rename, calls = ztp.load(folder), Path.rename, []
def killed(self, target):
    calls.append(target)
    if len(calls) == nth:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
Path.rename = killed
ztp.save(ztp.prune_(model, cost=0.5), folder)
"""


@pytest.mark.parametrize(("nth", "cost"), [(2, 0.7), (3, 0.5)])
def test_a_folder_is_put_back_after_a_kill(nth: int, cost: float, tmp_path: Path) -> None:
    from tests.nursery import nursery

    model = ztp.prune_(timm_model(), cost=0.7)
    folder = ztp.save(model, tmp_path / "it")
    (folder / "notes.txt").write_text("mine")
    assert nursery().run(_KILLED, str(folder), str(nth), cwd=tmp_path).returncode == -9
    assert folder.exists() == (nth == 3)
    assert models.is_model_folder(str(folder))  # for the command line
    assert "pruned by" in repr(ztp.load(folder))
    assert json.loads((folder / FILE).read_text())["schedule"]["budget"] == {"cost": cost}
    assert nursery().run(_KILLED, str(folder), "2", cwd=tmp_path).returncode == -9
    ztp.save(model, folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert not list(tmp_path.glob(".zerotprune-*.old"))


@pytest.mark.parametrize("mode", [0o700, 0o750])
def test_a_folder_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    folder = ztp.save(timm_model(), tmp_path / "it")
    folder.chmod(mode)
    ztp.save(timm_model(), folder)
    assert folder.stat().st_mode & 0o777 == mode


def test_a_mount_point_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rename = timm_model(), Path.rename
    folder = ztp.save(model, tmp_path / "it")
    before = held(folder)

    def busy(self: Path, target: Path) -> Path:
        if self == folder:  # a bind mount looks like any folder
            raise OSError(errno.EBUSY, "Device or resource busy", str(self))
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", busy)
        with pytest.raises(OSError, match="give a new folder inside it"):
            ztp.save(model, folder)
    assert held(folder) == before
    monkeypatch.setattr(Path, "is_mount", lambda self: self == folder)
    with pytest.raises(ValueError, match="give a new folder inside it"):
        ztp.save(model, folder)
    assert held(folder) == before
    ztp.save(model, folder / "inside")
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("saved")
    return ztp.save(ztp.prune_(timm_model(), cost=0.7), place / "it")


def change(folder: Path, name: str, **fields: Any) -> None:
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def _cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def _spoiled(folder: Path, name: str = "head.bias", value: float = torch.nan) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    state = load_file(file)
    state[name] = torch.full_like(state[name], value)
    save_file(state, file, {"format": "pt"})


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file": (lambda it: (it / FILE).unlink(), f"has no {FILE}"),
    "another format": (lambda it: change(it, FILE, format=2), "format 2: this release reads 1"),
    "no format": (lambda it: change(it, FILE, format=True), "format True"),
    "another depth": (lambda it: change(it, FILE, depth=24), "a model of 24 blocks.* has 6"),
    "stage too deep": (
        lambda it: change(it, FILE, schedule={
            "version": 2, "method": {"name": "tome", "options": {}},
            "stages": [{"block": 9, "similar": 3}]}),
        "does not fit its model: .*got 9",
    ),
    "no JSON": (lambda it: (it / FILE).write_text("{"), "bad JSON"),
    "no object": (lambda it: (it / FILE).write_text("[]"), "not a JSON object"),
    "no schedule": (lambda it: change(it, FILE, schedule=None), "a schedule of version"),
    "unknown method": (
        lambda it: change(it, FILE, schedule={
            "version": 2, "method": {"name": "nobody", "options": {}}, "stages": []}),
        "unknown method 'nobody'",
    ),
    "another library": (lambda it: change(it, FILE, library="os"), "library must be one of"),
    "no compute": (lambda it: change(it, FILE, compute=[1]), "compute must be one of"),
    "pickle": (_pickled, "has no model.safetensors"),
    "cut short": (_cut, "not a whole safetensors file"),
    "not finite": (_spoiled, "head.bias .*not finite"),
    "no config": (lambda it: (it / "config.json").unlink(), "has no config.json"),
    "other config": (
        lambda it: change(it, "config.json", model_args={"embed_dim": 128, "num_classes": 5}),
        "expected blocks.0.attn.proj.bias of shape .*, got",
    ),
    "no architecture": (
        lambda it: change(it, "config.json", architecture="nothing"), "no architecture 'nothing'"
    ),
    "a pickle in the arguments": (
        lambda it: change(it, "config.json", model_args={"checkpoint_path": "evil.bin"}),
        "no argument checkpoint_path",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_folders_are_refused_in_one_sentence(case: str, saved: Path, tmp_path: Path) -> None:
    spoil, why = BAD[case]
    folder = Path(shutil.copytree(saved, tmp_path / "it"))
    spoil(folder)
    with pytest.raises(ValueError, match=why) as caught:
        ztp.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_of_transformers_must_be_finite(value: float, tmp_path: Path) -> None:
    folder = ztp.save(ztp.prune_(hf_model(), cost=0.75), tmp_path / "it")
    _spoiled(folder, "classifier.bias", value)
    with pytest.raises(ValueError, match=r"classifier\.bias .*not finite"):
        ztp.load(folder)


def test_a_transformers_folder_runs_no_code(tmp_path: Path) -> None:
    folder = ztp.save(ztp.prune_(hf_model(), cost=0.75), tmp_path / "it")
    (folder / "evil.py").write_text("raise SystemExit('it ran')\nclass Evil: ...\n")
    change(folder, "config.json", auto_map={"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil"})
    assert "pruned by" in repr(ztp.load(folder))
    change(folder, "config.json", architectures=["Evil"])
    with pytest.raises(ValueError, match="'Evil' cannot be pruned"):
        ztp.load(folder)
    with pytest.raises(ValueError, match="no folder"):
        ztp.load(tmp_path / "nowhere")


@pytest.fixture
def yes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Somebody who says yes to every question; what was asked."""
    asked: list[str] = []

    def answer(text: str = "") -> str:
        asked.append(text)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    return asked


def test_nobody_is_asked_whether_code_of_a_folder_may_run(tmp_path: Path, yes: list[str]) -> None:
    folder, mark = ztp.save(hf_model(), tmp_path / "it"), tmp_path / "it_ran"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: ...\n")
    processor = {"image_processor_type": "Evil", "auto_map": {"AutoImageProcessor": "evil.Evil"}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    ztp.save(ztp.load(folder), tmp_path / "copy")
    assert not (tmp_path / "copy/preprocessor_config.json").exists()
    (folder / FILE).unlink()  # `hf:` of a plain folder of transformers
    change(folder, "config.json", model_type="evil", auto_map={"AutoConfig": "evil.Evil"})
    for pretrained in (True, False):
        with pytest.raises(ValueError, match="transformers cannot read"):
            models.load(f"hf:{folder}", pretrained=pretrained)
    assert (yes, mark.exists()) == ([], False)


@pytest.mark.parametrize(
    "fields",
    [
        {"attn_implementation": "evil/kernel"},
        {"_attn_implementation": "evil/kernel"},
        {"attn_implementation": {"": "evil/kernel"}},
        {"attribute_map": {"harmless": "_attn_implementation"}, "harmless": "evil/kernel"},
    ],
    ids=["public", "private", "nested", "renamed"],
)
def test_a_config_fetches_no_attention_kernel(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(
        "transformers.modeling_utils.lazy_import_flash_attention",
        lambda name, *args, **kwargs: fetched.append(name),
    )
    folder = ztp.save(ztp.prune_(hf_model(), cost=0.75), tmp_path / "it")
    plain: Any = hf_model()
    plain.save_pretrained(tmp_path / "plain")
    change(folder, "config.json", **fields)
    change(tmp_path / "plain", "config.json", **fields)
    readers: list[Callable[[], object]] = [
        lambda: ztp.load(folder),
        lambda: models.outline(str(folder)),
        lambda: models.load(f"hf:{tmp_path}/plain", pretrained=True),
        lambda: models.load(f"hf:{tmp_path}/plain"),
    ]
    for read in readers:
        with pytest.raises(ValueError, match="evil/kernel") as caught:
            read()
        assert "\n" not in str(caught.value)
    assert fetched == []


def test_a_plain_attention_of_a_config_is_kept(tmp_path: Path) -> None:
    folder = ztp.save(ztp.prune_(hf_model(), cost=0.75), tmp_path / "it")
    for name in ("eager", "sdpa"):
        change(folder, "config.json", attn_implementation=name)
        model: Any = ztp.load(folder)
        assert model.config._attn_implementation == name


def test_an_open_clip_folder_fetches_no_trunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def fetch(name: str, *args: Any, **kwargs: Any) -> None:
        fetched.append(name)
        raise OSError("no network")

    monkeypatch.setattr("timm.models._factory.load_model_config_from_hf", fetch)
    folder = ztp.save(clip_model(), tmp_path / "it", config=CLIP)
    for name in ("hf-hub:x/y", "hf_hub:x/y", f"local-dir:{tmp_path}"):
        vision = {"timm_model_name": name, "image_size": 64}
        change(folder, "open_clip_config.json", model_cfg={**CLIP, "vision_cfg": vision})
        with pytest.raises(ValueError, match=name):
            ztp.load(folder)
    assert fetched == []


class Hub:
    """A stand-in for the Hub's client that copies uploads."""

    place: Path
    called: list[tuple[str, Any]]

    def __init__(self, token: str | None = None) -> None:
        Hub.called = [("token", token)]

    def create_repo(self, name: str, *, private: bool | None, exist_ok: bool) -> None:
        if name == "me/forbidden":
            from huggingface_hub.errors import HFValidationError

            raise HFValidationError("it is forbidden")
        Hub.called.append((name, private))
        assert exist_ok

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> Any:
        shutil.copytree(folder_path, Hub.place / repo_id)
        return SimpleNamespace(repo_url=f"https://hub/{repo_id}")


def test_a_model_is_pushed_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr(Hub, "place", tmp_path, raising=False)
    model = ztp.prune_(timm_model(), cost=0.7)
    assert ztp.push_to_hub(model, "me/it", private=True, token="t") == "https://hub/me/it"
    assert Hub.called == [("token", "t"), ("me/it", True)]
    images = torch.rand(1, 3, 160, 160)
    assert torch.equal(ztp.load(tmp_path / "me/it")(images), model(images))
    assert "ztp.load('me/it')" in (tmp_path / "me/it/README.md").read_text()
    with pytest.raises(ValueError, match="me/forbidden"):
        ztp.push_to_hub(model, "me/forbidden")
    monkeypatch.setattr(Hub, "upload_folder", _offline)
    with pytest.raises(OSError, match=r"me/it.*no network$"):
        ztp.push_to_hub(model, "me/it")


def test_a_model_is_loaded_from_the_hub(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append(name)
        for path in there.iterdir():
            if any(fnmatch.fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copy(path, here)
        return str(here)

    asked: list[str] = []
    there, here = Path(shutil.copytree(saved, tmp_path / "there")), tmp_path / "here"
    here.mkdir()
    for name in ("evil.py", "pytorch_model.bin", "weights.pt", "evil.pkl"):
        (there / name).write_text("raise SystemExit('it ran')")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: "it is reachable")
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    images = torch.rand(1, 3, 160, 160)
    expected = ztp.load(saved)(images)
    for name in ("user/my-vit", "hf:user/my-vit"):
        model = ztp.load(name)
        assert "pruned by" in repr(model)
        assert torch.equal(model(images), expected)
    assert asked == ["user/my-vit"] * 2
    assert {path.name for path in here.iterdir()} == {path.name for path in saved.iterdir()}
    monkeypatch.setattr("huggingface_hub.snapshot_download", _missing)
    with pytest.raises(ValueError, match=r"^cannot fetch user/nothing: no such repository$"):
        ztp.load("user/nothing")


def _missing(*args: Any, **kwargs: Any) -> None:
    raise OSError("no such repository\nand much more")


def _offline(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("no network\nand much more")


_METHOD_FILE = """
from dataclasses import dataclass
import zerotprune as ztp
from zerotprune.tokens import Reduction

@dataclass(frozen=True)
class Loudest(ztp.Method):
    name = "loudest"
    power: float = 2.0

    def reduce(self, seen, stage):
        loud = seen.tokens.x[:, seen.prefix:].abs().pow(self.power).sum(dim=-1)
        kept = loud.topk(self.kept(stage, seen.patches)).indices.sort().values
        return Reduction(kept)
"""
_PRUNE = """
import sys, timm, zerotprune as ztp
from loudest_method import Loudest
model = timm.create_model("test_vit", num_classes=5).eval()
schedule = ztp.schedule_for(model, cost=0.7, method=Loudest(power=3.0))
schedule.save("own.json")
ztp.save(ztp.prune_(model, schedule), "own")
"""
_AGAIN = """
import os, sys, zerotprune as ztp
for read in (ztp.Schedule.load, ztp.load):
    name = "own.json" if read == ztp.Schedule.load else "own"
    try:
        read(name)
    except ValueError as error:
        print(error)
    assert "loudest_method" not in sys.modules
print(ztp.Schedule.load("own.json", method="loudest_method.py:Loudest").method)
print("pruned by loudest" in repr(ztp.load("own", method="loudest_method.py:Loudest")))
print(ztp.Schedule.load("own.json").method)  # it is defined now
"""


def test_a_method_of_ones_own_is_named_again(tmp_path: Path) -> None:
    from tests.nursery import nursery

    (tmp_path / "loudest_method.py").write_text(_METHOD_FILE)
    done = nursery().run(f"import sys; sys.path.insert(0, '.')\n{_PRUNE}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "own.json").read_text())
    assert data["method"] == {"name": "loudest_method.py:Loudest", "options": {"power": 3.0}}
    done = nursery().run(_AGAIN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *refused, loaded, pruned, known = done.stdout.splitlines()
    assert [line.count("only if you name it") for line in refused] == [1, 1]
    assert (loaded, pruned, known) == ("Loudest(power=3.0)", "True", "Loudest(power=3.0)")
    named = ("--method", "loudest_method.py:Loudest")
    for words in (["test_vit", "--schedule", "own.json"], ["own/"]):
        done = command("info", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert "give --method PATH/loudest_method.py:Loudest" in " ".join(done.stderr.split())
        done = command("info", *words, *named, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "loudest" in done.stdout


def test_a_folder_is_a_model_for_every_command(tmp_path: Path) -> None:
    from PIL import Image

    model = timm.create_model("test_vit", num_classes=2, depth=3).eval()
    ztp.save(ztp.prune_(model, cost=0.75), tmp_path / "it")
    for name in ("dark", "light"):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (160, 160), "black" if name == "dark" else "white").save(
            tmp_path / "images" / name / "1.png"
        )
    done = command("info", "it", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "pruned by fold" in done.stdout
    assert "75." in done.stdout
    done = command("info", "hf:it", "--cost", "0.8", "--method", "tome", cwd=tmp_path)
    assert "pruned by tome" in done.stdout, done.stderr
    done = command("evaluate", "it", "images", "--workers", "0", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    unpruned, pruned = json.loads(done.stdout)
    assert pruned["name"] == "fold"
    assert pruned["gmacs"] / unpruned["gmacs"] == pytest.approx(0.75, rel=0.01)
    done = command("export", "it", "--to", "torch", "--out", "it.pt2", "--samples", "0",
                   cwd=tmp_path)  # fmt: skip
    if tuple(map(int, torch.__version__.split(".")[:2])) >= OLDEST_TORCH:
        assert done.returncode == 0, done.stderr
        assert "it.pt2: fold" in done.stdout + done.stderr
    else:
        assert done.returncode == 2
    quick = ("--batch", "1", "--rounds", "1", "--mode", "eager", "--threads", "1")
    done = command("bench", "it", *quick, "--method", "fold", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    unpruned, _, pruned = json.loads(done.stdout)
    assert pruned["gmacs"] / unpruned["gmacs"] == pytest.approx(0.75, rel=0.01)
    done = command("finetune", "it", "images", "images", "--epochs", "1", "--batch", "2",
                   "--workers", "0", "--out", "new.safetensors", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert schedule_in(tmp_path / "new.safetensors") == read_saved(tmp_path / "it").schedule
    for words, why in (
        (["info", "it", "--classes", "3"], "--classes is not for a saved model"),
        (["info", "it", "--method", "tome"], "--method tome needs a budget"),
        (["info", "./images"], f"has no {FILE}"),
    ):
        done = command(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert why in " ".join(done.stderr.split())


def test_models_of_other_libraries_by_their_folders(tmp_path: Path) -> None:
    model = ztp.prune_(hf_model(), cost=0.75)
    name = str(ztp.save(model, tmp_path / "it"))
    for spelled in (name, f"hf:{name}"):
        served = models.load(spelled, pretrained=True)
        images = torch.rand(2, 3, 64, 64)
        assert torch.equal(served(images), answer(ztp.restore_(model), images))
        saved = models.saved_with(served)
        assert saved is not None
        assert saved.schedule.budget == ztp.Budget(cost=0.75)
    assert models.saved_with(models.load("test_vit")) is None
    clip = str(ztp.save(ztp.prune_(clip_model(), cost=0.75), tmp_path / "clip", config=CLIP))
    assert models.load(clip, pretrained=True)(torch.rand(1, 3, 64, 64)).shape == (1, 16)
