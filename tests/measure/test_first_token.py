"""The command that measures the time to first token runs, with the prompts it says it has."""

from __future__ import annotations

import re

import pytest

from benchmarks.speed import first_token


def test_it_runs_on_tiny_shapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["first_token", "--tiny", "--device", "cpu", "--cost", "0.7"])
    first_token.main()
    lines = capsys.readouterr().out.splitlines()
    counts = [int(match[1]) for line in lines if (match := re.search(r": (\d+) image", line))]
    assert len(counts) == 2 * 2 * 3  # towers, measures, cases
    for whole, grid, fewer in zip(counts[::3], counts[1::3], counts[2::3], strict=True):
        assert whole == grid == 64
        assert 0 < fewer < 40
