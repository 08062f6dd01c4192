"""Commands in processes that can be killed: forks of one that has imported everything already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_NURSERY = """
import json, os, signal, sys, time
sys.path.insert(0, {place!r})
import torch, timm, accelerate, safetensors.torch, zerotprune.cli.finetune, zerotprune.cli.checks
from zerotprune.cli import main
torch.set_num_threads(1)
for line in sys.stdin:
    arguments, home, others, number, signal_at = json.loads(line)
    children = []
    for rank in range(len(others)):
        child = os.fork()
        if not child:
            os.chdir(home)
            os.environ.update(others[rank])
            out = os.open(f"out{{rank}}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for file in (1, 2):
                os.dup2(out, file)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.argv = ["zerotprune", *arguments]
            try:
                main()
            except SystemExit as ended:
                sys.stdout.flush()
                os._exit(ended.code or 0)
            finally:
                sys.stdout.flush()
            os._exit(0)
        children.append(child)
    if number:
        began = time.monotonic()
        while not os.path.exists(os.path.join(home, signal_at)) and time.monotonic() < began + 60:
            time.sleep(0.005)
        for child in children:
            os.kill(child, number)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(codes), flush=True)
"""


class Forked:
    """Runs commands, and says how they ended and what they said."""

    def __init__(self) -> None:
        code = _NURSERY.format(place=str(Path(__file__).parents[2] / "src"))
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def run(
        self,
        *arguments: str,
        home: Path,
        signal: int = 0,
        once: str = "",
        surroundings: Sequence[dict[str, str]] = ({},),
    ) -> tuple[list[int], str]:
        """A process for each of the `surroundings`. Each gets the signal once the file is there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = (arguments, str(home), list(surroundings), signal, once)
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())
        return codes, (home / "out0.txt").read_text()

    def close(self) -> None:
        self._process.communicate()
