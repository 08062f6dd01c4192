"""Show what was pruned: a picture's story, stage by stage, and the ways to draw it."""
