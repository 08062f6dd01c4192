"""All tables of accuracy without training, in the order in which they run."""

from __future__ import annotations

from benchmarks.tables import (
    ablations,
    contribution,
    depth_adaptive,
    dinov2,
    fold,
    gap,
    off_the_shelf,
    order,
    published,
    rule_or_counts,
    scaling,
    tome_r,
)

TABLES = (contribution.TABLE, *ablations.TABLES, order.TABLE, published.TABLE, gap.TABLE,
          depth_adaptive.TABLE, off_the_shelf.TABLE, scaling.TABLE, fold.TABLE,
          rule_or_counts.TABLE, tome_r.TABLE,
          dinov2.TABLE)  # fmt: skip
