"""Marks for patches, the colours of all drawings, and how strong and wide they are drawn."""

from __future__ import annotations

from enum import StrEnum

INK, QUIET, PALE, BAR = "#1A1A1A", "#5F6368", "#E4E6E8", "#F6F7F8"
SAME, OTHER = "#00795A", "#B34700"  # the pruned model gives the same answer, or another
ACCENT = "#6D4AA8"  # of controls and progress: no mark and no heat looks like it
# Okabe and Ito's colours: they stay apart for every kind of colour vision, and in grey.
SIMILAR, UNIMPORTANT, GONE = "#E69F00", "#0072B2", "#F2F2F2"


class Mark(StrEnum):
    """What a drawing says of a patch; the names are classes in SVG and HTML too."""

    KEPT = "kept"
    MERGED = "merged"  # into one token with others, at this stage or before
    SIMILAR = "similar"  # dropped by this stage, being like another
    UNIMPORTANT = "unimportant"  # dropped by this stage
    GONE = "gone"  # dropped before


#: how much of a patch its colour covers
COVER = {
    Mark.SIMILAR: (SIMILAR, 0.85),
    Mark.UNIMPORTANT: (UNIMPORTANT, 0.85),
    Mark.GONE: (GONE, 1.0),
}
#: the same where all that is left has to stand out
PALE_COVER = COVER | {Mark.SIMILAR: ("#FAEBCB", 1.0), Mark.UNIMPORTANT: ("#D3E5F1", 1.0)}
TINT = 0.8  # how much of a merged patch the mean colour of its group covers
MERGED_KEY = ("#A9876B", "#7386A3")  # two groups side by side, in a legend
#: outlines of groups: colour, strength, width
OUTLINE = (("#1A1A1A", 0.55, 0.2), ("#FFFFFF", 0.95, 0.09))
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
