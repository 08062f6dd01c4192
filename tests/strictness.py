"""How strictly types are checked in the tests: an int may stand where a float is wanted."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
