"""How fast pruned models are, when that pays, and whether the kernels are right."""
