"""Score distributions by rounds: how importance is spread after 1, 5, 10, 30 and 50 votes.

The paper takes 30 to 50 rounds in the first blocks, 5 to 10 in the middle, 1 in the last, because
from there on the distribution no longer changes (Fig. 14). Expected: in the first blocks the line
of few rounds is off the gray one of 50; in the last blocks all lie on each other. --divergence FILE
draws Fig. 15 from the same images: how far each number of rounds is from 50, by block.
Command: python -m benchmarks.figures.rounds --out docs/figure-rounds.png
(`zerotprune calibrate --figures` draws both too.)
"""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.figures.figure import arguments, load_subject
from zerotprune.calibrate.survey import THRESHOLD, rounds_needed, survey
from zerotprune.plots.calibration import distributions_figure, divergence_figure
from zerotprune.plots.figures import check_figure_file, save


def main() -> None:
    options = arguments(__doc__, "figure-rounds.png", 200)
    options.add_argument("--divergence", type=Path, help="draw the divergence by block there")
    chosen = options.parse_args()
    for path in filter(None, (chosen.out, chosen.divergence)):
        check_figure_file(path)
    subject = load_subject(chosen)
    labels = torch.zeros(8, dtype=torch.long)
    parts = ((images, labels, labels) for images in subject.images.split(8))
    blocks, about = survey(subject.model, parts), f"{subject.name}, {len(subject.images)} images"
    save(distributions_figure(blocks, f"Importance by rounds: {about}"), chosen.out)
    print(chosen.out)
    if chosen.divergence is not None:
        rows = rounds_needed(blocks, THRESHOLD)
        figure = divergence_figure(rows, THRESHOLD, f"How far from 50 rounds? {about}")
        save(figure, chosen.divergence)
        print(chosen.divergence)


if __name__ == "__main__":
    main()
