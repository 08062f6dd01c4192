"""Loaders of methods, called when a method is looked up by name.

A package with methods adds a loader, and `method.py` calls all loaders before it looks up a name,
so it imports none of the methods itself. There are no imports here: `import zerotprune` adds the
loader of the built-in methods, and must stay light.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take longer than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable

#: each imports modules that define methods, which registers them; cheap if they are imported
LOADERS: list[Callable[[], object]] = []
