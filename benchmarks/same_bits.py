"""Check that a change of the code leaves every logit as it was, to the last bit.

    python -m benchmarks.same_bits --write before.json SHARED   # on the old commit
    python -m benchmarks.same_bits --check before.json SHARED   # on the new one

SHARED holds `weights/` with the timm models below. The other libraries' models are tiny and have
random weights. Every method runs at one cost on two images of noise, on one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

import zerotprune as ztp
from tests import libraries

TIMM = {
    "deit_tiny_patch16_224": "deit_tiny_patch16_224",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": "vit_tiny_patch16_224.augreg",
    "vit_small_patch14_dinov2.lvd142m": "vit_small_patch14_dinov2.lvd142m",
}
LIBRARIES = ("torchvision", "open_clip", "open_clip, mean", "lvvit")
COST = 0.8


def models(shared: Path) -> Iterator[tuple[str, nn.Module, Tensor]]:
    torch.manual_seed(0)
    for name, file in TIMM.items():
        kwargs = {"img_size": 224} if "dinov2" in name else {}
        model = timm.create_model(name, **kwargs)
        state = load_file(shared / "weights" / f"{file}.safetensors")
        state = timm.models.vision_transformer.checkpoint_filter_fn(state, model)
        model.load_state_dict({key: value.float() for key, value in state.items()})
        yield name, model.eval(), torch.randn(2, 3, 224, 224)
    for name in LIBRARIES:
        model = libraries.build(name)
        yield name, model, libraries.images_for(model)
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=5, num_attention_heads=3, intermediate_size=96,
        image_size=96, patch_size=16, num_labels=7,
    )  # fmt: skip
    vit = libraries.stir(transformers.ViTForImageClassification(config)).eval()
    yield "transformers", vit, torch.randn(2, 3, 96, 96)


def digests(shared: Path) -> Iterator[tuple[str, str]]:
    """Yield a digest of the logits of every model by every method, or the error that refuses it."""
    torch.set_num_threads(1)
    for name, model, images in models(shared):
        for method in ("", *ztp.methods.names()):
            for options in ({}, {"compute": "all"}, {"outputs": "grid"}) if method else ({},):
                case = " ".join((name, method, *map(str, options.values())))
                yield case, _digest(model, images, method, options)


def _digest(model: nn.Module, images: Tensor, method: str, options: dict[str, Any]) -> str:
    ztp.restore_(model)
    torch.manual_seed(0)
    try:
        if method:
            ztp.prune_(model, _schedule(model, images, method), **options)
    except (TypeError, ValueError) as error:
        return type(error).__name__
    with torch.inference_mode():
        logits = model(images)
    logits = getattr(logits, "logits", logits)
    return hashlib.sha256(logits.numpy().tobytes()).hexdigest()


def _schedule(model: nn.Module, images: Tensor, method: str) -> ztp.Schedule:
    chosen = ztp.methods.resolve(method)
    if chosen.adaptive:  # its budget would be measured on the images
        return ztp.Schedule(tuple(ztp.Stage(block) for block in (3, 4)), chosen)
    return ztp.schedule_for(model, cost=COST, method=method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", type=Path)
    parser.add_argument("shared", type=Path)
    arguments = parser.parse_args()
    after = dict(digests(arguments.shared))
    print(f"{len(after)} cases, {sum(len(value) == 64 for value in after.values())} with logits")
    if arguments.write is not None:
        arguments.write.write_text(json.dumps(after, indent=1))
    if arguments.check is not None:
        before = json.loads(arguments.check.read_text())
        other = [case for case in before if after.get(case) != before[case]]
        print(*(f"differs: {case}" for case in other), sep="\n")
        sys.exit(f"{len(other)} of {len(before)} differ" if other else 0)


if __name__ == "__main__":
    main()
