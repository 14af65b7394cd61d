"""Step times fitted to recordings (`kvsim calibrate`), and the errors that remain.

`calibrate` fits the coefficients of a profile, `calibrate_host` adapts a profile to another host, and `calibrate_card`
fits the factors of a machine card.
"""

from kvsim.calibration.card_factors import calibrate_card
from kvsim.calibration.coefficient_fit import calibrate
from kvsim.calibration.host import calibrate_host

__all__ = ["calibrate", "calibrate_card", "calibrate_host"]
