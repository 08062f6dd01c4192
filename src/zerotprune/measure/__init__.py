"""Measuring: accuracy, speed, and the records that say how a number came about."""
