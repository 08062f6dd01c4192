"""The command line: one list of commands, each imported only when it is called."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..safety.interrupts import Interrupts


def main() -> None:
    """Run the command that `sys.argv` names, and end the process by SystemExit."""
    # `signal` is an import, in which an interrupt can get lost; this is there when Python starts.
    _signal.signal(_signal.SIGINT, lambda *_: os._exit(130))
    from ..safety.interrupts import INTERRUPTED, Interrupts

    try:
        _run_command(Interrupts())
    except KeyboardInterrupt:  # a second one, while the first was being reported
        os._exit(INTERRUPTED)


def _run_command(interrupts: Interrupts) -> None:
    from .ending import ending

    with ending(interrupts):
        if sys.argv[1:] in (["--help"], ["-h"]):
            interrupts.running()
            _print_commands()
            return
        app = _app(sys.argv[1:])
        _refuse_keep(sys.argv[1:])
        command, bound, _ = app.parse_args(sys.argv[1:], exit_on_error=False, print_error=False)
        if command.__module__.startswith(__package__):
            from .checks import check_call

            check_call(command, bound.arguments)
        interrupts.running()
        command(*bound.args, **bound.kwargs)


def _print_commands() -> None:
    """Print the list of commands as cyclopts does, whose import would take half of the time."""
    try:
        from rich.console import Console
        from rich.panel import Panel
        from rich.table import Table
    except ImportError:
        raise ValueError(_NO_EXTRA) from None

    console = Console(highlight=False)
    console.print("Usage: zerotprune COMMAND\n", style="bold")
    console.print(f"{_SUMMARY}\n")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="cyan", overflow="fold", max_width=-(-console.width * 35 // 100))
    table.add_column(overflow="fold")
    for name, text in (COMMANDS | _OPTIONS).items():
        table.add_row(name, text)
    console.print(Panel(table, title="Commands", title_align="left"))


def _app(arguments: list[str]) -> Any:
    try:
        from cyclopts import App
    except ImportError:
        raise ValueError(_NO_EXTRA) from None

    from .. import __version__

    app = App(
        name="zerotprune",
        help=_SUMMARY,
        version=__version__,
        # The list of commands has no markup, and importing rich.markdown is slow.
        help_format="markdown" if arguments[:1] and arguments[0] in COMMANDS else "plaintext",
    )
    for name, text in COMMANDS.items():
        # The command that is called shows its docstring instead.
        options = {} if arguments[:1] == [name] else {"help": text}
        app.command(f"zerotprune.cli.{name}:{name}", name=name, **options)
    if arguments[:1] and arguments[0] in COMMANDS and {"--help", "-h"} & set(arguments):
        from .options import RangeFormatter

        app.help_formatter = RangeFormatter(app[arguments[0]])
    return app


def _refuse_keep(arguments: list[str]) -> None:
    if any(argument.partition("=")[0] == "--keep" for argument in arguments):
        raise ValueError("--keep is not an option: give --cost, the share of the compute")


_NO_EXTRA = "the command line needs more than torch: pip install 'zerotprune[cli]'"
_SUMMARY = "Faster pre-trained Vision Transformers by pruning tokens, with no training."

COMMANDS = {
    "app": "A local web page: see what pruning does to your own image; offline.",
    "bench": "Speed: pruned, compiled, captured, beside the compiled unpruned model and the limit.",
    "calibrate": "Measure the rounds and the VHF range that suit a model, on your images.",
    "compare": "All methods at several budgets on the same images: table, CSV and plots.",
    "demo": "Prune the built-in model by five methods: a table and an image, offline, two minutes.",
    "drift": "How far pruning moves a model's vectors, and their neighbors; no labels needed.",
    "embed": "Vectors of many images, shard by shard; killed at any moment, it goes on.",
    "evaluate": "Accuracy, cost and speed of a pruned model on labeled images.",
    "export": "Write a pruned model for ONNX Runtime, OpenVINO, ExecuTorch or torch; timed there.",
    "finetune": "Train a model while its tokens are pruned; an interrupted run resumes.",
    "info": "A model's geometry and its cost by block, before and after pruning.",
    "search": "The best schedule for a budget, on your model and images; resumable.",
    "show": "Draw which patches are dropped and kept, stage by stage, with the predictions.",
}
_OPTIONS = {
    "--help (-h)": "Display this message and exit.",
    "--version": "Display application version.",
}
