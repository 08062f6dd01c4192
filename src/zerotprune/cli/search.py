"""`zerotprune search`: the best schedule for a budget, on one's own model and pictures."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from ..files import check_writable
from ..measure import records
from ..plots import figures
from ..plots.search import search_figure
from ..pruning import restore_, schedule_for
from ..schedule import Schedule
from ..search import choice as choosing
from ..search.choice import Judged, choose, front, thinned
from ..search.storage import Place, check_target, noted
from ..search.study import Finished, Order, Sampler, finished
from .choices import in_words, remarks, rows_of, table_of
from .search_options import Budget, SearchSubject
from .search_session import Session, start


@dataclass(frozen=True)
class Output:
    """Where the results go."""

    out: Path
    figure: Path | None
    csv: Path | None
    timed: bool  # is the chosen one's latency to be told?


def search(
    subject: SearchSubject,
    budget: Budget | None = None,
    *,
    out: Path = Path("schedule.json"),
    trials: int = 200,
    sampler: Sampler = "random",
    finalists: int = 8,
    workers: int = 1,
    storage: str | None = None,
    study: str = "search",
    figure: Path | None = None,
    csv: Path | None = None,
    cache_gb: float = 4.0,
    seed: int = 0,
) -> None:
    """Find the best schedule for a budget by Monte-Carlo search, and write it as JSON.

    The same command again goes on where it was stopped or killed. Ctrl-C ends it with the best so
    far, and exit code 130.

    Parameters
    ----------
    out
        The schedule, for --schedule of other commands. With nsga2, a file for each schedule that
        is shown of the front, with its GMACs in the name.
    trials
        Schedules to try: the exact total over all workers and resumptions.
    sampler
        random; tpe, which learns from earlier trials; or nsga2 for the whole accuracy–cost front,
        without a budget.
    finalists
        So many of the best on the first half of the pictures; the second half chooses among them
        and a schedule of the paper's form, which stays where nothing better was found.
    workers
        Processes on this machine. More machines: the same command there with the same --storage.
    storage
        A file for the trials, or an Optuna URL (postgresql+psycopg://…). Default: beside --out.
    study
        Its name in the storage.
    figure
        Draw all trials and the chosen one here.
    csv
        Append the rows of the final table to this file.
    cache_gb
        Memory for what the blocks before the first stage compute, which all trials share.
    seed
        Of the sampler and of the halves.
    """
    where = Place(storage or str(out.with_suffix(".trials.db")), study)
    wanted = budget or Budget()
    results = Output(out, figure, csv, timed=wanted.measured)
    _check_numbers(trials=trials, finalists=finalists, workers=workers, batch=subject.batch)
    _check_budget(wanted, sampler)
    _check_targets(results, where)
    if not cache_gb >= 0:
        raise ValueError(f"--cache-gb must be 0 or more, got {cache_gb}")
    session = start(subject, wanted, where, front=sampler == "nsga2", workers=workers, seed=seed,
                    memory=1e9 * cache_gb)  # fmt: skip
    order = Order(trials, session.gmacs, subject.measure, sampler, seed)
    _tell_of_earlier(session, order)
    whole = session.explore(order, workers)
    found = finished(session.study)
    if not whole:
        session.console.print(f"stopped after {len(found)} of {trials} trials: the same command "
                              "goes on from there", style="yellow")  # fmt: skip
    if found and order.budget is None:
        _report_front(session, order, found, finalists, results)
    elif found:
        _report_choice(session, order, found, finalists, results)
    if not whole:
        raise KeyboardInterrupt


def _tell_of_earlier(session: Session, order: Order) -> None:
    """Trials that are there already count, whoever drew them."""
    first, there = noted(session.study, "sampler", order.sampler), len(finished(session.study))
    if there:
        drawn = "" if first == order.sampler else f", begun by --sampler {first}"
        session.console.print(f"{there} trials of {order.trials} are there already{drawn}",
                              style="yellow", highlight=False)  # fmt: skip


def _check_numbers(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")


def _check_budget(budget: Budget, sampler: Sampler) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a search has its own --workers: start it without torchrun")
    if sampler == "nsga2" and budget.given:
        raise ValueError("nsga2 searches all budgets at once: give it none")
    if sampler != "nsga2" and len(budget.given) != 1:
        raise ValueError("give one budget: --gmacs, --keep, --speedup or --latency-ms")
    for name, value in budget.given.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be a positive number, got {value}")
    if budget.speedup is not None and budget.speedup <= 1:
        raise ValueError(f"--speedup must be above 1, got {budget.speedup}")


def _check_targets(results: Output, where: Place) -> None:
    check_writable(results.out)
    if results.figure is not None:
        figures.check_target(results.figure)
    if results.csv is not None:
        records.check_target(results.csv)
    check_target(where)


def _judged(session: Session, name: str, schedule: Schedule) -> Judged:
    return Judged(name, schedule, session.surface.price(schedule), session.first(schedule),
                  session.second(schedule))  # fmt: skip


def _unpruned(session: Session) -> Judged:
    return Judged("unpruned", Schedule(), session.surface.unpruned, session.first.unpruned(),
                  session.second.unpruned())  # fmt: skip


def _report_choice(
    session: Session, order: Order, found: list[Finished], count: int, results: Output
) -> None:
    assert order.budget is not None
    best = choosing.finalists(found, order.measure, count)
    with session.console.status("choosing on the second half"):
        rows = [_judged(session, f"trial {each.number}", each.schedule) for each in best]
        choice = choose(order.measure, _unpruned(session), _default(session, order.budget), rows)
    chosen, default = choice.chosen, choice.default
    chosen.schedule.save(results.out)
    title = f"{_title(session, len(found))}, {order.budget:.3f} GMACs"
    session.console.print(table_of(title, order.measure, choice.unpruned, default, rows, chosen))
    for line in remarks(choice, len(found)):
        session.console.print(line, highlight=False)
    if results.timed:
        _print_latency(session, chosen)
    references = [choice.unpruned, *([] if default is None else [default])]
    if results.figure is not None:
        drawn = search_figure(found, order.measure, rows, chosen, references, title)
        figures.save(drawn, results.figure)
    _append(session, results, [*references, replace(chosen, name="search")], choice.unpruned)
    session.console.print(f"chosen: {chosen.name}: {in_words(chosen.schedule)}", highlight=False)
    session.console.print(f"written: [bold]{results.out}[/bold]", highlight=False)
    restore_(session.model)


def _default(session: Session, budget: float) -> Judged | None:
    """What one gets without a search: the paper's form."""
    try:
        found = schedule_for(session.model, gmacs=budget, method=session.method, tuned=False)
    except ValueError:  # the paper's form does not reach as far as the space does
        return None
    return _judged(session, "paper's form", found)


def _report_front(
    session: Session, order: Order, found: list[Finished], count: int, results: Output
) -> None:
    best = thinned(front(found, order.measure), count)
    with session.console.status("measuring the front on the second half"):
        rows = [_judged(session, f"trial {each.number}", each.schedule) for each in best]
    unpruned, title = _unpruned(session), _title(session, len(found))
    session.console.print(table_of(title, order.measure, unpruned, None, rows, None))
    session.console.print(
        "The front was found on the first half; believe the second, which had no say in it. "
        "Differences are paired, on the second half, ± standard errors.", highlight=False,
    )  # fmt: skip
    if results.figure is not None:
        drawn = search_figure(found, order.measure, rows, None, [unpruned], title)
        figures.save(drawn, results.figure)
    _append(session, results, [unpruned, *rows], unpruned)
    for each in rows:
        number = each.name.replace(" ", "-")
        out = results.out.with_stem(f"{results.out.stem}-{each.gmacs:.3f}-{number}")
        each.schedule.save(out)
        session.console.print(f"written: [bold]{out}[/bold]", highlight=False)
    restore_(session.model)


def _print_latency(session: Session, chosen: Judged) -> None:
    timed = session.time(chosen.schedule)
    session.console.print(
        f"measured at batch {session.subject.batch} on {session.device}: unpruned "
        f"{timed.unpruned:.4g} ms, chosen {timed.pruned:.4g} ms, {timed.speedup:.2f} times as "
        "fast", highlight=False,
    )  # fmt: skip


def _title(session: Session, trials: int) -> str:
    pictures = session.first.count + session.second.count
    return f"{session.subject.model}, {trials} trials, {pictures} pictures in two halves"


def _append(session: Session, results: Output, rows: list[Judged], unpruned: Judged) -> None:
    if results.csv is None:
        return
    subject = session.subject
    about: dict[str, object] = {
        "table": "search",
        "model": subject.model,
        "data": Path(subject.data).name,
        "batch": subject.batch,
        "precision": subject.precision,
        "seed": session.seed,
    }
    geometry, method = session.surface.geometry, session.method
    records.append(results.csv, rows_of(rows, unpruned, geometry, method, about))
