"""Data: images and their sources, models by name, and the built-in demo."""
