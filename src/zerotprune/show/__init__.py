"""Show what was pruned: follow an image stage by stage, and draw it."""
