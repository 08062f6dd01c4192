"""Two halves of the images: schedules are ranked on the first and chosen on the second."""

from __future__ import annotations

import random
from collections.abc import Sequence


def split(labels: Sequence[int] | None, count: int, seed: int) -> tuple[list[int], list[int]]:
    """Which images are in which half: as many of each class as can be, by chance otherwise.

    The halves differ by one image at most, and so do the images of one class in them.
    """
    if count < 2:
        raise ValueError(f"a search needs two images at least, one for each half; got {count}")
    dice = random.Random(seed)
    classes: dict[int, list[int]] = {}
    for at in range(count):
        classes.setdefault(0 if labels is None else labels[at], []).append(at)
    pairs, single = [], []
    for _, members in sorted(classes.items()):
        dice.shuffle(members)
        if len(members) % 2:
            single.append(members.pop())
        pairs += list(zip(members[::2], members[1::2], strict=True))
    # Neighbours in the list of classes are alike more often than not.
    odd = single.pop() if len(single) % 2 else None
    pairs += list(zip(single[::2], single[1::2], strict=True))
    first, second = [], []
    for one, other in pairs:
        if dice.random() < 0.5:
            one, other = other, one
        first.append(one)
        second.append(other)
    if odd is not None:
        first.append(odd)
    return sorted(first), sorted(second)
