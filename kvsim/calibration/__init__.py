"""Fit the step-time model to recordings of one GPU and model, and report the remaining error."""

from kvsim.calibration.card_factors import calibrate_card
from kvsim.calibration.coefficient_fit import calibrate
from kvsim.calibration.host import calibrate_host

__all__ = ["calibrate", "calibrate_card", "calibrate_host"]
