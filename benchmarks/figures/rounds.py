"""Score distributions by rounds: how importance is spread after 1, 5, 10, 30 and 50 votes.

The paper takes 30 to 50 rounds in the first blocks, 5 to 10 in the middle, 1 in the last, because
from there on the distribution no longer changes. Expected: in the first blocks the line of few
rounds is off the grey one of 50; in the last blocks all lie on each other.
Command: python -m benchmarks.figures.rounds --out docs/figure-rounds.png
(`zerotprune calibrate --figures` draws it too, with the divergence in numbers.)
"""

from __future__ import annotations

import torch

from benchmarks.figures.figure import arguments, subject
from zerotprune.calibrate.survey import survey
from zerotprune.plots.calibration import distributions_figure
from zerotprune.plots.figures import check_figure_file, save


def main() -> None:
    chosen = arguments(__doc__, "figure-rounds.png", 200).parse_args()
    check_figure_file(chosen.out)
    given = subject(chosen)
    labels = torch.zeros(8, dtype=torch.long)
    parts = ((images, labels, labels) for images in given.images.split(8))
    title = f"Importance by rounds: {given.name}, {len(given.images)} images"
    save(distributions_figure(survey(given.model, parts), title), chosen.out)
    print(chosen.out)


if __name__ == "__main__":
    main()
