"""Check what users give: numbers by one table of ranges for arguments, options and their help;
words by their choices; options of a method by their types."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, cast, get_args, get_origin


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


def check_number(name: str, value: object) -> None:
    """Raise unless the value is a number in the range of that name."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    check_range(name, cast(float, value))


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse a word that is not one of the choices.

    >>> check_choice("pool", "max", ("own", "cls", "mean"))
    Traceback (most recent call last):
    ValueError: pool must be one of own, cls, mean, got 'max'
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def checked_kind(name: str, value: object, kind: Any) -> Any:
    """Return a value as the plain type that was declared for it, or refuse another one.

    Args:
        name: Of the value, for the message.
        value: What a user gave.
        kind: Its declared type: bool, int, float, None, words, tuples of these, or unions. Any
            other is not checked.

    >>> checked_kind("stages", "4", int | None)
    Traceback (most recent call last):
    ValueError: stages must be a whole number or None, got '4'
    """
    kinds = _alternatives(kind)
    for one in kinds:
        plain = _plain(value, one)
        if plain is not _OTHER:
            return plain
    raise ValueError(f"{name} must be {' or '.join(map(_words, kinds))}, got {value!r}")


_OTHER = object()


def _alternatives(kind: Any) -> list[Any]:
    """Return the members of a union; all of its words as one."""
    if get_origin(kind) not in (Union, UnionType):
        return [kind]
    members = [member for part in get_args(kind) for member in _alternatives(part)]
    words = [word for part in members if get_origin(part) is Literal for word in get_args(part)]
    others = [member for member in members if get_origin(member) is not Literal]
    return [Literal[tuple(words)], *others] if words else others


def _plain(value: Any, kind: Any) -> Any:
    """Return the value as the type; `_OTHER` if it is none of it."""
    if get_origin(kind) is Literal:
        known = ((type(word), word) for word in get_args(kind))
        return value if (type(value), value) in known else _OTHER
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if not isinstance(value, tuple):
            return _OTHER
        if kinds[1:] == (...,):
            kinds = kinds[:1] * len(value)
        if len(value) != len(kinds):
            return _OTHER
        parts = tuple(map(_plain, value, kinds))
        return _OTHER if any(part is _OTHER for part in parts) else parts
    is_bool = isinstance(value, bool)
    if kind is bool or kind is NoneType:
        return value if isinstance(value, kind) else _OTHER
    if kind is int:
        return int(value) if isinstance(value, Integral) and not is_bool else _OTHER
    if kind is float:
        try:
            is_number = isinstance(value, Real) and not is_bool and math.isfinite(value)
        except OverflowError:  # a whole number that no float can hold
            is_number = False
        return float(value) if is_number else _OTHER
    return value


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        return "a tuple" if kinds[1:] == (...,) else f"{len(kinds)} numbers"
    known = {bool: "true or false", NoneType: "None", int: "a whole number", float: "a number"}
    return known.get(kind, str(kind))


def _format(value: float) -> str:
    return f"{value:,}" if value >= 10_000 else f"{value:g}"
