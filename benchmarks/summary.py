"""The first page of the results, docs/results.md: what holds and what does not."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.claims import Row, Verdict, is_claim, models_of, signed, verdict
from benchmarks.inputs import MODELS
from benchmarks.tables.gap import FREE, READINGS, ROUNDS
from benchmarks.tables.printed import TABLE_2_FASTER
from benchmarks.tables.table import Claim, Table
from zerotprune import Schedule
from zerotprune.measure.accuracy import UNPRUNED

SHELF = "off-the-shelf"
SHORT = dict(zip(MODELS, ("DeiT-Ti", "ViT-Ti"), strict=True))
#: the page's choice of methods and costs; the appendix has all of them
METHODS = ("fold", "mctf", "diffrate", "tome", "atc", "ats", "evit", "zero-tprune",
           "zero-tprune-paper", "random")  # fmt: skip
COSTS = ("0.7", "0.55")
SPEEDS = (("float32", "eager"), ("bfloat16", "graph"))
#: the budget of the speed table, and how far a schedule may be from it
GMACS, NEAR = 3.0, 0.1

HEAD = (
    "DeiT-Ti and AugReg ViT-Ti off the shelf, float32, 2,000 or 3,000 ImageNet images (the paper: "
    "larger models, 50,000 images); changes in points of top-1 with paired standard errors. All "
    "tables and commands: [appendix](results-appendix.md)."
)
WIDTH = 128
PLOT = "![{}]({})"


class Judged(NamedTuple):
    """A claim of the paper and its row on each model."""

    table: str
    text: str
    rows: Mapping[str, Row]

    @property
    def verdicts(self) -> set[Verdict]:
        return {verdict(row) for row in self.rows.values()}

    @property
    def outcome(self) -> str:
        where = "both" if len(self.verdicts) == 1 and len(self.rows) > 1 else "one"
        if "disagrees" in self.verdicts:
            return f"**fails on {where}**"
        return f"holds on {where}" if "agrees" in self.verdicts else "inconclusive"


def first_page(rows: Sequence[Row], tables: Mapping[str, Table]) -> str:
    """Write the page from rows, so that it says what the tables say."""
    claims = judged(rows, tables)
    parts = [
        "# Results\n",
        f"{textwrap.fill(HEAD, WIDTH)}\n",
        "## The paper's claims\n",
        *_claims(claims),
        "",
    ]
    parts += [_item(text) for text in (*_inconclusive(claims, tables), *_gap(rows))]
    parts += ["", "## Methods at equal cost\n", *_methods(rows), ""]
    parts += [
        _item(text)
        for text in (*_fold(rows), *_tome(rows), *_untrained(rows), *_away(rows), *_limits())
    ]
    parts += ["", *_plots(rows), *_speed(rows)]
    return "\n".join(parts).rstrip() + "\n"


def is_paper_claim(row: Row, tables: Mapping[str, Table]) -> bool:
    """Is this a claim of the paper, not only of ours?"""
    return claim_of(row, tables) is not None


def claim_of(row: Row, tables: Mapping[str, Table]) -> Claim | None:
    """Return the paper's claim that a row tests."""
    table = tables.get(row["table"])
    claims = () if table is None else table.claims
    return next((claim for claim in claims if claim.text == row["name"] and not claim.ours), None)


def judged(rows: Sequence[Row], tables: Mapping[str, Table]) -> list[Judged]:
    """Gather the rows of each claim of the paper, on the two models of this page."""
    by_claim: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if is_claim(row) and row["model"] in SHORT and is_paper_claim(row, tables):
            by_claim.setdefault((row["table"], row["name"]), {})[row["model"]] = row
    return [Judged(table, text, by_model) for (table, text), by_model in by_claim.items()]


def _claims(claims: Sequence[Judged]) -> Iterator[str]:
    """List the claims that at least one model decides.

    Those on methods off the shelf are left out: the table of methods shows them.
    """
    yield f"| claim | {' | '.join(SHORT.values())} | |"
    yield "|---" * (2 + len(SHORT)) + "|"
    order = ("holds on both", "holds on one", "**fails on one**", "**fails on both**")
    for outcome in order:
        for claim in claims:
            if claim.outcome == outcome and claim.table != SHELF:
                cells = (signed(claim.rows[model]) if model in claim.rows else ""
                         for model in SHORT)  # fmt: skip
                yield f"| {claim.text} | {' | '.join(cells)} | {outcome} |"


def _inconclusive(claims: Sequence[Judged], tables: Mapping[str, Table]) -> Iterator[str]:
    """Count the claims that no model decides."""
    inconclusive = [claim for claim in claims if claim.outcome == "inconclusive"]
    if not inconclusive:
        return
    errors = [float(row["change_error"]) for claim in inconclusive for row in claim.rows.values()]
    printed = [apart for claim in inconclusive if (apart := _printed(claim, tables)) is not None]
    paper = ""
    if printed:
        paper = f" The paper's differences there are {min(printed):.1f} to {max(printed):.1f}."
    yield (
        f"**Inconclusive:** {len(inconclusive)} of {len(claims)} claims, less than two standard "
        f"errors from zero on every model.{paper} The errors here are {min(errors):.2f} to "
        f"{max(errors):.2f}.{_elsewhere(claims)}"
    )


def _elsewhere(claims: Sequence[Judged]) -> str:
    """Count the decided claims that the table of methods shows."""
    outcomes = [claim.outcome.strip("*") for claim in claims if claim.table == SHELF]
    decided = [outcome for outcome in outcomes if outcome != "inconclusive"]
    counts = (f"{outcome} ({decided.count(outcome)})" for outcome in dict.fromkeys(decided))
    return f" Claims about the next table: {', '.join(counts)}." if decided else ""


def by_divergence(claims: Sequence[Judged]) -> Iterator[str]:
    """Count the differences that have the paper's sign if judged by KL divergence."""
    by_kl = [verdict(row, "kl") for claim in claims for row in claim.rows.values() if row["kl"]]
    if by_kl:
        yield (
            "By divergence from the unpruned model (KL), which is less noisy but not what the "
            f"paper claims, {by_kl.count('agrees')} of {len(by_kl)} differences have the paper's "
            f"sign, {by_kl.count('disagrees')} the other, {by_kl.count('inconclusive')} are "
            "inconclusive."
        )


def _printed(claim: Judged, tables: Mapping[str, Table]) -> float | None:
    """Return the difference that the paper prints for a claim, in points."""
    table = tables[claim.table]
    made = claim_of(next(iter(claim.rows.values())), tables)
    if made is None or made.less or table.printed is None:
        return None
    first, second = (table.printed.cells.get(name) for name in (made.first, made.second))
    return None if first is None or second is None else abs(first.top1 - second.top1)


def _gap(rows: Sequence[Row]) -> Iterator[str]:
    gaps = [row for row in rows if row["table"] == "the largest gap" and not is_claim(row)]
    before = {row["model"]: float(row["change"]) for row in gaps if row["name"] == "paper's form"}

    def moved(names: Sequence[str]) -> str:
        by = [float(row["change"]) - before[row["model"]] for row in gaps if row["name"] in names]
        return f"{min(by):+.1f} to {max(by):+.1f}" if by else ""

    read, free = moved((ROUNDS, *READINGS)), moved(FREE)
    papers = _changes(gaps, "paper's form")
    if before and read:
        text = (
            "**The largest gap:** the paper loses 0.7 points at −45 % (DeiT-S, schedule not "
            f"printed). At 0.55 of the cost `zero-tprune-paper` loses {papers}{_stages_of(gaps)}. "
            f"Other readings of the text change that by {read} points"
        )
        text += f", what Sec. 4.2 leaves free by {free}" if free else ""
        yield f"{text}. Searched schedules lose {_changes(gaps, 'searched')}."


def _stages_of(rows: Sequence[Row]) -> str:
    """Say which stages the paper's form has, from its row."""
    text = next(row["schedule"] for row in rows if row["name"] == "paper's form")
    stages = Schedule.from_json(text).stages
    blocks = ", ".join(str(stage.block) for stage in stages)
    similar = {stage.similar for stage in stages}
    counts = f"with {similar.pop()} similar tokens each" if len(similar) == 1 else "with S-stages"
    return f": stages at blocks {blocks} {counts}"


def _methods(rows: Sequence[Row]) -> Iterator[str]:
    """List what each method loses and how far it diverges."""
    by_name = {(row["model"], row["name"]): row for row in rows if row["table"] == SHELF}
    heads = [f"{name} at {cost}" for name in SHORT.values() for cost in COSTS]
    yield f"| change (KL) | {' | '.join(heads)} |"
    yield "|---" * (1 + len(heads)) + "|"
    for name in METHODS:
        of_method = [by_name.get((model, f"{name} @ {cost}")) for model in SHORT for cost in COSTS]
        if any(of_method):
            cells = (f"{signed(row)} ({float(row['kl']):.3f})" if row else "" for row in of_method)
            yield f"| {name} | {' | '.join(cells)} |"


def _fold(rows: Sequence[Row]) -> Iterator[str]:
    """Say which method diverges least, and in how many cases."""
    cases: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["table"] == SHELF and row["kl"] and " @ " in row["name"]:
            name, _, cost = row["name"].partition(" @ ")
            cases.setdefault((row["model"], cost), {})[name] = float(row["kl"])
    if not cases:
        return
    first = sum(min(case, key=case.__getitem__) == "fold" for case in cases.values())
    yield (
        f"**Fold**, ours, learns nothing and diverges least in {first} of {len(cases)} cases "
        f"({len({model for model, _ in cases})} models, {len({cost for _, cost in cases})} costs); "
        "DiffRate learned from labels."
    )


def _tome(rows: Sequence[Row]) -> Iterator[str]:
    changes: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["table"] == SHELF and " @ " in row["name"]:
            name, _, cost = row["name"].partition(" @ ")
            changes.setdefault((row["model"], cost), {})[name] = float(row["change"])
    wanted = ("tome", "zero-tprune", "zero-tprune-paper")
    cases = [[change[name] for name in wanted] for change in changes.values()
             if change.keys() >= set(wanted)]  # fmt: skip
    if cases:
        ahead = sum(tome > max(others) for tome, *others in cases)
        yield (
            "**ToMe**, last in the paper's Table 6 (DeiT-T, seven other sets), loses less than "
            f"both Zero-TPrunes in {ahead} of {len(cases)} cases."
        )


def _untrained(rows: Sequence[Row]) -> Iterator[str]:
    """Say whether methods made for training are worth anything without it."""
    changes: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["table"] == SHELF and " @ " in row["name"]:
            name, _, cost = row["name"].partition(" @ ")
            changes.setdefault((row["model"], cost), {})[name] = float(row["change"])
    parts = []
    for name, label in (("dynamicvit", "DynamicViT"), ("a-vit", "A-ViT")):
        cases = [change for change in changes.values() if {name, "random"} <= change.keys()]
        if cases:
            worse = sum(case[name] < case["random"] for case in cases)
            parts.append(f"{label} in {worse} of {len(cases)} cases")
    if parts:
        # The paper takes both for random dropping.
        yield f"**Untrained**, these do worse than random dropping: {', '.join(parts)}."


def _away(rows: Sequence[Row]) -> Iterator[str]:
    """Name the methods that were measured on another machine than the unpruned model."""
    shelf = [row for row in rows if row["table"] == SHELF and row["model"] in SHORT]
    home = {row["hardware"] for row in shelf if row["name"] == UNPRUNED.name}
    names: dict[str, dict[str, None]] = {}
    for row in shelf:
        name, at, _ = row["name"].partition(" @ ")
        if at and home and row["hardware"] not in home:
            names.setdefault(row["hardware"], {})[name] = None
    for hardware, some in names.items():
        yield (
            f"Measured in another run, on {hardware}: {', '.join(some)}. The images are the same, "
            "in float32 too, and changes are against that run's unpruned model."
        )


def _limits() -> Iterator[str]:
    yield (
        "**Trained** methods: [transfer](results-appendix.md#transfer). **Not measured:** "
        "classifiers larger than ViT-Ti."
    )


def _plots(rows: Sequence[Row]) -> Iterator[str]:
    tables = {row["table"] for row in rows}
    if SHELF in tables:
        yield PLOT.format("All methods on DeiT-Ti: change in accuracy against GMACs",
                          "off-the-shelf-deit_tiny-gmacs.png")  # fmt: skip
    if "curve" in tables:
        yield PLOT.format("Fold and Zero-TPrune on both models, from mild to aggressive",
                          "curve.png")  # fmt: skip
    yield ""


def _speed(rows: Sequence[Row]) -> Iterator[str]:
    """List Table 2's throughput near one budget, in the slowest and in the fastest way to run."""
    timed = [row for row in rows if row["table"] == "Table 2's throughput"]
    rates = {(row["name"], row["precision"], row["mode"]): float(row["images_per_second"])
             for row in timed if row["images_per_second"]}  # fmt: skip
    ways = [way for way in SPEEDS if ("unpruned", *way) in rates]
    if not ways:
        return
    where = f"{timed[0]['hardware']}, batch {timed[0]['batch']}"
    yield f"## Speed at {GMACS:g} GMACs: DeiT-S, {where}\n"
    yield (
        f"| speedup | GMACs | {', '.join(ways[0])} |"
        + "".join(f" {', '.join(way)} |" for way in ways[1:])
        + " paper, A100 |"
    )
    yield "|---" * (3 + len(ways)) + "|"
    for name in dict.fromkeys(row["name"] for row in timed):
        gmacs = float(next(row["gmacs_paper"] for row in timed if row["name"] == name) or 0)
        if abs(gmacs - GMACS) < NEAR:
            cells = [f"{rates[(name, *way)] / rates[('unpruned', *way)]:.2f}×"
                     if (name, *way) in rates else "" for way in ways]  # fmt: skip
            paper = TABLE_2_FASTER.get(name)
            cells = [f"{gmacs:.2f}", *cells, f"{paper:.2f}×" if paper else ""]
            yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    yield (
        f"Random weights, one run at commit {timed[0]['commit']}. "
        "GMACs as the paper counts; it does not state its precision."
    )


def _changes(rows: Sequence[Row], name: str) -> str:
    """Format what a row lost on each model."""
    named = [row for row in rows if row["name"] == name]
    return " and ".join(
        f"{signed(row)} ({SHORT.get(model, model)})"
        for model in models_of(named)
        for row in named
        if row["model"] == model
    )


def _item(text: str) -> str:
    """Format a list item, wrapped."""
    return textwrap.fill(f"- {text}", WIDTH, subsequent_indent="  ", break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip
