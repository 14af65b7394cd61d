"""The discrete-event simulation: it runs a workload under a policy on a machine, and returns a recording.

No other package of kvsim imports SimPy.
"""

from kvsim.simulation.fleet import (
    Fleet,
    Replicas,
    Servers,
    measure_fleet,
    record_fleet,
    simulate_fleet,
)
from kvsim.simulation.machine import Machine
from kvsim.simulation.measured import Measured
from kvsim.simulation.modes import EngineName
from kvsim.simulation.prefill_decode import Disaggregation
from kvsim.simulation.prefix_store import PrefixStore
from kvsim.simulation.setup import Options, ProgressCallback
from kvsim.simulation.simulation_run import measure, record, simulate

__all__ = [
    "Disaggregation",
    "EngineName",
    "Fleet",
    "Machine",
    "Measured",
    "Options",
    "PrefixStore",
    "ProgressCallback",
    "Replicas",
    "Servers",
    "measure",
    "measure_fleet",
    "record",
    "record_fleet",
    "simulate",
    "simulate_fleet",
]
