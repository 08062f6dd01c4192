"""Scoring: the attention graph, similarity, and who computes them on which hardware."""
