"""Recorded and published request streams, as workloads."""

from kvsim.importers.recordings import workload_of

__all__ = ["workload_of"]
