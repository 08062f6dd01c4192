"""Fine-tuning: train a model while its tokens are pruned, each method in the form it learns in."""

from . import decisions, halting, soft_mask  # each registers its form

__all__ = ["decisions", "halting", "soft_mask"]
