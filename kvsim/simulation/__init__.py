"""The discrete-event simulation: a workload, a policy and a machine in, a recording out. The only room that imports
SimPy.
"""

from kvsim.simulation.fleet import (
    Fleet,
    measure_apart,
    measure_replicas,
    names_apart,
    record_apart,
    record_replicas,
    simulate_apart,
    simulate_replicas,
)
from kvsim.simulation.machine import Machine
from kvsim.simulation.measured import Measured, Timeline
from kvsim.simulation.modes import EngineName
from kvsim.simulation.prefill_decode import Disaggregation
from kvsim.simulation.setup import Options, ProgressCallback
from kvsim.simulation.simulation_run import measure, record, simulate

__all__ = [
    "Disaggregation",
    "EngineName",
    "Fleet",
    "Machine",
    "Measured",
    "Options",
    "ProgressCallback",
    "Timeline",
    "measure",
    "measure_apart",
    "measure_replicas",
    "names_apart",
    "record",
    "record_apart",
    "record_replicas",
    "simulate",
    "simulate_apart",
    "simulate_replicas",
]
