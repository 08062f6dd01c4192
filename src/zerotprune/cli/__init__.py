"""The command line: one list of commands, each imported only when it is called."""

from __future__ import annotations

import os
import sys


def main() -> None:
    try:
        from cyclopts import App, CycloptsError
    except ImportError:
        sys.exit("the command line needs more than torch: pip install 'zerotprune[cli]'")

    from .. import __version__

    app = App(
        name="zerotprune",
        help="Faster pre-trained Vision Transformers by pruning tokens, with no training.",
        version=__version__,
    )
    for name, text in COMMANDS.items():
        app.command(f"zerotprune.cli.{name}:{name}", name=name, help=text)
    try:
        app(exit_on_error=False)
    except CycloptsError:
        sys.exit(2)  # cyclopts has said what is wrong
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, TypeError, OSError) as error:
        if os.environ.get("ZEROTPRUNE_TRACEBACK"):
            raise
        print(f"zerotprune: {error}", file=sys.stderr)
        sys.exit(2)


COMMANDS = {
    "app": "A local web page: see what pruning does to your own picture; offline.",
    "bench": "Speed: pruned, compiled, captured, beside the compiled unpruned model and the limit.",
    "calibrate": "The rounds and the VHF range that a model wants, from your pictures.",
    "compare": "All methods at several budgets on the same pictures: table, CSV and plots.",
    "demo": "Prune the built-in model: a table and a picture, offline, in a minute.",
    "evaluate": "Accuracy, cost and speed of a pruned model on labelled pictures.",
    "info": "A model's geometry, its cost by block, and what a schedule makes of it.",
    "search": "The best schedule for a budget, on your model and pictures; resumable.",
    "show": "Draw which patches are dropped and kept, stage by stage, with the predictions.",
}
