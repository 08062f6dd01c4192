"""Calibration: the rounds and the VHF range that a model needs, measured on the user's images."""
