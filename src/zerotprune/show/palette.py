"""Colours of all drawings, and how strongly and how wide marks on patches are drawn."""

from __future__ import annotations

from ..tracing import Fate

INK, QUIET, PALE, BAR = "#1A1A1A", "#5F6368", "#E4E6E8", "#F6F7F8"
SAME, OTHER = "#00795A", "#B34700"  # the pruned model gives the same answer, or another
# Okabe and Ito's colours: they stay apart for every kind of colour vision, and in grey.
SIMILAR, UNIMPORTANT, GONE = "#E69F00", "#0072B2", "#F2F2F2"
#: how much of a patch its colour covers
COVER = {
    Fate.SIMILAR: (SIMILAR, 0.85),
    Fate.UNIMPORTANT: (UNIMPORTANT, 0.85),
    Fate.GONE: (GONE, 1.0),
}
EDGE, EDGE_STRENGTH = 0.04, 0.18  # white lines between patches; widths are in units of patches
#: lines from similar patches to their partners: colour, width, and width of the dot at the partner
PARTNERS = (("#FFFFFF", 0.24, 0.44), ("#D55E00", 0.12, 0.32))
#: dark to bright, evenly in lightness and safe for every kind of colour vision (cividis)
HEAT = ("#00224E", "#123570", "#3B496C", "#575D6D", "#707173", "#8A8678", "#A59C74", "#C3B369",
        "#E1CC55", "#FEE838")  # fmt: skip


def rgb(colour: str) -> tuple[int, int, int]:
    """#RRGGBB as three numbers."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue
