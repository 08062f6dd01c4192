"""Check what users give: numbers by one table of ranges for arguments, options and their help;
words by their choices."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Range(NamedTuple):
    """From `least` to `most`, inclusive; with `above`, `least` itself is excluded."""

    least: float
    most: float
    above: bool = False

    def __str__(self) -> str:
        return f"{'above ' if self.above else ''}{_format(self.least)} to {_format(self.most)}"

    def check(self, name: str, value: float) -> None:
        """Refuse a number outside of the range; NaN is outside. `name` is for the message."""
        if (value > self.least or (value == self.least and not self.above)) and value <= self.most:
            return
        if value > self.most:
            wanted = f"at most {_format(self.most)}"
        else:
            wanted = f"{'above' if self.above else 'at least'} {_format(self.least)}"
        raise ValueError(f"{name} must be {wanted}, got {value}")


#: By argument name. The upper bounds are far beyond any use: they catch typing errors that would
#: take all memory, or run forever.
RANGES = {
    "actors": Range(1, 10_000),
    "batch": Range(1, 65536),
    "cache_gb": Range(0, 100_000),
    "classes": Range(1, 1_000_000),
    "cost": Range(0, 1, above=True),
    "cutmix": Range(0, 100),
    "ema": Range(0, 0.999999),
    "epochs": Range(1, 100_000),
    "evaluations": Range(0, 10_000),
    "finalists": Range(1, 10_000),
    "gmacs": Range(0, 1_000_000, above=True),
    "images": Range(1, 1_000_000),
    "label_smoothing": Range(0, 0.9),
    "latency_ms": Range(0, 10_000_000, above=True),
    "limit": Range(1, 1_000_000_000),
    "logit_weight": Range(0, 1000),
    "lr": Range(0, 10, above=True),
    "max_changed": Range(0, 1),
    "mixup": Range(0, 100),
    "new_lr": Range(0, 10, above=True),
    "panels": Range(2, 1000),
    "port": Range(1, 65535),
    "rounds": Range(1, 1000),
    "samples": Range(0, 1000),
    "seed": Range(0, 2**32 - 1),
    "size": Range(8, 4096),
    "speedup": Range(1, 1000, above=True),
    "threads": Range(1, 1024),
    "threshold": Range(0, 1, above=True),
    "token_weight": Range(0, 1000),
    "trials": Range(1, 10_000_000),
    "weight_decay": Range(0, 10),
    "workers": Range(0, 256),
}


def check_range(name: str, value: float, called: str | None = None) -> None:
    """Refuse a number outside its range.

    Args:
        name: In the table.
        value: The number.
        called: The name for the error message. Default: `name`.

    >>> check_range("batch", 0)
    Traceback (most recent call last):
    ValueError: batch must be at least 1, got 0
    """
    RANGES[name].check(called or name, value)


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse a word that is not one of the choices.

    >>> check_choice("pool", "max", ("own", "cls", "mean"))
    Traceback (most recent call last):
    ValueError: pool must be one of own, cls, mean, got 'max'
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _format(value: float) -> str:
    return f"{value:,}" if value >= 10_000 else f"{value:g}"
