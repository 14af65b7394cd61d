"""Requests for a server: their arrivals and their lengths.

A `Workload` is a table of requests, given (by an importer or a recording) or generated from an arrival process and two
length distributions. It knows nothing of blocks, schedulers or clocks.

Everything named here is imported when it is first used: who needs one column does not load what generates them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.on_demand import names_of

if TYPE_CHECKING:
    from kvsim.workload.arrivals import AllAtOnce, Arrivals, Constant, Gamma, Poisson
    from kvsim.workload.columns import LONGEST_S, MAX_TOKENS, Numbered, Ragged
    from kvsim.workload.lengths import Empirical, Fixed, Lengths, LogNormal, Uniform
    from kvsim.workload.request import Request, SharedPrefix
    from kvsim.workload.synthetic import SharedPrefixes, generate
    from kvsim.workload.table import Workload, WorkloadSummary, check_fits
    from kvsim.workload.varying import Varying

_HOME = {
    "AllAtOnce": "kvsim.workload.arrivals",
    "Arrivals": "kvsim.workload.arrivals",
    "Constant": "kvsim.workload.arrivals",
    "Empirical": "kvsim.workload.lengths",
    "Fixed": "kvsim.workload.lengths",
    "Gamma": "kvsim.workload.arrivals",
    "LONGEST_S": "kvsim.workload.columns",
    "Lengths": "kvsim.workload.lengths",
    "LogNormal": "kvsim.workload.lengths",
    "MAX_TOKENS": "kvsim.workload.columns",
    "Numbered": "kvsim.workload.columns",
    "Poisson": "kvsim.workload.arrivals",
    "Ragged": "kvsim.workload.columns",
    "Request": "kvsim.workload.request",
    "SharedPrefix": "kvsim.workload.request",
    "SharedPrefixes": "kvsim.workload.synthetic",
    "Uniform": "kvsim.workload.lengths",
    "Varying": "kvsim.workload.varying",
    "Workload": "kvsim.workload.table",
    "WorkloadSummary": "kvsim.workload.table",
    "check_fits": "kvsim.workload.table",
    "generate": "kvsim.workload.synthetic",
}
"""The module that each name lives in."""

__all__ = [
    "LONGEST_S",
    "MAX_TOKENS",
    "AllAtOnce",
    "Arrivals",
    "Constant",
    "Empirical",
    "Fixed",
    "Gamma",
    "Lengths",
    "LogNormal",
    "Numbered",
    "Poisson",
    "Ragged",
    "Request",
    "SharedPrefix",
    "SharedPrefixes",
    "Uniform",
    "Varying",
    "Workload",
    "WorkloadSummary",
    "check_fits",
    "generate",
]

__getattr__ = names_of(__name__, _HOME)
