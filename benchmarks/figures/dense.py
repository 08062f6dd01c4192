"""What a linear probe makes of dense features, pruned and unpruned, side by side.

The maps should stay what they are where tokens were merged (Fold, ToMe), and blur where they were
dropped (Zero-TPrune). DINOv2-S on images of CamVid's test set; the colors are classes.
Command: python -m benchmarks.figures.dense --shared DIR --out docs/dense.png
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from torch import Tensor

import zerotprune as ztp
from benchmarks.inputs import measuring_images
from benchmarks.tables import camvid
from zerotprune.plots.figures import check_figure_file, new_figure, save

SHOWN = (10, 50, 90)
COST = 0.65
NAMES = ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "person",
         "bicycle")  # fmt: skip
_COLORS = ("#9ecae1", "#8c6d5a", "#d9d9d9", "#636363", "#c9a0c9", "#31a354", "#fdd049", "#e6855e",
            "#3b5bdb", "#e03131", "#0b7285")  # fmt: skip


def columns(
    model: Any, probe: camvid.Probe, shown: camvid.Scenes, device: str
) -> dict[str, list[Tensor]]:
    """Predict a map for every shown image, unpruned and by each method."""
    maps = {}
    for name in ("unpruned", *camvid.METHODS):
        if name in camvid.METHODS:
            ztp.prune_(model, cost=COST, method=camvid.METHODS[name], outputs="grid")
        features, _ = camvid.features_of(model, shown.images, device, len(SHOWN))
        maps[name] = [camvid.predicted(probe, grid, shown.labels.shape[1:]) for grid in features]
        ztp.restore_(model)
    return maps


def main() -> None:
    options = measuring_images(__doc__)
    options.add_argument("--input", type=int, nargs=2, default=(252, 336), help="height, width")
    options.add_argument("--out", type=Path, default=Path("dense.png"), help="by the file's ending")
    options.set_defaults(batch=8)
    chosen = options.parse_args()
    check_figure_file(chosen.out)
    model = camvid.dense_model(chosen)
    train, test = (
        camvid.read(chosen.shared / "camvid" / split, model, chosen.limit)
        for split in ("train", "test")
    )
    learned, _ = camvid.features_of(model, train.images, chosen.device, chosen.batch)
    probe = camvid.fit(learned, train.labels)
    at = torch.tensor(SHOWN) % len(test.images)
    maps = columns(model, probe, camvid.Scenes(test.images[at], test.labels[at]), chosen.device)
    figure = new_figure(1.9 * len(maps), 1.5 * len(SHOWN) + 0.5)
    axes = figure.subplots(len(SHOWN), len(maps), squeeze=False)
    for column, (name, predictions) in enumerate(maps.items()):
        axes[0, column].set_title(name if name == "unpruned" else f"{name}, {COST:g}", fontsize=9)
        for row, prediction in enumerate(predictions):
            axes[row, column].imshow(
                prediction[::2, ::2], cmap=ListedColormap(_COLORS), vmin=-0.5, vmax=10.5
            )
            axes[row, column].set_axis_off()
    handles = [Patch(color=color) for color in _COLORS]
    figure.legend(handles, NAMES, loc="outside lower center", ncols=len(NAMES), fontsize=7)
    save(figure, chosen.out)
    print(chosen.out)


if __name__ == "__main__":
    main()
