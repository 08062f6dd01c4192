"""What the paper's figures share: which model, which images, where the drawing goes.

Each figure is a file beside this one that opens with the claim. Without arguments it draws the
built-in model on its own images; real ones come by --model, --weights and --data (an image, or
a folder of them).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.inputs import parser
from zerotprune import ZeroTPrune
from zerotprune.backbones import backbone
from zerotprune.block import Parts
from zerotprune.data import demo
from zerotprune.data.models import load
from zerotprune.safety.files import check_writable, replacing
from zerotprune.schedule import Stage
from zerotprune.scoring.graph import attention_graph, head_variance, start_scores, vote
from zerotprune.shapes import Float
from zerotprune.show.figure import Drawing, as_image
from zerotprune.show.scene import load_images
from zerotprune.tokens import Tokens

SEED = 2025
RANGE = ZeroTPrune().vhf or (0.0, math.inf)  # variances of the heads that VHF counts


@dataclass(frozen=True)
class Subject:
    """A model and the images it is shown."""

    name: str
    model: nn.Module
    images: Tensor
    captions: list[str]

    def image(self, at: int) -> Image.Image:
        return as_image(self.images[at], self.model)


def arguments(about: str | None, out: str, count: int) -> argparse.ArgumentParser:
    made = parser(about)
    made.add_argument("--model", default="demo", help="demo, or the name of a timm model")
    made.add_argument("--weights", type=Path)
    made.add_argument("--data", type=Path, nargs="*", default=[], help="images and folders")
    made.add_argument("--images", type=int, default=count, help="how many, evenly spread")
    made.add_argument("--out", type=Path, default=Path(out), help="by the file's ending")
    return made


def load_subject(chosen: argparse.Namespace) -> Subject:
    """Load the model and the first of the images asked for."""
    check_writable(chosen.out)
    model = load(chosen.model, weights=chosen.weights, pretrained=chosen.weights is None)
    if not chosen.data and chosen.model == "demo":
        images, labels = demo.images(chosen.images, SEED)
        return Subject(
            "the built-in model", model, images, [f"a {label}" for label in labels.tolist()]
        )
    named = load_images(chosen.data, chosen.images, most=None)
    transform = backbone(model).transform()
    images = torch.stack([transform(photo.image) for photo in named])
    return Subject(chosen.model, model, images, [photo.name for photo in named])


def save(drawing: Drawing, path: Path) -> None:
    """Write SVG or pixels, by the suffix."""
    with replacing(path) as temporary:
        if path.suffix == ".svg":
            temporary.write_text(drawing.svg(), encoding="utf-8")
        else:
            drawing.pixels().save(temporary, path.suffix.lstrip("."))
    print(path)


@dataclass(frozen=True)
class Votes:
    """What the heads of one block vote for."""

    block: int
    scores: Tensor  # images, heads, patches; raw: with the prefix tokens' they sum to 1
    variance: Tensor  # images, heads


def votes(model: nn.Module, images: Tensor, rounds: int | None = None) -> list[Votes]:
    """Let the heads of every block of the unpruned model vote, from the method's own start: for
    `rounds` in all blocks, or as long as the method does."""
    geometry, votes = backbone(model).geometry, []
    for number, graph in enumerate(attention_of(model, images), start=1):
        start = start_scores(graph, math.sqrt(geometry.tokens) if geometry.cls else None)
        score = vote(graph, start, rounds or Stage(number).votes(geometry.depth))
        variance = head_variance(score, geometry.prefix)
        votes.append(Votes(number, score[..., geometry.prefix :], variance))
    return votes


@torch.inference_mode()
def attention_of(model: nn.Module, images: Tensor) -> list[Float[Tensor, "images heads n n"]]:
    """Return the attention graph of every block of the unpruned model."""
    network, seen = backbone(model), list[Tensor]()

    def watch(parts: Parts) -> Callable[..., None]:
        def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x, others = network.call.read(args, kwargs)
            heads = parts.attend(Tokens.of(x, network.geometry.prefix), others)
            seen.append(torch.cat(
                [attention_graph(part.q, part.k, part.scale, part.bias) for part in heads], dim=1
            ))  # fmt: skip

        return look

    hooks = [
        block.register_forward_pre_hook(watch(network.parts(block)), with_kwargs=True)
        for block in network.blocks
    ]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
