"""Read recorded and published request streams as workloads. A reader is strict: doubtful input is an error with a line.

Everything named here is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.on_demand import names_of

if TYPE_CHECKING:
    from kvsim.importers.formats import FORMATS, detect, read_workload
    from kvsim.importers.rate_profile import read_profile
    from kvsim.importers.recordings import workload_of
    from kvsim.importers.select import LengthLimits, arriving, first, within
    from kvsim.importers.source import TextSource
    from kvsim.importers.workload_file import write_workload

_HOME = {
    "FORMATS": "kvsim.importers.formats",
    "LengthLimits": "kvsim.importers.select",
    "TextSource": "kvsim.importers.source",
    "arriving": "kvsim.importers.select",
    "detect": "kvsim.importers.formats",
    "first": "kvsim.importers.select",
    "read_profile": "kvsim.importers.rate_profile",
    "read_workload": "kvsim.importers.formats",
    "within": "kvsim.importers.select",
    "workload_of": "kvsim.importers.recordings",
    "write_workload": "kvsim.importers.workload_file",
}
"""The module that each name lives in."""

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
