"""Tables in other pages, written between two marks from the rows of results.csv."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.claims import Row, signed, verdict
from benchmarks.inputs import MODELS
from benchmarks.summary import SHORT
from benchmarks.tables import rule_or_counts
from zerotprune.methods import DEFAULT

COSTS = ("0.85", "0.7", "0.55", "0.45")
#: those that fold.md sets beside Fold: the nearest by divergence
NEAREST = (DEFAULT, "mctf", "mctf-fold", "diffrate", "tome", "atc")

#: a page, the mark of a table in it, and the table's lines from the rows
Insert = tuple[str, str, Callable[[Sequence[Row]], list[str]]]


def inserts() -> list[Insert]:
    """Return the tables of rows that `newest` returns, each with its page and its mark."""
    return [
        ("measuring.md", "rows", off_the_shelf), ("searching.md", "rows", searched),
        ("fold.md", "rows", nearest), ("fold.md", "rows by rule and counts", by_rule),
    ]  # fmt: skip


def refresh(inserts: Iterable[Insert], rows: Sequence[Row], docs: Path) -> None:
    """Rewrite the tables in a folder of pages; one without rows stays as it is."""
    for page, mark, table in inserts:
        path, lines = docs / page, table(rows)
        if path.exists() and lines:
            path.write_text(inserted(path.read_text("utf-8"), lines, mark), encoding="utf-8")


def inserted(text: str, lines: Sequence[str], mark: str) -> str:
    """Put lines between the marks of a text, if it has them.

    >>> inserted("a\\n<!-- rows -->\\nold\\n<!-- end of rows -->\\nb", ["new"], "rows")
    'a\\n<!-- rows -->\\nnew\\n<!-- end of rows -->\\nb'
    """
    before, begin, rest = text.partition(f"<!-- {mark} -->")
    _, end, after = rest.partition(f"<!-- end of {mark} -->")
    return "\n".join([before + begin, *lines, end + after]) if end else text


def off_the_shelf(rows: Sequence[Row]) -> list[str]:
    """List what each method loses, at every cost on both models."""
    by_name = {(row["model"], row["name"]): row for row in rows if row["table"] == "off-the-shelf"}
    names = dict.fromkeys(name.partition(" @ ")[0] for _, name in by_name if " @ " in name)
    if not names:
        return []
    header = ["change in top-1 at"]
    for model in MODELS:
        header += [f"{SHORT[model]} {COSTS[0]}", *COSTS[1:]]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for name in names:
        cells = [by_name.get((model, f"{name} @ {cost}")) for model in MODELS for cost in COSTS]
        changes = " | ".join("" if row is None else signed(row) for row in cells)
        lines.append(f"| {f'**{name}**' if name == DEFAULT else name} | {changes} |")
    return lines


def nearest(rows: Sequence[Row]) -> list[str]:
    """List change and divergence of Fold and its nearest rivals, cost by cost."""
    by_name = {(row["model"], row["name"]): row for row in rows if row["table"] == "off-the-shelf"}
    header = ["cost", "method", *(cell for model in MODELS for cell in (SHORT[model], "KL"))]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for cost in COSTS:
        for name in NEAREST:
            of_cost = [by_name.get((model, f"{name} @ {cost}")) for model in MODELS]
            if any(of_cost):
                cells = (cell for row in of_cost for cell in (
                    (signed(row), f"{float(row['kl']):.4f}") if row else ("", "")))  # fmt: skip
                label = f"**{name}**" if name == DEFAULT else name
                lines.append(f"| {cost} | {label} | {' | '.join(cells)} |")
    return lines if len(lines) > 2 else []


def by_rule(rows: Sequence[Row]) -> list[str]:
    """List the divergence of each rule with the counts of each, at both costs on both models."""
    named = rule_or_counts.TABLE.name
    divergence = {(row["model"], row["name"]): float(row["kl"]) for row in rows
             if row["table"] == named and row["schedule"] and row["kl"]}  # fmt: skip
    costs = rule_or_counts.COSTS
    header = ["rule", "counts", *(f"{SHORT[model]} {cost:g}" for model in MODELS for cost in costs)]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for counts in rule_or_counts.COUNTS:
        for rule in (*rule_or_counts.RULES, rule_or_counts.PUBLISHED):
            names = [(model, rule_or_counts.label(rule, counts, cost))
                     for model in MODELS for cost in costs]  # fmt: skip
            if any(name in divergence for name in names):
                cells = (f"{divergence[name]:.4f}" if name in divergence else "" for name in names)
                lines.append(f"| {rule} | {counts}'s | {' | '.join(cells)} |")
    return lines if len(lines) > 2 else []


def searched(rows: Sequence[Row]) -> list[str]:
    """List what a search gains over both forms; differences of two standard errors are bold."""
    searched = [row for row in rows if row["table"] == "searched" and row["model"] in MODELS
           and row["name"].startswith("searched beats ")]  # fmt: skip
    budgets = sorted({row["name"].rpartition(" at ")[2] for row in searched})
    if not budgets:
        return []
    lines = [f"| searched against | {' | '.join(reversed(budgets))} |"]
    lines.append("|---" * (len(budgets) + 1) + "|")
    for model in MODELS:
        for form in ("paper's form", "early form"):
            for value, label, digits in (("change", "top-1", 2), ("kl", "KL less by", 3)):
                cells = []
                for budget in reversed(budgets):
                    wanted = (model, f"searched beats {form} at {budget}")
                    row = next(
                        candidate
                        for candidate in searched
                        if (candidate["model"], candidate["name"]) == wanted
                    )
                    apart = signed(row, value, digits)
                    decided = verdict(row, value) != "inconclusive"
                    cells.append(f"**{apart}**" if decided else apart)
                lines.append(f"| {SHORT[model]}, {form}: {label} | {' | '.join(cells)} |")
    return lines
