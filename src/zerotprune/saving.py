"""Save a pruned model: a folder with its weights, the config of its library, and its schedule.

timm, transformers and open_clip read the folder like any other, and get the unpruned model; `load`
prunes it again. Folders are not trusted: only JSON and safetensors are read, and no code in them is
run.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from .backbones import (
    LIBRARIES,
    Backbone,
    backbone,
    library_of,
    read_folder,
    refuse_unreachable,
    transformer,
    unwrap,
    wrapper_of,
    write_folder,
)
from .backbones.storing import LEARNED, read_config, read_weights, write_config, write_weights
from .cost import Compute
from .method import Method, UnnamedMethod, name_of, names, resolve
from .plan import Plan
from .pruning import prune_
from .safety.files import printable, private_folder
from .safety.ranges import check_choice
from .schedule import Schedule
from .surgery import current_plan, note_of, pruned_blocks
from .tokens import Outputs

#: our file in the folder, and the version of its format
FILE, FORMAT = "zerotprune.json", 1
CARD, LEARNED_WEIGHTS = "README.md", "zerotprune.safetensors"
#: what is downloaded from the Hub: no code, no pickles
_FETCHED = ("*.json", "*.safetensors", "*.txt", CARD)
_PACKAGES = {"lvvit": "zerotprune", "open_clip": "open_clip_torch"}


@dataclass(frozen=True)
class Saved:
    """What a folder says about its model."""

    folder: Path
    library: str
    schedule: Schedule
    compute: Compute
    outputs: Outputs


def save(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    measured: Mapping[str, object] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Save a model with its weights and its schedule.

    The folder is replaced as a whole, or left as it was if saving fails. A folder that `save` wrote
    is overwritten, except for its mode and files of others in it; any other folder must be empty.

    Args:
        model: A model of timm, transformers, torchvision or open_clip, or an `LVViT`, pruned or
            not.
        folder: The folder to write. timm and open_clip read it as `local-dir:FOLDER`,
            transformers by `from_pretrained`.
        measured: Results for the model card: `{"change in top-1": "−0.1 ± 0.3"}`.
        config: What the library needs to create the model, if it cannot be read off the model:
            timm's `model_args`, or open_clip's model config.

    >>> import tempfile, timm, torch, zerotprune as ztp
    >>> model = ztp.prune_(timm.create_model("test_vit", num_classes=5).eval(), cost=0.7)
    >>> images = torch.zeros(1, 3, 160, 160)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     again = load(save(model, f"{place}/my-vit"))
    >>> torch.equal(again(images), model(images))
    True
    """
    name = Path(os.path.realpath(folder)).name
    return _write(model, folder, measured or {}, config, name)


def load(folder: str | os.PathLike[str], *, method: Method | str | None = None) -> nn.Module:
    """Load a model that `save` wrote, pruned as it was; on the CPU, in eval mode.

    Also loads what `save_pretrained` wrote from a pruned transformers model.

    Args:
        folder: The folder, or the name of a model on the Hugging Face Hub.
        method: The model's method, if it is your own: `FILE.py:CLASS`, or an object. Its file is
            imported only if you name it here.

    >>> import tempfile, timm, zerotprune as ztp
    >>> model = ztp.prune_(timm.create_model("test_vit", num_classes=5), cost=0.7)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     again = load(save(model, f"{place}/my-vit"))
    >>> "pruned by fold" in repr(again), again.training
    (True, False)
    """
    saved = read_saved(folder_named(os.fspath(folder)), method)
    model = read_model(saved.folder)
    if not saved.schedule.stages:
        return model
    try:
        return prune_(model, saved.schedule, compute=saved.compute, outputs=saved.outputs)
    except ValueError as error:
        raise ValueError(
            f"the schedule in {saved.folder} does not fit its model: {error}"
        ) from None


def push_to_hub(
    model: nn.Module,
    name: str,
    *,
    measured: Mapping[str, object] | None = None,
    config: Mapping[str, Any] | None = None,
    private: bool | None = None,
    token: str | None = None,
    message: str = "Upload a model pruned by zerotprune",
) -> str:
    """Save a model and upload it to the Hugging Face Hub; return its address there.

    Args:
        model: As for `save`.
        name: The repository, `user/name`. It is created if there is none.
        measured: As for `save`.
        config: As for `save`.
        private: Make a new repository private; default: your account's setting.
        token: Your token; default: the one that you logged in with.
        message: The subject of the commit.

    >>> push_to_hub(model, "user/my-vit", private=True)  # doctest: +SKIP
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    api = HfApi(token=token)
    with private_folder() as place:
        folder = _write(model, place / "model", measured or {}, config, name)
        try:
            api.create_repo(name, private=private, exist_ok=True)
            done = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
        except HFValidationError as error:
            raise ValueError(f"{name!r} is not a valid name on the Hub: {error}") from None
        except Exception as error:  # of any HTTP library
            reason = str(error).strip().partition("\n")[0]
            raise OSError(f"cannot push to {name}: {reason or type(error).__name__}") from None
    return str(getattr(done, "repo_url", None) or name)


def _write(
    model: nn.Module,
    folder: str | os.PathLike[str],
    measured: Mapping[str, object],
    config: Mapping[str, Any] | None,
    card_name: str,
) -> Path:
    """Write the folder; the card loads the model by `card_name`."""
    model = _unwrap_model(model)
    library, vit = library_of(model), backbone(model)
    plan = current_plan(model) or Plan(Schedule(), vit.geometry)
    blocks = pruned_blocks(model)
    note = note_of(plan, blocks[0].task.compute if blocks else "needed")
    unpruned = Plan(Schedule(), plan.geometry).gmacs()
    data = {
        "format": FORMAT,
        "library": library,
        "model": printable(vit.name) or type(transformer(model)).__name__,
        **note,
        "depth": plan.geometry.depth,
        "gmacs": None if plan.method.adaptive else round(plan.gmacs(), 6),
        "gmacs_unpruned": round(unpruned, 6),
        "versions": _versions(library),
    }
    target = _writable(folder)
    with _replacing(target) as temporary:
        write_folder(model, temporary, config)
        learned = getattr(transformer(model), LEARNED, None)
        if isinstance(learned, nn.Module):
            write_weights(temporary / LEARNED_WEIGHTS, learned.state_dict())
        card = _card(data, plan, vit, measured, card_name)
        (temporary / CARD).write_text(card, encoding="utf-8")
        files = sorted(path.name for path in temporary.iterdir())
        write_config(temporary / FILE, {**data, "files": [*files, FILE]})
    return target


def is_saved(name: str | os.PathLike[str]) -> bool:
    """Return whether `save` or a pruned `save_pretrained` wrote the folder, with or without
    `hf:`."""
    folder = _put_back(Path(os.fspath(name).removeprefix("hf:")))
    if not folder.is_dir():
        return False
    return (folder / FILE).is_file() or _note_in(folder) is not None


def folder_named(name: str) -> Path:
    """Return the folder of that name; download it first if it is on the Hub."""
    text = name.removeprefix("hf:")
    folder = _put_back(Path(text))
    if folder.exists() or folder.is_absolute() or text.count("/") != 1 or text.startswith("."):
        return folder
    from huggingface_hub import snapshot_download

    refuse_unreachable(text, text, [FILE], "give a local folder")
    try:
        return Path(snapshot_download(text, allow_patterns=list(_FETCHED)))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"cannot fetch {text}: {reason}") from None


def read_saved(folder: str | os.PathLike[str], method: object = None) -> Saved:
    """Read what a folder says about its model; `method` is as for `Schedule.from_json`."""
    path = Path(os.fspath(folder).removeprefix("hf:"))
    file, data = _read_data(path)
    try:
        schedule = Schedule.from_json(json.dumps(data.get("schedule")), method)
    except UnnamedMethod:
        raise
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from None
    return Saved(path, data["library"], schedule, data["compute"], data["outputs"])


def read_model(folder: Path, weights: bool = True) -> nn.Module:
    """Read the model of a folder, unpruned and in eval mode; without `weights` they are random."""
    file, data = _read_data(folder)
    model = read_folder(data["library"], folder, weights)
    vit = backbone(model)
    depth = data.get("depth", vit.geometry.depth)
    if depth != vit.geometry.depth:
        raise ValueError(
            f"{file} is for a model of {depth!r} blocks, but the model in the folder has "
            f"{vit.geometry.depth}"
        )
    learned = folder / LEARNED_WEIGHTS
    if weights and learned.is_file():
        state = read_weights(learned)
        make_room(vit, {f"{LEARNED}.{name}": value for name, value in state.items()})
        try:
            vit.model.get_submodule(LEARNED).load_state_dict(state)
        except (AttributeError, RuntimeError):
            raise ValueError(f"{learned} does not fit the model in the folder") from None
    return model.eval()


def _read_data(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the path of our file in a folder and its data, checked but for the schedule."""
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}: give one that zerotprune.save wrote")
    file, note = folder / FILE, _note_in(folder)
    if file.is_file():
        data = read_config(file)
    elif note is not None:  # of `save_pretrained`, see `backbones.transformers`
        data, file = {"format": FORMAT, "library": "transformers", **note}, folder / "config.json"
    else:
        raise ValueError(f"{folder} has no {FILE}: give a folder that zerotprune.save wrote")
    version = data.get("format")
    if type(version) is not int or version != FORMAT:
        raise ValueError(f"{file} has format {version!r}: this release reads {FORMAT}")
    for name, known in (
        ("library", tuple(LIBRARIES)),
        ("compute", get_args(Compute)),
        ("outputs", get_args(Outputs)),
    ):
        check_choice(f"{file}: {name}", data.get(name), known)
    return file, data


def _note_in(folder: Path) -> dict[str, Any] | None:
    """Return what `save_pretrained` of a pruned transformers model wrote into its config."""
    try:
        note = read_config(folder / "config.json").get("zerotprune")
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


_LEARNED_KEY = re.compile(LEARNED + r"\.([^.]+)\.([1-9][0-9]{0,3})\.")


def make_room(vit: Backbone, state: Mapping[str, Tensor]) -> None:
    """Put modules on the model for the weights of methods in a state dict, under
    `zerotprune.METHOD.BLOCK`."""
    stages: dict[str, set[int]] = {}
    for key in state:
        match = _LEARNED_KEY.match(key)
        if match is not None and int(match[2]) <= vit.geometry.depth:
            stages.setdefault(match[1], set()).add(int(match[2]))
    for name, blocks in stages.items():
        if name in names():
            resolve(name).bind(vit.model, sorted(blocks), vit.geometry).put_on(vit.model)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces the target once everything is written.

    The target keeps its mode. Between the two renames it is missing: whatever is raised there puts
    it back, and after a kill `_put_back` does.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = _aside(target, "tmp"), _aside(target, "old")
    temporary.mkdir()
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        if mode is not None:  # from the start: a private folder is private while it is written
            temporary.chmod(mode | stat.S_IRWXU)
        yield temporary
        if mode is None:
            temporary.rename(target)
            return
        temporary.chmod(mode)
        try:
            target.rename(old)
            temporary.rename(target)
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.EXDEV):
                raise OSError(f"{target} {_CANNOT_REPLACE} ({error.strerror})") from None
            raise
        finally:
            if old.exists() and not target.exists():
                old.rename(target)
            elif old.exists():
                _finish(old, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


_CANNOT_REPLACE = "cannot be replaced, as a mount point cannot: give a new folder inside it"


def _aside(target: Path, end: str) -> Path:
    """Return a new name beside the target that `_moved_aside` finds."""
    return target.with_name(f".zerotprune-{_mark_of(target)}-{uuid.uuid4().hex[:12]}.{end}")


def _mark_of(target: Path) -> str:
    return hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]


def _moved_aside(target: Path) -> list[Path]:
    """Return the folders that saves have moved aside to replace them, the last one first."""
    folders = target.parent.glob(f".zerotprune-{_mark_of(target)}-*.old")
    return sorted(folders, key=lambda old: old.stat().st_ctime, reverse=True)


def _finish(old: Path, target: Path) -> None:
    """Move files that are not ours from the replaced folder to the new one, and remove the old
    one."""
    if (old / FILE).is_file():  # else they have been moved: it was being removed
        for other in _others_in(old):
            if not (target / other.name).exists():
                with suppress(FileNotFoundError):  # another save has moved it
                    other.rename(target / other.name)
    shutil.rmtree(old, ignore_errors=True)


def _put_back(folder: Path) -> Path:
    """Return the folder; if a save was killed while replacing it, put it back first."""
    with suppress(OSError, ValueError):  # a read-only parent, or an invalid path
        target = Path(os.path.realpath(folder))
        if not target.exists() and _moved_aside(target):
            time.sleep(_SECONDS_TO_REPLACE)  # it may be replaced right now
            if not target.exists():
                _moved_aside(target)[0].rename(target)
    return folder


#: far more than two renames take
_SECONDS_TO_REPLACE = 0.2


def _writable(folder: str | os.PathLike[str]) -> Path:
    """Return the folder to write; refuse one that `save` did not write, unless it is empty."""
    target = _put_back(Path(os.path.realpath(folder)))
    if target.exists() and not target.is_dir():
        raise ValueError(f"{folder} is a file: give a folder")
    if target.is_dir() and any(target.iterdir()) and not (target / FILE).is_file():
        raise ValueError(
            f"{folder} has files but no {FILE}, and is not overwritten: give another folder"
        )
    if target.is_mount():
        raise ValueError(f"{folder} {_CANNOT_REPLACE}")
    if target.is_dir() and not os.access(target, os.W_OK | os.X_OK):
        raise PermissionError(f"the folder {folder} is not writable")
    if target.exists():
        for old in _moved_aside(target):  # of a save that was killed before it was finished
            _finish(old, target)
    return target


def _others_in(folder: Path) -> list[Path]:
    """Return the files of a folder that `save` did not write."""
    written: object = []
    if (folder / FILE).is_file():
        try:
            written = read_config(folder / FILE).get("files")
        except ValueError:
            written = []
    ours = {FILE, *(written if isinstance(written, list) else [])}
    return [path for path in folder.iterdir() if path.name not in ours]


def _unwrap_model(model: nn.Module) -> nn.Module:
    """Return the model to write: without wrappers, and without a Sequential around it."""
    model = unwrap(model)
    if (wrapper := wrapper_of(model)) is not None:
        peft = wrapper == "get_peft_model"
        whole = "what merge_and_unload() returns" if peft else "an unwrapped model with its weights"
        raise TypeError(f"cannot save a model after {wrapper}: save {whole}")
    return transformer(model) if type(model) is nn.Sequential else model


def _versions(library: str) -> dict[str, str]:
    from . import __version__

    versions = {"zerotprune": __version__, "torch": torch.__version__}
    package = _PACKAGES.get(library, library)
    try:
        return versions | ({} if package in versions else {package: version(package)})
    except PackageNotFoundError:
        return versions


def _card(
    data: Mapping[str, Any],
    plan: Plan,
    vit: Backbone,
    measured: Mapping[str, object],
    name: str,
) -> str:
    """Return the model card: name, cost, and how to load it."""
    library, model = data["library"], _cell(data["model"])
    task = "image-classification" if vit.outputs else "image-feature-extraction"
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {task}"]
    lines += ["tags:", "- zerotprune", "- token-pruning", "---", "", f"# {model}", ""]
    if plan.stages:
        lines += [
            f"{model} with tokens pruned by {_cell(name_of(plan.method))}, without training.",
            "",
        ]
    else:
        lines += [f"{model}, not pruned.", ""]
    rows = {"library": library, "GMACs, unpruned": f"{data['gmacs_unpruned']:.4g}"}
    if plan.stages and data["gmacs"] is not None:
        share = data["gmacs"] / data["gmacs_unpruned"]
        rows |= {"GMACs": f"{data['gmacs']:.4g}", "cost": f"{share:.1%} of the compute"}
    if plan.stages:
        rows |= {"method": _cell(json.dumps(data["schedule"]["method"]))}
        rows |= {"stages at blocks": ", ".join(map(str, plan.stages)), "outputs": plan.outputs}
    rows |= {_cell(key): _cell(value) for key, value in measured.items()}
    rows |= data["versions"]
    lines += ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items()), ""]
    lines += ["```python", "import zerotprune as ztp", "", f"model = ztp.load({name!r})", "```"]
    if library in _PLAIN_READERS:
        reader = _PLAIN_READERS[library].format(kind=type(vit.model).__name__)
        lines += ["", f"Without zerotprune, `{reader}` gives the unpruned model."]
    return "\n".join([*lines, ""])


#: how a library reads the folder
_PLAIN_READERS = {
    "timm": "timm.create_model('local-dir:FOLDER', pretrained=True)",
    "open_clip": "open_clip.create_model('local-dir:FOLDER')",
    "transformers": "transformers.{kind}.from_pretrained('FOLDER')",
}


def _cell(value: object) -> str:
    """Escape a value for a cell of a Markdown table."""
    return printable(str(value)).replace("|", "\\|").replace("`", "'")
