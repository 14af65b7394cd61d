"""The discrete-event simulation: a workload, a policy and a machine in, a recording out. The only room that imports
SimPy.
"""

from kvsim.simulation.measured import Measured, Timeline
from kvsim.simulation.modes import EngineName
from kvsim.simulation.run import (
    Fleet,
    Machine,
    Options,
    ProgressCallback,
    measure,
    measure_replicas,
    record,
    record_replicas,
    simulate,
    simulate_replicas,
)  # fmt: skip

__all__ = [
    "EngineName",
    "Fleet",
    "Machine",
    "Measured",
    "Options",
    "ProgressCallback",
    "Timeline",
    "measure",
    "measure_replicas",
    "record",
    "record_replicas",
    "simulate",
    "simulate_replicas",
]
