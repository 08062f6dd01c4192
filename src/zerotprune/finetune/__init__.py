"""Fine-tuning: train a model while its tokens are pruned, each method in its own form."""

from . import a_vit, dynamicvit  # each registers its form

__all__ = ["a_vit", "dynamicvit"]
