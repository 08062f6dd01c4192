"""In how many images the head filter (VHF) acts, block by block, and in how many no head passes.

VHF leaves out heads whose scores vary by less than 0.01 or more than 0.7 (the paper, Sec. 3.2 and
Fig. 16). If no head passes, all of them count, so there the filter does nothing. Expected: in the
last blocks, where scores gather on a few tokens, no head passes on most images.
Command: python -m benchmarks.figures.head_filter --shared DIR --limit 200 --out
docs/figure-head-filter.png
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.inputs import MODELS, Bench, measuring_images, parsed
from benchmarks.summary import SHORT
from benchmarks.tables.vhf import Shares, print_table, shares
from zerotprune.plots.figures import COLORS, check_figure_file, new_figure, save


def drawn(by_model: Mapping[str, Sequence[Shares]], title: str) -> Figure:
    """Draw a panel for each model and a bar for each block."""
    figure = new_figure(4.6 * len(by_model), 3.4)
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(1, len(by_model), squeeze=False, sharey=True)[0]
    for axis, (name, blocks) in zip(axes, by_model.items(), strict=True):
        numbers = range(1, len(blocks) + 1)
        parts = {"all heads pass": [block.every for block in blocks],
                 "VHF leaves some out": [block.acts for block in blocks],
                 "no head passes, so all count": [block.none for block in blocks]}  # fmt: skip
        below = [0.0] * len(blocks)
        for (label, heights), color in zip(parts.items(), ("#CCCCCC", *COLORS), strict=False):
            axis.bar(numbers, heights, 0.8, below, color=color, label=label)
            below = [a + b for a, b in zip(below, heights, strict=True)]
        axis.set_title(name, fontsize=10)
        axis.set_xticks(numbers)
        axis.set_xlabel("block")
    axes[0].set_ylabel("images, %")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def main() -> None:
    options = measuring_images(__doc__)
    options.add_argument("--out", type=Path, default=Path("figure-head-filter.png"))
    chosen = parsed(options)
    check_figure_file(chosen.out)
    benches = [Bench(name, chosen) for name in MODELS]
    by_model = {SHORT[bench.name]: shares(bench) for bench in benches}
    print_table(by_model)
    count = sum(len(images) for images, _, _ in benches[0].batches("imagenet/tune"))
    save(drawn(by_model, f"The head filter, block by block: {count} images"), chosen.out)
    print(chosen.out)


if __name__ == "__main__":
    main()
