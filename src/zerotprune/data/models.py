"""Models by the names they have on the command line, with local weights if wanted."""

from __future__ import annotations

from pathlib import Path
from weakref import WeakKeyDictionary

from torch import nn

from ..backbones import backbone, create, image_tower, own_weights, shape_in, transformer
from ..backbones.storing import on_meta
from ..method import Method
from ..safety.ranges import check_range
from ..saving import Saved, folder_named, is_saved, read_model, read_saved
from . import demo
from .weights import load_weights, read_weights

DEMO = "demo"


def load(
    name: str,
    *,
    weights: Path | None = None,
    pretrained: bool = False,
    size: int | None = None,
    classes: int | None = None,
    pool: str | None = None,
) -> nn.Module:
    """Load a model, unpruned and in eval mode; `saved_with` has the schedule of a saved folder.

    Args:
        name: `demo` for the built-in model, a folder that `zerotprune.save` wrote, or a library's
            name for a model, with its prefix.
        weights: A file of weights.
        pretrained: Without a file, use the published weights, not random ones.
        size: Side of the images, if not the model's own; positions are resampled.
        classes: Classes of the head. Default: as in the file, or the library's own.
        pool: How the head pools. Default: the library's own way.
    """
    if is_model_folder(name):
        _refuse_options(_SAVED, weights=weights, classes=classes, pool=pool)
        model, state = _from_folder(name, pretrained), None
    elif name == DEMO:
        _refuse_options(_BUILT_IN, classes=classes, pool=pool)
        model, state = demo.model(), None if weights is None else read_weights(weights)
        outputs = backbone(model).outputs
        classes = outputs if state is None else shape_in(name, state).get("classes", outputs)
        if classes != outputs:  # it was fine-tuned
            backbone(model).reset_head_(classes)
    elif weights is None:
        if pretrained:  # refuses a model that cannot be pruned before it is downloaded
            backbone(outline(name, classes=classes, pool=pool))
        model, state = create(name, pretrained, classes=classes, pool=pool), None
    else:
        state = own_weights(name, read_weights(weights))
        options = shape_in(name, state) | ({} if classes is None else {"classes": classes})
        model = create(name, False, **options, pool=pool)
    if weights is not None and state is not None:
        load_weights(model, state, weights)
    if size is not None:
        resize_(model, size)
    return model.eval()


def resize_(model: nn.Module, size: int) -> None:
    """Set the model to square images of `size` pixels, which must be a multiple of its patches."""
    vit = backbone(model)
    check_range("size", size)
    for side, patches in zip(vit.input_shape[1:], vit.geometry.grid, strict=True):
        patch = side // patches
        if size % patch:
            below, over = size // patch * patch, (size // patch + 1) * patch
            nearest = f"{below} or {over}" if below else f"{over}"
            raise ValueError(
                f"size must be a multiple of {patch}, the side of a patch, got {size}: "
                f"try {nearest}"
            )
    vit.resize_(size)


def outline(name: str, *, classes: int | None = None, pool: str | None = None) -> nn.Module:
    """Return the model on the meta device, without weights: enough for its geometry."""
    if is_model_folder(name):
        _refuse_options(_SAVED, classes=classes, pool=pool)
        return _from_folder(name, weights=False)
    if name == DEMO:
        _refuse_options(_BUILT_IN, classes=classes, pool=pool)
    with on_meta():
        if name == DEMO:
            return demo.untrained()
        return create(name, pretrained=False, classes=classes, pool=pool)


def is_model_folder(name: str) -> bool:
    """Return whether this is a folder of a saved model, not a model's name."""
    return name != DEMO and (is_saved(name) or ("/" in name and Path(name).is_dir()))


def _from_folder(name: str, weights: bool) -> nn.Module:
    folder = folder_named(name)
    model = image_tower(read_model(folder, weights))
    served = backbone(model).giving_tensors() if transformer(model) is model else model
    _FOLDERS[served] = folder
    return served.eval()


def saved_with(model: nn.Module, method: Method | str | None = None) -> Saved | None:
    """Return how a model from `load` or `outline` was saved.

    Args:
        model: The model.
        method: The user's own method, or its FILE.py:CLASS, if the folder needs it.

    Returns:
        None for a model that is not from a folder, or was saved unpruned.
    """
    if model not in _FOLDERS:
        return None
    named = not isinstance(method, str) or ".py:" in method
    saved = read_saved(_FOLDERS[model], method if named else None)
    return saved if saved.schedule.stages else None


#: the folders that models were loaded from
_FOLDERS: WeakKeyDictionary[nn.Module, Path] = WeakKeyDictionary()
_BUILT_IN, _SAVED = "the built-in model", "a saved model, which has its own"


def _refuse_options(what: str, **options: object) -> None:
    for option, value in options.items():
        if value is not None:
            raise ValueError(f"--{option} is not for {what}: leave it out")
