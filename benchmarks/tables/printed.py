"""The paper's tables as printed: cells beside our rows, and tables that we only quote.

Zero-TPrune (CVPR 2024), ImageNet-1k validation, 50,000 images, 224 px unless said otherwise. Its
GFLOPS are multiply-accumulates as fvcore counts them, for DeiT-S without the patch embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Cell(NamedTuple):
    """One row of the paper."""

    top1: float
    gflops: float


@dataclass(frozen=True)
class Printed:
    """A table of the paper beside one of ours; cells by the names of our rows, and `rates` in
    images/s on one A100 where it prints them."""

    table: str
    conditions: str
    cells: dict[str, Cell]
    unpruned: Cell = field(default=Cell(79.8, 4.55))
    rates: dict[str, float] = field(default_factory=dict)

    def cell(self, name: str) -> str:
        """Return the paper's cell for a row of ours, or an empty string."""
        if name == "unpruned":
            return f"{self.unpruned.top1:g}"
        if name not in self.cells:
            return ""
        cell = self.cells[name]
        digits = 1 if cell.top1 == round(cell.top1, 1) else 3
        change = f"{cell.top1 - self.unpruned.top1:+.{min(digits, 2)}f}"
        return f"{cell.top1:.{digits}f} ({change}) @ {cell.gflops:.2f}"

    def rate(self, name: str) -> str:
        """Return the paper's images/s for a row of ours and its speedup, or an empty string."""
        if name not in self.rates:
            return ""
        faster = self.rates[name] / self.rates["unpruned"]
        return f"{self.rates[name]:.1f}" + (f" ({faster:.2f}×)" if name != "unpruned" else "")


@dataclass(frozen=True)
class Quoted:
    """A table of the paper that we have no weights for, and the command that measures it."""

    title: str
    conditions: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    command: str


def _at(gflops: float, **top1: float) -> dict[str, Cell]:
    return {name.replace("_", "-"): Cell(value, gflops) for name, value in top1.items()}


CONTRIBUTION = Printed(
    "Tables 1 and 11",
    "DeiT-S, batch 512; brackets: against the unpruned model",
    {
        "random": Cell(76.8, 3.08),
        "WPR": Cell(78.6, 3.08),
        "WPR + EIR": Cell(78.8, 3.08),
        "WPR + EIR + VHF": Cell(78.9, 3.08),
        "WPR + EIR + VHF + S": Cell(79.4, 3.08),
        "WPR, uni": Cell(78.0, 3.08),
        "WPR + EIR, uni": Cell(78.2, 3.08),
        "WPR + EIR + VHF, uni": Cell(78.4, 3.08),
        "WPR + EIR + VHF + S, uni": Cell(78.9, 3.08),
    },
    rates={
        "unpruned": 1505.9,
        "random": 2164.4,
        "WPR": 2136.5,
        "WPR + EIR": 2132.6,
        "WPR + EIR + VHF": 2103.1,
        "WPR + EIR + VHF + S": 2063.9,
        "WPR, uni": 2142.3,
        "WPR + EIR, uni": 2139.6,
        "WPR + EIR + VHF, uni": 2107.2,
        "WPR + EIR + VHF + S, uni": 2066.4,
    },
)
FEATURES = Printed(
    "Table 8",
    "DeiT-S, schedule I + S, CLS start",
    _at(3.08, x_mid=79.113, x=79.082, key=79.351, query=79.205, value=79.097),
)
PARTITION = Printed(
    "Table 9",
    "DeiT-S, schedule I + S, CLS start",
    _at(3.08, random=79.055, alternate=79.179, sequential_u=79.351, sequential_i=78.898,
        none_both=78.422),
)  # fmt: skip
METRIC = Printed(
    "Table 10",
    "DeiT-S, schedule I + S, CLS start",
    _at(3.08, dot=79.257, cosine=79.351)
    | _at(3.07, minkowski_1=79.208, minkowski_2=79.224, minkowski_3=79.246, minkowski_4=79.273,
          minkowski_5=79.189, minkowski_inf=79.092),
)  # fmt: skip
ATTENTION = Printed(
    "Table 13",
    "DeiT-S, batch 512, the S-stage on in all rows",
    {
        "WPR": Cell(79.4, 2.97),
        "cls": Cell(78.9, 3.00),
        "average": Cell(78.4, 2.99),
        "accumulated": Cell(78.5, 2.97),
    },
    rates={
        "unpruned": 1505.9,
        "WPR": 2188.4,
        "cls": 2179.3,
        "average": 2185.2,
        "accumulated": 2189.2,
    },
)

TABLE_2 = Printed(
    "Table 2",
    "DeiT-S; images/s on one A100, over the unpruned model's: ATS +36.9 %, ToMe +50.3 %, Zero-TP-a "
    "+45.3 %, -b +63.2 %, -c +11.1 %",
    {
        "ATS": Cell(79.2, 3.00),
        "ToMe": Cell(78.9, 2.95),
        "Zero-TP-a": Cell(79.4, 2.97),
        "Zero-TP-b": Cell(79.1, 2.50),
        "Zero-TP-c": Cell(79.8, 3.97),
    },
)
#: its images/s on one A100, over those of the unpruned model (1505.9); precision not stated
TABLE_2_FASTER = {"ATS": 1.369, "ToMe": 1.503, "Zero-TP-a": 1.453, "Zero-TP-b": 1.632,
                  "Zero-TP-c": 1.111}  # fmt: skip
GAP = Printed(
    "Table 2",
    "DeiT-S at −45.1 %, by a schedule that is not printed",
    {"paper's form": Cell(79.1, 2.50)},
)
SEARCH = Printed(
    "Sec. 4.1 and Table 11",
    "DeiT-S, 2,000 settings by accuracy",
    {
        "I + S": Cell(79.4, 3.08),
        "I + S, searched as in the paper": Cell(79.5, 3.08),
        "I + S, uni": Cell(78.9, 3.08),
        "I + S, uni, searched as in the paper": Cell(79.1, 3.08),
    },
)

TABLE_12 = Quoted(
    "Table 12: DeiT-T beside methods that adapt depth or tokens and were trained",
    "All but Zero-TPrune were fine-tuned; DeiT-T has 71.3 % there",
    ("", "top-1 %", "GFLOPS"),
    (
        ("DeiT-T", "71.3", "1.3"),
        ("ACT", "71.0", "1.0"),
        ("Confidence threshold", "65.8", "1.1"),
        ("Similarity gauging", "69.4", "1.1"),
        ("PonderNet", "66.2", "1.0"),
        ("DynamicViT", "70.9", "0.9"),
        ("A-ViT", "71.0", "0.8"),
        ("Zero-TPrune, no training", "70.4", "0.9"),
    ),
    "zerotprune evaluate deit_tiny_patch16_224 IMAGENET/val --gmacs 0.9 --method zero-tprune-paper",
)

LARGE = "python -m benchmarks.tables.large --weights DIR --data IMAGENET/val"
TABLE_3 = Quoted(
    "Table 3: other backbones without training",
    "SWAG at 384 px. The paper does not name the sizes: by cost AugReg is ViT-S/16, SWAG is "
    "ViT-B/16",
    ("", "AugReg", "G", "LV-ViT-S", "G", "MAE", "G", "SWAG", "G"),
    (
        ("unpruned", "81.41", "4.55", "83.3", "6.6", "83.62", "55.4", "85.30", "55.6"),
        ("ATS", "79.21", "2.80", "80.4", "3.5", "82.07", "42.3", "84.21", "43.8"),
        ("ToMe", "79.30", "2.78", "79.8", "3.6", "82.69", "42.2", "85.09", "43.8"),
        ("Zero-TP", "80.22", "2.79", "81.5", "3.5", "82.93", "42.3", "85.17", "43.8"),
    ),
    LARGE,
)

TABLE_6 = Quoted(
    "Table 6: transfer of DeiT-T to seven sets",
    "Fine-tuned on each set, then pruned without training; accuracy %. Pets and flowers, with few "
    "images of each class, are measured under [transfer](#transfer); all [seven sets]"
    "(finetuning.md#the-papers-seven-sets) can be read whole",
    ("", "GFLOPS", "Flowers", "Pets", "DTD", "Indoor67", "CUB200", "Aircraft", "Cars"),
    (
        ("DeiT-T", "1.26", "97.3", "88.6", "73.2", "75.6", "76.8", "78.7", "90.3"),
        ("ATS", "0.90", "94.6", "86.1", "71.0", "72.9", "73.8", "76.0", "88.4"),
        ("ToMe", "0.90", "93.2", "84.7", "69.9", "71.6", "72.9", "75.2", "87.1"),
        ("Zero-TP", "0.91", "95.1", "86.9", "70.9", "73.7", "74.4", "76.7", "88.2"),
    ),
    "for set in flowers pets dtd indoor67 cub200 aircraft cars; do\n"
    "    zerotprune finetune deit_tiny_patch16_224 --train $set:DIR --val $set:DIR --cost 1 \\\n"
    "        --out $set.safetensors\n"
    "    zerotprune compare deit_tiny_patch16_224 $set:DIR --weights $set.safetensors \\\n"
    "        --cost 0.72 --method zero-tprune-paper ats tome fold --csv results.csv\n"
    "done",
)

TABLE_14 = Quoted(
    "Table 14: large models at about half of the cost, without training",
    "SWAG at 384 px. Here the paper itself has ToMe ahead",
    ("", "LV-ViT-M", "G", "MAE", "G", "SWAG", "G"),
    (
        ("unpruned", "84.0", "12.7", "83.62", "55.4", "85.30", "55.6"),
        ("ATS", "80.9", "6.4", "78.39", "29.1", "81.03", "27.8"),
        ("ToMe", "81.6", "6.3", "78.95", "28.8", "84.59", "28.4"),
        ("Zero-TP", "81.4", "6.3", "78.94", "28.6", "84.04", "28.3"),
    ),
    LARGE,
)

QUOTED = (TABLE_3, TABLE_6, TABLE_14)
