"""Calibration: what rounds and which VHF range one model wants, measured on the user's images."""
