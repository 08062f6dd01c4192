"""Show what was pruned: an image's story, stage by stage, and the ways to draw it."""
