"""Recorded and published request streams, as workloads. A reader is strict: what it cannot be sure of is an error
with a line.
"""

from kvsim.importers.formats import FORMATS, detect, read_workload
from kvsim.importers.parquet import write as write_workload
from kvsim.importers.rate_profile import read_profile
from kvsim.importers.recordings import workload_of
from kvsim.importers.select import Limits, arriving, first, within
from kvsim.importers.source import Source

__all__ = [
    "FORMATS",
    "Limits",
    "Source",
    "arriving",
    "detect",
    "first",
    "read_profile",
    "read_workload",
    "within",
    "workload_of",
    "write_workload",
]
