"""What is asked of a server: requests, when they arrive and how long they are.

A `Workload` is a table of requests, given (by an importer or a recording) or generated from an arrival process and two
length distributions. It knows nothing of blocks, schedulers or clocks.
"""

from kvsim.workload.arrivals import AllAtOnce, Arrivals, Constant, Gamma, Poisson
from kvsim.workload.columns import LONGEST_S, MAX_TOKENS, Numbered, Ragged
from kvsim.workload.lengths import Empirical, Fixed, Lengths, LogNormal, Uniform
from kvsim.workload.request import Request, SharedPrefix
from kvsim.workload.synthetic import SharedPrefixes, generate
from kvsim.workload.table import Workload, WorkloadSummary, check_fits
from kvsim.workload.varying import Varying

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
