"""The attention graph and the signal on it, round by round: how a vote finds what matters.

The paper's Fig. 3: importance is a signal on the graph, and each round passes it on along the
attention, s ← Aᵀs. Expected: from a flat start the signal gathers on a few patches within the first
rounds, and hardly moves after that; the lines, along which most of it is passed on, lead there.
Command: python -m benchmarks.figures.signal --out docs/figure-signal.png
Real: … --model deit_tiny_patch16_224 --weights FILE --data IMAGE
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.figures.figure import arguments, attention_of, load_subject
from zerotprune.backbones import backbone
from zerotprune.plots.figures import check_figure_file, new_figure, save
from zerotprune.scoring.graph import start_scores, vote

ROUNDS = (0, 1, 2, 3, 5, 10, 30)
LINES = 40


def signals(graph: Tensor) -> list[Tensor]:
    """Return one image's signal (tokens,), averaged over heads, after each of ROUNDS from the
    uniform start."""
    start = start_scores(graph, None)
    return [(vote(graph, start, rounds) if rounds else start).mean(dim=1)[0] for rounds in ROUNDS]


def strongest(graph: Tensor, signal: Tensor, prefix: int) -> list[tuple[int, int, float]]:
    """Return the edges between patches along which the next round passes most: from, to, share."""
    flow = (graph.mean(dim=1)[0] * signal.unsqueeze(-1))[prefix:, prefix:]
    flow = flow.clone().fill_diagonal_(0)
    best = flow.flatten().topk(LINES)
    return [
        (at // flow.shape[1], at % flow.shape[1], share)
        for at, share in zip(
            best.indices.tolist(), (best.values / best.values[0]).tolist(), strict=True
        )
    ]


def draw(axis: Any, title: str, heat: Tensor, edges: list[tuple[int, int, float]]) -> None:
    columns = heat.shape[1]
    axis.imshow((heat / heat.mean()).numpy(), cmap="cividis", vmin=0, vmax=4)
    for source, target, share in edges:
        (y, x), (to_y, to_x) = divmod(source, columns), divmod(target, columns)
        axis.plot([x, to_x], [y, to_y], color="white", lw=1.2 * share, alpha=0.25 + 0.5 * share)
        axis.plot([to_x], [to_y], ".", color="white", ms=2.5)
    axis.set_title(title, fontsize=9)
    axis.set_axis_off()


@torch.inference_mode()
def main() -> None:
    parser = arguments(__doc__, "figure-signal.png", 1)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 4, 8])
    chosen = parser.parse_args()
    check_figure_file(chosen.out)
    subject = load_subject(chosen)
    geometry = backbone(subject.model).geometry
    graphs = attention_of(subject.model, subject.images[:1])
    across = len(ROUNDS) + 1
    figure = new_figure(1.15 * across, 1.3 * len(chosen.blocks) + 0.4)
    figure.suptitle(
        f"The signal on the attention graph, round by round: {subject.name}", fontsize=11
    )
    axes = figure.subplots(len(chosen.blocks), across, squeeze=False)
    for row, block in zip(axes, chosen.blocks, strict=True):
        graph = graphs[block - 1]
        row[0].imshow(subject.image(0))
        row[0].set_title(f"block {block}", fontsize=9)
        row[0].set_axis_off()
        for axis, rounds, signal in zip(row[1:], ROUNDS, signals(graph), strict=True):
            heat = signal[geometry.prefix :].reshape(geometry.grid)
            edges = strongest(graph, signal, geometry.prefix)
            draw(axis, f"{rounds} rounds" if rounds != 1 else "1 round", heat, edges)
    save(figure, chosen.out)
    print(chosen.out)


if __name__ == "__main__":
    main()
