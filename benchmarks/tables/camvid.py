"""Dense features: DINOv2-S on CamVid with outputs="grid", a linear probe on every patch.

Not in the paper. A linear layer fitted to the unpruned features of the training images reads the
test images from unpruned and from pruned features; then so does a layer fitted to features pruned
in the same way. mIoU of the eleven classes at the labels' own resolution. The rule that restores
the grid was chosen on the training images alone.
Command: python -m benchmarks.tables.camvid --shared DIR. Results: docs/dense.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import zerotprune as ztp
from benchmarks.inputs import DINOV2, SIZE, measuring_images, parsed, weights_of
from zerotprune.backbones import backbone
from zerotprune.data.models import load
from zerotprune.measure import records
from zerotprune.method import Method
from zerotprune.methods import DENSE, resolve

Row = dict[str, Any]

CLASSES, VOID = 11, 11
COSTS = (0.8, 0.65, 0.5)
#: Fold as `prune_` takes it for outputs="grid", and as it is for classes
METHODS: dict[str, Method] = {
    "fold": DENSE,
    "fold, with CLS": resolve("fold"),
    "tome": resolve("tome"),
    "zero-tprune": resolve("zero-tprune"),
}


class Scenes(NamedTuple):
    """Preprocessed images and the class of every pixel."""

    images: Tensor  # images, 3, height, width
    labels: Tensor  # images, rows, columns


class Probe(NamedTuple):
    """A linear layer on features scaled to mean 0 and deviation 1."""

    mean: Tensor
    deviation: Tensor
    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return F.linear((features - self.mean) / self.deviation, self.weight, self.bias)


def dense_model(chosen: argparse.Namespace) -> Any:
    model: Any = load(DINOV2, weights=weights_of(DINOV2, chosen), size=SIZE)
    model.set_input_size(tuple(chosen.input))
    return model.to(chosen.device)


def read(folder: Path, model: nn.Module, limit: int | None) -> Scenes:
    _, height, width = backbone(model).input_shape
    mean, deviation = (
        torch.tensor(values)[:, None, None] for values in backbone(model).normalization
    )
    images, labels = [], []
    for file in sorted((folder / "images").iterdir())[:limit]:
        sized = Image.open(file).convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(sized)).permute(2, 0, 1) / 255
        images.append((pixels - mean) / deviation)
        named = np.array(Image.open((folder / "labels" / file.name).with_suffix(".png")))
        labels.append(torch.from_numpy(named).long())
    return Scenes(torch.stack(images), torch.stack(labels))


@torch.inference_mode()
def features_of(model: Any, images: Tensor, device: str, batch: int) -> tuple[Tensor, float]:
    """Return the features of every patch (images, height, width, channels), and seconds per
    image."""
    grids, spent = [], []
    for at in range(-batch, len(images), batch):  # the first batch twice: once to warm up
        some = images[max(at, 0) :][:batch].to(device)
        started = _now(device)
        (maps,) = model.forward_intermediates(some, 1, norm=True, intermediates_only=True)
        spent.append((_now(device) - started) / len(some))
        grids.append(maps.permute(0, 2, 3, 1).float())
    return torch.cat(grids[1:]), sorted(spent[1:])[(len(spent) - 1) // 2]


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def fit(features: Tensor, labels: Tensor) -> Probe:
    """Fit a softmax regression to the share of each class in a patch, by L-BFGS from 0."""
    one_hot = F.one_hot(labels, CLASSES + 1)[..., :CLASSES].permute(0, 3, 1, 2).float()
    _, height, width, _ = features.shape
    shares = F.adaptive_avg_pool2d(one_hot, (height, width)).permute(0, 2, 3, 1)
    x, target = features.flatten(0, 2), shares.flatten(0, 2).to(features.device)
    mean, deviation = x.mean(dim=0), x.std(dim=0)
    x = (x - mean) / deviation
    layer = nn.Linear(x.shape[1], CLASSES, device=x.device)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    descent = torch.optim.LBFGS(layer.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        descent.zero_grad()
        crossed: Tensor = -(target * layer(x).log_softmax(dim=-1)).sum() / target.sum()
        crossed = crossed + 0.5e-4 * layer.weight.square().sum()
        crossed.backward()
        return crossed

    descent.step(loss)
    return Probe(mean, deviation, layer.weight.detach(), layer.bias.detach())


def predicted(probe: Probe, features: Tensor, size: Sequence[int]) -> Tensor:
    """Return the class of every pixel of one image."""
    scores = probe(features).permute(2, 0, 1).unsqueeze(0)
    return F.interpolate(scores, size=tuple(size), mode="bilinear").argmax(dim=1)[0].cpu()


def confusions(probe: Probe, features: Tensor, labels: Tensor) -> Tensor:
    """Count, for each image, the pixels of each class by predicted class."""
    rows = []
    for one, truth in zip(features, labels, strict=True):
        classes = predicted(probe, one, truth.shape)
        pairs = (truth * CLASSES + classes)[truth != VOID]
        rows.append(torch.bincount(pairs, minlength=CLASSES**2).view(CLASSES, CLASSES))
    return torch.stack(rows).double()


def miou(confusion: Tensor) -> Tensor:
    """Return the mean intersection over union in percent, from (a batch of) confusions."""
    hits = confusion.diagonal(dim1=-2, dim2=-1)
    union = confusion.sum(dim=-1) + confusion.sum(dim=-2) - hits
    return 100 * (hits / union.clamp_min(1)).mean(dim=-1)


def with_errors(confusion: Tensor, reference: Tensor) -> dict[str, float]:
    """Return mIoU and its change with standard errors, from resampled images."""
    draws = torch.randint(
        len(confusion), (1000, len(confusion)), generator=torch.Generator().manual_seed(0)
    )
    sampled, other = (miou(counts[draws].sum(dim=1)) for counts in (confusion, reference))
    total = miou(confusion.sum(dim=0))
    change = total - miou(reference.sum(dim=0))
    values = (total, sampled.std(), change, (sampled - other).std())
    names = ("top1", "top1_error", "change", "change_error")
    return {name: round(float(value), 3) for name, value in zip(names, values, strict=True)}


def cases(
    model: Any, train: Scenes, test: Scenes, chosen: argparse.Namespace
) -> Iterator[list[Row]]:
    """Yield the unpruned model, then each cost and method, by both probes."""

    def features(scenes: Scenes) -> tuple[Tensor, float]:
        return features_of(model, scenes.images, chosen.device, chosen.batch)

    untouched = fit(features(train)[0], train.labels)
    maps, seconds = features(test)
    reference = confusions(untouched, maps, test.labels)
    for cost, name in [(1.0, "unpruned"), *product(COSTS, METHODS)]:
        schedule, probes = ztp.Schedule(), {"untouched": untouched}
        if name in METHODS:
            schedule = ztp.schedule_for(model, cost=cost, method=METHODS[name], outputs="grid")
            ztp.prune_(model, schedule, outputs="grid")
            maps, seconds = features(test)
            probes["refitted"] = fit(features(train)[0], train.labels)
        about = {
            "table": "camvid", "model": DINOV2, "data": "camvid/test", "batch": chosen.batch,
            "precision": "float32", "seed": 0, "images": len(test.images), "name": name,
            "method": records.method_json(schedule), "schedule": schedule.one_line(),
            "gmacs": round(ztp.gmacs(model), 6), "images_per_second": round(1 / seconds, 2),
        }  # fmt: skip
        ztp.restore_(model)
        yield [
            {**about, "measure": f"miou, probe {how}",
             **with_errors(confusions(probe, maps, test.labels), reference)}
            for how, probe in probes.items()
        ]  # fmt: skip


def run(chosen: argparse.Namespace) -> None:
    model = dense_model(chosen)
    train, test = (
        read(chosen.shared / "camvid" / split, model, chosen.limit) for split in ("train", "test")
    )
    groups = []
    for rows in cases(model, train, test, chosen):
        records.append(chosen.csv, rows)
        groups.append(rows)
        print(*(row["top1"] for row in rows), rows[0]["name"], flush=True)
    print(*page_table(groups), sep="\n")


def page_table(groups: list[list[Row]]) -> list[str]:
    """Return the lines of the table in docs/dense.md."""
    whole = groups[0][0]
    lines = [
        "| cost | method | mIoU | change, probe untouched | probe refitted | images/s |",
        "|---|---|---|---|---|---|",
        f"| 1 | unpruned | {whole['top1']:.2f} | | | {whole['images_per_second']:.1f} |",
    ]
    for kept, refitted in groups[1:]:
        changes = (
            f"{row['change']:+.2f} ± {row['change_error']:.2f}".replace("-", "−")
            for row in (kept, refitted)
        )
        cells = (f"{kept['gmacs'] / whole['gmacs']:.2f}", kept["name"], f"{kept['top1']:.2f}",
                 *changes, f"{kept['images_per_second']:.1f}")  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    options = measuring_images(__doc__)
    options.set_defaults(batch=8)
    # 4 : 3 as the images are, in patches of 14
    options.add_argument("--input", type=int, nargs=2, default=(252, 336), help="height, width")
    run(parsed(options))
