"""Where methods come from: what to call when a method is asked for by its name.

Whoever brings methods adds a loader, and `method.py` calls the loaders before it looks a name up.
So the socket knows none of the methods above it. There are no imports here: `import zerotprune`
adds the loader of the built-in methods, and must stay light.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable

#: each imports modules that define methods, which registers them; cheap if they are imported
LOADERS: list[Callable[[], object]] = []
