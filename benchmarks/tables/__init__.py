"""The tables of the paper, and comparisons on real models and images."""
