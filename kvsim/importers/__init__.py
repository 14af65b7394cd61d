"""Readers that convert recorded and published requests to workloads.

Readers are strict: ambiguous input is an error that names the line. The names of this package are imported when they
are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.on_demand import by_name, names_of

if TYPE_CHECKING:
    from kvsim.importers.formats import FORMATS, detect, read_workload
    from kvsim.importers.rate_profile import read_profile
    from kvsim.importers.recordings import workload_of
    from kvsim.importers.select import LengthLimits, arriving, first, within
    from kvsim.importers.source import TextSource
    from kvsim.importers.workload_file import write_workload

_HOME = by_name({
    "kvsim.importers.formats": "FORMATS detect read_workload",
    "kvsim.importers.rate_profile": "read_profile",
    "kvsim.importers.recordings": "workload_of",
    "kvsim.importers.select": "LengthLimits arriving first within",
    "kvsim.importers.source": "TextSource",
    "kvsim.importers.workload_file": "write_workload",
})  # fmt: skip

__all__ = [
    "FORMATS",
    "LengthLimits",
    "TextSource",
    "arriving",
    "detect",
    "first",
    "read_profile",
    "read_workload",
    "within",
    "workload_of",
    "write_workload",
]

__getattr__ = names_of(__name__, _HOME)
