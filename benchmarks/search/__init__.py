"""Searched schedules: how they are found, what they gain, how long that takes."""
