"""Fit the step-time model to recordings of one GPU and model, and say how well it fits."""

from kvsim.calibration.fit import calibrate

__all__ = ["calibrate"]
