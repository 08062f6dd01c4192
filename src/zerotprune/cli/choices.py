"""How `zerotprune search` shows what it found: a table, what to make of it, rows for the CSV."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..block import Method
from ..cost import Geometry
from ..plan import Plan
from ..schedule import Schedule
from ..search.choice import Choice, Judged, difference, mean_and_error, scores
from ..search.objective import Outcome
from ..search.study import Measure


def table_of(
    title: str,
    measure: Measure,
    unpruned: Judged,
    default: Judged | None,
    rows: Sequence[Judged],
    chosen: Judged | None,
) -> Table:
    """Both halves of every row, and paired differences on the second. Without a chosen one the
    rows are a front, of several costs."""
    found = Table(title=title, header_style="bold", box=SIMPLE_HEAD, padding=0)
    found.add_column("schedule", overflow="fold", min_width=12)
    what = "top-1 %" if measure == "top1" else "KL"
    top1, several = measure == "top1", chosen is None
    columns = ["GMACs"] * several + [f"{what}\n1st half", f"{what}\n2nd half"]
    columns += ["to\nunpruned"] * top1 + ["to the\npaper's form"] * (default is not None)
    columns += ["KL"] * top1 + ["same %"]
    for column in columns:
        found.add_column(column, justify="right", no_wrap=True)
    for each in (unpruned, *([default] if default else []), *rows):
        name = f"→ {each.name}" if each is chosen else each.name
        cells = [name, *([f"{each.gmacs:.3f}"] * several)]
        cells += [_value(each.first, measure), _value(each.second, measure)]
        if top1:  # the KL of the unpruned model is zero: KL is the difference
            cells.append("" if each is unpruned else _change(each, unpruned, measure))
        if default is not None:
            cells.append("" if each in (unpruned, default) else _change(each, default, measure))
        if top1:
            cells.append(f"{each.second.mean_kl:.2f}")
        cells.append(f"{each.second.agreement:.1f}")
        found.add_row(*cells, style="bold" if each is chosen else None)
    return found


def _value(outcome: Outcome, measure: Measure) -> str:
    mean, error = mean_and_error(scores(outcome, measure))
    return f"{mean:.1f} ± {error:.1f}" if measure == "top1" else f"{abs(mean):.3f} ± {error:.3f}"


def _change(own: Judged, other: Judged, measure: Measure) -> str:
    mean, error = difference(own.second, other.second, measure)
    if measure == "kl":
        mean = -mean  # as KL itself: less is better
    return f"{mean:+.1f} ± {error:.1f}" if measure == "top1" else f"{mean:+.3f} ± {error:.3f}"


def remarks(choice: Choice, trials: int) -> list[str]:
    """What a reader of the table has to know before believing it."""
    points = choice.measure == "top1"
    unit, digits = (" points", 2) if points else (" of KL", 4)
    curse, count = choice.curse, len(choice.finalists)
    pictures = len(choice.chosen.second.kl)
    ties = "; equal ones by their KL" if points else ""
    also = "" if choice.default is None else " and the paper's form"
    said = [
        f"Ranked on the first half; the choice among the best {count}{also} was made on the "
        f"second, {pictures} pictures that had no say in the ranking{ties}. Differences are "
        "paired, on the second half, as are KL (unpruned ‖ pruned: less is better) and same (equal "
        "top-1 predictions); ± are standard errors.",
        "Winner's curse: the best of many looks better than it is on the pictures it was chosen "
        f"by. The best {count} of {trials} trials were {abs(curse.first):.{digits}f}{unit} "
        f"{'better' if curse.first >= 0 else 'worse'} on the first half than on the second, "
        "against the unpruned model; of what the chosen one shows on the second half, about "
        f"{curse.second:.{digits}f}{unit} are luck (bootstrap).",
    ]
    if choice.default is not None and choice.chosen is not choice.default:
        mean, error = difference(choice.chosen.second, choice.default.second, choice.measure)
        if mean < 2 * error:
            said.append(f"{pictures} pictures do not tell the chosen one from the paper's form.")
    return said


def rows_of(
    judged: Sequence[Judged],
    unpruned: Judged,
    geometry: Geometry,
    method: Method,
    about: dict[str, object],
) -> list[dict[str, object]]:
    """Rows for the CSV, of the second half: top-1, or without labels the equal predictions."""
    return [_row(each, unpruned, geometry, method) | about for each in judged]


def _row(each: Judged, unpruned: Judged, geometry: Geometry, method: Method) -> dict[str, object]:
    labelled = each.second.hits is not None

    def right(outcome: Outcome) -> Outcome:
        return outcome if labelled else Outcome(outcome.kl, outcome.same, outcome.same)

    own, other = right(each.second), right(unpruned.second)
    mean, error = mean_and_error(scores(own, "top1"))
    change, change_error = difference(own, other, "top1")
    pruned = bool(each.schedule.stages)
    paper = Plan(each.schedule, method, geometry).gmacs("paper")
    return {
        "pictures": len(each.second.kl),
        "measure": "top1" if labelled else "agreement",
        "name": each.name,
        "method": repr(method) if pruned else "",
        "schedule": each.schedule.one_line(),
        "gmacs": round(each.gmacs, 6),
        "gmacs_paper": round(paper, 6),
        "top1": round(mean, 3),
        "top1_error": round(error, 3),
        "change": round(change, 3),
        "change_error": round(change_error, 3),
    }


def in_words(schedule: Schedule) -> str:
    """Stage by stage, as `zerotprune info` does."""
    stages = [
        f"after block {stage.block}: keep {stage.keep:g}"
        + (f", similar {stage.similar}" if stage.similar else "")
        + (f", rounds {stage.rounds}" if stage.rounds is not None else "")
        for stage in schedule.stages
    ]
    return "; ".join(stages) or "no stages"
