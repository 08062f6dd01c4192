"""Write and read transformers' models in folders that `from_pretrained` reads, and
`save_pretrained` of a pruned model.

The schedule is a plain field of config.json, "zerotprune", that others ignore: `from_pretrained`
returns the unpruned model, `zerotprune.load` the pruned one. The only hook of `from_pretrained` is
for quantizers, and does not fit: a model with a `quantization_config` could not be cast, trained by
`Trainer` or really quantized, and without zerotprune there would be a warning.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from ..contract import saving_method
from ..storing import CONFIG, check_state, own_state, read_config
from .create import quietly, read_state, refuse_kernels
from .families import FAMILIES, known_as
from .preprocessing import saved_processor

#: the field of config.json
FIELD = "zerotprune"


def saving(model: Any, note: Mapping[str, Any]) -> dict[str, functools.partial[Any]]:
    """Return a `save_pretrained` that writes the note into config.json."""
    return {"save_pretrained": saving_method(_save_pretrained, model, dict(note))}


def _save_pretrained(model: Any, note: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    warnings.warn(
        "from_pretrained will return the unpruned model: use zerotprune.load for the pruned one, "
        "and zerotprune.save to write a folder with a model card",
        stacklevel=3,
    )
    setattr(model.config, FIELD, note)
    try:
        return type(model).save_pretrained(model, *args, **kwargs)
    finally:
        delattr(model.config, FIELD)  # a restored model must not have it


def write(model: Any, folder: Path, config: Mapping[str, Any] | None) -> None:
    """Write what `save_pretrained` writes, and the image processor beside it.

    Args:
        model: A transformers model.
        folder: The folder to write to.
        config: Refused, as a transformers model has its own.
    """
    if config is not None:
        raise ValueError("a transformers model has a config: leave config out")
    kind: Any = type(model)
    is_known = known_as(model) is kind
    if not is_known:
        raise TypeError(
            f"cannot save {kind.__name__}: it is not a class of transformers "
            f"({', '.join(list(FAMILIES)[:3])}, …)"
        )
    quantized = getattr(model, "hf_quantizer", None)
    if quantized is not None:
        raise ValueError("cannot save a quantized model: save it first, then quantize it")
    with quietly():
        kind.save_pretrained(model, folder, state_dict=own_state(model))
    processor = saved_processor(model.name_or_path)
    if processor is not None:
        processor.save_pretrained(folder)


def read(folder: Path, weights: bool) -> nn.Module:
    """Create the model of a folder, with or without its weights. No code is run that a config
    names."""
    data = read_config(folder / CONFIG)
    named = data.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    if name not in FAMILIES:
        raise ValueError(f"{folder / CONFIG}: {name!r} cannot be pruned")
    kind: Any = getattr(transformers, str(name))
    try:
        config = kind.config_class.from_pretrained(folder, local_files_only=True)
        refuse_kernels(config)
        if weights:
            model, misfits = read_state(kind, folder, config=config, dtype="auto",
                                        use_safetensors=True, local_files_only=True,
                                        trust_remote_code=False)  # fmt: skip
        else:
            model, misfits = kind(config), {}
            model.name_or_path = str(folder)
    except Exception as error:  # the folder is untrusted and can raise anything
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"transformers cannot read {folder}: {reason}") from None
    for kind, keys in misfits.items():
        if keys:
            raise ValueError(
                f"the weights in {folder} do not fit its config: {kind.replace('_', ' ')}, such "
                f"as {keys[0]}"
            )
    if weights:
        check_state(model, model.state_dict(), folder)
    vars(model.config).pop(FIELD, None)
    made: nn.Module = model
    return made
