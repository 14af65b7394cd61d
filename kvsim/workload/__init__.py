"""Requests for a server: when they arrive, and how many tokens they have.

A `Workload` is a table of requests. It is imported, read from a recording, or generated from an arrival process and two
distributions of lengths. This package does not depend on blocks, schedulers or clocks.

Every name is imported on first use, so that code that needs one name does not load the other modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.on_demand import by_name, names_of

if TYPE_CHECKING:
    from kvsim.workload.arrivals import AllAtOnce, Arrivals, Constant, Gamma, Poisson
    from kvsim.workload.columns import LONGEST_S, MAX_TOKENS, Numbered, Ragged
    from kvsim.workload.images import Image, ImageDistribution, Images, ImageSize
    from kvsim.workload.lengths import Empirical, Fixed, Lengths, LogNormal, Uniform
    from kvsim.workload.request import Request, SharedPrefix
    from kvsim.workload.sessions import Pauses, converse
    from kvsim.workload.synthetic import SharedPrefixes, generate
    from kvsim.workload.table import Workload, WorkloadSummary
    from kvsim.workload.turns import Turns
    from kvsim.workload.varying import Varying

_HOME = by_name({
    "kvsim.workload.arrivals": "AllAtOnce Arrivals Constant Gamma Poisson",
    "kvsim.workload.columns": "LONGEST_S MAX_TOKENS Numbered Ragged",
    "kvsim.workload.images": "Image Images ImageDistribution ImageSize",
    "kvsim.workload.lengths": "Empirical Fixed Lengths LogNormal Uniform",
    "kvsim.workload.request": "Request SharedPrefix",
    "kvsim.workload.sessions": "Pauses converse",
    "kvsim.workload.synthetic": "SharedPrefixes generate",
    "kvsim.workload.table": "Workload WorkloadSummary",
    "kvsim.workload.turns": "Turns",
    "kvsim.workload.varying": "Varying",
})  # fmt: skip

__all__ = [
    "LONGEST_S",
    "MAX_TOKENS",
    "AllAtOnce",
    "Arrivals",
    "Constant",
    "Empirical",
    "Fixed",
    "Gamma",
    "Image",
    "ImageDistribution",
    "ImageSize",
    "Images",
    "Lengths",
    "LogNormal",
    "Numbered",
    "Pauses",
    "Poisson",
    "Ragged",
    "Request",
    "SharedPrefix",
    "SharedPrefixes",
    "Turns",
    "Uniform",
    "Varying",
    "Workload",
    "WorkloadSummary",
    "converse",
    "generate",
]

__getattr__ = names_of(__name__, _HOME)
