"""Plots of measured numbers."""
