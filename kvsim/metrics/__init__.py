"""Measure a recording: the use of memory, the latencies of requests, and a summary of both.

All functions are pure and read the columns of a recording. They treat simulated and captured recordings alike.
"""

from kvsim.metrics.request_times import Distribution, Latencies, latencies, latency_origin
from kvsim.metrics.shares import PAPER_CLASSES, WasteShares, waste_shares
from kvsim.metrics.slot_account import Waste, means_between, time_mean, waste
from kvsim.metrics.summarize import summarize
from kvsim.metrics.summary import Summary
from kvsim.metrics.waiting import Limits, WaitingFor

__all__ = [
    "PAPER_CLASSES",
    "Distribution",
    "Latencies",
    "Limits",
    "Summary",
    "WaitingFor",
    "Waste",
    "WasteShares",
    "latencies",
    "latency_origin",
    "means_between",
    "summarize",
    "time_mean",
    "waste",
    "waste_shares",
]
