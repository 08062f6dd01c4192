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
    asked = sys.argv[1:2]
    for name, text in COMMANDS.items():
        # The command that is asked for has more to say of itself than the list of all of them.
        given = {} if [name] == asked else {"help": text}
        app.command(f"zerotprune.cli.{name}:{name}", name=name, **given)
    try:
        if any(argument.partition("=")[0] == "--keep" for argument in sys.argv):
            raise ValueError("a budget is --cost, the share of the compute; keep is a stage's own")
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
    "app": "A local web page: see what pruning does to your own image; offline.",
    "bench": "Speed: pruned, compiled, captured, beside the compiled unpruned model and the limit.",
    "calibrate": "The rounds and the VHF range that a model wants, from your images.",
    "compare": "All methods at several budgets on the same images: table, CSV and plots.",
    "demo": "Prune the built-in model by five methods: a table and an image, offline, two minutes.",
    "evaluate": "Accuracy, cost and speed of a pruned model on labelled images.",
    "export": "Write a pruned model for ONNX Runtime, OpenVINO, ExecuTorch or torch; timed there.",
    "info": "A model's geometry, its cost by block, and what a schedule makes of it.",
    "search": "The best schedule for a budget, on your model and images; resumable.",
    "show": "Draw which patches are dropped and kept, stage by stage, with the predictions.",
}
