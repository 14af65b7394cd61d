"""The discrete-event simulation: a workload, a policy and a machine in, a recording out. The only room that imports
SimPy.
"""

from kvsim.simulation.fleet import Fleet, measure_replicas, record_replicas, simulate_replicas
from kvsim.simulation.machine import Machine
from kvsim.simulation.measured import Measured, Timeline
from kvsim.simulation.modes import EngineName
from kvsim.simulation.run import measure, record, simulate
from kvsim.simulation.setup import Options, ProgressCallback

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
