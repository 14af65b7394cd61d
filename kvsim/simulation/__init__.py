"""The discrete-event simulation: a workload, a policy and a machine in, a recording out. The only room that imports
SimPy.
"""

from kvsim.simulation.measured import Measured, Timeline
from kvsim.simulation.modes import EngineName
from kvsim.simulation.run import (
    Machine,
    Options,
    ProgressCallback,
    measure,
    measure_replicas,
    record,
    record_replicas,
    simulate,
)  # fmt: skip
from kvsim.simulation.sources import RouteName

__all__ = [
    "EngineName",
    "Machine",
    "Measured",
    "Options",
    "ProgressCallback",
    "RouteName",
    "Timeline",
    "measure",
    "measure_replicas",
    "record",
    "record_replicas",
    "simulate",
]
