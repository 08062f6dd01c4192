"""Run one table of the paper on the real models: contenders, claims, rows of results.csv.

Each table is a file beside this one that opens with the claim. It takes the real weights and
pictures from --shared; `python benchmarks/all.py` runs them all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from zerotprune.budgets.contenders import Contender
from zerotprune.data.images import batches, open_data, transform_for
from zerotprune.data.models import load
from zerotprune.measure import records
from zerotprune.measure.accuracy import Batch, Result, Setting, compare, paired_difference

MODELS = {
    "deit_tiny_patch16_224": "deit_tiny_patch16_224.safetensors",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": "vit_tiny_patch16_224.augreg.safetensors",
}
RESULTS = Path(__file__).with_name("results.csv")


@dataclass(frozen=True)
class Claim:
    """The paper says that the first contender is at least as accurate as the second."""

    text: str
    first: str
    second: str


@dataclass(frozen=True)
class Table:
    name: str
    contenders: Callable[[nn.Module, Tensor], list[Contender]]
    claims: Sequence[Claim] = ()
    models: Sequence[str] = tuple(MODELS)


def options(about: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="weights, pictures")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--limit", type=int, help="only so many pictures, to try it out")
    parser.add_argument("--csv", type=Path, default=RESULTS)
    return parser.parse_args()


def main(about: str | None, tables: Sequence[Table]) -> None:
    """Run the tables, each model and its pictures loaded once, and append all rows."""
    chosen = options(about)
    for name in MODELS:
        model = load(name, weights=chosen.shared / "weights" / MODELS[name]).to(chosen.device)
        held = decoded(model, chosen.shared, chosen.batch, chosen.limit)
        some = spread(held, 128).to(chosen.device)
        for table in tables:
            if name in table.models:
                contenders = [Contender("unpruned"), *table.contenders(model, some)]
                results = compare(model, contenders, held, setting=Setting(chosen.device))
                about_run = {"model": name, "data": "imagenet/report", "batch": chosen.batch}
                write(table, results, about_run, chosen.csv)


def decoded(
    model: nn.Module, shared: Path, batch: int = 100, limit: int | None = None
) -> list[Batch]:
    """The pictures that everything is reported on, through the model's own transform."""
    folder = shared / "imagenet" / "report"
    pictures = open_data(folder, transform=transform_for(model), limit=limit)
    workers = 8 if torch.cuda.is_available() else 2
    return list(batches(pictures, batch, workers=workers, strict=True, report=print))


def spread(held: list[Batch], count: int) -> Tensor:
    """Some of the pictures, from all over the data: one class alone would mislead ATS's budget."""
    pictures = [image for images, _, _ in held for image in images]
    step = max(1, len(pictures) // count)
    return torch.stack(pictures[::step][:count])


def write(table: Table, results: list[Result], about: dict[str, object], path: Path) -> None:
    """Rows for the contenders, then for the claims: paired differences on the same pictures."""
    about = {**about, "table": table.name, "seed": 0, "precision": "float32"}
    rows = [records.row(result, results[0]) | about for result in results]
    by_name = {result.contender.name: result for result in results}
    for claim in table.claims:
        first, second = by_name[claim.first], by_name[claim.second]
        pairs = zip(first.hits, second.hits, strict=True)
        mean, error = paired_difference([int(one) - int(other) for one, other in pairs])
        difference = {"change": round(mean, 3), "change_error": round(error, 3)}
        named = {"name": claim.text, "measure": f"{claim.first} − {claim.second}"}
        rows.append({**about, **named, **difference, "pictures": len(first.hits)})
    records.append(path, rows)
    for row in rows:
        cells = (row.get("gmacs", ""), row.get("top1", ""), row["change"], row["change_error"])
        print(table.name, about["model"], row["name"], *cells, sep=" | ", flush=True)
